"""Proves that zero.Init makes the same model as without it, in files that go with it; and that one
that no tier holds is loaded by from_pretrained, trained, saved, and loaded back, in memory that the
budgets, the program and its activations make up. ARTESIAN_SOAK=1: of 2 GB, with 512 MiB a tier.
"""

import contextlib
import json
import os
import pathlib

import hf
import limits
import pytest
import small_models
import torch
import transformers
from small_models import artesian
from torch import nn

from artesian import state, zero

SOAK = bool(os.environ.get("ARTESIAN_SOAK"))


def config_for(folder):
    offload = {"device": "nvme", "nvme_path": str(folder)}
    return {"zero_optimization": {"stage": 3, "offload_param": offload}}


class Net(nn.Module):
    """A model that does what constructors do: ties a weight, changes a child's weight, keeps a
    Parameter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4096, 128)
        nn.init.normal_(self.table.weight, std=0.02)
        self.head = nn.Linear(128, 4096, bias=False)
        self.head.weight = self.table.weight
        self.middle = nn.Linear(1024, 1024)
        self.middle.weight.data.mul_(2.0)
        kept = nn.Parameter(torch.randn(512, 1024))
        self.kept = kept
        with torch.no_grad():
            kept += 1.0
        self.small = nn.Parameter(torch.randn(3))
        self.inner = nn.Sequential(nn.Linear(1024, 512), nn.LayerNorm(512))


def test_a_model_is_the_same_and_in_files(tmp_path):
    torch.manual_seed(5)
    plain = Net()
    after = torch.rand(1)
    torch.manual_seed(5)
    with zero.Init(config_dict_or_path=config_for(tmp_path / "nvme")):
        model = Net()
    assert torch.equal(torch.rand(1), after)  # the generator has not advanced
    assert model.head.weight is model.table.weight
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert state.is_mapped(ours) == (ours.nbytes >= state.SMALL), name
        assert isinstance(ours, nn.Parameter) and ours.requires_grad
    assert not state.is_mapped(Net().table.weight)  # made outside of zero.Init
    assert list(tmp_path.iterdir()) == []  # the files have no names


def test_where_parameters_are_not_on_nvme_nothing_is_moved(tmp_path):
    configs = [None, {"train_batch_size": 1}, config_for(tmp_path)]
    configs[2]["zero_optimization"]["offload_param"]["device"] = "cpu"
    for config in configs:
        with zero.Init(config_dict_or_path=config):
            assert not state.is_mapped(Net().table.weight)
    with zero.Init(config_dict_or_path=config_for(tmp_path), enabled=False):
        assert not state.is_mapped(Net().table.weight)


def test_one_inside_another_an_exception_and_a_model_that_is_there(tmp_path):
    config = config_for(tmp_path)
    with pytest.raises(ZeroDivisionError):
        with zero.Init(config_dict_or_path=config), zero.Init(config_dict_or_path=config):
            assert state.is_mapped(Net().table.weight)
            raise ZeroDivisionError
    model = Net()
    before = model.kept.detach().clone()
    assert not state.is_mapped(model.kept)
    zero.Init(module=model, config_dict_or_path=config)
    assert state.is_mapped(model.kept) and torch.equal(model.kept, before)
    with torch.device("meta"), zero.Init(config_dict_or_path=config):
        assert Net().kept.is_meta


def test_wherever_a_model_is_made(tmp_path):
    config = config_for(tmp_path)
    trained = nn.Linear(4, 4)
    engine = artesian.initialize(model=trained, config=small_models.config_for(tmp_path))[0]

    class WithOneInside(nn.Module):
        def __init__(self):
            super().__init__()
            self.before = nn.Linear(1024, 512)
            with zero.Init(config_dict_or_path=config):
                self.inside = nn.Linear(1024, 512)
            self.after = nn.Linear(1024, 512)

    shape = transformers.LlamaConfig(**{**small_models.DECODER, "vocab_size": 16384})
    with zero.Init(config_dict_or_path=config):

        class MadeInIt(nn.Linear):
            pass

        alone = MadeInIt(1024, 512)
        of_hugging_face = transformers.AutoModelForCausalLM.from_config(shape)
    mixed = WithOneInside()
    assert [state.is_mapped(p) for p in mixed.parameters() if p.dim() == 2] == [False, True, False]
    assert state.is_mapped(alone.weight) and not state.is_mapped(MadeInIt(1024, 512).weight)
    assert state.is_mapped(of_hugging_face.lm_head.weight)
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.destroy()


def test_an_engine_takes_it_over(tmp_path):
    torch.manual_seed(1)
    with zero.Init(config_dict_or_path=config_for(tmp_path)):
        model = small_models.llama()
        model.more = nn.Linear(1024, 512)
    engine = artesian.initialize(model=model, config=small_models.config_for(tmp_path))[0]
    open_files = [os.readlink(path) for path in pathlib.Path("/proc/self/fd").iterdir()
                  if path.exists()]  # fmt: skip
    assert not [name for name in open_files if "artesian-export" in name]
    assert "artesian-export" not in pathlib.Path("/proc/self/maps").read_text()
    engine.backward(engine(**small_models.language(0)).loss)
    engine.step()
    engine.destroy()


MADE = """
import json, sys, torch, transformers
torch.manual_seed(2)
shape = json.loads(sys.argv[1])
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
model.save_pretrained("model", max_shard_size="200MB")
print(sum(p.numel() for p in model.parameters()))
"""

TRAINED = """
import json, sys, torch, transformers
from transformers import Trainer, TrainingArguments
import accelerate, deepspeed.comm
from peak_memory import PeakMemory, resident

