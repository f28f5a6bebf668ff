"""Proves what a user of aio_bench sees on a terminal of 80 columns: a progress bar for everything
that takes long, also for writing files, never wider than the terminal; the rate of the last
measurement; and log lines that do not run into the bar."""

import fcntl
import os
import pty
import re
import stat
import struct
import subprocess
import termios

import limits
from aio_bench_place import cache, folder  # noqa: F401
from build_folder import AIO_BENCH as PROGRAM

COLUMNS = 80


def seen(*arguments, **options):
    """Returns what a run that must succeed writes to the terminal."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    command = [PROGRAM, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, **options)
    os.close(terminal)
    pieces = []
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the other end of the terminal is closed
            break
        pieces.append(piece)
    os.close(controller)
    text = b"".join(pieces).decode(errors="replace")
    assert process.wait(timeout=60) == 0, text
    return text


def bars(text):
    found = re.findall(r"\r(\[[#.]+\][^\r\n\x1b]*)\x1b\[K", text)
    assert found and all(len(bar) < COLUMNS for bar in found)
    return found


def test_tune_shows_the_rate_and_where_it_is(folder):
    text = seen("tune", "--path", folder, "--size", "64MiB", "--budget-seconds", "0.6")
    found = bars(text)
    assert any("s left  writing 64.0 MiB  " in bar and "GB/s" in bar for bar in found)
    for stage in ["map", "finalists", "head to head"]:
        rates = [re.search(rf"s left  {stage}  \d+\.\d\d GB/s  ", bar)
                 for bar in found if f"  {stage}" in bar]  # fmt: skip
        assert rates and all(rates)
    assert any("s left  profile of " in bar for bar in found)


def test_lines_of_log_take_the_place_of_the_bar(folder):
    text = seen("tune", "--path", folder, "--size", "16MiB", "--budget-seconds", "0.6",
                preexec_fn=limits.refuse_direct)  # fmt: skip
    lines = [match.start() for match in re.finditer("aio_bench: ", text)]
    assert any("aio_bench: warning: direct I/O" in text[at : at + 40] for at in lines)
    for at in lines:
        before = text[max(0, at - COLUMNS) : at]
        assert before == "" or before.endswith(("\r\x1b[K", "\n")), repr(before)


def test_run_shows_that_it_writes_its_file_and_checks_it(folder):
    text = seen("run", "--path", folder, "--size", "128MiB", "--op", "write")
    assert any("s left  writing 128 MiB  " in bar for bar in bars(text))
    assert any("s left  checking 128 MiB  " in bar for bar in bars(text))


def test_compare_shows_how_far_it_is(folder, tmp_path, monkeypatch):
    from aio_bench_compare_test import MADE_UP, SMALL

    program = tmp_path / "programs" / "fio"
    program.parent.mkdir()
    program.write_text(MADE_UP)
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FIO_LOG", str(tmp_path / "log"))
    found = bars(seen("compare", "--path", folder, *SMALL, "--op", "read"))
    steps = [bar for bar in found if "  comparing  " in bar]
    assert len(steps) == 10 and "100%" in steps[-1]
    for whose in ["artesian", "fio"]:
        assert sum(f"GB/s  read, {whose}" in bar for bar in steps) == 5
