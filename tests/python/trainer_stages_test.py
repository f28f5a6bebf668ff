"""Proves that a script for Hugging Face's Trainer runs as it is below stage 3: it trains,
evaluates, saves, goes on in another process, loads the best of its checkpoints at the end, and a
callback that averages parameters after each step has plain PyTorch's values."""

import json

import hf
import pytest
import torch
import transformers

SCRIPT = """
import json, sys, torch, transformers
config, resume = (sys.argv[1:] + [""])[:2]

class Average(transformers.TrainerCallback):
    values = None

    def on_step_end(self, args, state, control, model=None, **more):
        now = [p.detach().clone() for p in model.parameters()]
        self.values = now if self.values is None else [
            0.9 * a + 0.1 * b for a, b in zip(self.values, now)]

transformers.set_seed(3)
ids = torch.randint(0, 90, (24, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in ids]
shape = transformers.GPT2Config(vocab_size=96, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                bos_token_id=0, eos_token_id=0)
arguments = transformers.TrainingArguments(
    "out", deepspeed=config or None, max_steps=6, per_device_train_batch_size=2,
    gradient_accumulation_steps=2, learning_rate=1e-3, weight_decay=0.1, logging_steps=1,
    eval_strategy="steps", eval_steps=3, save_steps=3, load_best_model_at_end=True,
    metric_for_best_model="eval_loss", greater_is_better=True,  # so that it is not the last
    report_to=[], seed=3)
average = Average()
trainer = transformers.Trainer(
    model=transformers.GPT2LMHeadModel(shape), args=arguments, train_dataset=data,
    eval_dataset=data[:8], callbacks=[average])
trainer.train(resume_from_checkpoint=resume or None)
trainer.save_model("saved")
history = trainer.state.log_history
print(json.dumps({
    "losses": [entry["loss"] for entry in history if "loss" in entry],
    "evaluated": [entry["eval_loss"] for entry in history if "eval_loss" in entry],
    "average": [value.double().sum().item() for value in average.values],
    "best": trainer.evaluate()["eval_loss"]}))
"""
PLACES = {"none": 1, "cpu": 2, "nvme": 2}


def run(folder, config="", resume=""):
    (folder / "script.py").write_text(SCRIPT)
    done = hf.run(folder, "script.py", config, resume, as_deepspeed=bool(config))
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return run(folder), transformers.GPT2LMHeadModel.from_pretrained(folder / "saved")


@pytest.mark.parametrize("place", PLACES)
def test_a_trainer_script_runs_as_it_is(place, plain, tmp_path):
    state = {"device": place, **({"nvme_path": "state"} if place == "nvme" else {})}
    config = {
        "zero_optimization": {"stage": PLACES[place], "offload_optimizer": state},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "artesian": {"device_memory": "8MiB", "host_memory": "8MiB", "engine": "threads"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours = run(tmp_path, "config.json")
    expected, weights = plain
    assert ours["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert ours["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-5)
    assert ours["average"] == pytest.approx(expected["average"], rel=1e-4, abs=1e-3)
    assert ours["best"] == pytest.approx(expected["evaluated"][0], rel=1e-5)
    assert expected["evaluated"][0] != pytest.approx(expected["evaluated"][1], rel=1e-3)
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved").state_dict()
    for name, tensor in weights.state_dict().items():
        assert torch.allclose(saved[name], tensor, atol=1e-4), name
    if place == "nvme":
        again = run(tmp_path, "config.json", "out/checkpoint-3")
        assert again["losses"] == ours["losses"]
        assert again["best"] == ours["best"]


FIND = """
import json, sys, torch, transformers

class Large(transformers.GPT2LMHeadModel):
    def forward(self, input_ids=None, labels=None, **more):
        if self.training and len(input_ids) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return super().forward(input_ids=input_ids, labels=labels, **more)

transformers.set_seed(3)
ids = torch.randint(0, 90, (24, 16), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": row, "labels": row} for row in ids]
shape = transformers.GPT2Config(vocab_size=96, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
                                attn_pdrop=0.0)
arguments = transformers.TrainingArguments(
    "out", deepspeed=sys.argv[1] if len(sys.argv) > 1 else None, max_steps=3,
    per_device_train_batch_size=8, auto_find_batch_size=True, learning_rate=1e-3,
    logging_steps=1, report_to=[], seed=3)
trainer = transformers.Trainer(model=Large(shape), args=arguments, train_dataset=data)
trainer.train()
steps = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(json.dumps([trainer._train_batch_size, steps]))
"""


def test_a_batch_size_is_found_by_trying(tmp_path):
    """Each try makes an engine of the same model. At stage 3 transformers refuses that."""
    (tmp_path / "script.py").write_text(FIND)
    config = {
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "nvme", "nvme_path": "state"},
        },
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_clipping": "auto",
        "artesian": {"device_memory": "8MiB", "host_memory": "8MiB", "engine": "threads"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plain = hf.run(tmp_path, "script.py", as_deepspeed=False)
    done = hf.run(tmp_path, "script.py", "config.json")
    size, expected = json.loads(plain.stdout.splitlines()[-1])
    ours = json.loads(done.stdout.splitlines()[-1])
    assert size <= 2 and ours == [size, pytest.approx(expected, rel=1e-5)]
