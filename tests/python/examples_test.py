"""Proves that the programs of examples/python run, with what they say: a classifier with BatchNorm
whose state is on NVMe learns, and is the same in plain PyTorch once it is loaded back; a script
that fine-tunes has the losses of plain PyTorch before and after, and saves the whole, or adapters
alone."""

import importlib.util
import os
import re
import subprocess
import sys

import hf
import pytest
import small_models
import tokenizers
import torch
import transformers
from build_folder import BUILD

TEXT = "the deep well\n\n  lifts the water\n"


def test_the_image_classifier(tmp_path):
    path = os.pathsep.join([str(BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, hf.EXAMPLES / "image_classifier.py", "--epochs", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (loss, right, read), (loaded,) = (
        list(map(float, re.findall(r"(?:loss |: |, )([\d.]+)(?= MB|%|,)", line)))
        for line in done.stdout.splitlines()
    )
    assert loss < 1.2  # guessing among four figures gives 1.39
    assert loaded == right > 25
    assert read > 0  # megabytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image-classifier.pt"]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder as downloaded from a hub, and a text."""
    folder = tmp_path_factory.mktemp("pretrained")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT * 20], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>"
    ).save_pretrained(folder / "model")
    transformers.set_seed(5)
    shape = transformers.LlamaConfig(**{**small_models.DECODER, "vocab_size": 300})
    transformers.LlamaForCausalLM(shape).save_pretrained(folder / "model")
    (folder / "text.txt").write_text(TEXT * 40)
    return folder


def finetuned(pretrained, folder, *words, learning_rate="0.01"):
    """Runs the script; returns the losses on held-out data before and after."""
    words = ["--model", pretrained / "model", "--text", pretrained / "text.txt", *words]
    words += ["--length", "16", "--steps", "4", "--learning-rate", learning_rate]
    words += ["--deepspeed", hf.EXAMPLES / "ds_config.json"]
    done = hf.run(folder, hf.EXAMPLES / "finetune.py", *words)
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    told = {tuple(line.split()[1:3]): float(line.split()[3]) for line in lines}
    assert len(told) == len(lines) == 6
    assert not (folder / "trainer-nvme").exists()  # no state is left on the disk
    return told["0:", "eval_loss"], told["4:", "eval_loss"]


def loss_of(folder, pretrained):
    """Returns the loss in plain PyTorch on what the script holds out."""
    spec = importlib.util.spec_from_file_location("finetune", hf.EXAMPLES / "finetune.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    tokenizer = transformers.AutoTokenizer.from_pretrained(pretrained / "model")
    rows = script.windows(tokenizer, [pretrained / "text.txt"], 16)[1]
    ids = torch.stack([row["input_ids"] for row in rows])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


def test_fine_tuning(pretrained, tmp_path):
    before, after = finetuned(pretrained, tmp_path)
    assert before == pytest.approx(loss_of(pretrained / "model", pretrained), abs=1e-4)
    assert after == pytest.approx(loss_of(tmp_path / "finetuned", pretrained), abs=1e-4)
    assert after < before - 0.5


def test_fine_tuning_of_adapters(pretrained, tmp_path):
    before, after = finetuned(pretrained, tmp_path, "--lora", learning_rate="0.1")
    assert after < before - 0.1
    found = {path.name for path in (tmp_path / "finetuned").iterdir()}
    assert "adapter_model.safetensors" in found and "model.safetensors" not in found
