"""Proves that processes which train one model from Python have the bits of one process that runs
all their micro-batches: the model zoo, at every stage and placement, with graphs that differ from
rank to rank; that checkpoints of any number of ranks are loaded by any other; that an unchanged
Trainer script trains, saves and goes on with two processes, and PyTorch's own tutorial script with
four; and that a rank which fails, or has something else, is an error on all of them."""

import json
import pathlib
import subprocess
import sys

import hf
import pytest
import ranks_worker
import torch
from build_folder import free_port

TESTS = pathlib.Path(__file__).parent
ZOO = [
    {"model": "gpt2"},
    {"model": "llama_tied", "optimizer": "nvme", "dtype": "bf16"},
    {"model": "mixtral", "stage": 2, "optimizer": "cpu", "dtype": "bf16"},
    {"model": "albert", "type": "Lamb"},
    {"model": "gpt2", "checkpointing": "reentrant"},
    {"model": "t5", "stage": 1, "dtype": "fp16"},
    {"model": "bart", "stage": 0, "type": "SGD"},
    {"model": "clip", "param": "cpu", "type": "Adagrad"},
    {"model": "llama", "freeze": "mlp", "param": "nvme", "optimizer": "nvme", "dtype": "bf16"},
    {"model": "lstm", "stage": 2, "optimizer": "nvme", "type": "RMSprop"},
    {"model": "deberta", "dtype": "bf16", "type": "Lion", "micro_batches": 8},
    {"model": "branches", "stage": 2, "optimizer": "cpu"},
    {"model": "llama", "again": 2, "dtype": "bf16"},
    {"model": "bart", "again": 2, "stage": 1, "micro_batches": 2},
    {"model": "gpt2", "init": True, "param": "cpu"},
    {"model": "bert", "init": True, "param": "nvme", "optimizer": "nvme", "dtype": "bf16"},
]
THREE = [
    {"model": "branches", "stage": 2, "micro_batches": 6},
    {"model": "llama_tied", "stage": 1, "optimizer": "nvme", "dtype": "fp16", "micro_batches": 3},
    {"model": "llama_tied", "init": True, "freeze": "mlp", "param": "cpu", "micro_batches": 3},
]
SAVED = {"model": "llama", "freeze": "mlp", "optimizer": "nvme", "param": "nvme", "dtype": "bf16",
         "micro_batches": 6}  # fmt: skip


def torchrun(folder, ranks, *words, as_deepspeed=False, check=True):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", str(ranks), *map(str, words)]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240,
                          env=hf.environment(folder, as_deepspeed=as_deepspeed))  # fmt: skip
    assert not check or done.returncode == 0, done.stderr[:6000]
    return done


def run_ranks(folder, ranks, cases):
    (folder / "cases.json").write_text(json.dumps(cases))
    torchrun(folder, ranks, TESTS / "ranks_worker.py", folder / "cases.json", folder / "found.json")
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("ranks", "cases"), [(2, ZOO), (3, THREE)])
def test_ranks_have_the_bits_of_one(tmp_path, ranks, cases):
    found = run_ranks(tmp_path, ranks, cases)
    for case, of_ranks in zip(cases, found, strict=True):
        assert of_ranks == ranks_worker.run(case, 0, 1, tmp_path), case
    assert {case["model"] for case in cases} >= {"branches", "llama_tied"}


FAST = """
import sys, artesian, torch
sys.path.insert(0, sys.argv[2])
import ranks_worker
rank, ranks = ranks_worker.join()
said = ranks_worker.Said()

def trained(reduction, stage):
    case = {"reduction": reduction, "stage": stage, "dtype": "bf16"}
    config = ranks_worker.config_of(case, 4, sys.argv[1])
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
    engine = artesian.initialize(model=model, config=config)[0]
    losses, bus = [], 0
    for step in range(4):
        for micro in range(4):
            seed = torch.Generator().manual_seed(16 * step + 2 * micro + rank)
            engine.backward(engine(torch.randn(8, 128, generator=seed).bfloat16()).square().mean())
            engine.step()
        losses.append(engine.last_step["loss"])
        bus = engine.last_step["bytes_bus"]
    return {"losses": losses, "bus": bus, "digest": engine.digest()}

for stage in (2, 3):
    for reduction in ("exact", "fast"):
        said[f"{reduction} {stage}"] = trained(reduction, stage)
said.write(sys.argv[1])
torch.distributed.barrier()
"""


