"""Proves what a user of `aio_bench run` sees: the JSON's fields, the flags acting, faults named
with exit code 2, and that nothing is left behind, whatever ends the program."""

import json
import os
import shutil
import signal
import subprocess
import tempfile

import limits
import pytest
from aio_bench_place import folder, stop_while_measuring  # noqa: F401
from build_folder import AIO_BENCH as PROGRAM

FIELDS = [
    "op", "engine", "block_size", "queue_depth", "threads", "single_submit", "overlap_events",
    "polling", "direct", "bytes", "seconds", "gb_per_s", "iops", "submit_calls", "lat_us",
    "cpu_seconds", "verified",
]  # fmt: skip
MIXED_FIELDS = ["read_gb_per_s", "write_gb_per_s", "read_share"]
MIB = 1 << 20


def run(*arguments, **options):
    return subprocess.run([*options.pop("prefix", []), PROGRAM, *map(str, arguments)],
                          capture_output=True, text=True, **options)  # fmt: skip


def measured_aloud(folder, *arguments, size="16MiB", **options):
    """Returns the JSON and the stderr lines of a run that must succeed."""
    result = run("run", "--path", folder, "--size", size, "--json", "-", *arguments, **options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr.splitlines()


def measured(folder, *arguments, **options):
    return measured_aloud(folder, *arguments, **options)[0]


def has_io_uring(folder):
    words = ["run", "--path", folder, "--size", "1M", "--engine", "io_uring"]
    return run(*words).returncode == 0


def refused(*arguments):
    """Returns the error lines of a command that must be refused before it starts."""
    result = run(*arguments)
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert 1 <= len(lines) <= 5
    assert all(line.startswith("aio_bench: error: ") for line in lines)
    return lines


@pytest.mark.parametrize("engine", ["io_uring", "threads", "auto"])
@pytest.mark.parametrize("operation", ["read", "write", "mixed"])
def test_json_has_exactly_the_promised_fields(folder, engine, operation):
    if engine == "io_uring" and not has_io_uring(folder):
        pytest.skip("no io_uring here")
    got = measured(folder, "--op", operation, "--engine", engine, "--queue-depth", 4,
                   "--block-size", "256K")  # fmt: skip
    assert list(got) == FIELDS + (MIXED_FIELDS if operation == "mixed" else [])
    assert list(got["lat_us"]) == ["p50", "p95", "p99"]
    assert got["op"] == operation
    assert got["engine"] in ([engine] if engine != "auto" else ["io_uring", "libaio", "threads"])
    assert (got["block_size"], got["queue_depth"], got["threads"]) == (256 << 10, 4, 1)
    moved = 32 * MIB if operation == "mixed" else 16 * MIB
    assert got["bytes"] == moved
    assert got["verified"] is True
    assert got["single_submit"] is False and got["overlap_events"] is True
    assert got["gb_per_s"] == pytest.approx(got["bytes"] / got["seconds"] / 1e9)
    assert got["iops"] == pytest.approx(moved / (256 << 10) / got["seconds"])
    assert got["lat_us"]["p50"] <= got["lat_us"]["p95"] <= got["lat_us"]["p99"]
    assert got["cpu_seconds"] >= 0


def test_whole_seconds_are_told_apart(folder):
    words = ["run", "--path", folder, "--size", "16MiB", "--seconds", 3.5]
    got = json.loads(run(*words, "--json", "-").stdout)
    assert list(got) == [*FIELDS, "gb_per_s_by_second"]
    seconds = got["gb_per_s_by_second"]
    assert len(seconds) in (2, 3)  # on a busy machine the number of seconds varies
    assert min(seconds) > 0
    assert sum(seconds) * 1e9 < got["bytes"]  # the last half second is in none of them
    said = run(*words)
    assert "(slowest second " in said.stdout
    assert "aio_bench: note: read 1.00 MiB x 32, about " in said.stderr


def test_flags_act(folder):
    blocks = ["--block-size", "64KiB", "--queue-depth", 8]  # 256 blocks
    engine = ["--engine", "io_uring"]
    if not has_io_uring(folder):
        pytest.skip("no io_uring here")
    single = measured(folder, *blocks, *engine, "--single-submit")
    assert single["single_submit"] is True
    assert single["submit_calls"] == 256
    # The passes fill 8 blocks at once, or fewer if callbacks of earlier blocks had not returned.
    for _ in range(10):  # more runs make the machine busier
        drained = measured(folder, *blocks, *engine, "--no-overlap-events")
        assert drained["overlap_events"] is False
        if drained["submit_calls"] <= 64:
            break
    assert drained["submit_calls"] <= 64
    assert measured(folder, *blocks, *engine)["submit_calls"] <= 256
    assert measured(folder, "--no-direct")["direct"] is False


@pytest.mark.parametrize(
    ("share", "read", "written"), [(None, 1, 1), ("0.75", 3, 1), ("0.25", 1, 3)]
)
def test_mixed_moves_the_share_that_was_asked_for(folder, share, read, written):
    # Of 192 blocks the larger share takes all, the smaller share every third.
    arguments = ["--read-share", share] if share else []
    got = measured(folder, "--op", "mixed", "--block-size", "64K", "--queue-depth", 8,
                   *arguments, size="12MiB")  # fmt: skip
    assert got["read_share"] == float(share or 0.5)
    assert got["read_gb_per_s"] / got["write_gb_per_s"] == pytest.approx(read / written)
    assert got["read_gb_per_s"] + got["write_gb_per_s"] == pytest.approx(got["gb_per_s"])
    assert got["bytes"] == 12 * MIB * (read + written) // max(read, written)
    assert got["verified"] is True


def test_mixed_with_more_threads_and_fewer_blocks_than_slots(folder):
    for engine in ["auto", "threads"]:
        for depth in [1, 2, 64]:
            got = measured(folder, "--op", "mixed", "--block-size", "64K", "--queue-depth", depth,
                           "--threads", 3, "--engine", engine, "--seconds", 0.1,
                           size="1000K")  # fmt: skip
            assert got["verified"] is True and got["seconds"] >= 0.1
            assert got["bytes"] % 4096 == 0


@pytest.mark.parametrize("polling", ["sqpoll", "iopoll", "both"])
def test_polling_takes_effect_or_one_line_says_why_not(folder, polling):
    got, lines = measured_aloud(folder, "--polling", polling, "--engine", "auto")
    assert got["verified"] is True
    assert got["polling"] in ("off", "sqpoll", polling)
    assert got["polling"] == polling or len(lines) == 1
    without = measured(folder)
    assert without["polling"] == "off"


def test_what_goes_through_the_page_cache_is_not_polled(folder):
    if not has_io_uring(folder):
        pytest.skip("no io_uring here")
    for asked, left in [("iopoll", "off"), ("both", "sqpoll")]:
        got, lines = measured_aloud(folder, "--polling", asked, "--no-direct", "--engine",
                                    "io_uring")  # fmt: skip
        assert got["polling"] in (left, "off")
        assert any("polling: nothing is polled" in line or "refused" in line for line in lines)


def test_a_file_with_fewer_blocks_than_the_queue_is_a_note(folder):
    got, lines = measured_aloud(folder, "--queue-depth", 128)
    assert got["queue_depth"] == 128
    assert lines == ["aio_bench: note: --size 16.0 MiB has 16 blocks of 1.00 MiB: no more are in "
                     "flight, of the 128 that --queue-depth allows"]  # fmt: skip
    assert measured_aloud(folder, "--queue-depth", 16)[1] == []


def test_an_engine_without_polling_says_so(folder):
    got, lines = measured_aloud(folder, "--polling", "both", "--engine", "threads")
    assert got["polling"] == "off"
    (line,) = lines
    assert line == "aio_bench: warning: polling: threads does without, as io_uring alone can poll"


def test_more_threads_and_an_odd_size(folder):
    got, lines = measured_aloud(folder, "--threads", 2, "--op", "write", size="5000001")
    assert got["threads"] == 2
    assert got["bytes"] == 5001216
    assert lines == ["aio_bench: note: --size 5000001 is rounded up to 5001216 bytes, a multiple "
                     "of 4096"]  # fmt: skip


# Limits of the machine


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_refused_direct_io_is_one_warning_and_said(folder, engine):
    got, lines = measured_aloud(folder, "--engine", engine, preexec_fn=limits.refuse_direct)
    assert got["direct"] is False and got["verified"] is True
    assert len(lines) == 1
    assert lines[0].startswith("aio_bench: warning: direct I/O (O_DIRECT) is not available in ")
    assert lines[0].endswith(": transfers go through the page cache")


def test_memory_file_systems_are_not_direct(tmp_path_factory):
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no writable /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        got, lines = measured_aloud(shared)
        assert got["direct"] is False and got["verified"] is True
        assert len(lines) == 1 and "O_DIRECT" in lines[0]


@limits.needs_root
@pytest.mark.parametrize("engine", ["io_uring", "threads", "auto"])
@pytest.mark.parametrize("limit", [0, 64 << 10, 8 << 20])
def test_little_lockable_memory(folder, engine, limit):
    limits.give(folder)
    arguments = ["--engine", engine, "--op", "write"]  # buffers of 16 MiB
    result = run("run", "--path", folder, "--size", "32M", "--json", "-", *arguments,
                 prefix=limits.AS_NOBODY, preexec_fn=limits.lockable(limit))  # fmt: skip
    lines = result.stderr.splitlines()
    if limit == 0 and engine == "io_uring" and result.returncode == 2:
        # Some kernels count the ring itself as locked memory.
        assert "ulimit -l" in lines[-1] and lines[-1].startswith("aio_bench: error: ")
        return
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout)
    assert got["verified"] is True
    assert all("ulimit -l" in line for line in lines), lines
    fallen = engine == "auto" and got["engine"] != "io_uring"
    assert len(lines) == (2 if fallen else 1)
    assert limit == 0 or not fallen


