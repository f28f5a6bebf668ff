"""Proves that scripts for TRL, unchanged, train with all their state on NVMe and have plain TRL's
losses: supervised fine-tuning, whole and by LoRA beside a head that is trained as a whole;
preferences, with a policy and a reference, each an engine of its own, in a control group without
budgets in the config; and GRPO, which generates under gathered weights."""

import json
import os
import random
import subprocess

import hf
import limits
import pytest
import small_models
import tokenizers
import transformers

LOCK = hf.ROOT / "dev" / "requirements-trl.lock"
BUDGETS = {"device_memory": "1MiB", "host_memory": "1MiB", "engine": "threads"}

ONLINE = """
import argparse, json, datasets, transformers, trl
parser = argparse.ArgumentParser()
for word in ("--model", "--data", "--steps", "--deepspeed"):
    parser.add_argument(word)
given = parser.parse_args()

def reward(completions, **more):
    return [float(len(set(text.split())) + text.count("w1")) for text in completions]

arguments = trl.GRPOConfig(
    "online", deepspeed=given.deepspeed, max_steps=int(given.steps), num_generations=2, beta=0.04,
    max_completion_length=6, model_init_kwargs={"dtype": "float32"}, seed=3, learning_rate=1e-3,
    per_device_train_batch_size=2, logging_steps=1, report_to=[], save_strategy="no", bf16=False)
data = datasets.load_dataset("json", data_files=given.data, split="train")
trainer = trl.GRPOTrainer(
    model=given.model, args=arguments, train_dataset=data.remove_columns(["chosen", "rejected"]),
    reward_funcs=reward, processing_class=transformers.AutoTokenizer.from_pretrained(given.model))
trainer.train()
trainer.save_model()
print(json.dumps([step["loss"] for step in trainer.state.log_history if "loss" in step]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model as a hub has it, data, and TRL on the path of scripts that run here."""
    folder = tmp_path_factory.mktemp("trl")
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(90))]
    known = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(folder / "model")  # fmt: skip
    transformers.set_seed(5)
    shape = transformers.LlamaConfig(**small_models.DECODER)
    transformers.LlamaForCausalLM(shape).save_pretrained(folder / "model")
    draw = random.Random(0)

    def text(count):
        return " ".join(f"w{draw.randrange(90)}" for _ in range(count))

    texts = [json.dumps({"text": text(12)}) for _ in range(16)]
    pairs = [json.dumps({"prompt": text(5), "chosen": text(6), "rejected": text(6)})
             for _ in range(16)]  # fmt: skip
    (folder / "texts.jsonl").write_text("\n".join(texts))
    (folder / "pairs.jsonl").write_text("\n".join(pairs))
    (folder / "online.py").write_text(ONLINE)
    config = json.loads((hf.EXAMPLES / "ds_config.json").read_text())
    (folder / "free.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({**config, "artesian": BUDGETS}))
    installed = subprocess.run(
        [hf.ROOT / "dev" / "extras.sh", LOCK], check=True, capture_output=True, text=True
    ).stdout.strip()
    # A name by which dill knows installed packages: it would pickle the whole of others.
    (folder / "site-packages").symlink_to(installed)
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site-packages"), before]))
        yield folder


SCRIPTS = {
    "whole": ("sft.py", "texts.jsonl"),
    "lora": ("sft.py", "texts.jsonl", "--lora"),
    "preferences": ("dpo.py", "pairs.jsonl"),
    "online": ("online.py", "pairs.jsonl"),
}

# All of them in one process, which costs less, in plain TRL.
PLAIN = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""


def words_of(name):
    script, data, *more = SCRIPTS[name]
    path = script if script == "online.py" else str(hf.EXAMPLES / script)
    return [path, "--model", "model", "--data", data, "--steps", "3", *more]


def losses_in(done):
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.fixture(scope="module")
def plain(folder):
    """The losses of each script without DeepSpeed."""
    words = json.dumps([words_of(name) for name in SCRIPTS])
    losses = losses_in(hf.run(folder, "-c", PLAIN, words, as_deepspeed=False))
    assert all(len(set(each)) == 3 for each in losses)
    return dict(zip(SCRIPTS, losses, strict=True))


def expect_losses(name, config, folder, plain, **more):
    done = hf.run(folder, *words_of(name), "--deepspeed", config, **more)
    assert losses_in(done) == [pytest.approx(plain[name], rel=1e-6, abs=1e-7)]
    assert not (folder / "trainer-nvme").exists()  # nothing of the state


@pytest.mark.parametrize("name", ["whole", "lora"])
def test_supervised_fine_tuning(name, folder, plain):
    expect_losses(name, "config.json", folder, plain)
    saved = {path.name for path in (folder / "fine-tuned").iterdir()}
    assert ("adapter_model.safetensors" if name == "lora" else "model.safetensors") in saved


def test_preferences_by_two_engines_in_a_control_group(folder, plain):
    with limits.control_group(2 << 30) as enter:
        expect_losses("preferences", "free.json", folder, plain, preexec_fn=enter)


def test_generation_under_gathered_weights_within_training(folder, plain):
    expect_losses("online", "config.json", folder, plain)