def test_fast_sends_gradients_once_a_step(tmp_path):
    (tmp_path / "fast.py").write_text(FAST)
    torchrun(tmp_path, 2, tmp_path / "fast.py", tmp_path, TESTS)
    first, second = (json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in (0, 1))
    assert [each["digest"] for each in first.values()] == [
        each["digest"] for each in second.values()
    ]
    gradients = 4 * 128 * 129 * 2 // 2  # bytes that a rank sends of a micro-batch: half of them
    for stage in (2, 3):
        exact, fast = (first[f"{reduction} {stage}"] for reduction in ("exact", "fast"))
        assert fast["losses"] == pytest.approx(exact["losses"], rel=0.01)
        assert fast["digest"] != exact["digest"]
        assert exact["bus"] - fast["bus"] >= 3 * gradients


def test_fast_is_close_to_exact(tmp_path):
    cases = [
        {"model": "gpt2", "param": "nvme", "optimizer": "nvme"},
        {"model": "llama_tied", "stage": 2, "optimizer": "cpu", "dtype": "bf16"},
        {"model": "branches", "stage": 1},
        {"model": "llama", "again": 2, "freeze": "mlp"},
    ]
    exact = run_ranks(tmp_path, 2, cases)
    fast = run_ranks(tmp_path, 2, [case | {"reduction": "fast"} for case in cases])
    for case, before, after in zip(cases, exact, fast, strict=True):
        for line, other in zip(before[0], after[0], strict=True):
            if isinstance(line, list):  # of a step: its loss and norm
                assert other[:2] == pytest.approx(line[:2], rel=0.01), case


def test_checkpoints_of_any_number_of_ranks_are_loaded_by_any(tmp_path):
    whole = ranks_worker.run({**SAVED, "steps": 4}, 0, 1, tmp_path)
    first = {**SAVED, "steps": 1, "save": True}
    run_ranks(tmp_path, 3, [first, {**SAVED, "steps": 2, "load": True, "save": True}])
    assert {p.name for p in (tmp_path / "saved" / "global_step2").glob("*.safetensors")} == {
        "rank0.safetensors", "rank1.safetensors", "rank2.safetensors", "frozen.safetensors"
    }  # fmt: skip
    run_ranks(tmp_path, 2, [{**SAVED, "steps": 3, "load": True, "save": True}])
    last = ranks_worker.run({**SAVED, "steps": 4, "load": True}, 0, 1, tmp_path)
    assert last[1] == whole[1]
    assert last[0] == whole[0][-len(last[0]) :]