def test_few_file_descriptors(folder):
    if not has_io_uring(folder):
        pytest.skip("no io_uring here")
    few = limits.descriptors(64)
    usual, lines = measured_aloud(folder, "--threads", 4, preexec_fn=few)
    assert usual["verified"] is True and lines == []
    many, lines = measured_aloud(folder, "--threads", 64, preexec_fn=few)
    assert many["engine"] == "threads" and len(lines) == 1
    assert "64 rings need 128 file descriptors, of 64" in lines[0]
    forced = run("run", "--path", folder, "--size", "16M", "--threads", 64, "--engine", "io_uring",
                 preexec_fn=few)  # fmt: skip
    assert forced.returncode == 2
    assert "64 rings need 128 file descriptors, of 64" in forced.stderr
    assert len(forced.stderr.splitlines()) == 1


def test_a_file_size_limit_is_an_error_that_names_the_file(folder):
    result = run("run", "--path", folder, "--size", "16M", preexec_fn=limits.file_size(1 << 20))
    assert result.returncode in (1, 2)
    assert len(result.stderr.splitlines()) == 1
    assert "File too large" in result.stderr and str(folder) in result.stderr


def test_seconds_repeat_the_file(folder):
    for operation in ["read", "write", "mixed"]:
        got = measured(folder, "--op", operation, "--block-size", "4K",
                       "--queue-depth", 32, "--seconds", 0.3, size="128KiB")  # fmt: skip
        assert got["seconds"] >= 0.3
        assert got["bytes"] > MIB // 8
        assert got["verified"] is True


