"""Proves dev/gpu_check.sh without a GPU: which arguments it refuses, that it says what it left
out, that a refusal, a hang or a broken tool is a failed row and never a pass, and that its training
runs are understood by the real program. The GPU is hidden where there is one."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from build_folder import ARTESIAN, BUILD, ROOT

sys.path.insert(0, str(ROOT / "dev/gpu_check"))

import build as build_part  # noqa: E402
import carried  # noqa: E402
import first  # noqa: E402
import gpu_profile  # noqa: E402
import measure  # noqa: E402
import sanitize  # noqa: E402
import speeds  # noqa: E402
import torch_build  # noqa: E402
import two_gpus  # noqa: E402
from shell import Context, Failure, Finished, Skip, gpu_seen  # noqa: E402

TRY = ["--shape", "tiny", "--bench-on-cpu"]
REFUSAL = "artesian: error: --device: not supported yet: cuda"


class Check:
    """A work folder in which the parts of gpu_check.sh run one after the other."""

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
        """Returns a PYTHONPATH with a broken torch; importing the real one takes seconds."""
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
        (["facst"], "PART: got 'facst', allowed first, facts, build, test, python, ranks,"),
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
    done = check.run("first", "sanitize", "bench")
    assert done.returncode == 0, done.stderr
    parts = check.results()["parts"]
    for name in ("first", "sanitize", "bench"):
        assert (parts[name]["status"], parts[name]["reason"]) == ("skipped", "no GPU")


def test_a_gpu_that_the_driver_does_not_count_fails_what_needs_one(tmp_path, monkeypatch):
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    assert gpu_seen(tmp_path, {}) == str(tmp_path / "nvidia0")
    assert gpu_seen(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}) == ""  # hidden on purpose
    (tmp_path / "nvidia0").unlink()
    monkeypatch.setattr("shell.cuda_tool", lambda name: None)
    assert gpu_seen(tmp_path, {}) == ""
    context = Context.__new__(Context)
    context.gpu_count, context.gpu_seen = 0, "/dev/nvidia0"
    with pytest.raises(Failure, match="/dev/nvidia0.*the driver counts none"):
        context.need_gpu()


def test_the_sanitizer_leaves_libtorchs_kernels_and_leaks_alone():
    tests = [("kernels/cuda_test", ["k"]), (sanitize.WITH_LIBTORCH, ["z"])]
    planned = sanitize.runs(tests)
    ours = [run for run in planned if run[2] == "kernels/cuda_test"]
    assert {run[0] for run in ours} == set(sanitize.TOOLS) and all(run[3] == ["k"] for run in ours)
    (limited,) = [run for run in planned if run[2] == sanitize.WITH_LIBTORCH]
    assert limited[0] == "memcheck" and limited[1] == ["--kernel-regex", "kns=artesian"]
    assert limited[3][0] == "z" and limited[3][1].startswith("--gtest_filter=")
    source = (ROOT / "tests/zero3/torch/cuda_test.cpp").read_text()
    # otherwise the command would run nothing
    assert limited[3][1].strip("*").partition("=*")[2] in source


def test_the_sanitizer_is_not_told_of_memory_that_cannot_be_shared(monkeypatch, tmp_path):
    """LibTorch's first request for such memory is refused, which is no error of ours."""
    seen = []

    class Context:
        work = tmp_path
        need_gpu = staticmethod(lambda: None)
        seconds_left = staticmethod(lambda: 100)

        @staticmethod
        def run(command, environment, **_):
            seen.append(environment)
            return Finished(0, "ERROR SUMMARY: 0 errors", 1.0, False)

    monkeypatch.setattr(sanitize, "cuda_tool", lambda name: name)
    monkeypatch.setattr(sanitize, "gpu_tests", lambda context: [("kernels/cuda_test", ["k"])])
    assert not sanitize.run(Context())["failed"]
    settings = [environment["PYTORCH_ALLOC_CONF"] for environment in seen]
    assert settings == ["expandable_segments:False"] * len(sanitize.TOOLS)


def test_attention_is_measured_with_each_kernel():
    worker = [sys.executable, ROOT / "dev/gpu_check/measure.py", "attention", "cpu"]
    found = json.loads(subprocess.run(worker, capture_output=True, check=True).stdout)
    assert found["deterministic"]["same_bits"] and found["with_atomics"]["ms"] > 0


