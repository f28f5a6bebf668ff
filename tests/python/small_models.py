"""Small models of Hugging Face's architectures, with a batch for each, and the package under test.

Everything is made on the spot: no weights are downloaded. Dropout stays on, so that a hook that
draws from the generator shows in the bits.
"""

import functools
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

from build_folder import BUILD, ROOT  # noqa: E402

sys.path.insert(0, str(BUILD / "python"))

import torch  # noqa: E402
import transformers  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import artesian  # noqa: E402

transformers.logging.set_verbosity_error()

VOCABULARY = 96
TEXT = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODER = {
    **TEXT,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ENCODER = {key: value for key, value in DECODER.items() if key != "num_key_value_heads"}


def ids(seed, length=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (2, length), generator=generator)


def language(seed):
    return {"input_ids": ids(seed), "labels": ids(seed)}


def noise(seed, *shape):
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed))


def pixels(seed):
    return noise(seed, 3, 16, 16)


def pictures(seed):
    return {"pixel_values": pixels(seed), "labels": torch.tensor([0, 1])}


def pairs(seed):
    return {"input_ids": ids(seed), "pixel_values": pixels(seed), "return_loss": True}


def gpt2(**more):
    config = {**TEXT, "n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 64, **more}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def llama(**more):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER, **more))


def mixtral():
    config = transformers.MixtralConfig(
        **DECODER, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True
    )
    return transformers.MixtralForCausalLM(config)


def gemma2():
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**DECODER, head_dim=8))


def gpt_neox():
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**ENCODER))


def mamba():
    config = transformers.MambaConfig(
        **TEXT, hidden_size=32, num_hidden_layers=3, state_size=4, use_mambapy=False
    )
    return transformers.MambaForCausalLM(config)


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(**ENCODER))


def albert():
    config = transformers.AlbertConfig(**ENCODER, embedding_size=16)
    return transformers.AlbertForMaskedLM(config)


def deberta():
    config = transformers.DebertaV2Config(
        **ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
    )
    return transformers.DebertaV2ForSequenceClassification(config)


def classes(seed):
    return {"input_ids": ids(seed), "labels": torch.tensor([0, 1])}


def t5():
    config = transformers.T5Config(
        **TEXT, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def bart():
    config = transformers.BartConfig(
        **TEXT,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=64,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return transformers.BartForConditionalGeneration(config)


VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**VISION, num_labels=2))


def clip():
    text = {**ENCODER, "num_hidden_layers": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    return transformers.CLIPModel(config)


def siglip():
    text = {**ENCODER, "num_hidden_layers": 2, "projection_size": 32}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    return transformers.SiglipModel(config)


def whisper():
    config = transformers.WhisperConfig(
        **TEXT,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        num_mel_bins=8,
        max_source_positions=8,
        max_target_positions=16,
        decoder_start_token_id=1,
        dropout=0.1,
    )
    return transformers.WhisperForConditionalGeneration(config)


def spectra(seed):
    return {"input_features": noise(seed, 8, 16), "labels": ids(seed)}


def wav2vec2():
    """It leaves layers out at random, and puts a parameter of its own in place of what it masks."""
    config = transformers.Wav2Vec2Config(
        **ENCODER,
        conv_dim=(16, 16),
        conv_kernel=(10, 3),
        conv_stride=(5, 2),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_prob=0.3,
        mask_time_length=2,
        layerdrop=0.2,
    )
    return transformers.Wav2Vec2ForCTC(config)


def sounds(seed):
    return {"input_values": noise(seed, 200), "labels": ids(seed, 4)}


class LstmWithAttention(torch.nn.Module):
    """A model without anybody's library, whose attention reads a parameter of a module that it
    does not call."""

    supports_gradient_checkpointing = True

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 32)
        self.lstm = torch.nn.LSTM(32, 32, 2, batch_first=True, dropout=0.1)
        self.attention = torch.nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.norm = torch.nn.LayerNorm(32)
        self.head = torch.nn.Linear(32, VOCABULARY)
        self.call = lambda module, *inputs: module(*inputs)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs):
        self.call = functools.partial(checkpoint, **gradient_checkpointing_kwargs)

    def forward(self, input_ids, labels):
        hidden = self.call(self.lstm, self.embed(input_ids))[0]
        hidden = hidden + self.call(self.attention, hidden, hidden, hidden)[0]
        logits = self.head(self.norm(hidden))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return transformers.modeling_outputs.CausalLMOutput(loss=loss, logits=logits)