# What each rank does, and what all of them are told.
FAULTS = """
import json, sys, artesian, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
said = {}

def engine_for(width=4, lr=1e-3, accumulation=1, kind="AdamW", tag_validation="Warn"):
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulation,
              "optimizer": {"type": kind, "params": {"lr": lr}},
              "checkpoint": {"tag_validation": tag_validation},
              "artesian": {"device_memory": "1MiB", "host_memory": "1MiB"}}
    return artesian.initialize(model=torch.nn.Linear(4, width), config=config)[0]

def refused(name, call):
    try:
        call()
        said[name] = None
    except artesian.errors.Error as error:
        said[name] = str(error)
    except RuntimeError as error:
        said[name] = "RuntimeError: " + str(error).splitlines()[0]

def loss_of(engine):
    return engine(torch.full((2, 4), 1.0 + rank)).square().sum()

def train(engine):
    engine.backward(loss_of(engine))
    engine.step()

refused("rate", lambda: engine_for(lr=1e-3 * (1 + rank)))
refused("shape", lambda: engine_for(width=4 + rank))
refused("muon", lambda: engine_for(kind="Muon"))
engine = engine_for()
train(engine)

def without_graph():
    loss = loss_of(engine)
    engine.backward(loss.detach() if rank == 1 else loss)
    engine.step()
refused("graph", without_graph)
engine.zero_grad()
train(engine)

def broken():
    loss = loss_of(engine)
    def fail(gradient):
        raise RuntimeError("mine")
    if rank == 1:
        loss.register_hook(fail)
    engine.backward(loss)
    engine.step()
refused("hook", broken)
engine.zero_grad()
train(engine)
said["steps"] = engine.global_steps
said["digest"] = engine.digest()

if rank == 1:
    engine.optimizer.param_groups[0]["lr"] = 1.0
refused("group", lambda: train(engine))
other = engine_for(accumulation=2)
def early():
    other.backward(loss_of(other))
    if rank == 1:
        other.backward(loss_of(other))
    other.optimizer.step()
refused("early", early)
tagged = engine_for(tag_validation="Fail")
own_tag = ("first", "another")[rank]
refused("tags", lambda: tagged.save_checkpoint(sys.argv[1] + "/tags", tag=own_tag))
tagged.save_checkpoint(sys.argv[1] + "/tags", tag="same")
engine_for().save_checkpoint(sys.argv[1] + "/warned", tag=own_tag)
json.dump(said, open(f"{sys.argv[1]}/said{rank}.json", "w"))
"""


# At stage 3, where each rank has a share of each block: what breaks off on rank 1, while the other
# ranks wait for its share or have none to wait for, is refused by all of them, who go on together.
DIVIDED = """
import sys, artesian, torch
sys.path.insert(0, sys.argv[2])
import ranks_worker
rank, ranks = ranks_worker.join()
said = ranks_worker.Said()

class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(6))
        self.fails_at = None
        self.order = [0, 1, 2, 3, 4, 5]

    def forward(self, hidden):
        for index in self.order:
            block = self.blocks[index]
            if index == self.fails_at:
                raise ValueError("mine")
            hidden = torch.tanh(block(hidden))
        return hidden.square().mean()

torch.manual_seed(rank)  # rank 0's values count
config = ranks_worker.config_of({"param": "nvme", "optimizer": "cpu"}, 1, sys.argv[1])
engine = artesian.initialize(model=Blocks(), config=config)[0]
step = 0

def loss_of(seed):
    return engine(torch.randn(2, 32, generator=torch.Generator().manual_seed(seed)))

def train():
    global step
    engine.backward(loss_of(100 * step + rank))
    engine.step()
    step += 1

def evaluate():
    with torch.no_grad():
        return loss_of(7).item()

def broken_backward():
    def fail(*_):
        raise ValueError("mine")
    middle = engine.module.blocks[2].register_full_backward_hook(fail) if rank == 1 else None
    try:
        train()
    finally:
        if middle is not None:
            middle.remove()

train()
said["bus"] = engine.last_step["bytes_bus"]
before = evaluate()
for at in (0, 3):
    engine.module.fails_at = at if rank == 1 else None
    said.refused(f"evaluation {at}", evaluate)
    said.refused(f"forward {at}", train)
    engine.module.fails_at = None
    engine.zero_grad()
    assert evaluate() == before
said.refused("backward", broken_backward)
engine.zero_grad()
assert evaluate() == before
train()
train()
said["digest"], said["value"] = engine.digest(), evaluate()
said["beside"] = engine._core.held_beside_max
# What is frozen is whole on each rank, which evaluates it alone.
frozen = artesian.init_inference(Blocks(), config)
said["alone"] = None if rank == 1 else frozen(torch.ones(2, 32)).item()
train()  # which leaves each with its share alone
if rank == 1:
    engine.module.order = [0, 1, 2, 4, 3, 5]
said.refused("order", train)
said.write(sys.argv[1])
torch.distributed.barrier()
"""


