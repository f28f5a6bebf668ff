"""Proves what a user of `aio_bench compare` sees: how fio's output becomes figures and ratios, with
a fake fio that reports known numbers; each way in which fio can fail; and the real fio, if it is
installed."""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import time

import limits
import pytest
from aio_bench_place import folder  # noqa: F401
from build_folder import AIO_BENCH as PROGRAM

FIELDS = ["against", "block_size", "queue_depth", "direct", "size", "memory", "memory_note",
          "repeats", "verified", "results"]  # fmt: skip
SMALL = ["--size", "8MiB", "--queue-depth", "4", "--memory", "plain"]
# The fake fio reports that it moved 8 MiB in 4 ms with 1 ms of CPU time, at latencies of 200 and
# 900 us.
MADE_UP = """#!/bin/sh
echo "$@" >> "$FIO_LOG"
case "$1" in --version) echo fio-9.9; exit 0;; esac
for word in "$@"; do
  case "$word" in --filename=*) [ -f "${word#--filename=}" ] || exit 9;; esac
done
moved='{"io_bytes": 8388608, "runtime": 4, "clat_ns": {"percentile": {"50.000000": 200000,
  "99.000000": 900000}}}'
echo "fio: a warning"
echo "{\\"jobs\\": [{\\"usr_cpu\\": 15.0, \\"sys_cpu\\": 10.0, \\"job_runtime\\": 4,
  \\"read\\": $moved, \\"write\\": $moved, \\"mixed\\": $moved}]}"
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Installs a fake program in place of fio; returns a function that sets its text, and its
    log."""
    programs = tmp_path / "programs"
    programs.mkdir()
    log = tmp_path / "fio.log"
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FIO_LOG", str(log))

    def install(text):
        (programs / "fio").write_text(text)
        (programs / "fio").chmod(stat.S_IRWXU)
        return log

    return install


def compare(folder, *arguments, **options):
    command = [PROGRAM, "compare", "--path", folder, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def refused(folder, *arguments, **options):
    result = compare(folder, *arguments, **options)
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert result.stdout == ""
    return result.stderr.splitlines()


def test_figures_are_those_that_fio_says(folder, fake):
    log = fake(MADE_UP)
    result = compare(folder, *SMALL, "--json", "-")
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout)
    assert list(got) == FIELDS
    assert got["against"] == "fio-9.9" and got["memory"] == "plain" and got["verified"] is True
    assert (got["block_size"], got["queue_depth"], got["repeats"]) == (1 << 20, 4, 5)
    assert [each["op"] for each in got["results"]] == ["read", "write", "mixed"]
    for each in got["results"]:
        fio, ours = each["fio"], each["artesian"]
        assert fio["engine"] == "io_uring"
        assert fio["gb_per_s"]["all"] == pytest.approx([8388608 / 0.004 / 1e9] * 5)
        assert fio["cpu_seconds_per_gb"]["median"] == pytest.approx(0.001 / 0.008388608)
        assert fio["lat_us"] == {"p50": 200, "p99": 900}
        assert len(ours["gb_per_s"]["all"]) == 5
        quotients = [a / b for a, b in zip(ours["gb_per_s"]["all"], fio["gb_per_s"]["all"])]
        assert each["ratio"]["all"] == pytest.approx(quotients)
        assert each["ratio"]["min"] <= each["ratio"]["median"] <= each["ratio"]["max"]
        assert each["cpu_ratio"]["median"] >= 0
    calls = log.read_text().splitlines()
    assert len(calls) == 1 + 1 + 3 * 5  # version, filling, measurements
    assert calls[0] == "--version" and "--rw=write" in calls[1]
    for call in calls[1:]:
        for word in ["--bs=1048576", "--iodepth=4", "--size=8388608", "--mem=malloc",
                     "--direct=1", "--ioengine=io_uring"]:  # fmt: skip
            assert word in call.split()
    assert [call.split()[2] for call in calls[2:5]] == ["--rw=read", "--rw=write", "--rw=rw"]
    assert all("--unified_rw_reporting=1" in call for call in calls if "--rw=rw" in call)


