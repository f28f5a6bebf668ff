"""Proves that an engine without anything to train evaluates and generates with plain PyTorch's
bits, from parameters in any tier; that it has no optimizer state; and that to train it is an error
that says so."""

import copy

import hf
import pytest
import small_models
import torch
import transformers
from small_models import artesian

from artesian import zero
from artesian.deepspeed import shim

PLACES = {"memory": 3, "nvme": 3, "resident": 0}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def config_at(place, folder, dtype):
    more = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    config = small_models.config_for(folder if place == "nvme" else None, **more)
    if place == "resident":
        config["zero_optimization"] = {"stage": 0}
    del config["optimizer"]
    return config


def store_as(dtype, model):
    """Converts parameters alone, not buffers, as from_pretrained does."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_logits_and_tokens_are_plain_pytorchs(place, dtype, tmp_path):
    plain, batch = small_models.make("llama_tied")
    store_as(DTYPES[dtype], plain.eval())
    model, _ = small_models.make("llama_tied")
    model.eval().requires_grad_(False)
    scheduler = {"type": "WarmupLR", "params": {}}
    config = {**config_at(place, tmp_path, dtype), "scheduler": scheduler}
    engine, optimizer, _, schedule = artesian.initialize(model=model, config=config)
    assert optimizer is None and schedule is None and engine.evaluates
    assert {p.dtype for p in model.parameters()} == {DTYPES[dtype]}
    with torch.no_grad():
        ours, expected = engine(**batch(0)), plain(**batch(0))
    assert ours.logits.dtype == DTYPES[dtype] and torch.equal(ours.logits, expected.logits)
    assert ours.loss.dtype == expected.loss.dtype and torch.equal(ours.loss, expected.loss)
    ids = batch(1)["input_ids"]
    how = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(engine.generate(ids, **how), plain.generate(ids, **how))
    engine(**batch(0))  # a training pass whose gradients nobody asks for
    if place == "nvme":
        size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        parameters = sum(p.numel() for p in model.parameters())
        assert size <= 2 * DTYPES[dtype].itemsize * parameters + (1 << 20)  # and no moments
    state = engine.consolidated_state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    with pytest.raises(artesian.errors.InvalidError, match="only evaluates"):
        engine.step()
    with pytest.raises(artesian.errors.InvalidError, match=r"backward\(loss\): this engine only"):
        engine.backward(engine(**batch(0)).loss)
    engine.destroy()
    assert torch.equal(model.lm_head.weight, plain.lm_head.weight)
    assert list(tmp_path.iterdir()) == []


def test_other_ways_to_ask_for_one(tmp_path):
    config = config_at("memory", tmp_path, "fp32")
    model, batch = small_models.make("llama")
    engine = artesian.init_inference(model, config)
    other, _ = small_models.make("llama")
    second, optimizer, _, _ = artesian.initialize(model=other, config=config, model_parameters=[])
    assert optimizer is None and not any(p.requires_grad for p in other.parameters())
    with torch.no_grad():
        assert engine(**batch(0)).loss == second(**batch(0)).loss
    engine.optimizer.zero_grad()
    assert engine.optimizer.state_dict() == {"state": {}, "param_groups": []}
    assert engine.optimizer.parameter_offload.module is model
    third, _ = small_models.make("llama")
    found = shim.initialize(model=third, config=config)  # the config names no optimizer
    assert found[1] is None and found[0].evaluates
    second.destroy()
    trained, optimizer, _, _ = artesian.initialize(model=other, config=config)
    assert optimizer is not None and all(p.requires_grad for p in other.parameters())
    trained.backward(trained(**batch(0)).loss)
    trained.step()
    named = small_models.config_for()
    assert shim.initialize(model=third, config=named)[1] is not None and found[0].is_closed


@pytest.mark.parametrize("rows", [1, 4])
def test_a_token_reads_what_the_plan_says_of_a_model_that_no_tier_holds(rows, tmp_path):
    shape = {**small_models.DECODER, "hidden_size": 256, "intermediate_size": 512}
    shape = transformers.LlamaConfig(**{**shape, "num_hidden_layers": 8})
    plain = transformers.LlamaForCausalLM(shape).eval()
    store_as(torch.bfloat16, plain)
    model = copy.deepcopy(plain)
    size = sum(2 * p.numel() for p in model.parameters())
    config = config_at("nvme", tmp_path, "bf16")
    config["artesian"] |= {"device_memory": size // 2, "host_memory": "4MiB"}
    engine = artesian.init_inference(model, config)
    ids = small_models.ids(0)[:1].repeat(rows, 1)
    tokens = plain.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    how = {"min_new_tokens": 6, "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(engine.generate(ids, **how), tokens)
    planned = engine.planned_pass()
    assert size * 0.5 < planned < size * 0.95  # the device tier keeps at least one layer
    largest = 2 * max(p.numel() for p in model.model.layers[0].parameters()) * 7
    before = engine.bytes_nvme_read
    engine.generate(ids, **how)
    assert engine.bytes_nvme_read - before == pytest.approx(6 * planned, abs=largest)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("place", PLACES)
def test_its_parameters_can_be_written(place, dtype, tmp_path):
    """As in loops whose reference model follows the policy."""
    plain, batch = small_models.make("llama_tied")
    store_as(DTYPES[dtype], plain.eval())
    model, _ = small_models.make("llama_tied")
    engine = artesian.init_inference(model.eval(), config_at(place, tmp_path, dtype))
    for step in range(2):
        for each in (plain, model):
            layer = each.model.layers[1]
            with torch.no_grad(), zero.GatheredParameters(layer.parameters(), modifier_rank=0):
                for parameter in layer.parameters():
                    parameter.data.mul_(0.75)
        with torch.no_grad():
            assert torch.equal(engine(**batch(step)).logits, plain(**batch(step)).logits)
    state = engine.consolidated_state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())


SPREAD = """
import sys, torch, transformers, artesian
config = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "."}},
          "artesian": {"device_memory": "8MiB", "host_memory": "8MiB", "engine": "threads"}}
