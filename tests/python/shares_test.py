"""Proves that zero.Init leaves each rank a share of each parameter, of rank 0's values, and that
from_pretrained, Trainer and its save get along with that: what two ranks have loaded, trained and
saved has the bits of one process. (More models: ranks_python_test.py.)"""

import json

import hf
import pytest
from ranks_python_test import TESTS, torchrun

from artesian import state

MADE = """
import sys, artesian, torch
sys.path.insert(0, sys.argv[2])
import ranks_worker, small_models
from artesian import shares, zero
rank, ranks = ranks_worker.join()
said = ranks_worker.Said()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(1024, 32)
        self.head = torch.nn.Linear(32, 1024, bias=False)
        self.head.weight = self.table.weight
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 33) for _ in range(4))
        self.odd = torch.nn.Parameter(torch.randn(3))
        with torch.no_grad():
            for layer in self.layers:  # all but the last are divided by now
                layer.weight[0].fill_(7.0)
                layer.bias.data.mul_(2.0)

config = small_models.config_for()
config["zero_optimization"] = {"stage": 3}
torch.manual_seed(3 + rank)
plain = Net()
after = torch.rand(1)
torch.manual_seed(3 + rank)
with zero.Init(config_dict_or_path=config):
    model = Net()
assert torch.equal(torch.rand(1), after)  # each rank draws as without it
values = [p.detach().clone() for p in plain.parameters()]
for each in values:
    torch.distributed.broadcast(each, 0)
parameters = list(model.parameters())
assert len(parameters) == len(values) and model.head.weight is model.table.weight
said["held"] = sum(shares.share_of(p).values.numel() for p in parameters)
said["all"] = sum(p.numel() for p in parameters)
said.refused("read", lambda: model.table.weight.sum())
with zero.GatheredParameters(parameters):
    assert all(map(torch.equal, parameters, values))
with zero.GatheredParameters(model.odd, modifier_rank=1):
    if rank == 1:
        model.odd.data.fill_(5.0)
with zero.GatheredParameters(model.odd):
    assert model.odd.tolist() == [5.0] * 3
alone = torch.distributed.new_group([rank], use_local_synchronization=True)
said.refused("other", lambda: artesian.initialize(model=model, config=config, process_group=alone))
some = Net() if rank == 0 else model
said.refused("some", lambda: artesian.initialize(model=some, config=config))
zero.Init(module=plain, config_dict_or_path=config)
assert all(shares.share_of(p) is not None for p in plain.parameters())
engine = artesian.initialize(model=model, config=config)[0]
for parameter, value in zip(parameters, values):
    if parameter is not model.odd:
        assert torch.equal(engine.full_parameter(parameter), value)
assert engine.full_parameter(model.odd).tolist() == [5.0] * 3
assert all(shares.share_of(p) is None for p in parameters)
said.write(sys.argv[1])
torch.distributed.barrier()
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_keeps_a_share_of_rank_0s_values(ranks, tmp_path):
    (tmp_path / "made.py").write_text(MADE)
    torchrun(tmp_path, ranks, tmp_path / "made.py", tmp_path, TESTS)
    said = [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in range(ranks)]
    assert sum(each["held"] for each in said) == said[0]["all"]
    for each in said:
        assert each["held"] <= each["all"] / ranks + 12
        assert each["read"].startswith("zero.Init has divided this parameter among the ranks")
        assert f"among {ranks} ranks, and the engine has 1" in each["other"]
        assert "on some of them only" in each["some"]


WRITTEN = """
import sys, torch, transformers
sys.path.insert(0, sys.argv[1])
import small_models
torch.manual_seed(2)
shape = transformers.LlamaConfig(**{**small_models.DECODER, "vocab_size": 4096})
transformers.LlamaForCausalLM(shape).save_pretrained("model", max_shard_size="200KB")
"""

TRAINED = """
import json, sys, torch, transformers
import accelerate, deepspeed
from artesian import shares
shares.WHOLE_AT_ONCE = 1 << 10
accumulation, out = sys.argv[1:]
arguments = transformers.TrainingArguments(
    out, deepspeed="config.json", max_steps=3, per_device_train_batch_size=1, learning_rate=1e-3,
    gradient_accumulation_steps=int(accumulation), save_strategy="no", report_to=[], seed=3)
