"""Proves that each place in the engine that records a fence or waits for one is needed and tested:
when one is left out, a C++ test on a separate device (tests/support/separate_device.h) fails. The
test finds the places by running the programs, so it tries a new one, too. For those that hooked
models reach, see on_simulated/waits_on_simulated.py."""

import bisect
import collections
import os
import subprocess
import time

import pytest
from build_folder import BUILD

PROGRAMS = (
    "tiering_depot_test tiering_device_loader_test zero3_torch_separate_device_test "
    "zero3_torch_odd_batches_test zero3_torch_stop_test zero3_torch_groups_test "
    "zero3_torch_tiled_test zero3_torch_under_backward_test zero3_torch_speculative_update_test "
    "zero3_torch_checkpoint_equality_test zero3_torch_ranks_test "
    "zero3_torch_ranks_on_devices_test"
).split()
# Places that no test misses when they are left out, and why: docs/dev/gpu-tests.md.
TWICE = "the joins before and after an update, and its waits for copies, order the same"
SYNCHRONOUS = "Compute has no lag on this device"
HOST_WAITS = "the host has waited for the same copies before"
FEW = "a few tests alone reach it, and none shows it"
SILENT = {
    "record in artesian::tiering::Device::join_queues": TWICE,
    "wait in artesian::zero3::Optimizer::settle": TWICE,
    "record in artesian::zero3::Optimizer::settle": TWICE,
    "finish in artesian::zero3::Optimizer::settle": TWICE,
    "wait in artesian::zero3::Optimizer::drain": TWICE,
    "record in artesian::zero3::Optimizer::update_on_device": TWICE,
    "wait in artesian::zero3::Optimizer::update_on_device": TWICE,
    "wait in artesian::zero3::SubGroupStream::begin_tasks": TWICE,
    "record in artesian::zero3::Gradients::add_rows_on_device": SYNCHRONOUS,
    "wait in artesian::zero3::Gradients::add_rows_on_device": SYNCHRONOUS,
    "finish in artesian::zero3::Gradients::add_rows_on_device": SYNCHRONOUS,
    "record in artesian::zero3::StepCore::bring_rows_to_host": SYNCHRONOUS,
    "record in artesian::tiering::Device::finish_all": HOST_WAITS,
    "finish in artesian::tiering::Device::finish_all": HOST_WAITS,
    "finish in artesian::zero3::InputKeeper::drop_coming": FEW,
    "finish in artesian::zero3::InputKeeper::release_leaving": FEW,
    "record in artesian::zero3::Optimizer::gather_on_device": FEW,
    "finish in artesian::zero3::Optimizer::gather_on_device": FEW,
    "record in artesian::zero3::Optimizer::gather_over_bus": FEW,
    "wait in artesian::zero3::Optimizer::gather_over_bus": FEW,
    "record in artesian::zero3::GradientExchange::fill_there": FEW,
    "wait in artesian::zero3::GradientExchange::fill_there": FEW,
    "finish in artesian::zero3::UnitGraphs::accumulate": FEW,
    "finish in artesian::zero3::UnitGraphs::ask_to_stop": FEW,
}
KNOWN_TRIED = 8  # of the tests that reach such a place, so many are run, the shortest first


class Program:
    """A test program, and where its functions begin."""

    def __init__(self, name):
        self.path = BUILD / "tests" / name
        names = subprocess.run(
            ["nm", "-C", "--defined-only", self.path], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        self.functions = sorted(
            (int(line.split()[0], 16), line.split(" ", 2)[2])
            for line in names
            if line[:1] != " " and line.split()[1] in "tTwW"
        )

    def tests(self):
        listed = subprocess.run(
            [self.path, "--gtest_list_tests"], capture_output=True, text=True, check=True
        ).stdout
        suite = ""
        for line in listed.splitlines():
            if not line.startswith(" "):
                suite = line.split()[0]
            elif not line.strip().startswith("DISABLED"):
                yield suite + line.split()[0]

    def place(self, site):
        """Call, function and offset in it: the same in every program that has the function. Of the
        Device's own functions no offset: a loop over its queues is unrolled. None: not the
        engine's."""
        call, offset = site.split()
        number = bisect.bisect_left(self.functions, int(offset), key=lambda each: each[0]) - 1
        start, name = self.functions[number]
        name = name.replace("(anonymous namespace)", "{}").split("(")[0]
        if not name.startswith("artesian::") or "{}" in name or "test" in name.lower():
            return None
        return call, name, 0 if "tiering::Device::" in name else int(offset) - start

    def places(self, sites):
        """The sites of each place."""
        places = collections.defaultdict(list)
        for site in sites:
            places[self.place(site)].append(site)
        places.pop(None, None)
        return places

    def run(self, test, limit=900, **told):
        """The exit status, None if it had to be ended; and the seconds."""
        environment = {**os.environ, **told}
        environment.pop("ARTESIAN_SOAK", None)
        begin = time.monotonic()
        try:
            status = subprocess.run(
                [self.path, f"--gtest_filter={test}"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=limit,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        return status, time.monotonic() - begin


@pytest.mark.skipif("ARTESIAN_SOAK" not in os.environ, reason="takes ten minutes: make soak")
def test_each_wait_is_needed(tmp_path):
    reached = collections.defaultdict(list)
    for program in map(Program, PROGRAMS):
        for test in program.tests():
            sites = tmp_path / "sites"
            status, seconds = program.run(test, ARTESIAN_WAIT_SITES=str(sites))
            assert status == 0, test
            found = sites.read_text().splitlines() if sites.exists() else []
            for place, its_sites in program.places(found).items():
                reached[place].append((seconds, test, program, its_sites))
            sites.unlink(missing_ok=True)
    silent = []
    for place, tests in sorted(reached.items(), key=lambda each: each[0][1:]):
        name = f"{place[0]} in {place[1]} +{place[2]}"
        tests.sort(key=lambda each: each[0])
        if f"{place[0]} in {place[1]}" in SILENT:  # some of the function's other places are missed
            del tests[KNOWN_TRIED:]
        for seconds, test, program, sites in tests:
            dropped = {"ARTESIAN_WAIT_DROPPED": ",".join(sites)}
            if program.run(test, limit=100 + 3 * seconds, **dropped)[0] != 0:
                print(f"{name}: {test}", flush=True)
                break
        else:
            print(f"{name}: silent, in {len(tests)} tests", flush=True)
            silent.append(f"{place[0]} in {place[1]}")
    assert [each for each in silent if each not in SILENT] == []
