"""Proves what a run that is to go on, or to stop, decides by itself: a log of a run that left no
checkpoint is kept, what --resume refuses is refused before text is tokenised, a configuration that
has changed is named, and a stop gives up the step under way where there is no time for it."""

import json
import signal
import subprocess
import time

import pytest
from plan_test import RATES
from train_checkpoints_test import bits, config_of, whole_run, words
from train_cli_test import ENVIRONMENT, PROGRAM, errors_of, place, pytestmark  # noqa: F401


def test_the_log_of_a_run_that_left_no_checkpoint_is_kept(place):
    config = config_of(place, "fp32")
    done = place.run("--quiet", config=config, steps=2, log_jsonl=place.log, seq_len=8)
    assert done.returncode == 0, done.stderr
    before = place.log.read_text()
    (place.folder / "steps.jsonl.1").write_text("taken")
    result = place.run("--resume", config=config, **words(place, 3))
    assert result.returncode == 0, result.stderr
    assert f"are in {place.log}.2 now" in result.stderr
    assert (place.folder / "steps.jsonl.2").read_text() == before
    assert (place.folder / "steps.jsonl.1").read_text() == "taken"
    assert [step["step"] for step in place.steps()] == [1, 2, 3]
    assert place.run("--resume", config=config, **words(place, 4)).returncode == 0
    assert [step["step"] for step in place.steps()] == [1, 2, 3, 4]
    assert not (place.folder / "steps.jsonl.3").exists()


def test_a_log_is_kept_while_saves_may_still_have_been_under_way(place):
    """The first save may fail twice, and a third one be killed before the fourth is due."""
    config = config_of(place, "fp32")
    done = place.run("--quiet", config=config, steps=13, log_jsonl=place.log, seq_len=8)
    assert done.returncode == 0, done.stderr
    log = place.log.read_text()
    refused = place.run("--resume", config=config, **words(place, 3))
    assert "got 13 lines, of which a checkpoint must have been saved" in errors_of(refused, 2)
    assert place.log.read_text() == log
    before = log[: log.rindex("\n", 0, -1) + 1]
    place.log.write_text(before)
    result = place.run("--resume", config=config, **words(place, 3))
    assert result.returncode == 0, result.stderr
    assert (place.folder / "steps.jsonl.1").read_text() == before
    place.log.write_text(log)
    flags = {**words(place, 3), "checkpoint_dir": place.folder / "other"}
    optional = place.run("--resume", "--checkpoint-optional", config=config, **flags)
    assert optional.returncode == 0, optional.stderr
    assert (place.folder / "steps.jsonl.2").read_text() == log


def test_what_cannot_go_on_is_refused_before_text_is_tokenised(place, monkeypatch):
    config = config_of(place, "fp32")
    flags = words(place, 3)
    assert place.run("--quiet", config=config, **flags).returncode == 0
    log = place.log.read_text()
    script = place.folder / "python"
    script.write_text(f"#!/bin/sh\ntouch {place.folder}/tokenised\nexit 1\n")
    script.chmod(0o700)
    (place.model / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(ENVIRONMENT, "ARTESIAN_PYTHON", str(script))

    def refused(*arguments, **changes):
        result = place.run(*arguments, config=config, **{**flags, "steps": 5, **changes})
        return errors_of(result, 2)

    assert "of another run" in refused(log_jsonl=None)
    assert "--seq-len was 8, is 9" in refused("--resume", seq_len=9)
    assert "--seed was 0, is 1" in refused("--resume", seed=1)
    missing = place.folder / "missing" / "saved"
    assert "--checkpoint-dir" in refused(checkpoint_dir=missing, log_jsonl=None)
    place.log.write_text("mine\n")
    assert "which is of no step" in refused("--resume")
    place.log.write_text(log)
    assert not (place.folder / "tokenised").exists()
    result = place.run("--resume", config=config, **{**flags, "steps": 5})
    assert result.returncode == 2 and (place.folder / "tokenised").exists()
    assert place.log.read_text() == log


def test_a_checkpoint_takes_the_bytes_of_the_plan(place):
    config = config_of(place, "bf16")
    assert place.run("--quiet", config=config, **words(place, 1)).returncode == 0
    planned = subprocess.run(
        [PROGRAM, "plan", "--model", place.model, "--config", config, "--json", "-", *RATES],
        cwd=place.folder, env=ENVIRONMENT, capture_output=True, text=True)  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    data = (place.folder / "saved" / "global_step1" / "rank0.safetensors").read_bytes()
    arrays = len(data) - 8 - int.from_bytes(data[:8], "little")
    assert json.loads(planned.stdout)["checkpoint"]["bytes"] == arrays


def test_what_has_changed_in_the_configuration_is_said(place):
    first = config_of(place, "fp32")
    assert place.run("--quiet", config=first, **words(place, 3)).returncode == 0

    def change(config):
        del config["fp16"]
        config.update(json.loads(config_of(place, "fp32", "cpu").read_text()))
        config["optimizer"]["params"].update(lr=5e-4, weight_decay=0.1)
        del config["gradient_clipping"]
        config["steps_per_print"] = 7

    result = place.run("--resume", config=place.write_config(change), **words(place, 4))
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if " was " in line]
    assert said == [
        "artesian: note: --resume: gradient_clipping was 1.0, is not set",
        "artesian: note: --resume: optimizer.params.lr was 0.001, is 0.0005",
        "artesian: note: --resume: optimizer.params.weight_decay was not set, is 0.1",
    ]
    result = place.run("--resume", config=place.write_config(change), **words(place, 5))
    assert " was " not in result.stderr


