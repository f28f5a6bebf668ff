"""Proves dev/gpu_check.sh without a GPU: which arguments it refuses, that it says what it left
out, that a refusal, a hang or a broken tool is a failed row and never a pass, and that its training
runs are understood by the real program. The GPU is hidden where there is one."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from build_folder import ARTESIAN, ROOT

sys.path.insert(0, str(ROOT / "dev/gpu_check"))

import build as build_part  # noqa: E402
import measure  # noqa: E402
import sanitize  # noqa: E402
from shell import Finished  # noqa: E402

TRY = ["--shape", "tiny", "--bench-on-cpu"]
REFUSAL = "artesian: error: --device: not supported yet: cuda"


class Check:
    """One work folder, in which parts run one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self.work, self.out = folder / "work", folder / "out"
        (self.work / "bin").mkdir(parents=True)

    def run(self, *arguments, **environment):
        command = [ROOT / "dev/gpu_check.sh", *arguments]
        command += ["--work", self.work, "--out", self.out]
        return subprocess.run(
            [str(word) for word in command],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def fake_program(self, body, name="artesian"):
        path = self.work / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def broken_torch(self):
        """A PYTHONPATH; importing the real one takes seconds."""
        broken = self.folder / "broken"
        broken.mkdir()
        (broken / "torch.py").write_text("raise RuntimeError('torch is broken')")
        return str(broken)

    def results(self):
        return json.loads((self.out / "gpu_check.json").read_text())

    def table(self):
        return (self.out / "gpu_check.md").read_text()


@pytest.fixture
def check(tmp_path):
    return Check(tmp_path)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["facst"], "PART: got 'facst', allowed facts, build, test, sanitize, bench"),
        (["--prefix", "."], "--prefix: .: got no carried.txt, allowed a folder of dev/carry.sh"),
        (["--part-seconds", "0"], "--part-seconds: got 0.0, allowed numbers above 0"),
        (["--rounds", "-1"], "--rounds: got -1, allowed numbers above 0"),
        (["--shape", "7b"], "--shape"),
        (["--quick"], "unrecognized arguments: --quick"),
    ],
)
def test_refuses(check, arguments, words):
    done = check.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_check: error: ") and words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not check.out.exists()


def test_facts_of_this_machine(check):
    done = check.run("facts")
    assert done.returncode == 0, done.stderr
    assert "GPUs: none" in done.stderr and "no GPU" in check.table()
    found = check.results()["parts"]["facts"]
    assert found["status"] == "ok" and found["machine"]["dram_bytes"] > 1 << 30
    assert found["disk"]["read_gb_per_s"] > 0 and found["disk"]["write_gb_per_s"] > 0
    assert found["torch"]["dram_copy_gb_per_s"] > 0 and not found["torch"]["cuda_usable"]
    assert found["io_uring"]["works"] in (True, False)
    assert "links" not in found
    assert list((check.work / "disk").iterdir()) == []


def test_leaves_out_what_needs_a_gpu(check):
    done = check.run("sanitize", "bench")
    assert done.returncode == 0, done.stderr
    parts = check.results()["parts"]
    for name in ("sanitize", "bench"):
        assert (parts[name]["status"], parts[name]["reason"]) == ("skipped", "no GPU")


def test_without_a_build_there_is_nothing_to_test(check):
    done = check.run("test")
    assert done.returncode == 1
    assert "run the part build first" in check.results()["parts"]["test"]["reason"]


def test_parts_that_ran_before_are_kept(check):
    check.run("sanitize")
    check.run("test")
    assert list(check.results()["parts"]) == ["test", "sanitize"]
    results = check.work / "results/sanitize.json"
    old = json.loads(results.read_text()) | {"sources": "0" * 16}
    results.write_text(json.dumps(old))
    check.run("test")
    assert list(check.results()["parts"]) == ["test"]


def test_a_refused_device_is_a_failed_row(check):
    check.fake_program(f"echo 'a note'; echo '{REFUSAL}' >&2; exit 2")
    done = check.run("bench", *TRY, PYTHONPATH=check.broken_torch())
    assert done.returncode == 1
    rows = {row["kind"]: row for row in check.results()["parts"]["bench"]["rows"]}
    assert rows["fsdp2"]["error"] == "RuntimeError: torch is broken"
    for kind in ("host", "nvme"):
        assert rows[kind]["status"] == "failed" and rows[kind]["error"] == REFUSAL
    assert REFUSAL in check.table() and REFUSAL in done.stderr
    assert "a note" in (check.out / "bench.log").read_text()