memory = PeakMemory("import")
base = resident()
arguments = TrainingArguments(
    "out", deepspeed=sys.argv[1], max_steps=3, per_device_train_batch_size=1, learning_rate=2e-4,
    logging_steps=1, save_strategy="no", report_to=[], gradient_checkpointing=True)
memory.stage = "load"
model = transformers.LlamaForCausalLM.from_pretrained("model")
memory.stage = "train"
ids = torch.arange(128).expand(3, 128) + 3
data = [{"input_ids": row, "labels": row} for row in ids]
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
memory.stage = "save"
trainer.save_model("saved")
memory.end()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(json.dumps({"base": base, "peaks": memory.peaks, "losses": losses}))
"""

LOADED = """
import json, torch, transformers
model = transformers.LlamaForCausalLM.from_pretrained("saved")
ids = torch.arange(128)[None] + 3
with torch.no_grad():
    print(json.dumps(model(input_ids=ids, labels=ids).loss.item()))
"""

# (shape, MiB of each tier, MiB allowed beside the tiers and the process after its imports)
SMALL = ({"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}, 64, 64)
LARGE = ({"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16}, 512, 192)


@pytest.mark.parametrize("case", ["small", "large"])
def test_a_model_that_no_tier_holds_is_loaded_trained_and_saved(case, tmp_path):
    if case == "large" and not SOAK:
        pytest.skip("ARTESIAN_SOAK=1 asks for it")
    shape, tier, beside = LARGE if case == "large" else SMALL
    more = {"vocab_size": 32000 if case == "large" else 4096, "num_attention_heads": 8,
            "max_position_embeddings": 128}  # fmt: skip
    for name, script in (("made", MADE), ("trained", TRAINED), ("loaded", LOADED)):
        (tmp_path / f"{name}.py").write_text(script)
    config = json.loads((hf.EXAMPLES / "ds_config.json").read_text())
    config["zero_optimization"]["offload_param"]["max_in_cpu"] = 0
    config["artesian"] = {"device_memory": f"{tier}MiB", "host_memory": f"{tier}MiB"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = hf.run(tmp_path, "made.py", json.dumps({**shape, **more}), as_deepspeed=False)
    size = 4 * int(made.stdout.split()[-1]) / (1 << 20)
    assert size > 1.5 * tier
    with limits.control_group(1800 << 20) if case == "large" else contextlib.nullcontext() as enter:
        done = hf.run(tmp_path, "trained.py", "config.json", preexec_fn=enter)
    told = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({"model": size, "tier": tier, **told}))
    assert told["peaks"]["load"] - told["base"] < beside
    allowed = 2 * tier + beside
    assert max(told["peaks"].values()) - told["base"] < allowed
    assert told["losses"][-1] < told["losses"][0]
    loss = json.loads(hf.run(tmp_path, "loaded.py", as_deepspeed=False).stdout.splitlines()[-1])
    assert loss < told["losses"][0]


def test_a_parameter_is_read_into_a_tensor_of_any_dtype(tmp_path):
    model = nn.Sequential(nn.Linear(600, 600), nn.Linear(600, 600))
    engine = artesian.initialize(model=model, config=small_models.config_for(tmp_path))[0]
    weight = model[1].weight
    half = torch.empty(600, 600, dtype=torch.bfloat16)
    assert engine.full_parameter(weight, half) is half
    assert torch.equal(half, engine.full_parameter(weight).bfloat16())
    with pytest.raises(artesian.errors.InvalidError, match="read_state: got a tensor of shape"):
        engine.full_parameter(weight, half[:5])
    engine.destroy()


def test_a_folder_without_room_is_an_error_with_its_name(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    with limits.small_disk(small, "1M"), zero.Init(config_dict_or_path=config_for(small)):
        with pytest.raises(OSError, match=str(small)):
            nn.Linear(1000, 1000)
