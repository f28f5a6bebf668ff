"""Proves what a user of several folders in `nvme_path` sees: whatever their number, the same
result; each holds its part while it runs and nothing after; what is wrong with one of them is
named; and doctor and plan take several as well."""

import json
import os
import re
import signal
import socket
import subprocess

import limits
import pytest
from build_folder import ARTESIAN
from train_cli_test import Place, drop_capabilities, errors_of, place  # noqa: F401: a fixture

pytestmark = pytest.mark.skipif(not ARTESIAN.exists(), reason=f"{ARTESIAN} is not built")
KEY = "zero_optimization.offload_param.nvme_path"


def over(place, *folders, optimizer=None, text=False, device="272KiB", **zero):  # noqa: F811
    """A config whose state is divided over these folders, in stripes of 16 KiB."""

    def change(config):
        sections = config["zero_optimization"]
        for key, paths in [("offload_param", folders), ("offload_optimizer", optimizer or folders)]:
            names = [str(path) for path in paths]
            sections[key]["nvme_path"] = ",".join(names) if text else names
            sections[key].pop("max_in_cpu", None)
        sections["offload_param"]["max_in_cpu"] = 0
        sections.update(zero)
        config["aio"] = {"block_size": 16384}
        config["artesian"]["device_memory"] = device

    return place.write_config(change)


def made(place, *names):  # noqa: F811
    paths = [place.folder / name for name in names]
    for path in paths:
        path.mkdir()
    return paths


def test_the_number_of_folders_changes_no_bit(place):  # noqa: F811
    one, two, three = made(place, "one", "two", "three")
    configs = [
        over(place, one),
        over(place, one, two),
        over(place, one, two, three, text=True),
        over(place, one, two, optimizer=[two, three]),
    ]
    runs = [place.trained(config=config, steps=4) for config in configs]
    for run in runs[1:]:
        assert run[-1]["digest"] == runs[0][-1]["digest"]
        assert [step["loss"] for step in run] == [step["loss"] for step in runs[0]]
        for step, first in zip(run, runs[0], strict=True):
            paths = step["bytes"].pop("paths", [])
            assert step["bytes"] == first["bytes"]
            for sum_of, all_of in [("read", "nvme_read"), ("write", "nvme_write")]:
                assert not paths or sum(p[sum_of] for p in paths) == first["bytes"][all_of]
    for folder in [one, two, three]:
        assert list(folder.iterdir()) == []


def test_the_log_says_what_each_step_moved_through_each_folder(place):  # noqa: F811
    one, two, three = made(place, "one", "two", "three")
    config = over(
        place, one, optimizer=[two, three], device="192KiB", stage3_param_persistence_threshold=0
    )
    steps = place.trained(config=config, steps=4)
    for step in steps:
        paths = step["bytes"]["paths"]
        assert [path["path"] for path in paths] == [str(one), str(two), str(three)]
        assert sum(path["read"] for path in paths) == step["bytes"]["nvme_read"] > 0
        assert sum(path["write"] for path in paths) == step["bytes"]["nvme_write"]
        updated = not step["overflow"]
        assert (paths[0]["write"] > 0) == updated  # parameters, written by the update
        for state in paths[1:]:  # what an update reads it writes, and it is this step's
            assert state["read"] == state["write"] and (state["read"] > 0) == updated
    assert any(not step["overflow"] for step in steps)
    for step in place.trained(config=over(place, one), steps=1):
        assert "paths" not in step["bytes"]


def test_each_folder_holds_its_part_and_the_end_table_tells_it(place):  # noqa: F811
    one, two = made(place, "one", "two")
    process = place.start_and_wait_for_a_step(config=over(place, one, two))
    sizes = [sum(file.stat().st_size for file in path.glob("*.swap")) for path in [one, two]]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert min(sizes) > 0 and abs(sizes[0] - sizes[1]) <= 64 << 10, sizes
    result = place.run(config=over(place, one, two))
    assert result.returncode == 0, result.stderr
    assert re.search(f"nvme_path: each folder.s share of .*: {one} 50%.*, {two} 50%", result.stderr)
    for folder in [one, two]:
        assert re.search(rf"[1-9][\d.]* \w+ read, [1-9][\d.]* \w+ written through {folder}\n",
                         result.stdout), result.stdout  # fmt: skip
    single = place.run(config=over(place, one))
    assert "nvme, written in all" in single.stdout
    assert "written through" not in single.stdout and "share of" not in single.stderr


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("missing/deeper", "nvme directory does not exist and its parent neither"),
        ("text.txt", "nvme directory is not a directory"),
        ("x" * 300, "nvme directory is not a usable path"),
    ],
)
def test_an_unusable_second_folder_is_named(place, second, expected):  # noqa: F811
    (one,) = made(place, "one")
    line = place.refused(config=over(place, one, place.folder / second))
    assert line.startswith(f"artesian: error: {KEY}: {expected}")
    assert str(place.folder / second) in line
    assert list(one.iterdir()) == []


def test_an_unwritable_second_folder_is_named(place):  # noqa: F811
    (one,) = made(place, "one")
    locked = place.folder / "locked"
    locked.mkdir(mode=0o555)
    result = place.run(config=over(place, one, locked), preexec_fn=drop_capabilities)
    line = errors_of(result, 2)
    assert f"{KEY}: nvme directory cannot be written" in line and str(locked) in line
    assert list(one.iterdir()) == []


