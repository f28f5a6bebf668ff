"""Makes gpt2_*.safetensors, llama_*.safetensors and those of Llama's relatives beside this file:
tiny models, one per variant of config.json, with a batch, its loss and all gradients as
transformers computes them in float64.

    python3 tests/models/reference/make_reference.py [FOLDER [KIND...]]

Needs torch, transformers and safetensors; made with torch 2.11.0 and transformers 5.23.0. The
weights are float32 values. A file holds "config" (config.json, a byte per element), "ids",
"targets", "loss", "weight.NAME" and "gradient.NAME", all as float32, which is all that our reader
needs to read.
"""

import copy
import json
import os
import pathlib
import sys

import numpy
import torch
from safetensors.numpy import save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "dev"))
from first_calls import make_first_calls  # noqa: E402

BASE = {
    "model_type": "gpt2",
    "vocab_size": 19,
    "n_positions": 12,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}

# name: (changes of the config, samples, length)
VARIANTS = {
    "plain": ({}, 1, 7),
    "batch": ({}, 3, 12),
    "untied": ({"tie_word_embeddings": False}, 2, 9),
    "gelu": ({"activation_function": "gelu"}, 2, 8),
    "relu": ({"activation_function": "relu"}, 2, 8),
    "silu": ({"activation_function": "silu"}, 2, 8),
    "tanh": ({"activation_function": "tanh"}, 2, 8),
    "gelu_pytorch_tanh": ({"activation_function": "gelu_pytorch_tanh"}, 1, 8),
    "quick_gelu": ({"activation_function": "quick_gelu"}, 1, 8),
    "mish": ({"activation_function": "mish"}, 1, 8),
    "relu2": ({"activation_function": "relu2"}, 1, 8),
    "leaky_relu": ({"activation_function": "leaky_relu"}, 1, 8),
    "linear": ({"activation_function": "linear"}, 1, 8),
    "inner": ({"n_inner": 20}, 2, 8),
    "epsilon": ({"layer_norm_epsilon": 0.05}, 2, 8),
    "unscaled": ({"scale_attn_weights": False}, 2, 8),
    "inverse_layer": ({"scale_attn_by_inverse_layer_idx": True, "n_layer": 3}, 2, 8),
    "upcast": ({"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}, 2, 8),
    "one_head": ({"n_head": 1, "n_layer": 1}, 1, 12),
    "one_token": ({"n_head": 8}, 4, 1),
}


LLAMA = {
    "model_type": "llama",
    "vocab_size": 19,
    "max_position_embeddings": 12,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
FEW = {"original_max_position_embeddings": 4}
ONE = {"num_hidden_layers": 1}  # enough where the angles are what is compared


def rope(rope_type, **values):
    return ONE | {"rope_parameters": {"rope_type": rope_type, "rope_theta": 70.0} | values}


LLAMA_VARIANTS = {
    "plain": ({}, 1, 7),
    "batch": ({}, 3, 12),
    "tied": ({"tie_word_embeddings": True}, 2, 9),
    "grouped": (GROUPED, 2, 8),
    "one_key_head": ({"num_attention_heads": 4, "num_key_value_heads": 1}, 2, 8),
    "biases": (GROUPED | {"attention_bias": True, "mlp_bias": True}, 2, 8),
    "epsilon": ({"rms_norm_eps": 0.05}, 2, 8),
    "gelu": ({"hidden_act": "gelu"}, 1, 8),
    "padding": ({"pad_token_id": 3}, 2, 12),
    "padding_tied": ({"pad_token_id": -1, "tie_word_embeddings": True}, 2, 12),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 300.0}, 2, 8),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 1, 20),
    "llama3": (
        {"rope_parameters": FEW | {"rope_type": "llama3", "rope_theta": 50.0, "factor": 4.0,
                                   "low_freq_factor": 0.5, "high_freq_factor": 3.0}},
        2, 8,
    ),
    "yarn": ({"rope_parameters": FEW | {"rope_type": "yarn", "factor": 4.0}}, 2, 12),
    "longrope": ({"rope_scaling": FEW | FACTORS | {"rope_type": "longrope"}}, 2, 12),
    "linear_parameters": (rope("linear", factor=2.5), 1, 8),
    "dynamic_parameters": (rope("dynamic", factor=2.0), 1, 20),
    "longrope_parameters": (rope("longrope", **FEW, **FACTORS), 1, 12),
    "longrope_top_level": (rope("longrope", **FACTORS) | FEW, 1, 12),
    "longrope_attention": (rope("longrope", **FEW, **FACTORS, attention_factor=1.4), 1, 12),
    "yarn_top_level": (rope("yarn", factor=3.0) | FEW, 1, 12),
    "yarn_attention": (rope("yarn", **FEW, factor=4.0, attention_factor=1.3), 1, 12),
    "yarn_mscale": (rope("yarn", **FEW, factor=4.0, mscale=0.9, mscale_all_dim=0.4), 1, 12),
    "yarn_beta": (rope("yarn", **FEW, factor=4.0, beta_fast=9.0, beta_slow=0.5), 1, 12),
    "yarn_not_truncated": (rope("yarn", **FEW, factor=4.0, truncate=False), 1, 12),
    "yarn_null_factor": (rope("yarn", **FEW, factor=None), 1, 12),
    "relu2": (ONE | {"hidden_act": "relu2"}, 1, 8),
    "gelu_tanh": (ONE | {"hidden_act": "gelu_pytorch_tanh"}, 1, 8),
}  # fmt: skip