def test_a_traces_figures_are_of_what_the_gpu_did():
    def event(name, first, length, category="kernel"):
        return {"ph": "X", "cat": category, "name": name, "ts": first, "dur": length}

    events = [
        event("gemm", 0, 1000),
        event("gemm", 500, 1000),  # on another stream, half of it at the same time
        event("row", 3000, 1000),
        event("copy", 1000, 1500, "gpu_memcpy"),
        event("step", -500, 9000, "cpu_op"),
        {"ph": "i", "cat": "kernel", "name": "mark", "ts": 0},
    ]
    found = gpu_profile.summary(events, "kernel", steps=2)
    assert found["busy_share"] == pytest.approx(2500 / 4000)
    assert found["copy_share"] == pytest.approx(1500 / 4000)
    assert found["launches_a_step"] == 1.5 and found["step_s"] == pytest.approx(0.002)
    assert found["rows"][0] == {"kernel": "gemm", "ms_a_step": 1.0, "launches": 1.0}
    with pytest.raises(Failure, match="no events of the category kernel"):
        gpu_profile.summary(events[-2:-1], "kernel", steps=2)


PROFILER = ARTESIAN.parent / "profile_bench"


@pytest.mark.skipif(not PROFILER.exists(), reason="profile_bench is not built")
def test_a_profile_of_the_real_program_has_operators_and_its_trace(check):
    (check.work / "bin/profile_bench").symlink_to(PROFILER)
    done = check.run("profile", *TRY)
    assert done.returncode == 0, done.stderr
    found = check.results()["parts"]["profile"]
    assert 0 < found["busy_share"] <= 1 and found["launches_a_step"] > 100 and found["rows"]
    assert len(found["seconds_of_steps"]) == gpu_profile.WARM_UP + gpu_profile.STEPS
    assert (check.out / "profile.trace.json.gz").stat().st_size > 0
    assert "## profile" in check.table()


@pytest.mark.skipif(
    not list((BUILD / "python/artesian").glob("_C.*")), reason="the Python package is not built"
)
def test_hooked_models_are_compared_with_plain_pytorch(check):
    (check.work / "python").symlink_to(BUILD / "python")
    done = check.run("python", *TRY)
    assert done.returncode == 0, done.stderr
    found = check.results()["parts"]["python"]
    assert found["cases"] == 18 and found["other_bits"] == []
    assert list((check.work / "disk").iterdir()) == []


def test_homes_with_other_losses_fail_the_smoke_run(tmp_path, monkeypatch):
    context = Context.__new__(Context)
    context.work = context.disk = tmp_path
    losses = {"host": [3.0, 2.0, 1.0], "nvme": [3.0, 2.0, 1.0]}
    monkeypatch.setattr(
        "bench.run_ours", lambda context, kind, *others: {"losses": losses[kind]}
    )
    assert first.smoke(context, "cpu") == [3.0, 2.0, 1.0]
    losses["nvme"] = [3.0, 2.0, 1.5]
    with pytest.raises(Failure, match="the homes have other losses"):
        first.smoke(context, "cpu")
    losses["nvme"] = [3.0, None, 1.0]
    with pytest.raises(Failure, match="nvme: the losses are"):
        first.smoke(context, "cpu")


def test_the_smoke_run_is_understood_by_the_program(check):
    context = Context.__new__(Context)
    context.root, context.work, context.disk = ROOT, check.work, check.work / "disk"
    context.logs, context.deadline = [], time.monotonic() + 120
    (check.work / "bin/artesian").symlink_to(ARTESIAN)
    assert len(first.smoke(context, "cpu")) == first.STEPS


@pytest.mark.skipif(not ARTESIAN.exists(), reason="artesian is not built")
def test_two_processes_are_compared_with_one(check, monkeypatch):
    (check.work / "bin/artesian").symlink_to(ARTESIAN)
    (check.work / "python").symlink_to(BUILD / "python")
    done = check.run("ranks", *TRY)
    assert done.returncode == 0, done.stderr
    found = check.results()["parts"]["ranks"]
    assert found["other_bits"] == [] and len(found["gpu"]["two"]) == two_gpus.STEPS
    hooked = found["hooked"]
    assert hooked["one"] == hooked["two"] and len(set(hooked["two"].values())) == 1
    context = Context.__new__(Context)
    context.gpu_count, context.gpu_seen = 1, ""
    context.options = argparse.Namespace(bench_on_cpu=False)
    with pytest.raises(Skip, match="one GPU"):
        two_gpus.run(context)
    context.gpu_count, context.work = 2, check.work
    said = "artesian: warning: bytes pass through host memory, not by NCCL: no NCCL"
    monkeypatch.setattr("two_gpus.train", lambda *words: ([[1.0, 2.0]] * two_gpus.STEPS, said))
    with pytest.raises(Failure, match="not by NCCL: no NCCL"):
        two_gpus.run(context)


