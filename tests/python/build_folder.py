"""What is tested: the programs of build/ in this checkout, or of the folder ARTESIAN_BUILD_DIR. And
where tests write: /tmp, or below the build folder where /tmp is memory, since what they prove of a
disk would not hold there."""

import os
import pathlib
import socket
import subprocess
import tempfile

WITH_GPUS = dict(os.environ)  # conftest.py hides them
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ARTESIAN_BUILD_DIR", ROOT / "build"))
PROGRAMS = BUILD / "bin"
ARTESIAN = PROGRAMS / "artesian"
AIO_BENCH = PROGRAMS / "aio_bench"


def free_port():
    """A port that nobody listens on, as far as one can know before one does."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def is_memory(folder):
    words = ["stat", "--file-system", "--format=%T", folder]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    return said.strip() in ("tmpfs", "ramfs")


given = "PYTEST_DEBUG_TEMPROOT" in os.environ  # pytest reads it with the first tmp_path
if not given and is_memory(tempfile.gettempdir()) and BUILD.exists():
    (BUILD / "pytest").mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(BUILD / "pytest")