def test_ranks_that_have_a_share_each_go_on_after_what_one_of_them_refuses(tmp_path):
    (tmp_path / "divided.py").write_text(DIVIDED)
    torchrun(tmp_path, 3, tmp_path / "divided.py", tmp_path, TESTS)
    first, second, third = (json.loads((tmp_path / f"said{n}.json").read_text()) for n in range(3))
    assert first["bus"] > 0
    for name in ("evaluation 0", "evaluation 3", "forward 0", "forward 3", "backward"):
        assert "mine" in second[name], (name, second[name])
        for other in (first, third):
            assert other[name].startswith("rank 1 has refused its batch"), (name, other[name])
    assert first["digest"] == second["digest"] == third["digest"]
    assert first["value"] == second["value"] == third["value"]
    assert first["alone"] == third["alone"] is not None
    # Each block's gradients are sent before those of the next one come.
    assert first["beside"] == second["beside"] == third["beside"] == 0
    differ = "ranks enter different units: rank"
    assert first["order"].startswith(f"{differ} 0 is at blocks.3, rank 1 at blocks.4"), first
    assert second["order"].startswith(f"{differ} 1 is at blocks.4, rank 0 at blocks.3"), second
    assert third["order"].startswith(f"{differ} 2 is at blocks.3, rank 1 at blocks.4"), third
    # What was refused has left nothing behind.
    whole = tmp_path / "whole.py"
    whole.write_text(DIVIDED.partition("for at in (0, 3)")[0] + """train()
train()
said["digest"], said["value"] = engine.digest(), evaluate()
said.write(sys.argv[1])
torch.distributed.barrier()
""")
    torchrun(tmp_path, 3, whole, tmp_path, TESTS)
    plain = json.loads((tmp_path / "said0.json").read_text())
    assert (plain["digest"], plain["value"]) == (first["digest"], first["value"])


def test_what_one_rank_does_otherwise_is_an_error_on_all(tmp_path):
    (tmp_path / "faults.py").write_text(FAULTS)
    done = torchrun(tmp_path, 2, tmp_path / "faults.py", tmp_path)
    first, second = (json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in (0, 1))
    assert "the learning rate behind 0 updates: rank 0 has 0.001, rank 1 has 0.002" in first["rate"]
    assert first["rate"] == second["rate"]
    assert "the model's names, shapes and stages: rank 0 has " in first["shape"]
    assert first["muon"] == second["muon"]
    assert first["muon"].startswith('optimizer.type: got "Muon", which is not supported yet with')
    assert second["graph"].startswith("backward(loss): got a tensor of shape ()")
    given_up = "rank 1 has refused its batch; call zero_grad() on all ranks, and go on"
    assert first["graph"] == first["hook"] == given_up
    assert second["hook"] == "RuntimeError: mine"
    assert first["steps"] == second["steps"] == 3
    assert first["digest"] == second["digest"]
    assert "learning rates, or other constants of parameter groups, differ" in first["group"]
    assert first["early"].startswith("ranks do different things: rank 0 is at the update of step 1")
    differ = "save_checkpoint: tag: ranks have different ones: 'first', 'another'; "
    assert first["tags"] == second["tags"] and first["tags"].startswith(differ)
    assert f"{differ}rank 0's is used" in done.stderr
    assert (tmp_path / "tags" / "latest").read_text() == "same"
    assert (tmp_path / "warned" / "latest").read_text() == "first"


OWN = """
import json, sys, artesian, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(7 + rank)
model = torch.nn.Linear(4, 4)
model.register_buffer("table", torch.arange(4.0) * (rank + 1))
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"},
          "artesian": {"device_memory": "1MiB", "host_memory": "1MiB"}}
engine = artesian.initialize(model=model, config=config)[0]
table = model.table.tolist()
engine.backward(engine(torch.ones(2, 4)).square().sum())
engine.step()
engine.save_checkpoint(sys.argv[1] + "/saved")
drawn = torch.rand(3).tolist()
engine.load_checkpoint(sys.argv[1] + "/saved")
said = {"table": table, "drawn": drawn, "again": torch.rand(3).tolist()}
json.dump(said, open(f"{sys.argv[1]}/said{rank}.json", "w"))
"""