def test_a_full_stdout_is_one_error(folder, fake):
    fake(MADE_UP)
    limits.full_stdout([PROGRAM, "compare", "--path", folder, *SMALL, "--op", "read"],
                       "aio_bench: error: stdout: cannot write")  # fmt: skip


def test_flags_act(folder, fake, tmp_path):
    log = fake(MADE_UP)
    target = tmp_path / "out.json"
    result = compare(folder, "--size", "4MiB", "--block-size", "64K", "--queue-depth", 2, "--op",
                     "read", "--engine", "threads", "--repeats", 6, "--seconds", 1, "--no-direct",
                     "--memory", "plain", "--against", "fio", "--json", target)  # fmt: skip
    assert result.returncode == 0, result.stderr
    got = json.loads(target.read_text())
    (only,) = got["results"]
    assert only["op"] == "read" and only["artesian"]["engine"] == "threads"
    assert got["repeats"] == 6 == len(only["ratio"]["all"])
    assert got["direct"] is False and got["block_size"] == 65536
    lines = result.stdout.splitlines()
    assert lines[0].startswith("blocks of 64.0 KiB, depth 2, buffered, 4 KiB pages, 6 repeats")
    assert lines[1].startswith("read  artesian threads ") and "fio io_uring 2.097" in lines[1]
    cpu = only["cpu_ratio"]
    assert f": ratio {cpu['median']:.2f} ({cpu['min']:.2f}..{cpu['max']:.2f}); p99" in lines[1]
    calls = log.read_text().splitlines()
    assert "--runtime" not in calls[1]  # filling the file is one pass
    assert all("--time_based=1 --runtime=1" in call for call in calls[2:])
    assert all("--direct=0" in call and "--bs=65536" in call for call in calls[1:])


def test_without_cpu_time_of_fio_there_is_no_ratio(folder, fake, tmp_path):
    nothing = MADE_UP.replace('"usr_cpu\\": 15.0', '"usr_cpu\\": 0').replace(
        '"sys_cpu\\": 10.0', '"sys_cpu\\": 0')  # fmt: skip
    fake(nothing)
    target = tmp_path / "out.json"
    result = compare(folder, *SMALL, "--op", "read", "--json", target)
    assert result.returncode == 0, result.stderr
    (only,) = json.loads(target.read_text())["results"]
    assert only["cpu_ratio"] is None
    assert only["cpu_note"] == "fio counted 0 ms; use --seconds 5"
    assert only["ratio"]["median"] > 0
    assert "no ratio (fio counted 0 ms; use --seconds 5); p99 us" in result.stdout


def test_few_file_descriptors_are_enough(folder, fake):
    fake(MADE_UP)
    result = compare(folder, *SMALL, "--op", "read", preexec_fn=limits.descriptors(64))
    assert result.returncode == 0, result.stderr


def test_closed_standard_streams_are_in_no_ones_way(folder, fake, tmp_path):
    fake(MADE_UP)
    target = tmp_path / "out.json"
    words = [str(word) for word in [PROGRAM, "compare", "--path", folder, *SMALL, "--json", target]]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&-', "sh", *words], stderr=subprocess.PIPE)
    assert json.loads(target.read_text())["verified"] is True


def test_fio_gets_the_engine_that_ours_fell_back_to(folder, fake):
    log = fake(MADE_UP)
    result = compare(folder, *SMALL, "--op", "read", "--json", "-",
                     preexec_fn=limits.refuse_io_uring)  # fmt: skip
    assert result.returncode == 0, result.stderr
    (only,) = json.loads(result.stdout)["results"]
    ours = only["artesian"]["engine"]
    assert ours != "io_uring"
    assert only["fio"]["engine"] == (ours if ours == "libaio" else "posixaio")
    assert all(f"--ioengine={only['fio']['engine']}" in call
               for call in log.read_text().splitlines()[1:])  # fmt: skip


def test_buffered_reads_of_ours_meet_the_disk_in_each_repeat(folder, fake):
    log = fake(MADE_UP + "grep ^read_bytes /proc/$PPID/io >> \"$FIO_LOG\"\n")
    result = compare(folder, *SMALL, "--op", "read", "--no-direct")
    assert result.returncode == 0, result.stderr
    read = [int(line.split()[1]) for line in log.read_text().splitlines() if "read_bytes" in line]
    if read[1] - read[0] < 8 << 20:
        pytest.skip("this file system's reads meet no disk")
    assert read[-1] - read[0] >= 5 * (8 << 20)


