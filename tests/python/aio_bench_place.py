"""Where the tests of aio_bench let it measure, and what they see of it while it does."""

import os
import pathlib
import signal
import subprocess

import pytest


@pytest.fixture
def folder(tmp_path):
    """A folder that must be empty in the end."""
    path = tmp_path / "nvme"
    path.mkdir()
    yield path
    assert list(path.iterdir()) == []


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where machine profiles are kept: none but its own are seen by a test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


def open_files(pid):
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(descriptor)
        except FileNotFoundError:  # closed in between
            pass


def stop_while_measuring(command, number):
    """Sends the signal once the program has come past its own start; its output and errors."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Its file shows that, open and without a name any more: killed before, it would leave one.
    while not any(
        "artesian-aio-bench" in link and link.endswith(" (deleted)")
        for link in open_files(process.pid)
    ):
        assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    expected = -number if number == signal.SIGKILL else 128 + number
    assert process.returncode == expected, errors
    return output, errors
