"""Proves what `make bench` writes: how ratios are computed, with made-up numbers; that the files
have the fields that bench/report.py promises, with tiny runs without DeepSpeed and fio; and that
reserved huge pages are always given back."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest
from build_folder import PROGRAMS, ROOT

sys.path.insert(0, str(ROOT / "bench"))

import bound  # noqa: E402
import disk  # noqa: E402
import hooks  # noqa: E402
import inference  # noqa: E402
import ladder  # noqa: E402
import plan  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import step  # noqa: E402

FIELDS = ["name", "parameters", "bytes", "seconds", "direct", "file_system", "device", "commit",
          "configuration"]  # fmt: skip
needs_programs = pytest.mark.skipif(not (PROGRAMS / "artesian").exists(), reason="not built")


def bench(tmp_path, part, *arguments):
    """Runs one part of the benchmark; returns the contents of PART.json."""
    command = [sys.executable, ROOT / "bench/run.py", "--part", part, "--without-deepspeed"]
    command += ["--without-fio", "--out", tmp_path / "out", "--work", tmp_path / "work"]
    command += ["--programs", PROGRAMS, *arguments]
    # Threads that wait must not take the cores from other tests.
    variables = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert f"bench: {part}: about" in done.stderr.splitlines()[0]
    found = json.loads((tmp_path / "out" / f"{part}.json").read_text())
    lines = (tmp_path / "out" / f"{part}.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == found["results"]
    for result in found["results"]:
        assert list(result)[: len(FIELDS)] == FIELDS
        seconds = result["seconds"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    tables = (tmp_path / "out" / f"{part}.md").read_text()
    assert all(line in tables for line in done.stdout.splitlines())
    return found, done.stdout


def by_name(found):
    return {result["name"]: result for result in found["results"]}


def test_ratios_of_pairs_and_of_medians():
    # The second pair was measured while the machine was half as fast, which does not change its
    # ratio.
    assert report.paired_ratio([3.0, 6.0, 3.0], [2.0, 4.0, 1.0]) == {
        "min": 1.5,
        "median": 1.5,
        "max": 3.0,
        "all": [1.5, 1.5, 3.0],
    }
    with pytest.raises(ValueError, match="3 and 1"):
        report.paired_ratio([3.0, 6.0, 3.0], [2.0])
    assert report.median_ratio([1.0, 2.0, 6.0], [4.0, 5.0]) == {
        "min": 0.2,
        "median": 2.0 / 4.5,
        "max": 1.5,
    }


@pytest.mark.skipif(not (PROGRAMS / "micro_bench").exists(), reason="no Google Benchmark")
def test_micro_benchmarks_of_every_kind(tmp_path):
    found, said = bench(tmp_path, "micro", "--micro-repeats", 2, "--micro-seconds", 0.001)
    names = {result["name"].removeprefix("micro: ") for result in found["results"]}
    assert names == {"adam", "checksum", "narrow", "expand", "accumulate", "sum_squares",
                     "pool_lease", "ring", "placement", "step_plan", "step_time"}  # fmt: skip
    assert "ring/4" in said and not found["notes"]
    adam = next(r for r in found["results"] if r["parameters"] == {"case": "bf16"})
    assert adam["bytes"] == pytest.approx(28 << 20, rel=1e-6)
    google = json.loads((tmp_path / "out/micro_google.json").read_text())
    assert len(google["benchmarks"]) > len(found["results"])
    assert not list((tmp_path / "work").iterdir())


def test_files_of_made_up_numbers(tmp_path, capsys):
    made = report.Report("adam", tmp_path)
    first = made.add("a", {"threads": 2}, [3.0, 1.0, 2.0], 28, True, extra=7)
    again = made.add("a", {"threads": 2}, [1.0])
    other = made.add("a", {"threads": 1}, [1.0])
    assert list(first) == [*FIELDS, "extra"]
    assert first["seconds"] == {"min": 1.0, "median": 2.0, "max": 3.0, "all": [3.0, 1.0, 2.0]}
    assert first["configuration"] == again["configuration"] != other["configuration"]
    made.ratio("b / a", report.median_ratio([4.0], [2.0]), 1.4)
    made.table("Title", ["x", "y"], [["1", "2"]])
    made.note("something is missing")
    made.write(tmp_path)
    text = (tmp_path / "adam.md").read_text()
    assert "Title\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n" in text
    assert "| b / a | 2.00 (2.00..2.00) | 1.4 |" in text and "- something is missing" in text
    assert "| b / a | 2.00 (2.00..2.00) | 1.4 |" in capsys.readouterr().out
    whole = json.loads((tmp_path / "adam.json").read_text())
    assert whole["ratios"] == [{"name": "b / a", "min": 2, "median": 2, "max": 2, "aim": 1.4}]
    assert whole["notes"] == ["something is missing"]
    assert whole["machine"]["cores"] == os.cpu_count()


def test_a_point_of_the_disk_is_rated_in_bytes_per_second(tmp_path):
    made = report.Report("disk", tmp_path)
    found = {
        "io_uring": [(4e9, 1.0, 0.4, True), (4e9, 2.0, 0.4, True)],
        "threads": [(4e9, 4.0, 0.8, True), (4e9, 4.0, 0.8, True)],
        "fio": [(8e9, 4.0, 0.8, True), (8e9, 8.0, 1.6, True)],
    }
    row, cpu_row = disk.evaluate(made, found, "read", 1 << 20, 32)
    assert row == ["read", "1 MiB x 32", "3.00 (2.00..4.00)", "1.00 (1.00..1.00)",
                   "1.50 (1.00..2.00)", "2.00 (2.00..2.00)"]  # fmt: skip
    found |= {"fastest": [(6e9, 2.0, 0.1, True), (8e9, 2.0, 0.1, True)]}
    found |= {"deepspeed": [(1e9, 1.0, 0.1, True), (1e9, 1.0, 0.1, True)]}
    assert disk.evaluate(made, found, "read", 1 << 20, 32)[0][-1] == "3.50 (3.00..4.00)"
    assert cpu_row == ["read", "1 MiB x 32", "0.1000 (0.1000..0.1000)", "0.2000 (0.2000..0.2000)",
                       "0.1500 (0.1000..0.2000)", "0.75 (0.50..1.00)"]  # fmt: skip
    rate, cpu = made.ratios[:2]
    assert (rate["median"], rate["aim"]) == (2.0, 0.97) and "GB/s" in rate["name"]
    assert (cpu["median"], cpu["aim"]) == (0.75, 1.1) and "CPU seconds per GB" in cpu["name"]
    assert by_name(made.as_json())["read_fio"]["bytes"] == 8e9


def test_what_cannot_mix_has_an_empty_cell(tmp_path):
    names = ["io_uring", "fastest", "deepspeed"]
    contestants = {name: lambda *_: (4e9, 1.0, 0.1, True) for name in names}
    options = types.SimpleNamespace(disk_repeats=2)
    rows = {}
    for operation in disk.OPERATIONS:
        found = disk.measure(options, contestants, operation, 1 << 20, 32)
        rows[operation] = disk.evaluate(report.Report("disk", tmp_path), found, operation, 4096, 2)
    assert all(all(cells) for cells in rows["write"])
    assert all(cells[3:] == ["", "", ""] for cells in rows["mixed"])


def test_the_fastest_setting_of_a_point_is_tried_for_once():
    asked = []

    def contestant(threads, *point):
        asked.append((threads, *point))
        return 4e9, {1: 3.0, 2: 1.0, 4: 2.0}[threads], 0.1, True

    fastest = disk.Fastest(disk.THREADS, contestant)
    assert fastest("read", 4096, 1) == fastest("read", 4096, 1) == (4e9, 1.0, 0.1, True)
    assert asked == [(threads, "read", 4096, 1) for threads in [1, 2, 4, 2, 2]]


def test_ours_beside_deepspeed_has_its_fastest_threads(monkeypatch):
    seconds = {1: 3.0, 2: 1.0, 4: 2.0}
    monkeypatch.setattr(disk, "ours", lambda *point: (4e9, seconds[point[-1]], 0.1, True))
    found = disk.contestants_of(None, "file", False, deepspeed=lambda *_: (1e9, 1.0, 0.1, True))
    assert found["fastest"]("read", 4096, 1) == (4e9, 1.0, 0.1, True)
    assert found["deepspeed"]("read", 4096, 1) == (1e9, 1.0, 0.1, True)
    assert "fastest" not in disk.contestants_of(None, "file", False, None)


@pytest.mark.parametrize("seconds", [0, 3])
def test_ours_and_fio_are_measured_for_as_long(tmp_path, monkeypatch, seconds):
    said = {
        "aio_bench": {"bytes": 8, "seconds": 4, "cpu_seconds": 2, "direct": True},
        "fio": {"jobs": [{"read": {"io_bytes": 6, "runtime": 2000}, "usr_cpu": 30, "sys_cpu": 20,
                          "write": {"io_bytes": 0, "runtime": 0}, "job_runtime": 2000}]},
    }  # fmt: skip
    calls = {}

    def run(command, **_):
        name = pathlib.Path(command[0]).name
        calls[name] = command
        return types.SimpleNamespace(returncode=0, stdout=json.dumps(said[name]))

    monkeypatch.setattr(disk.subprocess, "run", run)
    options = types.SimpleNamespace(
        programs=pathlib.Path("/"), work=tmp_path, size="1GiB", disk_seconds=seconds
    )
    assert disk.ours(options, "io_uring", "read", 4096, 2) == (8, 4, 2, True)
    assert disk.fio(options, tmp_path / "file", "read", 4096, 2) == (6, 2.0, 1.0, True)
    assert "--rw=read" in calls["fio"]
    said["fio"]["jobs"][0]["write"] = {"io_bytes": 1, "runtime": 1000}
    assert disk.fio(options, tmp_path / "file", "mixed", 4096, 2) == (7, 2.0, 1.0, True)
    assert "--rw=rw" in calls["fio"]
    assert ("--seconds" in calls["aio_bench"]) == (seconds != 0)
    assert ("--runtime=3" in calls["fio"]) == ("--time_based=1" in calls["fio"]) == (seconds != 0)
    if seconds:
        assert calls["aio_bench"][-2:] == ["--seconds", "3"]


def test_two_rounds_give_everybody_the_same_mean_place():
    names = ["a", "b", "c"]
    orders = list(step.rounds_of(names, 6))
    assert all(sorted(order) == names for order in orders)
    for pair in range(0, 6, 2):
        places = [sum(order.index(name) for order in orders[pair : pair + 2]) for name in names]
        assert places == [2, 2, 2]
    assert {order[0] for order in orders[::2]} == set(names)


def test_rounds_are_of_each_model_or_one_number_for_all(capsys):
    assert run.parse(["--rounds", "124m=2,355m=1"]).rounds == {"124m": 2, "355m": 1}
    assert run.parse(["--rounds", "3"]).rounds["355m"] == 3
    assert run.parse(["--rounds", "124m=1, 355m=2"]).rounds == {"124m": 1, "355m": 2}
    with pytest.raises(SystemExit) as refused:
        run.parse(["--rounds", "some"])
    assert refused.value.code == 2
    assert "argument --rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, what",
    [
        (["--contestants", "artesian_bf16,deepspeed"], "got deepspeed, allowed are artesian_fp32"),
        (["--models", "7b"], "got 7b, allowed are 124m"),
        (["--rounds", "124m=1,7b=2"], "got 7b, allowed are 124m"),
        (["--points", "1m/32"], "invalid points value: '1m/32'"),
    ],
)
def test_names_that_are_not_known_are_told_with_those_that_are(capsys, words, what):
    with pytest.raises(SystemExit) as refused:
        run.parse(words)
    assert refused.value.code == 2
    assert f"argument {words[0]}: {what}" in capsys.readouterr().err


def test_steps_of_a_log_are_checked_against_clock_and_kernel():
    def line(seconds, read):
        return {"step_s": seconds, "bytes": {"nvme_read": read, "nvme_write": read}}

    seen = [
        (line(9, 9), 0.0, (5, 5)),
        (line(9, 9), 10.0, (1000, 500)),
        (line(1.0, 90), 11.0, (1100, 600)),
        (line(1.5, 90), 13.0, (1200, 690)),
        (line(1.0, 90), 14.0, (9999, 9999)),  # a contestant with a digest
    ]
    checked = step.checks(seen, 2)
    assert checked == {"seconds": 2.5 / 3, "read": 180 / 200, "written": 180 / 190}
    assert step.checks(seen[:2], 2) == {}


class FakeSetting:
    """/proc/sys/vm/nr_hugepages of a machine that can reserve `limit` of them."""

    def __init__(self, folder, value, limit):
        self.file, self.limit = folder / "nr_hugepages", limit
        self.file.write_text(str(value))

    def free(self):
        return min(int(self.file.read_text()), self.limit)


def test_huge_pages_are_reserved_and_given_back(tmp_path):
    setting = FakeSetting(tmp_path, 10, 1000)
    with disk.huge_pages(100, setting.file, setting.free):
        assert setting.file.read_text() == "100"
    assert setting.file.read_text() == "10"
    with disk.huge_pages(5, setting.file, setting.free):
        assert setting.file.read_text() == "10"  # enough pages were free
    with pytest.raises(ZeroDivisionError), disk.huge_pages(100, setting.file, setting.free):
        raise ZeroDivisionError
    assert setting.file.read_text() == "10"


def test_too_few_huge_pages_are_a_word_and_given_back(tmp_path):
    setting = FakeSetting(tmp_path, 10, 50)
    with pytest.raises(disk.Missing, match="only 50 of 100"):
        with disk.huge_pages(100, setting.file, setting.free):
            pass
    assert setting.file.read_text() == "10"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_huge_pages_are_given_back_when_stopped(tmp_path, number):
    setting = FakeSetting(tmp_path, 10, 1000)
    # Runs the runner's own main with a part that reserves pages and then waits.
    program = f"""
