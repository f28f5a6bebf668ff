"""Proves that memory is what the budgets say: a GPT-2 of 355M parameters, 5.7 GB of state, trains
in fp16 with 768 MiB for each tier, and the process never holds more than 2.2 GiB; every part of
that is reported. Takes half a minute and 5 GB of disk."""

import json
import random
import shutil
import struct
import subprocess

import pytest
from build_folder import ARTESIAN as PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")

MIB = 1 << 20
BUDGET = 768 * MIB
RSS_MAX = int(2.2 * 1024 * MIB)
BASE_MAX = 350 * MIB  # for the program and its libraries
DISK_NEEDED = 8 << 30


def write_inputs(folder):
    model = folder / "model"
    model.mkdir()
    config = {
        "model_type": "gpt2",
        "n_layer": 24,
        "n_embd": 1024,
        "n_head": 16,
        "n_positions": 1024,
        "vocab_size": 50257,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
    (model / "config.json").write_text(json.dumps(config))
    tokens = random.Random(1).choices(range(50257), k=2000)
    (folder / "tokens.bin").write_bytes(struct.pack("<2000H", *tokens))
    offload = {"device": "nvme", "nvme_path": str(folder / "nvme")}
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True, "initial_scale_power": 12},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**offload, "max_in_cpu": 0},
            "offload_optimizer": offload,
        },
        "aio": {"queue_depth": 32},
        "artesian": {"device_memory": BUDGET, "host_memory": BUDGET},
    }
    (folder / "ds.json").write_text(json.dumps(settings))


def test_355m_parameters_train_in_two_budgets_of_768_mib(tmp_path):
    if shutil.disk_usage(tmp_path).free < DISK_NEEDED:
        pytest.skip("needs 8 GiB of free disk")
    write_inputs(tmp_path)
    arguments = "--model model --init --data tokens.bin --config ds.json --steps 4 --seq-len 128"
    run = subprocess.run(
        [PROGRAM, "train", *arguments.split(), "--log-jsonl", "steps.jsonl", "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert len(steps) == 4
    peak = steps[-1]["peak"]
    print({part: f"{size / MIB:.0f} MiB" for part, size in peak.items()})
    assert peak["device"] <= BUDGET
    assert peak["host"] <= BUDGET
    assert peak["process_rss"] < RSS_MAX
    # All memory is in reported parts: the gradients that autograd holds are in two of them.
    assert peak["program"] <= BASE_MAX
    parts = ["program", "device", "host", "activations", "heap"]
    explained = sum(peak[part] for part in parts) - peak["gradients"]
    assert abs(peak["process_rss"] - explained) <= 64 * MIB
    assert not (tmp_path / "nvme").exists()
