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