def start_in_a_long_step(place, dtype, grace):
    """A run that has taken two steps, and takes the third for minutes."""
    long = config_of(place, dtype)
    flags = {**words(place, 3), "checkpoint_every": 1}
    assert place.run("--quiet", config=long, **{**flags, "steps": 2}).returncode == 0
    process = place.start("--resume", f"--grace={grace}", config=long,
                          **{**flags, "accumulation": 1000000})  # fmt: skip
    while "going on from global_step2" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.5)
    return process


def test_a_step_gives_way_to_the_save_of_the_one_before(place):
    """Where both do not fit; where they do, the step is finished: either way nothing is lost."""
    flags = {**words(place, 6, every=1000), "accumulation": 1500}
    config = config_of(place, "bf16")
    log = place.folder / "whole.jsonl"
    begin = time.monotonic()
    assert place.run("--quiet", config=config,
                     **{**flags, "log_jsonl": log, "checkpoint_dir": None,
                        "checkpoint_every": None}).returncode == 0  # fmt: skip
    step = (time.monotonic() - begin) / 6
    whole = [json.loads(line) for line in log.read_text().splitlines()]
    for part in [0.1, 0.3, 0.5]:
        if place.log.exists() and len(place.steps()) >= 4:
            break
        place.log.touch()
        lines = place.log.read_text().count("\n")
        process = place.start("--resume", f"--grace={0.6 * step}", config=config, **flags)
        while place.log.read_text().count("\n") < lines + 1:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.001)
        time.sleep(part * step)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 143, errors
        steps = place.steps()
        assert f"stopped by SIGTERM after step {len(steps)} of 6" in errors
        latest = place.folder / "saved" / "latest"  # on a busy machine the first save is late, too
        saved = latest.exists() and latest.read_text() == f"global_step{len(steps)}"
        assert saved or "no checkpoint is saved" in errors
    result = place.run("--resume", config=config, **flags)
    assert result.returncode == 0, result.stderr
    assert bits(place.steps()) == bits(whole)
    assert place.steps()[-1]["digest"] == whole[-1]["digest"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_step_that_outlasts_the_grace_ends_at_once(place, dtype):
    whole = whole_run(place, dtype, 3)
    process = start_in_a_long_step(place, dtype, grace=1)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    assert process.returncode == 143
    assert errors.endswith("artesian: note: stopped by SIGTERM after step 2 of 3\n")
    saved = place.folder / "saved"
    assert (saved / "latest").read_text() == "global_step2"
    result = place.run("--resume", config=config_of(place, dtype), **words(place, 3))
    assert result.returncode == 0, result.stderr
    assert bits(place.steps()) == bits(whole)
    assert place.steps()[-1]["digest"] == whole[-1]["digest"]


def test_a_stop_during_an_evaluation_takes_no_further_step(place):
    """The held-out data takes minutes; the step before it is the last."""
    place.data.write_text(place.data.read_text() * 20)
    process = place.start(config=config_of(place, "fp32"), eval_data=place.data, eval_every=1,
                          **words(place, 1000, every=1000))  # fmt: skip
    while "initialising the tiers: 100%" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.7)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    steps = place.steps()
    assert process.returncode == 143
    assert "eval_loss" not in steps[-1]
    assert len(steps) == 1
    assert (place.folder / "saved" / "latest").read_text() == "global_step1", errors


def test_item_9_another_model_is_refused_by_key(place):
    config = config_of(place, "fp32")
    flags = words(place, 4)
    assert place.run("--quiet", config=config, **{**flags, "steps": 3}).returncode == 0
    path = place.model / "config.json"
    model = json.loads(path.read_text())
    path.write_text(json.dumps({**model, "layer_norm_epsilon": 1e-3, "activation_function": "relu",
                                "transformers_version": "9.9"}))  # fmt: skip
    error = errors_of(place.run("--resume", config=config, **flags), 2)
    assert 'activation_function was not set, is "relu"; layer_norm_epsilon was not set' in error
    assert "--allow-changed-model" in error and "transformers_version" not in error
    path.write_text(json.dumps({**model, "transformers_version": "9.9", "initializer_range": 0.5}))
    assert place.run("--quiet", "--resume", config=config, **flags).returncode == 0
    path.write_text(json.dumps({**model, "layer_norm_epsilon": 1e-3}))
    result = place.run("--resume", "--allow-changed-model", config=config, **{**flags, "steps": 5})
    assert result.returncode == 0, result.stderr
    assert "the model goes on as another: layer_norm_epsilon was not set, is 0.001" in result.stderr