# Of relatives: what they have beside Llama, and what they read otherwise. A window as long as the
# sequence changes nothing, which is what is shown: longer ones are refused.
RELATIVE = LLAMA | {"num_key_value_heads": 2}
SHARED = {
    "plain": ({}, 2, 9),
    "grouped": (GROUPED, 2, 8),
    "tied": ({"tie_word_embeddings": True}, 2, 9),
    "theta": ({"rope_theta": 300.0, "rms_norm_eps": 0.05}, 2, 8),
}
MISTRAL_VARIANTS = SHARED | {
    "window": ({"sliding_window": 8}, 2, 8),
    "no_window": ({"sliding_window": None}, 1, 12),
    "padding": ({"pad_token_id": 3}, 2, 12),
    "linear": (rope("linear", factor=2.5), 1, 8),
}
QWEN2_VARIANTS = SHARED | {
    "unused_window": ({"sliding_window": 4, "use_sliding_window": False}, 2, 9),
    "window": ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, 2, 8),
    "window_above": ({"sliding_window": 4, "use_sliding_window": True}, 1, 12),
    "layer_types": ({"layer_types": ["full_attention", "full_attention"]}, 1, 8),
    "yarn": (rope("yarn", **FEW, factor=4.0), 1, 12),
}
QWEN3_VARIANTS = SHARED | {
    "own_head": ({"head_dim": 4}, 2, 9),
    "biases": (GROUPED | {"attention_bias": True}, 2, 8),
    "window": (
        {"sliding_window": 8, "use_sliding_window": True,
         "layer_types": ["full_attention", "sliding_attention"]}, 2, 8,
    ),
    "yarn": (rope("yarn", **FEW, factor=4.0), 1, 12),
}  # fmt: skip
PHI3 = RELATIVE | {"pad_token_id": None}
PHI3_VARIANTS = SHARED | {
    "grouped": ({"num_attention_heads": 4, "num_key_value_heads": 2}, 2, 8),
    "padding": ({"pad_token_id": 3}, 2, 12),
    "window": ({"sliding_window": 8}, 2, 8),
    "longrope": (FEW | {"rope_scaling": FACTORS | {"type": "longrope"}}, 1, 12),
    "su": (FEW | {"rope_scaling": FEW | FACTORS | {"type": "su"}}, 1, 12),
    "gelu": ({"hidden_act": "gelu"}, 1, 8),
}
RELATIVES = {
    "mistral": (MistralConfig, MistralForCausalLM, RELATIVE, MISTRAL_VARIANTS),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, RELATIVE, QWEN2_VARIANTS),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, RELATIVE | {"head_dim": 6}, QWEN3_VARIANTS),
    "phi3": (Phi3Config, Phi3ForCausalLM, PHI3, PHI3_VARIANTS),
}


def short_name(name):
    return name.removeprefix("transformer.").removeprefix("model.")


def make_model(config):
    attention = "eager" if config.get("reorder_and_upcast_attn") else "sdpa"
    own = copy.deepcopy(config)  # LlamaConfig writes into the dictionaries that it is given
    if config["model_type"] in RELATIVES:
        kind, model, _, _ = RELATIVES[config["model_type"]]
        return model(kind(**own, attn_implementation="eager"))
    if config["model_type"] == "llama":
        return LlamaForCausalLM(LlamaConfig(**own, attn_implementation=attention))
    return GPT2LMHeadModel(GPT2Config(**own, attn_implementation=attention))


def make(seed, config, samples, length):
    torch.manual_seed(seed)
    model = make_model(config)
    tensors = {"config": numpy.array(list(json.dumps(config).encode()))}
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that every path matters
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
        for parameter_name, parameter in model.named_parameters():
            norm = ".ln_" in parameter_name or "norm" in parameter_name
            if norm and parameter_name.endswith("weight"):
                parameter.add_(1.0)
            tensors["weight." + short_name(parameter_name)] = parameter.numpy().copy()
    if not config.get("reorder_and_upcast_attn"):  # that path insists on float32
        model = model.double()
    ids = torch.randint(config["vocab_size"], (samples, length))
    targets = torch.randint(config["vocab_size"], (samples, length))
    logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), targets.flatten())
    loss.backward()
    tensors |= {"ids": ids.numpy(), "targets": targets.numpy()}
    tensors["loss"] = loss.detach().numpy().reshape(1)
    for parameter_name, parameter in model.named_parameters():
        tensors["gradient." + short_name(parameter_name)] = parameter.grad.numpy()
    return {key: value.astype(numpy.float32) for key, value in tensors.items()}


def main():
    make_first_calls()
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    kinds = [("gpt2", BASE, VARIANTS), ("llama", LLAMA, LLAMA_VARIANTS)]
    for kind, (_, _, base, variants) in RELATIVES.items():
        kinds.append((kind, base | {"model_type": kind}, variants))
    wanted = sys.argv[2:]
    for kind, base, variants in kinds:
        if wanted and kind not in wanted:
            continue
        for seed, (name, (changes, samples, length)) in enumerate(variants.items()):
            tensors = make(seed, {**base, **changes}, samples, length)
            save_file(tensors, os.path.join(folder, f"{kind}_{name}.safetensors"))


if __name__ == "__main__":
    main()