def test_buffers_begin_as_rank_0s_and_each_rank_draws_as_it_did_before(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    torchrun(tmp_path, 2, tmp_path / "own.py", tmp_path)
    first, second = (json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in (0, 1))
    assert first["table"] == second["table"] == [0.0, 1.0, 2.0, 3.0]
    assert first["again"] == first["drawn"] and second["again"] == second["drawn"]
    assert first["drawn"] != second["drawn"]


TRAINER = """
import json, sys, torch, transformers
accumulation, out, resume = (sys.argv[1:] + [""])[:3]
transformers.set_seed(3)
ids = torch.randint(0, 90, (48, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in ids]
shape = transformers.GPT2Config(
    vocab_size=96, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
arguments = transformers.TrainingArguments(
    out, deepspeed="config.json", max_steps=6, per_device_train_batch_size=2,
    gradient_accumulation_steps=int(accumulation), learning_rate=1e-3, weight_decay=0.1,
    logging_steps=1, eval_strategy="steps", eval_steps=3, save_steps=3, report_to=[], seed=3)
trainer = transformers.Trainer(
    model=transformers.GPT2LMHeadModel(shape), args=arguments, train_dataset=data,
    eval_dataset=data[:8])
trainer.train(resume_from_checkpoint=resume or None)
trainer.save_model(out + "/saved")
digest = trainer.model_wrapped.digest()
if trainer.is_world_process_zero():
    history = trainer.state.log_history
    result = {key: [entry[key] for entry in history if key in entry]
              for key in ("loss", "grad_norm", "eval_loss")}
    json.dump({**result, "digest": digest}, open(out + "/result.json", "w"))
"""
TRAINER_CONFIG = {
    "zero_optimization": {
        "stage": 3,
        "stage3_gather_16bit_weights_on_model_save": True,
        "offload_optimizer": {"device": "nvme", "nvme_path": "state"},
        "offload_param": {"device": "cpu"},
    },
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "artesian": {"device_memory": "8MiB", "host_memory": "8MiB", "engine": "threads"},
}


def test_a_trainer_script_runs_with_two_processes(tmp_path):
    (tmp_path / "script.py").write_text(TRAINER)
    (tmp_path / "config.json").write_text(json.dumps(TRAINER_CONFIG))
    hf.run(tmp_path, "script.py", "4", "one", as_deepspeed=True)
    torchrun(tmp_path, 2, "script.py", "2", "two", as_deepspeed=True)
    torchrun(tmp_path, 2, "script.py", "2", "two", "two/checkpoint-3", as_deepspeed=True)
    one, two = (json.loads((tmp_path / n / "result.json").read_text()) for n in ("one", "two"))
    for key in ("loss", "grad_norm", "eval_loss"):
        assert two[key] == pytest.approx(one[key], rel=1e-6)
    assert two["digest"] == one["digest"]
    saved = [tmp_path / each / "saved" / "model.safetensors" for each in ("one", "two")]
    assert saved[0].read_bytes() == saved[1].read_bytes()


TUTORIAL = """
import os, sys, artesian, torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(rank, world_size, kind):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[1])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    data = TensorDataset(*torch.randn(2, 64, 8).unbind())
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = torch.nn.Linear(8, 8)
    plain = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    plain.module.load_state_dict(model.state_dict())
    make = getattr(torch.optim, kind)
    other = make(plain.parameters(), lr=1e-2)
    model, optimizer, _, _ = artesian.initialize(
        model=model, optimizer=make(model.parameters(), lr=1e-2), config={"train_batch_size": 32})
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for source, target in loader:
            for trained, steps in ((model, optimizer), (plain, other)):
                steps.zero_grad()
                torch.nn.functional.mse_loss(trained(source), target).backward()
                steps.step()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        ours = model.full_parameter(ours)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    for kind in ("AdamW", "SGD"):
        torch.multiprocessing.spawn(main, args=(4, kind), nprocs=4)
"""


def test_the_tutorials_script_runs_with_four_processes(tmp_path):
    (tmp_path / "tutorial.py").write_text(TUTORIAL)
    hf.run(tmp_path, "tutorial.py", str(free_port()), as_deepspeed=False)
