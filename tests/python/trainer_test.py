"""Proves that scripts of Hugging Face's Trainer and of Accelerate, unchanged, train with their
state on NVMe, with the losses of plain Trainer, in all four forms of who has optimizer and
scheduler; that a run is resumed in a new process to the same bits; that a model is loaded, resized
and evaluated alone; and by Accelerate's launcher."""

import json
import shutil

import hf
import pytest
import transformers

SCRIPT = hf.EXAMPLES / "hf_trainer.py"
OPTIMIZER = {
    "type": "AdamW",
    "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
}
SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": {
        "warmup_type": "linear",
        "warmup_min_lr": "auto",
        "warmup_max_lr": "auto",
        "warmup_num_steps": "auto",
        "total_num_steps": "auto",
    },
}


def config_for(folder, **more):
    config = json.loads((hf.EXAMPLES / "ds_config.json").read_text())
    config.update(more)
    config["artesian"] = {"device_memory": "1MiB", "host_memory": "8MiB", "engine": "threads"}
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    return path


def losses_of(done):
    """Those of the steps, the norms, and the evaluation's loss."""
    history, evaluated = map(json.loads, done.stdout.splitlines()[-2:])
    steps = [entry for entry in history if "loss" in entry]
    return (
        [entry["loss"] for entry in steps],
        [entry["grad_norm"] for entry in steps],
        [entry["learning_rate"] for entry in steps],
        evaluated["eval_loss"],
    )


# DeepSpeed's schedule, in a script that has no DeepSpeed: its counter starts one step later.
SHIFTED = """
import runpy, sys, torch, transformers

def share(step):
    return (max(step - 1, 0) / 4 if step < 5 else (21 - step) / 16)

def create_scheduler(self, num_training_steps, optimizer=None):
    optimizer = self.optimizer if optimizer is None else optimizer
    self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    return self.lr_scheduler

transformers.Trainer.create_scheduler = create_scheduler
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Runs the script without DeepSpeed, once for each weight decay and schedule: what it says, and
    where it has saved its model."""
    known = {}

    def get(decay, shifted=False):
        if (decay, shifted) not in known:
            folder = tmp_path_factory.mktemp("plain")
            (folder / "shifted.py").write_text(SHIFTED)
            words = [*(["shifted.py"] if shifted else []), SCRIPT, "--weight-decay", decay]
            done = hf.run(folder, *words, as_deepspeed=False)
            known[decay, shifted] = losses_of(done), folder / "trainer-out"
        return known[decay, shifted]

    return get


# Which of both the config has, and a weight decay that is the same in both: Trainer's optimizer
# leaves out biases and norms, DeepSpeed's does not.
FORMS = {
    "neither": ({}, 0.1),
    "optimizer": ({"optimizer": OPTIMIZER}, 0.0),
    "scheduler": ({"scheduler": SCHEDULER}, 0.1),
    "both": ({"optimizer": OPTIMIZER, "scheduler": SCHEDULER}, 0.0),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_example_has_the_losses_of_plain_trainer(form, plain, tmp_path):
    more, decay = FORMS[form]
    config = config_for(tmp_path, **more)
    done = hf.run(tmp_path, SCRIPT, "--weight-decay", decay, "--deepspeed", config)
    losses, norms, rates, evaluated = losses_of(done)
    expected, plain_model = plain(decay, "scheduler" in more)
    plain_losses, plain_norms, plain_rates, plain_evaluated = expected
    assert losses == pytest.approx(plain_losses, rel=1e-5)
    assert norms == pytest.approx(plain_norms, rel=1e-4)
    if more:  # the engine's step takes the scheduler's, too, before Trainer looks at the rate
        rates, plain_rates = rates[:-1], plain_rates[1:]
    assert rates == pytest.approx(plain_rates)
    assert evaluated == pytest.approx(plain_evaluated, rel=1e-5)
    assert max(plain_norms) > 0.5  # so some were clipped
    saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "trainer-out")
    wanted = transformers.GPT2LMHeadModel.from_pretrained(plain_model).state_dict()
    for name, tensor in saved.state_dict().items():
        assert (tensor - wanted[name]).abs().max() < 1e-4, name
    assert saved.transformer.wte.weight is saved.lm_head.weight
    assert not (tmp_path / "trainer-nvme").exists()  # the run made it, and has left nothing


LOADED = """
import json, sys, torch, transformers
source, *config = sys.argv[1:]
arguments = transformers.TrainingArguments(
    "out", deepspeed=config[0] if config else None, per_device_eval_batch_size=2, report_to=[])
model = transformers.GPT2LMHeadModel.from_pretrained(source)  # with DeepSpeed under zero.Init
transformers.set_seed(5)
model.resize_token_embeddings(260)
ids = torch.arange(64).view(4, 16) % 250
data = [{"input_ids": row, "labels": row} for row in ids]
trainer = transformers.Trainer(model=model, args=arguments, eval_dataset=data)
print(json.dumps(trainer.evaluate()["eval_loss"]))
"""


def test_a_loaded_model_is_evaluated_alone(plain, tmp_path):
    (tmp_path / "script.py").write_text(LOADED)
    source = plain(0.1)[1]
    ours = hf.run(tmp_path, "script.py", source, config_for(tmp_path))
    expected = hf.run(tmp_path, "script.py", source, as_deepspeed=False)
    ours, expected = (json.loads(done.stdout.splitlines()[-1]) for done in (ours, expected))
    assert ours == expected