def runs(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_a_hang_ends_with_its_part(check):
    pids = check.folder / "pids"
    check.fake_program(f"sleep 1000 & echo $! >>{pids}; wait")
    broken = check.broken_torch()
    for seconds in [4, 60]:  # on a busy machine Python alone may take longer than the first
        done = check.run("bench", *TRY, "--part-seconds", seconds, PYTHONPATH=broken)
        assert done.returncode == 1
        rows = check.results()["parts"]["bench"]["rows"]
        if pids.exists() and all("stopped after" in row["error"] for row in rows[1:]):
            break
    assert all("stopped after" in row["error"] for row in rows[1:])
    started = pids.read_text().split()
    assert started
    deadline = time.monotonic() + 60  # its files are closed a moment before a process has ended
    while any(runs(pid) for pid in started):
        assert time.monotonic() < deadline


@pytest.mark.skipif(not ARTESIAN.exists(), reason="artesian is not built")
def test_bench_trains_with_the_real_program(check):
    (check.work / "bin/artesian").symlink_to(ARTESIAN)
    done = check.run("bench", *TRY, "--rounds", 1)
    assert done.returncode == 0, done.stderr
    found = check.results()["parts"]["bench"]
    rows = {row["kind"]: row for row in found["rows"]}
    for row in rows.values():
        assert row["rounds"] == len(row["step_s_of_rounds"]) == 1
        assert row["step_s_min"] <= row["step_s"] <= row["step_s_max"]
        assert row["loss_last"] < row["loss_first"] < 7  # ln 512 is 6.2
    assert rows["host"]["nvme_read_bytes"] == 0 and rows["nvme"]["nvme_read_bytes"] > 0
    assert rows["host"]["loss_last"] == rows["nvme"]["loss_last"]
    assert rows["nvme"]["speed_up_over_fsdp2"] > 0
    assert list((check.work / "disk").iterdir()) == []


@pytest.mark.parametrize(
    "output, cause",
    [
        ("a note\nartesian: error: no GPU; do this\nlast", "artesian: error: no GPU; do this"),
        ("x.cpp:3:1: error: no such type\nninja: stopped", "x.cpp:3:1: error: no such type"),
        ("UserWarning: error in this\nRuntimeError: broken\n", "RuntimeError: broken"),
        ("one\ntwo\n", "two"),
        ("", "exit code 3 without a word"),
    ],
)
def test_the_cause_is_the_line_that_says_it(output, cause):
    assert Finished(3, output, 1.0, False).cause() == cause
    assert Finished(3, output, 12.3, True).cause() == "stopped after 12 s"


CTEST_OUTPUT = """
 1/4 Test #3: kernels/cuda_test ................***Skipped   0.10 sec
 2/4 Test #4: base/units_test ..................   Passed    0.02 sec
 3/4 Test #5: aio/ring_test ....................***Failed    1.30 sec
10/11 Test #6: zero3/torch/soak_test .................***Exception: SegFault  0.5 sec
 4/4 Test #7: zero3/torch/engine_test ................***Timeout 600.01 sec
"""


def test_reads_what_ctest_says():
    seen = dict(build_part.ENDED.findall(CTEST_OUTPUT))
    assert seen["kernels/cuda_test"] == build_part.SKIPPED
    assert seen["base/units_test"] == build_part.PASSED
    bad = {"aio/ring_test", "zero3/torch/soak_test", "zero3/torch/engine_test"}
    assert {n for n, end in seen.items() if end not in ("Passed", "***Skipped")} == bad


@pytest.mark.parametrize(
    "gpu, others, timed_out, gpus, reason",
    [
        ({"g": "***Skipped"}, {"a": "Passed"}, False, 0, None),
        ({"g": "Passed"}, {"a": "Passed"}, False, 1, None),
        ({"g": "***Skipped"}, {"a": "Passed"}, False, 1, "there is a GPU, but not tested: g"),
        ({}, {"a": "Passed"}, False, 1, "there is a GPU, but not tested: anything on it"),
        ({}, {"a": "***Failed", "b": "***Timeout"}, False, 0, "failed: a, b"),
        ({}, {"a": "***Not Run"}, False, 0, "failed: a"),
        ({}, {"a": "Passed"}, True, 0, "stopped for lack of time, 1 had ended"),
        ({}, {}, False, 0, "no test ran"),
    ],
)
def test_what_passes_the_part_test(gpu, others, timed_out, gpus, reason):
    found = build_part.judge({"gpu": gpu, "others": others}, timed_out, gpus)
    assert found.get("reason") == reason
    assert found.get("failed", False) == (reason is not None)


@pytest.mark.parametrize(
    "code, output, timed_out, status",
    [
        (0, "========= ERROR SUMMARY: 0 errors", False, "ok"),
        (0, "========= RACECHECK SUMMARY: 0 hazards displayed", False, "ok"),
        (0, "nothing of the sanitizer", False, "failed"),
        (77, "========= ERROR SUMMARY: 0 errors", False, "failed"),
        (86, "========= ERROR SUMMARY: 3 errors", False, "failed"),
        (1, "Error: Device not supported", False, "failed"),
        (0, "========= ERROR SUMMARY: 0 errors", True, "failed"),
    ],
)
def test_only_a_clean_summary_passes_the_sanitizer(code, output, timed_out, status):
    assert sanitize.outcome(Finished(code, output, 1.0, timed_out))[0] == status


def test_the_disk_is_left_as_it_was(check, tmp_path):
    with pytest.raises(OSError):
        measure.disk(str(tmp_path / "missing/file"), 1 << 20, 1 << 18, 2)
    found = measure.disk(str(tmp_path / "file"), 4 << 20, 1 << 20, 2)
    assert found["read_gb_per_s"] > 0 and list(tmp_path.glob("file*")) == []