def test_result_line_and_json_file(folder, tmp_path):
    target = tmp_path / "out.json"
    result = run("run", "--path", folder, "--size", "1M", "--json", target)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("read ") and result.stdout.endswith("verified\n")
    assert list(json.loads(target.read_text())) == FIELDS


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--path", "/does/not/exist"], "--path: got \"/does/not/exist\""),
        (["--block-size", "1000"], "--block-size: got \"1000\", allowed a multiple of 4096"),
        (["--block-size", "2GiB"], "--block-size"),
        (["--queue-depth", "0"], "--queue-depth: got \"0\", allowed 1 to"),
        (["--queue-depth", "many"], "--queue-depth"),
        (["--threads", "-1"], "--threads"),
        (["--size", "0"], "--size"),
        (["--size", "1XB"], "--size: got \"1XB\""),
        (["--size", "1000T"], "not enough free space: --size"),
        (["--seconds", "soon"], "--seconds"),
        (["--op", "delete"], "--op: got \"delete\", allowed read, write or mixed"),
        (["--op", "mixed", "--read-share", "1"], "--read-share: got \"1\", allowed a number"),
        (["--read-share", "0.5"], "contradiction: --read-share: got --op read"),
        (["--threads", "1", "--threads", "2"], "given too often: --threads: got 2 values"),
        (["--engine", "magic"], "--engine: got \"magic\""),
        (["--json", "/does/not/exist.json"], "--json"),
        (["--json", "long" * 100], "cannot write there: --json"),
        (["--bogus", "3"], "--bogus: got an unknown flag, allowed are those of aio_bench run"),
        (["--queue-dept", "3"], "did you mean --queue-depth?"),
        (["stray"], "stray: got an unknown argument"),
    ],
)  # fmt: skip
def test_faults_are_named_before_the_start(folder, arguments, expected):
    path = [] if "--path" in arguments else ["--path", folder]
    lines = refused("run", *path, *arguments)
    assert len(lines) == 1
    assert expected in lines[0]