RESUMED = """
import json, sys, torch, transformers
tied, resume, *config = sys.argv[1:]
arguments = transformers.TrainingArguments(
    "out", deepspeed=config[0] if config else None, max_steps=12, save_steps=6, save_total_limit=2,
    per_device_train_batch_size=2, gradient_accumulation_steps=2, learning_rate=1e-2,
    weight_decay=0.1, warmup_steps=3, logging_steps=1, report_to=[], seed=3)
transformers.set_seed(3)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1,
    eos_token_id=2, pad_token_id=0, attention_dropout=0.1, tie_word_embeddings=tied == "tied"))
ids = torch.arange(40 * 16).view(40, 16) % 251
data = [{"input_ids": row, "labels": row} for row in ids]
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
trainer.train(resume_from_checkpoint="out/checkpoint-6" if resume == "resume" else None)
steps = [entry for entry in trainer.state.log_history if "loss" in entry]
engine = trainer.model_wrapped
print(json.dumps([[[s["step"], s["loss"], s["grad_norm"], s["learning_rate"]] for s in steps],
                  engine.digest() if config else ""]))
"""


@pytest.mark.parametrize("form", ["neither", "both"])
@pytest.mark.parametrize("tied", ["tied", "apart"])
def test_a_run_is_resumed_in_a_new_process_to_the_same_bits(tied, form, tmp_path):
    (tmp_path / "script.py").write_text(RESUMED)
    config = config_for(tmp_path, **FORMS[form][0])

    def run(*words, **more):
        done = hf.run(tmp_path, "script.py", tied, *words, **more)
        return json.loads(done.stdout.splitlines()[-1])

    whole, digest = run("whole", config)
    assert [step[0] for step in whole] == list(range(1, 13))
    names = {path.name for path in (tmp_path / "out" / "checkpoint-6").iterdir()}
    assert {"latest", "global_step6", "model.safetensors", "trainer_state.json"} < names
    shutil.rmtree(tmp_path / "out" / "checkpoint-12")
    resumed, resumed_digest = run("resume", config)
    assert resumed == whole
    assert resumed_digest == digest
    if form == "neither":
        shutil.rmtree(tmp_path / "out")
        plain, _ = run("whole", as_deepspeed=False)
        for ours, theirs in zip(whole, plain, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)


LOOP = """
import json
import torch, transformers
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(1)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
    attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.7**step)
data = torch.arange(12 * 16).view(12, 16) % 251
loader = torch.utils.data.DataLoader(data, batch_size=2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses = []
for ids in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    losses.append(loss.item())
weights = accelerator.get_state_dict(model)
kind = accelerator.distributed_type
print(json.dumps([kind, losses, weights["transformer.wpe.weight"].tolist()]))
"""


def test_accelerates_launcher_and_an_own_loop(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    config = config_for(tmp_path)
    launch = ["-m", "accelerate.commands.launch", "--cpu"]
    plain = hf.run(tmp_path, *launch, "loop.py", as_deepspeed=False)
    launch = ["-m", "accelerate.commands.launch", "--use_deepspeed", "--num_processes", 1]
    ours = hf.run(tmp_path, *launch, "--deepspeed_config_file", config, "loop.py")
    kind, losses, weights = json.loads(ours.stdout.splitlines()[-1])
    plain_kind, expected, plain_weights = json.loads(plain.stdout.splitlines()[-1])
    assert (kind, plain_kind) == ("DEEPSPEED", "NO")
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[0] > losses[-1]
    for row, plain_row in zip(weights, plain_weights, strict=True):
        assert row == pytest.approx(plain_row, abs=1e-4)


AGAIN = """
import json, sys, torch, transformers
from transformers import Trainer, TrainingArguments

transformers.set_seed(3)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2))
data = [{"input_ids": ids, "labels": ids} for ids in torch.arange(384).view(32, 12) % 90 + 3]
figures = []

def trainer_of(model):
    config = {"deepspeed": sys.argv[1]} if len(sys.argv) > 1 else {}
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=2, max_steps=3, logging_steps=1,
        learning_rate=1e-3, save_strategy="no", report_to=[], use_cpu=True, **config)
    return Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)

def train(trainer):
    trainer.train()
    figures.extend(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    figures.append(trainer.evaluate()["eval_loss"])
    trainer.optimizer = None  # each training has moments of its own

trainer = trainer_of(model)
figures.append(trainer.evaluate()["eval_loss"])
if len(sys.argv) < 3:
    train(trainer)
    train(trainer)
    train(trainer_of(trainer.model))
print(json.dumps(figures))
"""


def test_a_trainer_evaluates_trains_and_trains_again_and_so_does_the_next_one(tmp_path):
    (tmp_path / "again.py").write_text(AGAIN)
    figures = {}
    for config in ((), (config_for(tmp_path, optimizer=OPTIMIZER),)):
        done = hf.run(tmp_path, "again.py", *config, as_deepspeed=bool(config))
        figures[bool(config)] = json.loads(done.stdout.splitlines()[-1])
    assert len(set(figures[False])) == 13
    assert figures[True] == pytest.approx(figures[False], rel=1e-5)
    # An evaluation knows no number of steps, which this schedule has as "auto".
    schedule = config_for(tmp_path, optimizer=OPTIMIZER, scheduler=SCHEDULER)
    done = hf.run(tmp_path, "again.py", schedule, "evaluate alone")
    assert json.loads(done.stdout.splitlines()[-1]) == figures[True][:1]