model = transformers.LlamaForCausalLM.from_pretrained("model")
all_of_them = list(model.parameters())
held = [share.values.numel() for p in all_of_them if (share := shares.share_of(p)) is not None]
ids = torch.randint(0, 90, (24, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in ids]
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
trainer.save_model(out + "/saved")
trainer.model_wrapped.save_16bit_model(out + "/whole")
result = {"digest": trainer.model_wrapped.digest(), "held": sum(held), "shares": len(held),
          "parameters": len(all_of_them), "all": sum(p.numel() for p in all_of_them)}
json.dump(result, open(f"{out}/result{arguments.process_index}.json", "w"))
"""


@pytest.mark.parametrize("optimizer", ["cpu", "nvme"])
def test_a_model_is_loaded_trained_and_saved_in_shares(optimizer, tmp_path):
    (tmp_path / "written.py").write_text(WRITTEN)
    (tmp_path / "trained.py").write_text(TRAINED)
    hf.run(tmp_path, "written.py", TESTS, as_deepspeed=False)
    (tmp_path / "config.json").write_text(json.dumps({
        "zero_optimization": {
            "stage": 3,
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": optimizer, "nvme_path": "state"},
            "offload_param": {"device": "cpu"},
        },
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "artesian": {"device_memory": "32MiB", "host_memory": "32MiB", "engine": "threads"},
    }))  # fmt: skip
    hf.run(tmp_path, "trained.py", "2", "one", as_deepspeed=True)
    torchrun(tmp_path, 2, "trained.py", "1", "two", as_deepspeed=True)
    one = json.loads((tmp_path / "one" / "result0.json").read_text())
    two = [json.loads((tmp_path / "two" / f"result{r}.json").read_text()) for r in (0, 1)]
    assert one["shares"] == 0
    for each in two:
        assert each["shares"] == each["parameters"]
        assert abs(each["held"] - each["all"] / 2) <= each["parameters"]
        assert each["digest"] == one["digest"]
    for name in ("saved/model.safetensors", "whole/pytorch_model.bin"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()

SAVED = """
import logging, sys, tempfile, artesian, torch
sys.path.insert(0, sys.argv[2])
import ranks_worker, small_models
from artesian import shares, state, zero
from peak_memory import resident
rank, ranks = ranks_worker.join()
said = ranks_worker.Said()
lines = []
logging.getLogger("artesian").handle = lambda record: lines.append(record.getMessage())

torch.manual_seed(3)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(12)))
model[0].requires_grad_(False)
config = small_models.config_for()
config["zero_optimization"] = {"stage": 3}
engine = artesian.initialize(model=model, config=config)[0]
engine.backward(engine(torch.ones(1, 1024)).sum())
engine.step()

tempfile.tempdir = sys.argv[1]
before = resident()
values = engine.consolidated_state_dict()
said["rise"] = resident() - before
said["mapped"] = sum(map(state.is_mapped, values.values()))
said["warned"] = len(lines)
engine.save_16bit_model("saved")
tempfile.tempdir = "/dev/shm"
in_memory = engine.consolidated_state_dict()
said["mapped in memory"] = sum(map(state.is_mapped, in_memory.values()))
said["lines"] = lines
if rank == 0:
    saved = torch.load("saved/pytorch_model.bin")
    assert list(saved) == list(values) == list(in_memory)
    for name, value in values.items():
        assert torch.equal(saved[name], value) and torch.equal(in_memory[name], value), name
digest = engine.digest()
parameters = dict(model.named_parameters())
expected = {name: engine.full_parameter(p).clone() for name, p in parameters.items()}

engine.destroy()
said["held"] = sum(shares.share_of(p).values.numel() for p in model.parameters())
said["all"] = sum(p.numel() for p in model.parameters())
said.refused("read", lambda: model[1].weight.sum())
with zero.GatheredParameters(list(parameters.values())):
    assert all(torch.equal(p, expected[name]) for name, p in parameters.items())
again = artesian.initialize(model=model, config=config)[0]
assert all(torch.equal(again.full_parameter(p), expected[n]) for n, p in parameters.items())
again.backward(again(torch.ones(1, 1024)).sum())
again.step()
said["changed"] = again.digest() != digest
again.destroy()

model[1:].requires_grad_(False)
model[0].requires_grad_(True)
config["zero_optimization"]["offload_param"] = {"device": "nvme", "nvme_path": sys.argv[1]}
frozen = artesian.initialize(model=model, config=config)[0]
said["on nvme"] = frozen._core.planned_memory["nvme"]
frozen.destroy()
said.write(sys.argv[1])
torch.distributed.barrier()
"""


def test_a_save_and_destroy_leave_no_rank_the_whole_model(tmp_path):
    if state.is_in_memory(tmp_path) or not state.is_in_memory("/dev/shm"):
        pytest.skip("the temporary folder is in memory, or /dev/shm is not")
    (tmp_path / "saved.py").write_text(SAVED)
    torchrun(tmp_path, 2, tmp_path / "saved.py", tmp_path, TESTS)
    said = [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in (0, 1)]
    first = said[0]
    assert first["mapped"] == 12 and first["warned"] == 0
    assert first["rise"] < 12  # MiB; the model has 48
    assert first["mapped in memory"] == 0
    assert [line for line in first["lines"] if "TMPDIR" in line and "/dev/shm" in line]
    assert sum(each["held"] for each in said) == first["all"]
    for each in said:
        assert each["held"] <= each["all"] / 2 + 24
        assert each["on nvme"] <= each["all"] / 2 * 4  # what is frozen is divided, too
        assert each["read"].startswith("destroy() has left each rank its part"), each["read"]
        assert each["changed"]
    assert sorted(path.name for path in tmp_path.iterdir() if "artesian" in path.name) == []