def test_pages_of_both_are_said(folder, fake):
    fake(MADE_UP)
    result = compare(folder, "--size", "4MiB", "--queue-depth", 2, "--op", "read", "--json", "-")
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout)
    assert got["memory"] in ["huge", "plain"]
    assert (got["memory"] == "plain") == ("4 KiB pages" in got["memory_note"])


@limits.needs_root
def test_without_the_right_to_reserve_pages_both_are_plain(folder, fake):
    if int(pathlib.Path("/proc/sys/vm/nr_hugepages").read_text()) > 0:
        pytest.skip("there are reserved pages already")
    fake(MADE_UP)
    limits.give(folder)
    arguments = [*limits.AS_NOBODY, PROGRAM, "compare", "--path", folder, "--size", "4MiB",
                 "--queue-depth", "2", "--op", "read"]  # fmt: skip
    log = pathlib.Path(os.environ["FIO_LOG"])
    log.touch()
    log.chmod(0o666)
    for parent in [log.parent, log.parent / "programs"]:
        parent.chmod(0o755)
    (log.parent / "programs" / "fio").chmod(0o755)
    plain = subprocess.run(arguments, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    assert "cannot be written, which needs root: buffers of both are on 4 KiB pages" in plain.stderr
    huge = subprocess.run([*arguments, "--memory", "huge"], capture_output=True, text=True)
    assert huge.returncode == 2
    assert "--memory: got huge" in huge.stderr and "use --memory plain" in huge.stderr


# Failures


def test_without_fio_it_says_what_to_install(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = refused(folder, *SMALL)
    assert line == ("aio_bench: error: fio: got no such program in PATH, allowed an installed one; "
                    "install it (Debian: apt-get install fio)")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("exit 3", 2, "fio --version failed"),
        ("[ $1 = --version ] || { echo no such engine; exit 1; }", 1, "fio failed: no such engine"),
        ("[ $1 = --version ] || { echo fio: no memory; echo '}'; exit 1; }", 1, ": no memory"),
        ("[ $1 = --version ] || kill -9 $$", 1, "fio failed"),
        ("echo nonsense", 2, "fio's output cannot be read: no JSON in it"),
        ("echo '{\"jobs\": []}'", 2, "fio's output cannot be read"),
        ("echo '{\"jobs\": [{\"usr_cpu\": \"x\"}]}'", 2, "fio's output cannot be read"),
    ],
)  # fmt: skip
def test_a_fio_that_fails_is_one_line(folder, fake, text, code, expected):
    fake(f"#!/bin/sh\n{text}\n")
    result = compare(folder, *SMALL)
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("aio_bench: error: ") and expected in line


# Simulates a faulty disk: a sector of every unnamed file that its caller has open turns to zeros.
SPOILS = """
for file in /proc/$PPID/fd/*; do
  case "$(readlink $file)" in *artesian-aio-bench-*)
    dd if=/dev/zero of=$file bs=4096 seek=77 count=1 conv=notrunc,fsync 2> /dev/null;;
  esac
done
"""


def test_writes_of_the_last_repeat_are_verified_too(folder, fake):
    fake(MADE_UP + SPOILS)
    result = compare(folder, *SMALL, "--op", "write")
    assert result.returncode == 1
    assert result.stdout == ""
    assert f"aio_bench: error: wrong data: {folder}: what was read is not" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--repeats", "4"], "--repeats: got 4, allowed 5 to 1000"),
        (["--against", "dd"], "--against: got \"dd\", allowed fio"),
        (["--op", "trim"], "--op: got \"trim\", allowed all, read, write or mixed"),
        (["--memory", "much"], "--memory: got \"much\", allowed auto, huge or plain"),
        (["--size", "8192K", "--block-size", "3M"], "a multiple of --block-size"),
        (["--size", "1000T"], "not enough free space: --size"),
        (["--seconds", "0.5"], "--seconds: got \"0.5\""),
        (["--engine", "magic"], "--engine: got \"magic\""),
        (["--json", "/does/not/exist.json"], "--json"),
        (["--threads", "2"], "--threads: got an unknown flag"),
    ],
)  # fmt: skip
def test_faults_are_named_before_the_start(folder, fake, arguments, expected):
    fake("#!/bin/sh\nexit 1\n")
    lines = refused(folder, *arguments)
    assert expected in lines[0]


