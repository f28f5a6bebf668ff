"""Proves that `aio_bench tune` loses nothing that a user has or has waited for: an output that
cannot be written is refused before the measurements, a config is never overwritten, and if one
output fails, stdout included, the others are still written."""

import json
import os
import pathlib
import subprocess

import limits
import pytest
from aio_bench_place import cache, folder  # noqa: F401
from build_folder import AIO_BENCH as PROGRAM

SMALL = ["--size", "16MiB", "--budget-seconds", "0.6"]
CONFIG = '{\n  "train_batch_size": 1, // of one sample\n  "fp16": {"enabled": true}\n}\n'


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(CONFIG)
    return path


def tune(folder, *arguments, prefix=(), **options):
    command = [*prefix, PROGRAM, "tune", "--path", folder, *SMALL, *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True,
                          **{"stdout": subprocess.PIPE, **options})  # fmt: skip


def refusal(folder, *arguments, **options):
    """Returns the one error line of a run that must be refused before it measures anything."""
    result = tune(folder, *arguments, **options)
    assert result.returncode == 2 and result.stdout == "", (result.returncode, result.stderr)
    (line,) = result.stderr.splitlines()
    assert line.startswith("aio_bench: error: ")
    return line


def aio_of(path):
    lines = [line.split("//")[0] for line in path.read_text().splitlines()]
    return json.loads("\n".join(lines))["aio"]


# Faults that are found before the measurements


@pytest.mark.parametrize("flags", [("--config-out", "--apply"), ("--json", "--apply"),
                                   ("--json", "--config-out")])  # fmt: skip
@pytest.mark.parametrize("spelled", ["{0}/ds.json", "{0}/nvme/../ds.json", "{0}/link.json",
                                     "{0}/hard.json"])  # fmt: skip
def test_two_flags_of_one_file_are_refused(folder, config, tmp_path, flags, spelled):
    (tmp_path / "link.json").symlink_to("ds.json")
    os.link(config, tmp_path / "hard.json")
    if "--config-out" in flags:
        config.write_text("{}")
    before = config.read_text()
    line = refusal(folder, flags[0], spelled.format(tmp_path), flags[1], config)
    assert "contradiction: " in line and all(flag in line for flag in flags)
    assert "allowed a file of its own for each" in line
    assert config.read_text() == before


def test_one_file_that_is_not_there_yet_is_one_file_too(folder, tmp_path):
    (tmp_path / "link.svg").symlink_to("plot.svg")
    line = refusal(folder, "--json", tmp_path / "plot.svg", "--plot", tmp_path / "link.svg")
    assert "contradiction: --plot" in line and not (tmp_path / "plot.svg").exists()
    assert tune(folder, "--json", "/dev/null", "--config-out", "/dev/null").returncode == 0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (CONFIG, "train_batch_size"),
        ('{"aio": {"block_size": 4096, "use_gds": false}}', "aio.use_gds"),
        ('{"aio": {}, "artesian": {"device_memory": "1GiB"}}', "artesian.device_memory"),
        ("notes of mine", "line 1"),
        ("[1]", "got [1]"),
    ],
)  # fmt: skip
def test_config_out_writes_over_nothing_but_settings(folder, config, text, key):
    config.write_text(text)
    line = refusal(folder, "--config-out", config)
    assert "would be lost: --config-out: " in line and key in line and "; use --apply" in line
    assert config.read_text() == text


@pytest.mark.parametrize("text", ["", "{}", '{"aio": {"block_size": 4096}}',
                                  '{"aio": {}, "artesian": {"engine": "threads"}}'])  # fmt: skip
def test_config_out_replaces_what_it_has_written(folder, config, text):
    config.write_text(text)
    result = tune(folder, "--config-out", config)
    assert result.returncode == 0, result.stderr
    assert list(aio_of(config))[0] == "block_size"


@limits.needs_root
def test_a_folder_in_which_no_copy_can_be_made_is_known_at_once(folder, tmp_path):
    theirs = tmp_path / "etc"
    theirs.mkdir()
    config = theirs / "ds.json"
    config.write_text(CONFIG)
    config.chmod(0o666)  # the file is writable, its folder is not
    limits.give(folder)
    for parent in [tmp_path, theirs]:
        parent.chmod(0o755)
    (tmp_path / "link.json").symlink_to(config)
    for name in [config, tmp_path / "link.json"]:
        line = refusal(folder, "--apply", name, prefix=limits.AS_NOBODY)
        assert "cannot be edited: --apply" in line and "Permission denied" in line
    assert config.read_text() == CONFIG and list(theirs.iterdir()) == [config]


def test_a_config_that_is_a_mount_of_its_own_is_written_in_place(folder, tmp_path):
    outside = tmp_path / "outside.json"
    outside.write_text(CONFIG)
    inside = tmp_path / "inside"
    inside.mkdir()
    config = inside / "ds.json"
    config.write_text("{}")
    mount = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"',
             str(outside), str(config)]  # fmt: skip
    if subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mounts here")
    result = tune(folder, "--apply", config, prefix=mount)
    assert result.returncode == 0, result.stderr
    assert aio_of(outside)["block_size"] > 0 and outside.read_text().startswith(CONFIG[:20])
    assert (inside / "ds.json.bak").read_text() == CONFIG
    assert sorted(path.name for path in inside.iterdir()) == ["ds.json", "ds.json.bak"]


# Faults that are found after the measurements


def closed_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


@pytest.mark.parametrize("stdout", [closed_pipe, lambda: open("/dev/full", "w")])
def test_a_stdout_that_takes_nothing_loses_no_file(folder, config, tmp_path, cache, stdout):
    names = ["all.json", "plot.svg", "aio.json"]
    flags = zip(["--json", "--plot", "--config-out"], [tmp_path / name for name in names])
    with stdout() as target:
        result = tune(folder, "--apply", config, *sum(flags, ()), stdout=target)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1 and errors[0].startswith("aio_bench: error: stdout: cannot write")
    got = json.loads((tmp_path / "all.json").read_text())
    assert aio_of(config) == got["aio"] == aio_of(tmp_path / "aio.json")
    assert (tmp_path / "plot.svg").read_text().endswith("</svg>\n")
    assert f"machine profile: {got['paths'][0]['profile']}" in result.stderr


def test_each_output_that_fails_is_said_and_the_others_are_there(folder, config):
    result = tune(folder, "--apply", config, "--json", "/dev/full", "--config-out", "/dev/full")
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert errors == ["aio_bench: error: cannot write: /dev/full"] * 2
    assert json.loads(result.stdout[: result.stdout.index("\n}\n") + 2])["aio"] == aio_of(config)
    assert "machine profile: " in result.stderr


def test_run_writes_its_file_though_stdout_is_closed(folder, tmp_path):
    target = tmp_path / "out.json"
    command = [PROGRAM, "run", "--path", folder, "--size", "1M", "--json", target]
    with closed_pipe() as stdout:
        result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and "stdout: cannot write: Broken pipe" in result.stderr
    assert json.loads(target.read_text())["op"] == "read"
    assert pathlib.Path(folder).is_dir()
