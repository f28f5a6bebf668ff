"""Proves that several processes which a launcher starts together are refused, as they would each
train the whole model: `artesian train` with exit code 2 and one line before it reads anything, and
Python before it takes the model over; and that a batch script of Slurm, which is one process of an
allocation of many, trains."""

import subprocess
import sys

import hf
import pytest
import small_models
import torch
import train_cli_test
from small_models import artesian
from train_cli_test import place, pytestmark  # noqa: F401

REFUSED = "training with several ranks is not supported yet; start one process"
LAUNCHERS = [
    {"WORLD_SIZE": "2", "RANK": "1"},
    {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
    {"PMI_SIZE": "2", "PMI_RANK": "0"},
    {"SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "8", "SLURM_PROCID": "3"},
]
BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NPROCS": "8"}


@pytest.mark.parametrize("variables", LAUNCHERS)
def test_train_refuses_to_be_one_of_several(place, monkeypatch, variables):  # noqa: F811
    for name, value in variables.items():
        monkeypatch.setitem(train_cli_test.ENVIRONMENT, name, value)
    variable, count = next(iter(variables.items()))
    missing = place.folder / "missing"
    error = place.refused(model=missing, data=missing)  # before it looks for them
    assert error == (
        f"artesian: error: {variable}: got {count} processes, allowed 1: {REFUSED}, or unset "
        f"{variable} where each is to train a model of its own"
    )


def test_a_batch_script_of_slurm_trains(place, monkeypatch):  # noqa: F811
    for name, value in BATCH_SCRIPT.items():
        monkeypatch.setitem(train_cli_test.ENVIRONMENT, name, value)
    assert len(place.trained(steps=1)) == 1


def test_torchrun_with_two_processes_trains_nothing(place):  # noqa: F811
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*torchrun, "--nproc-per-node", "2", "--no-python", *place.words(log_jsonl=place.log)]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=place.folder, env=train_cli_test.ENVIRONMENT
    )
    assert done.returncode != 0 and done.stdout == ""
    assert f"artesian: error: WORLD_SIZE: got 2 processes, allowed 1: {REFUSED}" in done.stderr
    assert "exitcode  : 2" in done.stderr, done.stderr
    assert not place.log.exists()


def refused_natively(tmp_path, text):
    model, _ = small_models.make("gpt2")
    with pytest.raises(artesian.errors.UnsupportedError) as caught:
        artesian.initialize(model=model, config=small_models.config_for(tmp_path))
    assert text in str(caught.value)
    assert all(torch.isfinite(p).all() for p in model.parameters())  # they are the caller's
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variables", LAUNCHERS)
def test_python_refuses_to_be_one_of_several(tmp_path, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused_natively(tmp_path, REFUSED)
    with pytest.raises(artesian.errors.UnsupportedError, match=REFUSED), artesian.zero.Init():
        pass


GROUP = """
import sys
import torch
import artesian.errors
torch.distributed.init_process_group(
    "gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
model = torch.nn.Linear(2, 2)
for initialize in ({calls}):
    try:
        initialize()
    except artesian.errors.UnsupportedError as error:
        print(error)
"""
NATIVE = "lambda: artesian.initialize(model=model, config={}),"
DEEPSPEED = """
    lambda: __import__("deepspeed").init_distributed(),
    lambda: __import__("deepspeed").initialize(model=model, config={}),
"""


@pytest.mark.parametrize(("calls", "as_deepspeed"), [(NATIVE, False), (DEEPSPEED, True)])
def test_a_process_group_of_two_is_refused(tmp_path, calls, as_deepspeed):
    program = GROUP.replace("{calls}", calls)
    environment = hf.environment(tmp_path, as_deepspeed=as_deepspeed)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "store", str(rank)],
            env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    line = f"torch.distributed: got a group of 2 processes, allowed 1: {REFUSED}"
    assert said == [[line] * calls.count("lambda")] * 2


def test_deepspeeds_name_refuses_the_launchers_variables(tmp_path):
    program = "import deepspeed; deepspeed.init_distributed()"
    words = [sys.executable, "-c", program]
    environment = {**hf.environment(tmp_path, as_deepspeed=True), "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    error = "artesian.errors.UnsupportedError: OMPI_COMM_WORLD_SIZE: got 2 processes"
    assert done.stderr.splitlines()[-1].startswith(error)