MODELS = {
    "gpt2": (gpt2, language),
    "llama": (llama, language),
    "llama_tied": (lambda: llama(tie_word_embeddings=True), language),
    "mixtral": (mixtral, language),
    "gemma2": (gemma2, language),
    "gpt_neox": (gpt_neox, language),
    "mamba": (mamba, language),
    "bert": (bert, classes),
    "albert": (albert, language),
    "deberta": (deberta, classes),
    "t5": (t5, language),
    "bart": (bart, language),
    "vit": (vit, pictures),
    "clip": (clip, pairs),
    "siglip": (siglip, pairs),
    "whisper": (whisper, spectra),
    "wav2vec2": (wav2vec2, sounds),
    "lstm": (LstmWithAttention, language),
}


class Stack(torch.nn.Module):
    """Blocks, and a number above them: a model without anybody's library."""

    def __init__(self, blocks=3, wide=8):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(wide, wide) for _ in range(blocks))
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return (x * self.scale).square().sum()


def stack(**more):
    """A Stack, the same each time, and a function that makes its batches."""
    torch.manual_seed(1)
    return Stack(**more), lambda seed: torch.arange(16.0).view(2, 8) / 20 + 0.1 * seed


def start(model, folder=None, threshold=1, **more):
    """An engine, whose parameters above the threshold are gathered when they are used."""
    config = config_for(folder, **more)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = threshold
    return artesian.initialize(model=model, config=config)[0]


def make(name):
    """The model, the same each time, and the function that makes its batches."""
    build, batch = MODELS[name]
    torch.manual_seed(1)
    return build().train(), batch


def config_for(folder=None, *, device_memory="256MiB", host_memory="256MiB", **more):
    """A config with the state in memory, or, where a folder is given, on NVMe."""
    offload = {"device": "nvme", "nvme_path": str(folder)} if folder else {"device": "none"}
    settings = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.0}},
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 64,
            "offload_param": {**offload, **({"max_in_cpu": 0} if folder else {})},
            "offload_optimizer": offload,
        },
        "artesian": {
            "device_memory": device_memory,
            "host_memory": host_memory,
            "engine": "threads",
        },
    }
    settings.update(more)
    return settings


def largest_units(model):
    """Bytes, in fp32, of the units, the largest first."""
    plan = artesian.units.make_plan(model)
    sizes = [sum(plan.parameters[name].numel() for name in u.parameters) for u in plan.units]
    return sorted((4 * size for size in sizes), reverse=True)


def engine_on_nvme(model, folder, units_at_once=1, **more):
    """An engine with all state on NVMe and the least budgets that are accepted: on the device for
    so many of the largest units at once."""
    largest = largest_units(model)
    device = sum(largest[:units_at_once])
    host = 4 * sum(largest)
    for _ in range(40):
        config = config_for(folder, device_memory=int(device), host_memory=int(host), **more)
        try:
            return artesian.initialize(model=model, config=config)[0]
        except artesian.errors.ExhaustedError as error:
            if "device_memory" in str(error):
                device *= 1.1
            else:
                host *= 1.1
    raise AssertionError("no budget is enough")


def step_of_both(engine, plain, optimizer, loss_of):
    """The same step of an engine and of plain PyTorch; the losses, as numbers, of both."""
    loss = loss_of(engine)
    engine.backward(loss)
    engine.step()
    expected = loss_of(plain)
    expected.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item(), expected.item()