transformers.set_seed(1)
plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)).eval()
plain.save_pretrained("saved")
places = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu",
          "lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
          "model.layers.2": "disk"}
model = transformers.AutoModelForCausalLM.from_pretrained(
    "saved", device_map=places, offload_folder="offload")
assert any(p.is_meta for p in model.parameters())
engine = artesian.init_inference(model, config)
assert model.lm_head.weight is model.model.embed_tokens.weight
ids = torch.arange(24).view(2, 12)
with torch.no_grad():
    assert torch.equal(engine(input_ids=ids).logits, plain(input_ids=ids).logits)
engine.destroy()
ours, theirs = (each.model.layers[2].mlp.up_proj.weight for each in (model, plain))
assert torch.equal(ours, theirs)
"""


def test_a_model_that_device_map_has_spread_is_taken(tmp_path):
    (tmp_path / "script.py").write_text(SPREAD)
    hf.run(tmp_path, "script.py", as_deepspeed=False)


def test_what_cannot_be_is_refused_with_what_to_do():
    model, _ = small_models.make("llama")
    model.is_loaded_in_8bit = True
    with pytest.raises(artesian.errors.UnsupportedError, match="quantized weights.*load_in_8bit"):
        artesian.init_inference(model, config_at("memory", None, "fp32"))
    assert all(p.requires_grad for p in model.parameters())


def log_likelihood(model, ids):
    logits = model(input_ids=ids).logits[:, :-1].float()
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))


def preference_losses(policy, reference, step):
    """Losses of direct preference optimization, computed as TRL's trainer does."""
    losses = []
    for index in range(4):
        chosen, rejected = small_models.ids(index), small_models.ids(index + 100)
        with torch.no_grad():
            base = log_likelihood(reference, chosen) - log_likelihood(reference, rejected)
        ours = log_likelihood(policy, chosen) - log_likelihood(policy, rejected)
        losses.append(-torch.nn.functional.logsigmoid(0.1 * (ours - base)).mean())
        step(losses[-1])
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("stage", [2, 3])
def test_two_engines_prefer_as_plain_pytorch_does(stage, tmp_path):
    """A policy that is trained and its reference model share one nvme_path."""
    policy, _ = small_models.make("llama_tied")
    reference, _ = small_models.make("llama_tied")
    optimizer = torch.optim.AdamW(policy.eval().parameters(), lr=1e-3, weight_decay=0.0)

    def plain_step(loss):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    expected = preference_losses(policy, reference.eval(), plain_step)
    policy, _ = small_models.make("llama_tied")
    config = small_models.config_for(tmp_path)
    if stage == 2:
        config["zero_optimization"] = {
            "stage": 2,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)},
        }
    engine = artesian.initialize(model=policy.eval(), config=config)[0]
    frozen = artesian.init_inference(reference, config_at("nvme", tmp_path, "fp32"))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["engine-2"]

    def step(loss):
        engine.backward(loss)
        engine.step()

    assert preference_losses(engine, frozen, step) == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == len(expected)
    engine.destroy()
    frozen.destroy()
    assert list(tmp_path.iterdir()) == []
