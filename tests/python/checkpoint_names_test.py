"""Proves that exports of an `artesian train` checkpoint have the names of transformers:
zero_to_fp32's weights, a DCP export and a universal checkpoint load strictly; and that a training
resumes from a checkpoint with these names to the same bits."""

import json
import os

import pytest
from train_checkpoints_test import config_of, words
from train_cli_test import place, pytestmark  # noqa: F401

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch.distributed.checkpoint as dcp  # noqa: E402

from artesian.checkpoint import export_dcp, export_universal, import_dcp, zero_to_fp32  # noqa: E402

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
MODELS = ["gpt2", "llama", "tied llama"]


@pytest.fixture
def saved(place, request):  # noqa: F811
    """A checkpoint of step 3 of this model, and the model that transformers makes."""
    if "llama" in request.param:
        tied = {"tie_word_embeddings": True} if "tied" in request.param else {}
        (place.model / "config.json").write_text(json.dumps(LLAMA | tied))
    flags = {"config": config_of(place, "fp32"), **words(place, 3)}
    result = place.run("--quiet", "--init", **flags)
    assert result.returncode == 0, result.stderr
    config = transformers.AutoConfig.from_pretrained(place.model)
    return place.folder / "saved", transformers.AutoModelForCausalLM.from_config(config)


def same_logits(left, right):
    ids = torch.arange(20).reshape(1, 20)
    with torch.no_grad():
        return torch.equal(left.eval()(ids).logits, right.eval()(ids).logits)


@pytest.mark.parametrize("saved", MODELS, indirect=True)
def test_item_6_exports_have_the_names_of_transformers(saved, tmp_path):
    folder, model = saved
    assert zero_to_fp32.main([str(folder), str(tmp_path / "fp32")]) == 0
    weights = torch.load(tmp_path / "fp32/pytorch_model.bin", weights_only=True)
    model.load_state_dict(weights, strict=True)
    other = transformers.AutoModelForCausalLM.from_config(model.config)
    assert export_dcp.main([str(folder), str(tmp_path / "dcp")]) == 0
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    other.load_state_dict(state["model"], strict=True)
    assert same_logits(model, other)
    assert export_universal.main([str(folder), str(tmp_path / "universal")]) == 0
    names = set(os.listdir(tmp_path / "universal/global_step3/zero")) - {"optimizer_state.pt"}
    assert names == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("saved", ["gpt2", "llama"], indirect=True)
def test_item_6_a_checkpoint_with_these_names_is_gone_on_from(saved, place, tmp_path):  # noqa: F811
    folder, _ = saved
    assert export_dcp.main([str(folder), str(tmp_path / "dcp")]) == 0
    assert import_dcp.main([str(tmp_path / "dcp"), str(tmp_path / "back")]) == 0
    ends = []
    for source, log in [(folder, "a"), (tmp_path / "back", "b")]:
        path = place.folder / f"{log}.jsonl"
        result = place.run("--quiet", f"--resume={source}", config=config_of(place, "fp32"),
                           data_position=3, steps=5, log_jsonl=path, seq_len=8)  # fmt: skip
        assert result.returncode == 0, result.stderr
        ends.append(json.loads(path.read_text().splitlines()[-1])["digest"])
    assert ends[0] == ends[1]
