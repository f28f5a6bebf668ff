"""Proves that a schedule that ends with the run does so however its length is said: by --steps, by
--epochs, or by neither, which is one pass over the data."""

import pytest
from train_cli_test import place, pytestmark  # noqa: F401


def rates(place, total, **flags):
    """Learning rates of a run over 12 samples, and its notes."""

    def change(config):
        values = {"warmup_max_lr": 1e-3, "warmup_num_steps": "auto", "warmup_type": "linear"}
        if total is not None:
            values["total_num_steps"] = total
        config["scheduler"] = {"type": "WarmupDecayLR", "params": values}

    place.data.write_text("x" * (32 * 12 + 1))
    result = place.run(config=place.write_config(change), log_jsonl=place.log, **flags)
    assert result.returncode == 0, result.stderr
    return [step["lr"] for step in place.steps()], result.stderr


@pytest.mark.parametrize("total", ["auto", None])
def test_epochs_are_as_many_steps(place, total):
    expected, said = rates(place, total, steps=24)
    assert len(expected) == 24 and "warmup_num_steps" in said and " 2" in said
    found, notes = rates(place, total, steps=None, epochs=2)
    assert found == expected
    assert notes.count("scheduler.params.warmup_num_steps") == 1
    assert rates(place, total, steps=None)[0] == rates(place, total, steps=12)[0]


def test_only_a_run_longer_than_its_schedule_contradicts_it(place):
    by_data, _ = rates(place, 100, steps=None)
    assert len(by_data) == 12
    shorter, notes = rates(place, 100, steps=12)
    assert shorter == by_data
    assert "scheduler.params.total_num_steps" in notes
    with pytest.raises(AssertionError, match="the command line contradicts the config"):
        rates(place, 8, steps=12)