def test_several_faults_are_one_line_each_and_unknown_flags_come_first(folder):
    lines = refused("run", "--queue-depth", "0", "--threads", "0", "--op", "x", "--engine", "y",
                    "--size", "z", "--seconds", "w")  # fmt: skip
    assert len(lines) == 5
    assert "missing flag: --path" in lines[0]
    unknown = refused("run", "--bogus")
    assert len(unknown) == 1 and "--bogus: got an unknown flag" in unknown[0]


def test_libaio(folder):
    result = run("run", "--path", folder, "--size", "1M", "--engine", "libaio", "--json", "-")
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout)
    assert got["engine"] == "libaio" and got["verified"]


@pytest.mark.parametrize("json_to", [None, "-", "file"])
def test_a_full_stdout_is_one_error(folder, tmp_path, json_to):
    words = ["run", "--path", folder, "--size", "1M"]
    if json_to is not None:
        words += ["--json", json_to if json_to == "-" else tmp_path / json_to]
    limits.full_stdout([PROGRAM, *words], "aio_bench: error: stdout: cannot write")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_into_a_full_stdout_is_one_error(words):
    limits.full_stdout([PROGRAM, *words], "aio_bench: error: stdout: cannot write")


def test_no_command_and_help():
    assert "missing command" in refused()[0]
    for arguments in (["--help"], ["run", "--help"]):
        result = run(*arguments)
        assert result.returncode == 0
        assert "--help" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_nothing_behind(folder, number):
    command = [PROGRAM, "run", "--path", folder, "--size", "8MiB", "--seconds", "600"]
    output, _ = stop_while_measuring(command, number)
    assert output == ""


@pytest.mark.skipif(shutil.which("gocryptfs") is None, reason="gocryptfs is not installed")
def test_item_12_a_file_system_that_cannot_sync_files_without_a_name(folder, tmp_path):
    """gocryptfs looks files up by their paths: the file keeps its name until the end."""
    below = tmp_path / "below"
    below.mkdir()
    secret = ["-q", "-extpass", "echo secret"]
    for words in [["-init", "-scryptn", "10", *secret, below], [*secret, below, folder]]:
        done = subprocess.run(["gocryptfs", *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"cannot mount gocryptfs here: {done.stderr.strip()}")
    try:
        for flags in [[], ["--no-direct", "--op", "mixed"]]:
            figures, lines = measured_aloud(folder, *flags, size="4MiB")
            assert figures["verified"] is True
            assert any("cannot sync a file without a name" in line for line in lines), lines
            assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)
