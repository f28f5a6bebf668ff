"""What is tested: the programs of build/ in this checkout, or of the folder ARTESIAN_BUILD_DIR."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ARTESIAN_BUILD_DIR", ROOT / "build"))
PROGRAMS = BUILD / "bin"
ARTESIAN = PROGRAMS / "artesian"
AIO_BENCH = PROGRAMS / "aio_bench"