def carry_programs(folder, **facts):
    """Makes a folder as dev/carry.sh does, with the real `artesian` in it, and tests that find no
    GPU."""
    programs = folder / "programs"
    for name in [*carried.PROGRAMS, *carried.GPU_TESTS.values()]:
        (programs / name).parent.mkdir(parents=True, exist_ok=True)
        (programs / name).write_text("#!/bin/sh\nexit 77\n")
        (programs / name).chmod(0o755)
    (programs / "bin/artesian").unlink()
    (programs / "bin/artesian").symlink_to(ARTESIAN)
    (folder / "carried.txt").touch()
    built = carried.facts_of(ROOT, torch_build.folder_of_build(BUILD)) | facts
    (programs / "programs.json").write_text(json.dumps(built))
    return programs


@pytest.mark.skipif(not ARTESIAN.exists(), reason="artesian is not built")
def test_first_runs_what_was_carried(check):
    programs = carry_programs(check.folder / "prefix")
    first_words = ["first", "--bench-on-cpu", "--prefix", check.folder / "prefix"]
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), "/usr/bin", "/bin"])
    done = check.run(*first_words, PATH=path)
    assert done.returncode == 0, done.stderr
    found = check.results()["parts"]["first"]
    assert found["carried"] and "build_s" not in found and len(found["losses"]) == first.STEPS
    assert sorted(found["skipped"]) == sorted(carried.GPU_TESTS)
    broken = programs / carried.GPU_TESTS["kernels/cuda_test"]
    broken.write_text("#!/bin/sh\necho a library is missing; exit 127\n")
    done = check.run(*first_words, PATH=path)
    assert done.returncode == 1
    assert check.results()["parts"]["first"]["reason"] == "failed: kernels/cuda_test"
    assert "a library is missing" in (check.out / "failed.log").read_text()


@pytest.mark.parametrize(
    "facts, words",
    [
        ({"sources": "0" * 16}, "they are built from sources 0000000000000000, and these are"),
        ({"torch": "2.9.0"}, "they are built with torch 2.9.0 of"),
        ({"commit": "f" * 40}, "of ffffffffff, and here is"),
    ],
)
def test_programs_of_other_sources_or_another_torch_are_left_alone(
    tmp_path, facts, words, monkeypatch, capsys
):
    context = Context.__new__(Context)
    context.work, context.prefix = tmp_path / "work", tmp_path / "prefix"
    context.digest = carried.sources_digest(ROOT)
    programs = carry_programs(context.prefix, **facts)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    assert not carried.take(context) and not context.work.exists()
    assert words in capsys.readouterr().err
    (programs / "programs.json").unlink()
    assert not carried.take(context)
    assert capsys.readouterr().err == ""


def fake_torch(folder, version="2.11.0+cu130", commit="70d99e998b4955", headers="2.11.0"):
    """Makes the files by which an installed torch tells its build; importing it fails."""
    package = folder / "torch"
    (package / "include/torch/headeronly").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('a fake')")
    (package / "version.py").write_text(f"__version__ = '{version}'\ngit_version = '{commit}'\n")
    text = f'#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION \\\n  "{headers}"\n'
    (package / "include/torch/headeronly/version.h").write_text(text)
    return package


@pytest.mark.parametrize(
    "built, reason",
    [
        ({}, None),  # other lines, the same values
        ({"version": "2.11.0+cpu"}, r"2\.11\.0\+cu130 of .*, but the build uses .* 2\.11\.0\+cpu"),
        ({"commit": "0123456789abc"}, "2.11.0.cu130 of 70d99e998b .* 2.11.0.cu130 of 0123456789 "),
        ({"headers": "2.10.1"}, r"2\.11\.0\+cu130 .*: its headers are of 2\.10\.1"),
    ],
)
def test_another_torch_than_the_builds_is_refused(tmp_path, monkeypatch, built, reason):
    context = Context.__new__(Context)
    context.work = tmp_path
    imported = fake_torch(tmp_path / "imported")
    monkeypatch.setattr("torch_build.folder_of_python", lambda: imported)
    torch_build.check(context)  # nothing is built
    cache = tmp_path / "CMakeCache.txt"
    cache.write_text("ARTESIAN_TORCH:BOOL=ON\nARTESIAN_TORCH_DIR:PATH=\n")
    torch_build.check(context)  # without LibTorch
    used = fake_torch(tmp_path / "built", **built)
    cache.write_text(f"ARTESIAN_TORCH:BOOL=ON\nARTESIAN_TORCH_DIR:PATH={used}\n")
    if reason is None:
        torch_build.check(context)
        (used / "version.py").write_text("__version__ = '2.11.0a0+git70d99e9'\n")
        monkeypatch.setattr("torch_build.folder_of_python", lambda: used)
        torch_build.check(context)  # the headers look like those of a released version
        monkeypatch.setattr("torch_build.folder_of_python", lambda: None)
        reason = "has no torch, and the build uses torch 2.11.0"
    with pytest.raises(Failure, match=reason):
        torch_build.check(context)


