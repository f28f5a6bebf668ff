"""Loads the engine, artesian._C, after torch, whose libraries it needs; the package's other modules
import it from here."""

from __future__ import annotations

import atexit
import logging

import torch

from artesian.build_facts import TORCH, VERSION

if not torch.__version__.startswith(f"{TORCH}."):
    raise ImportError(
        f"artesian {VERSION} was built for torch {TORCH}, and this is torch {torch.__version__}; "
        "install a wheel for it, or build one: pip install --no-build-isolation ."
    )

from artesian import _C

__all__ = ["_C"]

LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)


def _log(level: int, line: str) -> None:
    logging.getLogger("artesian").log(LEVELS[level], "%s", line)


_C.set_log(_log)
# Python's log sink must not be called after the interpreter's end
atexit.register(_C.set_log, None)
