"""Proves that `artesian train` and `artesian plan` take the I/O settings that `aio_bench tune` kept
in a disk's machine profile where the config has no aio section: the rings are there, one line says
where they are from, a config's own section decides, a profile of no use is a note, and bits are the
same."""

import json
import os
import pathlib
import subprocess

import pytest
import train_cli_test
from build_folder import AIO_BENCH, ARTESIAN
from train_cli_test import place, pytestmark  # noqa: F401

BEST = {"block_size": 262144, "queue_depth": 64, "intra_op_parallelism": 3,
        "single_submit": False, "overlap_events": True}  # fmt: skip
SAID = "artesian: note: aio: block_size 256 KiB, queue_depth 64, intra_op_parallelism 3 of the "
SAID += "machine profile of {} (aio_bench tune, 2026-01-31T12:00:00Z)"


def profile(**changes):
    rates = [{"block_size": size, "read_share": share, "gb_per_s": size / (1 << 18)}
             for size in [1 << 18, 1 << 20] for share in [1, 0]]  # fmt: skip
    return {
        "format": "artesian machine profile", "version": 1, "path": "/nvme", "file_system": "ext4",
        "measured_at": "2026-01-31T12:00:00Z", "direct": True, "duplex": False,
        "queue_depth": 64, "threads": 3, "engine": "io_uring", "polling": "off", "aio": BEST,
        "rates": rates,
    } | changes  # fmt: skip


class Cache:
    """The folder of machine profiles, and the profile of `place`'s disk."""

    def __init__(self, place):  # noqa: F811
        self.folder = place.folder / "cache"
        identity = os.statvfs(place.nvme).f_fsid
        if identity == 0:
            pytest.skip("this file system has no name of its own")
        self.file = self.folder / "artesian" / f"disk-{identity:016x}.json"
        self.file.parent.mkdir(parents=True)

    def write(self, text):
        self.file.write_text(text if isinstance(text, str) else json.dumps(text))


@pytest.fixture
def cache(place, monkeypatch):  # noqa: F811
    made = Cache(place)
    variables = train_cli_test.ENVIRONMENT | {"XDG_CACHE_HOME": str(made.folder)}
    monkeypatch.setattr(train_cli_test, "ENVIRONMENT", variables)
    return made


def aio_lines(place, **flags):  # noqa: F811
    """Returns what a run that must succeed prints about I/O settings, and its digest."""
    result = place.run(log_jsonl=place.log, **flags)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if ": aio: " in line]
    return lines, place.steps()[-1]["digest"]


def decided(place, **settings):  # noqa: F811
    return place.write_config(lambda config: config.update(aio=settings))


def test_a_profile_is_taken_where_the_config_has_no_aio_section(place, cache):  # noqa: F811
    none, digest = aio_lines(place)
    assert none == []
    cache.write(profile())
    assert aio_lines(place) == ([SAID.format(place.nvme)], digest)
    assert aio_lines(place, config=decided(place, queue_depth=8)) == ([], digest)
    # an empty aio section decides as well
    assert aio_lines(place, config=decided(place)) == ([], digest)


def target_of(link):
    try:
        return os.readlink(link)
    except FileNotFoundError:  # the descriptor is closed by now
        return ""


def rings(place, **flags):  # noqa: F811
    process = place.start_and_wait_for_a_step(**flags)
    links = [target_of(link) for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()]
    process.kill()
    process.communicate(timeout=60)
    for left in place.nvme.iterdir():  # files of the killed run
        left.unlink()
    return sum("io_uring" in link for link in links)


def test_what_is_said_is_what_is_done(place, cache):  # noqa: F811
    one = rings(place)
    if one == 0:
        pytest.skip("no io_uring here")
    cache.write(profile())
    assert rings(place) == 3 * one
    assert rings(place, config=decided(place, queue_depth=8)) == one


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "no JSON object"),
        (profile(aio=BEST | {"block_size": 5000}), "aio: block_size: must be a multiple of 4096"),
        (profile(version=2), "version: got 2"),
    ],
)
def test_a_profile_of_no_use_is_a_note(place, cache, text, expected):  # noqa: F811
    cache.write(text)
    (line,), _ = aio_lines(place)
    assert line.startswith(f"artesian: note: aio: defaults for {place.nvme}: this is no machine")
    assert expected in line and "run aio_bench tune again" in line and str(cache.file) in line


def test_a_profile_that_cannot_be_read_is_a_note(place, cache):  # noqa: F811
    cache.file.mkdir()
    (line,), _ = aio_lines(place)
    assert line.startswith(f"artesian: note: aio: defaults for {place.nvme}: ")
    assert str(cache.file) in line


def test_a_profile_without_settings_says_nothing(place, cache):  # noqa: F811
    old = profile()
    del old["aio"], old["polling"]
    cache.write(old)
    assert aio_lines(place)[0] == []


def test_plan_goes_by_the_rates_of_the_same_settings(place, cache):  # noqa: F811
    cache.write(profile())

    def plan(config):
        words = [ARTESIAN, "plan", "--model", place.model, "--config", config, "--seq-len", "32"]
        words += ["--micro-batch", "1", "--accumulation", "1", "--tflops", "1", "--json", "-"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120,
                              env=train_cli_test.ENVIRONMENT)  # fmt: skip
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        (read,) = [rate["value"] for rate in plan["rates"] if rate["name"] == "nvme_read"]
        return read, [note for note in plan["notes"] if note.startswith("aio: ")]

    assert plan(place.config) == (1, [SAID.format(place.nvme).removeprefix("artesian: note: ")])
    assert plan(decided(place, queue_depth=8)) == (4, [])  # blocks of 1 MiB


@pytest.mark.skipif(not AIO_BENCH.exists(), reason="aio_bench is not built")
def test_what_tune_keeps_is_what_train_takes(place, cache):  # noqa: F811
    words = [AIO_BENCH, "tune", "--path", place.nvme, "--size", "16MiB", "--budget-seconds", "0.6"]
    done = subprocess.run([*words, "--json", "-"], capture_output=True, text=True, timeout=120,
                          env=train_cli_test.ENVIRONMENT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    tuned = json.loads(done.stdout)
    kept = json.loads(cache.file.read_text())
    assert kept["aio"] == tuned["aio"] and kept["engine"] == tuned["engine"]
    assert kept["polling"] == "off"
    (line,), _ = aio_lines(place)
    assert f"queue_depth {tuned['aio']['queue_depth']}" in line
    assert f"of the machine profile of {place.nvme} (aio_bench tune, {kept['measured_at']})" in line
