"""Proves that ranks which compute on devices of their own have the bits of one rank that computes
on one, with no two operations that lack an order; and that a checkpoint of them goes on there."""

import json
import os
import pathlib
import subprocess
import sys

import ranks_worker
import torch

WORKER = pathlib.Path(ranks_worker.__file__)
CASES = [
    {"model": "llama_tied", "optimizer": "nvme", "dtype": "bf16"},
    {"model": "gemma2", "stage": 2, "optimizer": "cpu", "dtype": "bf16"},
    {"model": "t5", "stage": 1, "dtype": "fp16"},
    {"model": "llama", "freeze": "mlp", "param": "nvme", "optimizer": "nvme", "dtype": "bf16"},
    {"model": "bert", "param": "cpu", "type": "SGD"},
    {"model": "branches", "stage": 2, "optimizer": "cpu"},
]
# Where ranks divide the parameters, since the devices reach each other.
DIVIDED = [
    {"model": "gpt2", "param": "nvme", "optimizer": "nvme", "dtype": "bf16"},
    {"model": "llama", "param": "cpu", "dtype": "fp16"},
    {"model": "gemma2", "optimizer": "cpu", "checkpointing": "reentrant"},
]
SAVED = {"model": "gpt2", "optimizer": "nvme", "dtype": "bf16", "micro_batches": 2}


def run_ranks(folder, cases, joined=False):
    (folder / "cases.json").write_text(json.dumps(cases))
    words = [WORKER, folder / "cases.json", folder / "found.json"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", *map(str, words)]
    environment = {**os.environ, **({"SIMULATED_JOINED": "1"} if joined else {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[:6000]
    return json.loads((folder / "found.json").read_text())


def test_ranks_have_the_bits_of_one(sim, tmp_path):
    torch.set_num_threads(1)
    apart = run_ranks(tmp_path, CASES)
    joined = run_ranks(tmp_path, CASES + DIVIDED, joined=True)
    for number, (case, found) in enumerate(zip(CASES + DIVIDED, joined, strict=True)):
        of_one = ranks_worker.run(case, 0, 1, tmp_path)
        assert str(found) == str(of_one), case  # compared as text, since a norm may be NaN
        if number < len(CASES):
            assert str(apart[number]) == str(of_one), case


def test_what_ranks_have_saved_goes_on(sim, tmp_path):
    torch.set_num_threads(1)
    whole = ranks_worker.run({**SAVED, "steps": 4}, 0, 1, tmp_path)
    run_ranks(tmp_path, [{**SAVED, "steps": 2, "save": True}])
    last = ranks_worker.run({**SAVED, "steps": 4, "load": True}, 0, 1, tmp_path)
    assert last[1] == whole[1] and last[0] == whole[0][-len(last[0]) :]
