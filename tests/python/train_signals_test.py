"""Proves what a signal does to `artesian train`: the run ends after its step, with what was asked
for saved and nothing left in nvme_path; a second SIGINT or SIGTERM ends it at once. SIGHUP,
SIGUSR1, SIGUSR2 and SIGXCPU, of terminals, batch systems and limits, stop it as SIGTERM does.

A test cannot choose the instant of a signal. Each waits for what the run shows of itself, and takes
every outcome that the kernel's scheduling may bring about for right, or tries again."""

import os
import pathlib
import signal
import subprocess
import time

import pytest
from train_cli_test import ENVIRONMENT, make_model, place, pytestmark  # noqa: F401


SOFT = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]


def is_pending(process, number):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("ShdPnd:")[1].split()[0], 16) >> (number - 1) & 1


@pytest.mark.parametrize("number", SOFT)
def test_signals_of_batch_systems_save_a_checkpoint(place, number):
    saved = place.folder / "saved"
    process = place.start_and_wait_for_a_step(seq_len=4, checkpoint_dir=saved,
                                              checkpoint_every=1000000)  # fmt: skip
    for _ in range(3):  # they come more than once, and SIGTERM behind them
        process.send_signal(number)
    while process.poll() is None and is_pending(process, number):
        pass
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    steps = len(place.steps())
    assert errors == f"artesian: note: stopped by {number.name} after step {steps} of 1000000\n"
    assert process.returncode == 128 + number
    assert (saved / "latest").read_text() == f"global_step{steps}"


def test_signals_that_are_ignored_stay_ignored(place):
    def ignore():
        for number in SOFT:
            signal.signal(number, signal.SIG_IGN)

    place.log.write_text("")
    process = subprocess.Popen(
        place.words("--quiet", steps=1000000, log_jsonl=place.log), stderr=subprocess.PIPE,
        text=True, cwd=place.folder, env=ENVIRONMENT, preexec_fn=ignore)  # fmt: skip
    while not place.log.read_text().endswith("\n"):
        assert process.poll() is None, process.stderr.read()
    for number in SOFT:
        process.send_signal(number)
    before = place.log.read_text().count("\n")  # the last line may be in the making
    while place.log.read_text().count("\n") <= before + 3:
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_finishes_the_step_and_saves(place, number):
    process = place.start(micro_batch=1, accumulation=150, save=place.folder / "out")
    while "initialising the tiers: 100%" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "error" not in errors
    steps = place.steps()
    if steps:  # else the signal came before the first step began
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
        assert len(steps[-1]["digest"]) == 32
        assert f"Training, {len(steps)} steps" in output
    assert (place.folder / "out" / "model.safetensors").exists() == bool(steps)


def test_a_stop_between_steps_ends_the_log_with_a_digest(place):
    for _ in range(3):
        process = place.start_and_wait_for_a_step(seq_len=4)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 143
        steps = place.steps()
        assert output == ""
        assert errors == (f"artesian: note: stopped by SIGTERM after step {len(steps)} of "
                          "1000000\n")  # fmt: skip
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
        assert ["digest" in step for step in steps] == [False] * (len(steps) - 1) + [True]
        assert os.listdir(place.nvme) == []


def test_a_stop_during_initialisation(place):
    def change(config):
        config["artesian"] = {"device_memory": "64MiB", "host_memory": "64MiB"}

    model = make_model(place.folder / "wide", n_embd=256, vocab_size=20000)
    config = place.write_config(change)
    for attempt in range(10):
        out = place.folder / f"out{attempt}"
        process = place.start("--quiet", model=model, config=config, save=out)
        while not any(name.endswith(".swap") for name in os.listdir(place.nvme)):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 130 and output == ""
        assert errors.startswith("artesian: note: stopped by SIGINT ")
        if place.log.read_text() == "":  # else we were so slow that a step had begun
            break
    assert place.log.read_text() == ""
    assert not out.exists()


def catches(process, number):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(place, second):
    for _ in range(10):
        process = place.start(micro_batch=1, accumulation=1000000)  # a step of an hour
        while "initialising the tiers: 100%" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        while process.poll() is None and catches(process, second):
            pass
        process.send_signal(second)
        process.communicate(timeout=60)
        if process.returncode != 130:  # else the first one came before the step had begun
            break
    assert process.returncode == -second
    place.trained()  # clears what that left


def tokenising(place, monkeypatch):
    """A run whose tokeniser takes an hour, and the process id of that."""
    script, temporary = place.folder / "python", place.folder / "temporary"
    script.write_text(f"#!/bin/sh\necho $$ > {place.folder}/new\nmv {place.folder}/new "
                      f"{place.folder}/pid\nexec sleep 3600\n")  # fmt: skip
    script.chmod(0o700)
    temporary.mkdir()
    (place.model / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(ENVIRONMENT, "ARTESIAN_PYTHON", str(script))
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(temporary))
    process = place.start()
    while not (place.folder / "pid").exists():
        assert process.poll() is None, process.stderr.read()
    return process, int((place.folder / "pid").read_text())


def is_there(process_id):
    try:
        return "(zombie)" not in pathlib.Path(f"/proc/{process_id}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_text_is_tokenised(place, monkeypatch, number):
    process, tokeniser = tokenising(place, monkeypatch)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not is_there(tokeniser)
    assert os.listdir(place.folder / "temporary") == []
    assert not place.log.exists()


def test_the_tokeniser_does_not_outlive_us(place, monkeypatch):
    process, tokeniser = tokenising(place, monkeypatch)
    process.kill()
    process.communicate(timeout=60)
    while is_there(tokeniser):
        time.sleep(0.01)
