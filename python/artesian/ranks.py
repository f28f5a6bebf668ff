"""Several processes that train together: not supported yet, and refused before anything is made."""

from __future__ import annotations

import torch.distributed

from artesian.errors import UnsupportedError
from artesian.native import _C


def check_one_process(world_size: int = 1) -> None:
    """Refuses a process that a launcher has started as one of several, or that is in a process
    group of several. `world_size`: what a caller says itself."""
    _C.check_one_process()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world_size = max(world_size, torch.distributed.get_world_size())
    if world_size > 1:
        raise UnsupportedError(
            f"torch.distributed: got a group of {world_size} processes, allowed 1: training with "
            "several ranks from Python is not supported yet; start one process"
        )