def test_a_path_is_needed_and_must_be_there():
    assert "no such directory: --path" in refused("/does/not/exist")[0]
    result = subprocess.run([PROGRAM, "compare"], capture_output=True, text=True)
    assert result.returncode == 2 and "missing flag: --path" in result.stderr


# The number of reserved 2 MiB pages; only one test at a time may change it.
RESERVED = pathlib.Path("/proc/sys/vm/nr_hugepages")


def waits(fake, started):
    """A fake fio that reports its process id and then hangs."""
    os.mkfifo(started)
    fake(f"#!/bin/sh\n[ $1 = --version ] && exit 0\necho $$ > {started}\nexec sleep 600\n")


def ends(pid):
    """Waits until the process is gone, or a zombie. False if the deadline, a generous one,
    passes."""
    for _ in range(600):
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def reserves():
    """Skips the test if no pages can be reserved, or if somebody else has reserved some."""
    try:
        if int(RESERVED.read_text()) > 0:
            pytest.skip("there are reserved pages already")
        RESERVED.write_text("0")
    except OSError:
        pytest.skip("pages cannot be reserved here")


def test_a_closed_stdout_leaves_no_pages_reserved(folder, fake, tmp_path):
    reserves()
    fake(MADE_UP)
    target = tmp_path / "out.json"
    command = [PROGRAM, "compare", "--path", folder, "--size", "8MiB", "--queue-depth", "4",
               "--op", "read", "--json", target]  # fmt: skip
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert result.returncode == 1 and "stdout: cannot write: Broken pipe" in result.stderr
    assert json.loads(target.read_text())["verified"] is True
    assert int(RESERVED.read_text()) == 0


@pytest.mark.parametrize("numbers", [[signal.SIGHUP], [signal.SIGINT, signal.SIGINT],
                                     [signal.SIGKILL]])  # fmt: skip
def test_fio_and_its_pages_end_with_us(folder, fake, tmp_path, numbers):
    reserves()
    waits(fake, tmp_path / "started")
    command = [PROGRAM, "compare", "--path", folder, "--size", "8MiB", "--queue-depth", "4"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child = int((tmp_path / "started").read_text())
    for number in numbers:
        process.send_signal(number)
    process.communicate(timeout=60)
    (last,) = set(numbers)
    assert process.returncode in (128 + last, -last)
    assert ends(child)
    if last == signal.SIGKILL:  # nobody can clean up after SIGKILL
        RESERVED.write_text("0")
    assert int(RESERVED.read_text()) == 0


def test_nohup_is_respected(folder, fake, tmp_path):
    waits(fake, tmp_path / "started")
    command = ["nohup", PROGRAM, "compare", "--path", folder, *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child = int((tmp_path / "started").read_text())
    process.send_signal(signal.SIGHUP)
    os.kill(child, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "fio failed" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_fio_too_and_leave_nothing_behind(folder, fake, tmp_path, number):
    started = tmp_path / "started"
    waits(fake, started)
    command = [PROGRAM, "compare", "--path", folder, *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child = int(started.read_text())
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert output == ""
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


# The real fio


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_with_fio(folder):
    result = compare(folder, *SMALL, "--seconds", 1, "--json", "-")
    if result.returncode != 0 and "io_uring" in result.stderr:
        pytest.skip("fio has no io_uring here")
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout)
    assert got["against"].startswith("fio-")
    for each in got["results"]:
        assert 0 < each["fio"]["gb_per_s"]["min"] <= each["fio"]["gb_per_s"]["median"]
        assert each["fio"]["lat_us"]["p50"] <= each["fio"]["lat_us"]["p99"]
        assert each["ratio"]["median"] > 0
