"""The programs under test: those of build/ in this checkout, or of the folder ARTESIAN_BUILD_DIR.
Tests write to /tmp, or below the build folder if /tmp is in memory, since results on a memory file
system say nothing about a disk."""

import os
import pathlib
import socket
import subprocess
import tempfile

WITH_GPUS = dict(os.environ)  # conftest.py hides the GPUs later
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ARTESIAN_BUILD_DIR", ROOT / "build"))
PROGRAMS = BUILD / "bin"
ARTESIAN = PROGRAMS / "artesian"
AIO_BENCH = PROGRAMS / "aio_bench"


def free_port():
    """Returns a port that nobody listens on at the moment."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def is_memory(folder):
    words = ["stat", "--file-system", "--format=%T", folder]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    return said.strip() in ("tmpfs", "ramfs")


# pytest reads the variable when the first tmp_path is made
given = "PYTEST_DEBUG_TEMPROOT" in os.environ
if not given and is_memory(tempfile.gettempdir()) and BUILD.exists():
    (BUILD / "pytest").mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(BUILD / "pytest")
