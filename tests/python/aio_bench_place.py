"""Fixtures and helpers of the tests of aio_bench: the folder in which it measures, and how a test
observes it meanwhile."""

import os
import pathlib
import signal
import subprocess

import pytest


@pytest.fixture
def folder(tmp_path):
    """A folder that must be empty at the end of the test."""
    path = tmp_path / "nvme"
    path.mkdir()
    yield path
    assert list(path.iterdir()) == []


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of machine profiles: the test sees no profiles but its own."""
    path = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return path


def open_files(pid):
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            yield os.readlink(descriptor)
        except FileNotFoundError:  # the descriptor was closed in between
            pass


def stop_while_measuring(command, number):
    """Sends the signal once the program has started to measure; returns its output and errors."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The program measures once its file is open and has no name any more; killed earlier, it would
    # leave the file behind.
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
