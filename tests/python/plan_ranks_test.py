"""Proves that `artesian plan` knows several ranks: what they share of a machine, and what they wait
for."""

import pytest
from plan_test import RATES, figures, job, pytestmark  # noqa: F401


def test_ranks_of_a_node_share_its_disks(figures):  # noqa: F811
    def rate(*flags, rates=RATES):
        found = figures(*flags, rates=rates)["rates"]
        read, write = (
            next(each for each in found if each["name"] == name)
            for name in ["nvme_read", "nvme_write"]
        )
        assert read["source"] == write["source"] and read["value"] > write["value"]
        return read["value"], read["source"]

    assert rate("--gpus", "1") == (2, "given")
    assert rate("--gpus", "4") == (0.5, "of each of 4 ranks, given")
    assert rate("--gpus", "4", "--nodes", "8") == (0.5, "of each of 4 ranks, given")
    assert rate("--gpus", "4", "--disks", "2") == (1, "of each of 4 ranks on 2 disks, given")
    assert rate("--gpus", "1", "--disks", "2") == (4, "2 disks, given")
    assert rate("--ranks", "2") == (1, "of each of 2 ranks, given")
    value, source = rate("--gpus", "2", "--disks", "4", rates=RATES[:4])
    assert value == 6 and source.startswith("of each of 2 ranks on 4 disks, assumed; ")


def test_ranks_on_cpus_are_planned(figures, job):  # noqa: F811
    one, two = figures(), figures("--ranks", "2")
    assert two["target"] == {"device": "cpu", "gpus": 0, "nodes": 1, "ranks": 2}
    assert one["bytes_per_step"]["bus"]["total"] == one["step"]["exposed_bus_s"] == 0
    state = [plan["memory"]["nvme"]["optimizer"] for plan in (one, two)]
    assert state[1] == pytest.approx(state[0] / 2, rel=0.15)  # equal except for padding
    bus = two["bytes_per_step"]["bus"]
    assert bus["grad"] > 0 and bus["param"] > 0
    # Half of what is free, as the ranks' files are on one disk.
    free = [plan["memory"]["nvme"]["budget"] for plan in (one, two)]
    assert free[1] == pytest.approx(free[0] / 2, rel=0.1)
    # Computing waits for gradients, so a bus without bounds would spare at least their seconds.
    rates = {each["name"]: each["value"] for each in two["rates"]}
    exposed = two["step"]["exposed_bus_s"]
    assert exposed >= bus["grad"] / rates["bus"] / 1e9
    fast = figures("--ranks", "2", "--bus", "999999")
    assert fast["step"]["exposed_bus_s"] < 1e-6
    assert fast["step"]["seconds"] + exposed == pytest.approx(two["step"]["seconds"], rel=1e-3)
    text = job("--ranks", "2").stdout
    share = exposed / two["step"]["seconds"] * 100
    assert f"bus, not hidden          {exposed:.3g} s, {share:.0f}% of a step\n" in text
    assert ", 2 CPU ranks\n" in text and "bus, not hidden" not in job().stdout


def test_gradients_that_are_sent_once_a_step_are_planned(figures):  # noqa: F811
    def planned(*flags, micro_batches=4, **artesian):
        memory = {"device_memory": "64MiB", "host_memory": "64MiB"}
        config = {"gradient_accumulation_steps": micro_batches, "artesian": memory | artesian}
        bus = [] if "--bus" in flags else ["--bus", "0.01"]
        return figures("--ranks", "2", *bus, *flags, config=config)

    exact, fast = planned(), planned(reduction="fast")
    assert fast["bytes_per_step"]["bus"]["param"] == exact["bytes_per_step"]["bus"]["param"]
    rows = 2 * 128 * (8 + 64 * 4) // 2  # of the table, for each micro-batch: ids and elements
    sent = [plan["bytes_per_step"]["bus"]["grad"] - 4 * rows for plan in (exact, fast)]
    assert sent[0] == 4 * sent[1] > 0
    note = next(each for each in exact["notes"] if each.startswith("artesian.reduction: "))
    hidden = [plan["step"]["exposed_bus_s"] for plan in (exact, fast)]
    assert f": {hidden[0]:.3g} s of a step are time of the bus" in note
    assert f'; {hidden[1]:.3g} s with "fast"' in note
    change = next(each for each in exact["changes"] if each["key"] == "artesian.reduction")
    assert change["step_seconds"] == pytest.approx(fast["step"]["seconds"])
    held = fast["memory"]["host"]["buffers"] - exact["memory"]["host"]["buffers"]
    assert held > 4 * fast["model"]["parameters"]
    for plan in (fast, planned("--bus", "1000"), planned(micro_batches=1)):
        assert not any(each.startswith("artesian.reduction: ") for each in plan["notes"])
