"""Proves that --eval-data reports the mean loss over held-out data in progress, log and table,
compared with a loss that is computed in another way; that --eval-every sets when; and that
evaluating changes no bit of the training, wherever the state lives."""

import math
import re

import pytest
from train_cli_test import errors_of, place, pytestmark  # noqa: F401


@pytest.fixture
def held_out(place):
    path = place.folder / "held_out.txt"
    path.write_text("a well of other words, and none of them in the text\n" * 9)
    return path


def in_bf16(config):
    del config["fp16"]
    config["bf16"] = {"enabled": True}


def in_memory(config):
    config["artesian"] = {"device_memory": "64MiB", "host_memory": "64MiB"}


@pytest.mark.parametrize("change", [None, in_bf16, in_memory])
def test_item_14_it_changes_no_bit(place, held_out, change):
    config = place.write_config(change)
    flags = {"config": config, "steps": 6, "accumulation": 2, "micro_batch": 2}
    plain = place.trained(**flags)
    told = place.trained(**flags, eval_data=held_out, eval_every=2)
    assert [line["loss"] for line in told] == [line["loss"] for line in plain]
    assert told[-1]["digest"] == plain[-1]["digest"]
    assert ["eval_loss" in line for line in told] == [False, True] * 3
    assert all("eval_loss" not in line for line in plain)
    losses = [line["eval_loss"] for line in told if "eval_loss" in line]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 3


def test_item_14_the_loss_is_the_mean_over_the_data(place, held_out):
    """If the model does not learn, the loss is the training loss over the same samples."""
    flags = {"seq_len": 16, "lr": 0}

    def change(config):
        del config["optimizer"]

    config = place.write_config(change)
    (told,) = place.trained(**flags, config=config, eval_data=held_out, micro_batch=4)
    samples = (held_out.stat().st_size - 1) // 16
    assert samples % 4 != 0  # the last batch is a smaller one
    trained = place.trained(**flags, config=config, data=held_out, steps=None, order="sequential")
    assert len(trained) == samples
    mean = sum(line["loss"] for line in trained) / samples
    assert told["eval_loss"] == pytest.approx(mean, rel=1e-6)


def test_item_14_it_is_told_in_progress_and_table(place, held_out):
    done = place.run(steps=3, eval_data=held_out, eval_every=1, log_jsonl=place.log)
    losses = [line["eval_loss"] for line in place.steps()]
    found = re.findall(r"held-out loss ([\d.]+) \(perplexity ([\d.]+)\)", done.stderr)
    assert [float(loss) for loss, _ in found] == pytest.approx(losses, abs=6e-5)
    assert float(found[0][1]) == pytest.approx(math.exp(losses[0]), rel=1e-3)
    row = f"{losses[0]:.4f} -> {losses[-1]:.4f}; perplexity "
    assert re.search(r"held-out loss +" + re.escape(row), done.stdout), done.stdout
    assert "held-out" not in place.run(steps=3).stdout


def test_item_14_without_an_interval_it_is_told_at_the_end(place, held_out):
    lines = place.trained(steps=3, eval_data=held_out)
    assert ["eval_loss" in line for line in lines] == [False, False, True]


def test_item_14_faults(place, held_out):
    line = errors_of(place.run(eval_every=3), 2)
    assert line.startswith("artesian: error: --eval-every: got no --eval-data, allowed ")
    short = place.folder / "short.txt"
    short.write_text("abc")
    line = place.refused(eval_data=short)
    assert line.startswith(
        f"artesian: error: --eval-data: data: {short}: got 3 tokens, allowed 33 or more")
    line = errors_of(place.run(eval_data=held_out, log_jsonl=held_out), 2)
    assert "--log-jsonl: got the file of --eval-data" in line