def test_one_folder_named_twice_is_refused(place):  # noqa: F811
    one, two = made(place, "one", "two")
    lines = place.refused(config=over(place, "one", "two", "one"), lines=2)
    fault = 'got "one" twice, allowed each folder once; remove one'
    assert lines[0] == f"artesian: error: {KEY}: {fault}"
    assert "offload_optimizer.nvme_path" in lines[1]
    link = place.folder / "link"
    link.symlink_to(one)
    line = place.refused(config=over(place, one, two, link))
    assert line == (f'artesian: error: {KEY}: got "{link}" twice (also as "{one}"), allowed each '
                    f"folder once; remove one: {one}"), line  # fmt: skip


def test_a_folder_of_another_run_is_named_and_that_run_goes_on(place):  # noqa: F811
    one, two, three = made(place, "one", "two", "three")
    first = place.start_and_wait_for_a_step(config=over(place, two, three))
    try:
        line = errors_of(place.run(config=over(place, one, two)), 2)
        assert f"in use by pid {first.pid} on host {socket.gethostname()}, started " in line
        assert str(two) in line and list(one.iterdir()) == []
        lines = len(place.steps())
        while len(place.log.read_text().splitlines()) <= lines:
            assert first.poll() is None, first.stderr.read()
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert list(two.iterdir()) == [] and list(three.iterdir()) == []


def test_what_a_killed_run_left_is_reclaimed_in_every_folder(place):  # noqa: F811
    one, two = made(place, "one", "two")
    killed = place.start_and_wait_for_a_step(config=over(place, one, two))
    killed.kill()
    killed.communicate(timeout=60)
    assert list(one.glob("*.swap")) and list(two.glob("*.swap"))
    place.trained(config=over(place, one, two))
    assert list(one.iterdir()) == [] and list(two.iterdir()) == []


def test_a_folder_without_space_is_named_with_the_bytes(place):  # noqa: F811
    one, small = made(place, "one", "small")
    options = ["-t", "tmpfs", "-o", "size=128k", "tmpfs", small]
    if subprocess.run(["mount", *options], capture_output=True).returncode != 0:
        pytest.skip("cannot mount here")
    try:
        line = place.refused(config=over(place, one, small))
        assert list(small.iterdir()) == [] and list(one.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
    assert f"{KEY}: nvme directory is too full" in line and str(small) in line
    assert re.search(r"needs .* \(\d{6} bytes\), free are .* KiB \(\d{5,6} bytes\)", line), line


def test_few_descriptors_are_enough_or_named(place):  # noqa: F811
    few = made(place, *[f"few{index}" for index in range(4)])
    many = made(place, *[f"many{index}" for index in range(40)])
    result = place.run(config=over(place, *few), preexec_fn=limits.descriptors(64))
    assert result.returncode == 0, result.stderr
    result = place.run(config=over(place, *many), preexec_fn=limits.descriptors(64))
    line = errors_of(result, 2)
    assert line.startswith(f"artesian: error: {KEY}: nvme directory cannot be opened beside all")
    assert "(ulimit -n), or name fewer directories" in line and "/many" in line
    assert all(list(folder.iterdir()) == [] for folder in few + many)


def test_doctor_looks_at_every_folder(tmp_path):
    folders = [tmp_path / name for name in ["one", "two"]]
    for folder in folders:
        folder.mkdir()

    def findings(paths, code=0):
        done = subprocess.run([ARTESIAN, "doctor", "--path", paths, "--json", "-"],
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)["findings"]

    found = findings(",".join(map(str, folders)))
    for folder in folders:
        assert any(f["name"] == "path" and f["subject"] == str(folder) for f in found)
    (striping,) = [f for f in found if f["name"] == "striping"]
    assert striping["status"] == "warn" and "on one disk" in striping["value"]
    assert not any(f["name"] == "striping" for f in findings(str(folders[0])))
    (twice,) = [f for f in findings(f"{folders[0]},{folders[0]}/", 1) if f["name"] == "striping"]
    assert twice["status"] == "fail" and "one folder" in twice["value"]
    refused = subprocess.run([ARTESIAN, "doctor", "--path", "a,,b"], capture_output=True, text=True)
    assert refused.returncode == 2 and "on each side of a comma" in refused.stderr


def profile_of(read, write):
    rates = [{"block_size": 1 << 20, "read_share": share, "gb_per_s": rate}
             for share, rate in [(1, read), (0, write)]]  # fmt: skip
    return {
        "format": "artesian machine profile", "version": 1, "path": "/nvme", "file_system": "ext4",
        "measured_at": "2026-01-31T12:00:00Z", "direct": True, "duplex": False,
        "queue_depth": 8, "threads": 1, "engine": "io_uring", "rates": rates,
    }  # fmt: skip


def test_plan_knows_that_folders_of_one_disk_share_its_speed(place):  # noqa: F811
    one, two = made(place, "one", "two")
    cache = place.folder / "cache"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}

    def rates(*folders):
        words = [ARTESIAN, "plan", "--model", place.model, "--config", over(place, *folders)]
        words += ["--seq-len", "32", "--micro-batch", "1", "--tflops", "1", "--json", "-"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["rates"]}

    assumed = rates(one, two)
    assert assumed["nvme_read"]["value"] == rates(one)["nvme_read"]["value"]
    assert "2 paths together" in assumed["nvme_read"]["source"]
    identity = os.statvfs(one).f_fsid
    if identity == 0:
        pytest.skip("this file system has no name of its own")
    (cache / "artesian").mkdir(parents=True)
    (cache / "artesian" / f"disk-{identity:016x}.json").write_text(json.dumps(profile_of(5, 4)))
    measured = rates(one, two)
    assert measured["nvme_read"]["value"] == pytest.approx(5)
    assert measured["nvme_write"]["value"] == pytest.approx(4)
    assert measured["nvme_write"]["source"].startswith("measured by aio_bench tune")
