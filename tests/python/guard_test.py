"""Proves what a user sees of losses and gradients that are not finite, provoked for real by a loss
scale or a learning rate that is too large: step and parameter are named in every precision, the run
goes on or ends with advice and exit code 1 as the config says, with what it has by then saved, each
step has its JSONL line, and nothing stays behind."""

import json

import pytest

from train_cli_test import place as place  # the fixture


def precision(name, lr=1e-3, **ours):
    """Returns a change of the config; without fp16 there is no loss scale."""

    def change(config):
        config.pop("fp16")
        if name == "bf16":
            config["bf16"] = {"enabled": True}
        config["optimizer"]["params"]["lr"] = lr
        config["artesian"].update(ours)

    return change


def ended(place, change, steps, none_taken=False):
    """Runs a training that must end by itself; returns its error and its JSONL lines. Checks that
    weights are saved unless no step was taken, and that trace and table exist."""
    saved, trace = place.folder / "ended", place.folder / "ended.json"
    result = place.run(config=place.write_config(change), steps=20, log_jsonl=place.log,
                       save=saved, save_dtype="fp32", trace=trace)  # fmt: skip
    assert result.returncode == 1, result
    assert result.stdout.startswith(f"\nTraining, {steps} step"), result.stdout
    assert json.loads(trace.read_text())["traceEvents"]
    said = "nothing is saved: " if none_taken else "all the same the weights are in "
    assert f"--save: {said}" in result.stderr
    assert saved.exists() != none_taken
    (error,) = [line for line in result.stderr.splitlines() if ": error: " in line]
    lines = place.steps()
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert lines[-1]["overflow"] is True and "digest" not in lines[-1]
    return error, lines, result.stderr


def test_an_overflow_of_fp16_is_a_note_that_names_the_parameter(place):
    def change(config):
        config["fp16"] = {"enabled": True, "initial_scale_power": 30, "hysteresis": 1}

    result = place.run(config=place.write_config(change), steps=3, log_jsonl=place.log)
    assert result.returncode == 1, result.stderr  # no step was taken
    notes = [line for line in result.stderr.splitlines() if "step skipped" in line]
    for step, (note, line) in enumerate(zip(notes, place.steps(), strict=True), start=1):
        assert line["overflow"] is True
        assert note.startswith(
            f"artesian: note: step {step}: gradient of {line['overflow_parameter']}: got a value "
            f"that is not finite at loss scale {2**(31 - step)}; step skipped"
        )


def test_too_many_skipped_steps_end_the_run(place):
    def change(config):
        config["fp16"] = {"enabled": True, "loss_scale": 1e30}  # a static scale, which never falls
        config["artesian"]["skipped_steps_max"] = 4

    error, lines, _ = ended(place, change, 4, none_taken=True)
    assert error.startswith(
        "artesian: error: artesian.skipped_steps_max: step 4: got 4 skipped steps in a row, "
        "allowed fewer than 4; the last one: gradient of wte.weight: got a value that is not finite"
    )
    assert "learning rate" in error and "raise the key" in error
    assert all(line["overflow"] and line["loss"] is not None for line in lines)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def test_what_is_saved_at_such_an_end_is_what_the_steps_before_made(place):
    whole = place.folder / "whole"
    change = precision("fp32", lr=1e30, skipped_steps_max=3)
    place.trained(config=place.write_config(change), steps=1, save=whole, save_dtype="fp32")
    ended(place, change, 4)  # only the first step is not skipped
    assert weights_of(place.folder / "ended") == weights_of(whole)


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_without_a_loss_scale_steps_are_skipped_with_a_warning(place, name):
    # The first step's weights are so large that the second one's forward pass overflows.
    error, lines, text = ended(place, precision(name, lr=1e30, skipped_steps_max=3), 4)
    assert lines[0]["overflow"] is False and lines[0]["loss"] is not None
    assert [line["overflow"] for line in lines[1:]] == [True] * 3
    assert all(line["loss"] is None and line["grad_norm"] is None for line in lines[1:])
    assert "artesian: warning: step 2: loss of micro-batch 1: got " in text
    assert "gradient of" not in text  # all gradients are bad after such a loss, so none is blamed
    assert "artesian.skipped_steps_max: step 4: got 3 skipped steps in a row" in error
    assert "loss of micro-batch 1: got " in error and "learning rate" in error


def test_without_the_check_the_first_such_step_ends_the_run(place):
    def change(config):
        precision("bf16", lr=1e30)(config)
        config["bf16"]["check_grad_overflow"] = False

    error, lines, _ = ended(place, change, 2)
    assert "step 2: loss of micro-batch 1: got " in error
    assert "bf16.check_grad_overflow" in error
    assert lines[1]["loss"] is None