import pathlib, sys, time, types
sys.path.insert(0, {str(ROOT / "bench")!r})
import disk, run
setting = pathlib.Path({str(setting.file)!r})
def wait(report, options, programs):
    with disk.huge_pages(100, setting, lambda: int(setting.read_text())):
        print("reserved", flush=True)
        time.sleep(600)
sys.modules["adam"] = types.SimpleNamespace(estimate=lambda options: "about long", run=wait)
sys.exit(run.main(["--part", "adam", "--work", {str(tmp_path)!r}, "--out", {str(tmp_path)!r}]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    assert process.stdout.readline() == "reserved\n"
    assert setting.file.read_text() == "100"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert setting.file.read_text() == "10"


@needs_programs
def test_adam(tmp_path):
    found, output = bench(tmp_path, "adam", "--elements", "600000", "--repeats", "5")
    results = by_name(found)
    assert results["adam_step"]["parameters"]["threads"] == 2  # the last line of that name
    assert results["optimizer_artesian"]["bytes"] == 524288 * 28  # two slices
    assert len(results["optimizer_torch"]["seconds"]["all"]) == 5
    assert [ratio["aim"] for ratio in found["ratios"]] == [0.95] * 4
    stream, ours = results["optimizer_stream"]["seconds"], results["optimizer_artesian"]["seconds"]
    expected = report.paired_ratio(stream["all"], ours["all"])["median"]
    assert found["ratios"][-1]["median"] == pytest.approx(expected)
    assert "| Adam, bf16 |" in output


@needs_programs
def test_disk(tmp_path):
    arguments = ["--size", "4MiB", "--points", "64K/4,1M/2", "--disk-repeats", "2",
                 "--disk-seconds", "0"]  # fmt: skip
    found, output = bench(tmp_path, "disk", *arguments)
    assert {result["name"] for result in found["results"]} == {
        f"{operation}_{engine}" for operation in disk.OPERATIONS for engine in disk.ENGINES
    }
    assert len(found["results"]) == 12
    for result in found["results"]:  # mixed reads all of the file and writes it back
        assert result["bytes"] == (8 << 20 if "mixed" in result["name"] else 4 << 20)
    assert all(result["gb_per_s"]["median"] > 0 for result in found["results"])
    assert found["notes"] == ["not compared with fio: asked to leave it out"]
    assert found["ratios"] == []
    assert "| write | 1 MiB x 2 |" in output
    assert list((tmp_path / "work").iterdir()) == []


@needs_programs
def test_the_memory_of_a_run_of_ours_has_its_buffers(tmp_path):
    options = run.parse(["--work", str(tmp_path), "--size", "64MiB", "--disk-seconds", "1"])
    few, many = (disk.memory_of_ours(options, 1 << 20, depth) for depth in [2, 34])
    assert 28 < many - few < 40 and 2 < few < 64  # MiB


@needs_programs
def test_step_of_a_tiny_model_trains_the_same(tmp_path):
    if shutil.disk_usage(tmp_path).free < 1 << 30:
        pytest.skip("needs 1 GiB of free disk")
    found, output = bench(tmp_path, "step", "--models", "tiny", "--steps", "tiny=3", "--warm-up",
                          "1", "--contestants", "artesian_fp32,torch_fp32,artesian_muon_fp32,"
                          "torch_muon_fp32")  # fmt: skip
    muon = [by_name(found)[f"step_{who}_muon_fp32"]["losses"] for who in ("artesian", "torch")]
    assert muon[0] == pytest.approx(muon[1], rel=1e-3)  # Newton-Schulz iterates in bf16
    ours, torch = (by_name(found)[f"step_{who}"] for who in ["artesian_fp32", "torch_fp32"])
    assert abs(muon[0][-1] - ours["losses"][-1]) > 0.01
    assert ours["losses"] == pytest.approx(torch["losses"], rel=1e-5)
    assert ours["losses"][-1] < ours["losses"][0]
    assert len(ours["losses"]) == 4 and len(ours["seconds"]["all"]) == 3
    assert ours["bytes_read"] > 0 and ours["bytes_written"] > 0
    assert torch["bytes_written"] == 0
    assert ours["parameters"]["budget_each_tier"] == "1MiB"
    assert 0 < ours["rss_steps"] < torch["rss_steps"]
    seconds, memory = found["ratios"][:2]
    assert seconds["median"] == ours["seconds"]["median"] / torch["seconds"]["median"]
    assert memory["median"] == ours["rss_steps"] / torch["rss_steps"]
    assert "| Artesian fp32, offloaded to NVMe |" in output
    assert not (tmp_path / "work" / "gpt2-tiny").exists()


@needs_programs
def test_every_rung_of_the_ladder_trains_the_same(tmp_path):
    arguments = ["--ladder-model", "tiny", "--ladder-rounds", "2", "--ladder-steps", "2"]
    found, output = bench(tmp_path, "ladder", *arguments)
    results = found["results"]
    assert [result["parameters"]["rung"] for result in results] == [
        words for words, _, _ in ladder.rungs("tiny")
    ]
    assert found["notes"] == []  # all digests are equal
    assert all(len(result["digest"]) == 32 and result["bytes_read"] > 0 for result in results)
    assert all(len(result["seconds"]["all"]) == 4 for result in results)
    assert results[0]["bytes_written"] > results[2]["bytes_written"]  # gradients are written, too
    assert found["ratios"][0]["median"] == 1.0
    assert "| micro-batches layer by layer |" in output


@needs_programs
def test_checkpoints_are_measured_beside_the_disk_and_write_what_is_planned(tmp_path):
    arguments = ["--checkpoint-models", "tiny", "--checkpoint-rounds", "2"]
    found, output = bench(tmp_path, "checkpoint", *arguments)
    saves = [result for result in found["results"] if result["name"] == "checkpoint"]
    loads = [result for result in found["results"] if result["name"] == "load"]
    assert [result["parameters"]["variant"] for result in saves] == ["read", "copied"] * 2
    assert found["notes"] == []  # the run moves as many bytes as planned
    assert all(result["bytes"] == saves[0]["bytes"] > 0 for result in saves + loads)
    assert all(len(result["seconds"]["all"]) == 2 for result in saves + loads)
    aims = [ratio["aim"] for ratio in found["ratios"]]
    assert aims == [1.1, 1.1, 1.2] * 2
    assert "| copied on the way |" in output
    assert list((tmp_path / "work" / "checkpoints").iterdir()) == []


@needs_programs
def test_hooks_are_measured_beside_a_step(tmp_path):
    found, output = bench(tmp_path, "hooks", "--hooks-steps", "2", "--hooks-samples", "2")
    results = by_name(found)
    counts = [len(result["seconds"]["all"]) for result in results.values()]
    assert counts == [2, 2, 2, 2]  # of 20 passes each
    share, over_plain, of_stage_2 = found["ratios"]
    hooks_seconds = results["hooks of forward and backward"]["seconds"]["median"]
    step_seconds = results["step, 1M parameters a unit"]["seconds"]["median"]
    assert share["median"] == pytest.approx(hooks_seconds / step_seconds)
    assert share["aim"] == hooks.AIM and over_plain["aim"] is None and of_stage_2["median"] > 0
    assert all(f"| {row} | " in output for row in ("hooks", "a step", "the same at stage 2"))


@needs_programs
def test_tokens_are_measured_beside_disk_offload(tmp_path):
    found, output = bench(tmp_path, "inference", "--inference-model", "tiny")
    assert len(found["results"]) == 6
    ratios = {ratio["name"]: ratio for ratio in found["ratios"]}
    for rows in (1, 8):
        assert ratios[f"bytes over planned, batch {rows}"]["median"] == pytest.approx(1, abs=0.3)
        aim = ratios[f"disk_offload over ours, seconds, batch {rows}"]["aim"]
        assert aim == inference.DISK_OFFLOAD_AIM
    assert "| accelerate's disk_offload | 8 |" in output


def test_hooks_are_what_the_medians_of_both_differ_by():
    ours = [3.0] * 11 + [9.0] * 9 + [4.0] * 20
    assert hooks.medians(ours) == [3.0, 4.0]


def test_a_bound_is_the_longer_of_memory_and_disk(tmp_path, monkeypatch):
    def line(seconds):
        moved = {"nvme_read": 3e9, "nvme_write": 1e9}
        return {"step_s": seconds, "bound_step_s": 2.0, "bytes": moved}

    seconds = {True: [4.0, 6.0, 5.0], False: [3.0]}
    def train(options, model, tokens, offloaded, case):
        return [line(each) for each in seconds[offloaded]]

    shares = []

    def fio_mixed(options, file, read, block, depth):
        shares.append(read)
        return 1.0  # GB/s

    paces = []

    @contextlib.contextmanager
    def fio_beside(options, file, read, written):
        paces.append((read, written))
        yield

    monkeypatch.setattr(bound, "train", train)
    monkeypatch.setattr(bound, "fio_beside", fio_beside)
    monkeypatch.setattr(disk, "fio_mixed", fio_mixed)
    options = run.parse(["--bound-rounds", "2"])
    made = report.Report("bound", tmp_path)
    row = bound.one_case(made, options, "model", "tokens", (1, 128, bound.CLIPPED), "file")
    assert shares == [0.75, 0.75]  # shares of the bytes read
    assert paces == [(3e9 / 5.0, 1e9 / 5.0)] * 2  # bytes over the step's seconds
    assert made.results[0]["beside"]["median"] == 3.0
    assert made.ratios[0]["median"] == 5.0 / 4.0  # 4 GB at 1 GB/s, longer than 3 s
    seconds[False] = [5.0]
    bound.one_case(made, options, "model", "tokens", (1, 128, bound.CLIPPED), "file")
    assert made.ratios[1]["median"] == 1.0
    assert row[0] == "1 x 128, clipped" and row[-1].startswith("1.25 ")


def test_fio_beside_a_step_ends_with_it(monkeypatch):
    monkeypatch.setattr(disk, "fio_command", lambda *_, **more: ["sleep", str(more["runtime"])])
    with bound.fio_beside(None, "file", 1.0, 1.0) as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM
    monkeypatch.setattr(disk, "fio_command", lambda *_, **__: ["false"])
    with pytest.raises(disk.Missing, match="exit code 1"):
        with bound.fio_beside(None, "file", 1.0, 1.0) as process:
            process.wait()


@needs_programs
def test_a_bound_without_fio_is_a_word(tmp_path):
    found, _ = bench(tmp_path, "bound")
    assert found["results"] == [] and "fio" in found["notes"][0]


def planned(seconds, read):
    moved = dict.fromkeys(plan.LINKS, {"total": 0}) | {"nvme_read": {"total": read}}
    return {"step": {"seconds": seconds}, "bytes_per_step": moved}


def test_a_plan_is_judged_by_seconds_and_bytes(tmp_path):
    def line(step, seconds, read):
        moved = dict.fromkeys(plan.LINKS, 0) | {"nvme_read": read}
        return {"step": step, "step_s": seconds, "predicted_step_s": 3.0, "bytes": moved}

    known = {"artesian": {"speculative_update": False}, "gradient_clipping": 1.0}
    lines = [line(4, 4.0, 100), line(5, 6.0, 100)]
    same = plan.compare(planned(3.0, 100), lines, planned(5.0, 0), known)
    assert same["predicted"] == 4.0 and same["measured"] == 5.0 and same["differ"] == []
    assert same["own"] == pytest.approx((3 / 4 + 3 / 6) / 2)
    lines = [line(4, 4.0, 100), line(5, 4.0, 99)]
    other = plan.compare(planned(3.0, 100), lines, planned(3.0, 0), known)
    assert other["differ"] == ["step 5: nvme_read: planned 100, moved 99"]
    of_each = planned(3.0, 50) | {"target": {"ranks": 2}}  # the log has the sums over all ranks
    assert plan.compare(of_each, lines, of_each, known)["differ"] == other["differ"]
    made = report.Report("plan", tmp_path)
    row = plan.add_case(made, run.parse([]), "the demo", [same])
    assert row == ["the demo", "4.00 (4.00..4.00)", "5.00 (5.00..5.00)", "0.80 (0.80..0.80)",
                   "0.62 (0.62..0.62)", "-", "yes"]  # fmt: skip
    assert [ratio["median"] for ratio in made.ratios] == [0.8, 0.625] and made.notes == []
    assert plan.add_case(made, run.parse([]), "bf16", [same, other])[-1] == "no"
    assert made.notes == ["bf16: bytes are NOT as planned: " + other["differ"][0]]
    assert [result["bytes_as_planned"] for result in made.results] == [True, False]


def test_a_plan_of_clipped_steps_is_that_of_what_they_roll_back(tmp_path):
    def line(norm):
        return {"step": 4, "step_s": 5.0, "predicted_step_s": 5.0, "grad_norm": norm,
                "bytes": dict.fromkeys(plan.LINKS, 0)}  # fmt: skip

    given = planned(3.0, 100)
    given["step"]["clipped_seconds"] = 5.0
    tried = {"gradient_clipping": 1.0}
    found = [plan.compare(given, [line(norm) for norm in norms], given, tried)
             for norms in [(0.5, 0.9), (0.5, 2.0), (2.0, 3.0)]]  # fmt: skip
    assert [each["predicted"] for each in found] == [3.0, 4.0, 5.0]
    assert plan.compare(given, [line(2.0)], given, {})["predicted"] == 3.0
    made = report.Report("plan", tmp_path)
    found[0]["fio"] = 0.95
    row = plan.add_case(made, run.parse([]), "default clipping", found)
    assert row[-2:] == ["0.95 (0.95..0.95)", "-"]
    assert made.results[0]["fio_after_by_before"][0] == 0.95
    assert made.notes == [] and made.results[0]["bytes_as_planned"] is None


def test_what_a_plan_is_compared_with_is_the_demo_and_one_thing_changed(tmp_path):
    (_, demo), *others = plan.cases("124m", tmp_path)
    original = json.loads((ROOT / "examples/demo.json").read_text())
    zero = demo.pop("zero_optimization")
    assert original.pop("zero_optimization") | {
        key: zero[key] for key in ["offload_param", "offload_optimizer"]
    } == zero
    assert zero["offload_param"]["nvme_path"] == str(tmp_path)
    assert demo["artesian"].pop("speculative_update") is False
    assert demo == original
    assert len(others) == 10
    assert len({json.dumps(config) for _, config in others}) == 10
    assert set(plan.RANKS) < {words for words, _ in others}


def test_plan_measures_the_cases_that_were_asked_for(tmp_path):
    todo = list(plan.cases("124m", tmp_path))
    assert plan.chosen(run.parse([]), todo) == todo
    options = run.parse(["--plan-cases", "bf16, the demo"])
    assert plan.chosen(options, todo) == [todo[0], todo[2]]
    # two of eleven parts, two runs each, and a minute of tune
    assert plan.estimate(options) == "about 2 minutes"
    with pytest.raises(step.Failed, match='got "fp8", allowed the demo, fp32, '):
        plan.chosen(run.parse(["--plan-cases", "the demo,fp8"]), todo)


@needs_programs
def test_plan_of_a_tiny_model(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    arguments = ["--plan-model", "tiny", "--plan-rounds", "1"]
    arguments += ["--size", "16MiB", "--tune-seconds", "0.6"]
    found, output = bench(tmp_path, "plan", *arguments)
    assert found["notes"] == []
    assert [result["parameters"]["case"] for result in found["results"]] == [
        words for words, _ in plan.cases("tiny", tmp_path)
    ]
    assert all(ratio["median"] > 0 for ratio in found["ratios"])
    for result, ratio in zip(found["results"], found["ratios"][::2], strict=True):
        tried = result["parameters"]["case"].endswith(("clipping", "step", "clipped"))
        assert result["bytes_as_planned"] is (None if tried else True)
        assert result["bytes"] == sum(result["planned_bytes"][link] for link in plan.LINKS[:2])
        expected = result["predicted"]["median"] / result["seconds"]["median"]
        assert ratio["median"] == pytest.approx(expected) and ratio["aim"] is None
    moved = [result["bytes"] for result in found["results"]]
    assert moved[0] > 0 and moved[-1] == 0
    assert "| everything in memory |" in output and "by aio_bench tune, GB/s: read " in output
    assert list((tmp_path / "work").iterdir()) == [] and not cache.exists()


@needs_programs
def test_two_ranks_are_measured_beside_one(tmp_path):
    found, output = bench(
        tmp_path, "ranks", "--ranks-model", "tiny", "--ranks-cases", "fp32", "--ranks-rounds", "1",
        "--ranks-steps", "2", "--warm-up", "1", "--without-deepspeed",
    )  # fmt: skip
    one, two = found["results"]
    assert len(one["losses"]) == 2 and found["notes"] == []  # two ranks have the losses of one rank
    assert max(one["wait_bus"]) == 0 < min(two["wait_bus"])
    (ratio,) = found["ratios"]
    expected = two["seconds"]["median"] / one["seconds"]["median"]
    assert ratio["median"] == pytest.approx(expected) and ratio["aim"] == 1.25
    assert "| 2 ranks, 1 thread each |" in output


@needs_programs
def test_a_plan_of_what_cannot_run_is_a_word(tmp_path):
    found, _ = bench(tmp_path, "plan", "--plan-model", "tiny", "--size", "1MiB")
    assert found["results"] == []
    (note,) = found["notes"]
    assert note.startswith("not measured: exit code 2: ") and "--size: got 1.00 MiB" in note
    assert list((tmp_path / "work").iterdir()) == []


def test_every_part_says_how_long_it_takes():
    options = run.parse([])
    for part in run.PARTS:
        assert "minute" in __import__(part).estimate(options)
