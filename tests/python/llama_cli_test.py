"""Proves at the command line that a Llama directory is taken as transformers writes it, in one file
or in shards; that its weights are matched by name; and that what is not implemented is refused
before the first step in one line, with exit code 2."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import numbers_test as gpt2  # noqa: E402

pytestmark = gpt2.pytestmark

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip

TOKENS = b"".join((7 * i % 512).to_bytes(2, "little") for i in range(2000))


def write_model(folder, changes=None, **saving):
    """Writes a model directory; without `saving` it has no weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | (changes or {})))
    if saving:
        torch.manual_seed(5)
        model = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(folder))
        model.save_pretrained(folder, **saving)


def train(tmp_path, model, *flags):
    (tmp_path / "tokens.bin").write_bytes(TOKENS)
    config = gpt2.make_config(tmp_path)
    return gpt2.artesian((tmp_path, None), tmp_path, config, *flags, model=model, steps=2)


def test_shards_and_one_file_are_the_same_weights(tmp_path):
    digests = {}
    for name, size in [("one", "5GB"), ("shards", "20KB")]:
        write_model(tmp_path / name, max_shard_size=size)
        done, steps = train(tmp_path, name, "--save", tmp_path / f"{name}-saved")
        assert done.returncode == 0, done.stderr
        digests[name] = steps[-1]["digest"]
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    assert digests["one"] == digests["shards"]


def test_weights_that_do_not_fit_the_config_are_named(tmp_path):
    write_model(tmp_path / "model", max_shard_size="5GB")
    wrong = CONFIG | {"attention_bias": True, "intermediate_size": 40, "tie_word_embeddings": True}
    (tmp_path / "model" / "config.json").write_text(json.dumps(wrong))
    done, _ = train(tmp_path, "model")
    lines = [line for line in done.stderr.splitlines() if line.startswith("artesian: error: ")]
    assert (done.returncode, len(lines)) == (2, 2), done.stderr
    assert "missing: layers.0.self_attn.q_proj.bias" in lines[0]
    assert "layers.0.mlp.gate_proj.weight (got [48, 32], allowed [40, 32])" in lines[1]


REFUSED = {
    "proportional": (
        {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 1.0}},
        "rope_parameters.rope_type: got \"proportional\", allowed default, ",
        "not supported yet: rope_type proportional",
    ),
    "su": (
        {"rope_scaling": {"type": "su", "factor": 2.0}},
        "rope_scaling.type: got \"su\", allowed default, ",
        "not supported yet: rope_type su",
    ),
    "partial": (
        {"partial_rotary_factor": 0.5},
        "partial_rotary_factor: got 0.5, allowed null or 1.0",
        "not supported yet: partial_rotary_factor",
    ),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config: got {\"bits\":4}",
                  "not supported yet: quantization_config"),
    "activation": ({"hidden_act": "xielu"}, "hidden_act: got \"xielu\", allowed gelu_new, ",
                   "not supported yet: hidden_act xielu"),
    "groups": ({"num_key_value_heads": 3}, "num_key_value_heads: got 3, allowed a divisor", ""),
    "odd": ({"head_dim": 5}, "head_dim: got 5, allowed an even number", ""),
    "padding": ({"pad_token_id": 512}, "pad_token_id: got 512, allowed an integer from -512", ""),
    "other": ({"model_type": "gemma"}, "model_type: got \"gemma\", allowed \"gpt2\", \"llama\", ",
              "not supported yet: model_type \"gemma\""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_implemented_is_refused_by_name(tmp_path, name):
    changes, text, end = REFUSED[name]
    write_model(tmp_path / "model", changes)
    done, steps = train(tmp_path, "model")
    assert (done.returncode, done.stdout, steps) == (2, "", [])
    lines = [line for line in done.stderr.splitlines() if line.startswith("artesian: error: ")]
    assert len(lines) == 1, done.stderr
    path = tmp_path / "model" / "config.json"
    assert lines[0].startswith(f"artesian: error: --model: model config: {path}: {text}")
    assert lines[0].endswith(end)


def test_a_sequence_may_be_as_long_as_the_scaling_stretches_it(tmp_path):
    write_model(tmp_path / "plain")
    write_model(tmp_path / "scaled", {"rope_scaling": {"type": "linear", "factor": 1.5}})
    for model, length, code in [("plain", 65, 2), ("scaled", 96, 0), ("scaled", 97, 2)]:
        (tmp_path / "tokens.bin").write_bytes(TOKENS)
        config = gpt2.make_config(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        words = ["train", "--model", tmp_path / model, "--data", tmp_path / "tokens.bin"]
        words += ["--config", tmp_path / "config.json", "--seq-len", length, "--steps", 1]
        done = gpt2.subprocess.run(
            [gpt2.PROGRAM, *map(str, words)], capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        if code == 2:
            allowed = 96 if model == "scaled" else 64
            assert f"--seq-len: got {length}, allowed 1 to {allowed}" in done.stderr