def test_another_torch_than_the_builds_ends_a_part_before_it_begins(check):
    imported = fake_torch(check.folder / "imported", "2.12.0+cu130", "beef" * 10, "2.12.0")
    used = fake_torch(check.folder / "built")
    programs, calls = check.folder / "programs", check.folder / "calls"
    programs.mkdir()
    fakes = {
        "cmake": f"echo cmake $1 >>{calls}\n"
        f"echo 'ARTESIAN_TORCH_DIR:PATH={used}' >{check.work}/CMakeCache.txt",
        "ninja": "",
        "ctest": f"echo ctest >>{calls}",
    }
    for name, body in fakes.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    (check.work / "CTestTestfile.cmake").touch()
    check.fake_program("", "aio_bench")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = check.run("build", "test", "bench", PATH=path, PYTHONPATH=imported.parent)
    assert done.returncode == 1
    for part in check.results()["parts"].values():
        assert part["status"] == "failed"
        assert f"imports torch 2.12.0+cu130 of beefbeefbe in {imported}, " in part["reason"]
        assert f"the build uses torch 2.11.0+cu130 of 70d99e998b in {used}: " in part["reason"]
        assert len(part["reason"].splitlines()) == 1 and part["reason"] in done.stderr
    assert calls.read_text() == "cmake --fresh\n"  # and nothing was compiled or tested


def test_the_torch_of_the_build_folder_is_known_by_its_cache():
    built = torch_build.folder_of_build(BUILD)
    if built is None:
        pytest.skip("nothing is built here with LibTorch")
    version, commit = torch_build.build_of(built)
    assert version.startswith(f"{torch_build.headers_of(built)}") and len(commit) == 40


def test_measured_rates_are_flags_that_a_plan_takes(tmp_path):
    worker = [sys.executable, ROOT / "dev/gpu_check/measure.py", "plan_rates", "cpu"]
    rates = json.loads(subprocess.run(worker, capture_output=True, check=True).stdout)
    flags = speeds.plan_flags(rates).split()
    assert flags[::2] == ["--tflops", "--attention-tflops", "--device-bandwidth", "--launch"]
    assert all(value > 0 for value in rates.values())
    assert speeds.plan_flags({"error": "no GPU"}) == ""
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3}}  # fmt: skip
    (tmp_path / "ds.json").write_text(json.dumps(config))
    plan = [ARTESIAN, "plan", "--params", "1e8", "--config", tmp_path / "ds.json", "--gpus", "1"]
    done = subprocess.run([*plan, *flags, "--json", "-"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = {rate["name"]: rate for rate in json.loads(done.stdout)["rates"]}
    assert taken["compute"]["value"] == rates["--tflops"]
    assert taken["attention"]["value"] == rates["--attention-tflops"]
    assert taken["device_memory"]["value"] == pytest.approx(rates["--device-bandwidth"])
    assert taken["launch"]["value"] == pytest.approx(rates["--launch"])


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
    assert "a note" in (check.out / "failed.log").read_text()
    files = {path.name for path in check.out.iterdir()}
    assert files == {"failed.log", "gpu_check.json", "gpu_check.md"}


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
    # on a busy machine starting Python alone may take longer than the first limit
    for seconds in [4, 60]:
        done = check.run("bench", *TRY, "--part-seconds", seconds, PYTHONPATH=broken)
        assert done.returncode == 1
        rows = check.results()["parts"]["bench"]["rows"]
        if pids.exists() and all("stopped after" in row["error"] for row in rows[1:]):
            break
    assert all("stopped after" in row["error"] for row in rows[1:])
    started = pids.read_text().split()
    assert started
    deadline = time.monotonic() + 60  # a process closes its files a moment before it has ended
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
        assert row["loss_last"] < row["loss_first"] < 7  # log(512) is 6.2
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


def test_item_16_the_facts_of_a_machine_without_a_toolkit(monkeypatch):
    """If the machine lacks something, the answer is shorter."""
    monkeypatch.syspath_prepend(str(ROOT / "dev/gpu_check"))
    import facts

    monkeypatch.setattr(facts, "cuda_tool", lambda name: None)
    found = facts.tools()
    assert found["nvcc"] is None and found["compute_sanitizer"] is False
    assert facts.first_line("no-such-program-anywhere") == ""
    sys.modules.pop("facts")
