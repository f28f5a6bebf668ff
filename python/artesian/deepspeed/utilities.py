"""deepspeed.utils and deepspeed.runtime.utils: small helpers for training loops."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

from artesian.deepspeed import comm
from artesian.errors import InvalidError

logger = logging.getLogger("artesian.deepspeed")
if logger.level == logging.NOTSET:
    logger.setLevel(logging.INFO)  # as DeepSpeed's
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def log_dist(message: str, ranks: list[int] | None = None, level: int = logging.INFO) -> None:
    """Logs a line on these ranks; on all if none are given or -1 is among them."""
    rank = comm.get_rank()
    if not comm.is_initialized() or (ranks and (ranks[0] == -1 or rank in ranks)):
        logger.log(level, "[Rank %d] %s", rank, message)


def set_log_level_from_string(log_level_str: str, custom_logger: Any = None) -> None:
    level = LEVELS.get(log_level_str.lower())
    if level is None:
        raise InvalidError(
            f'set_log_level_from_string: got "{log_level_str}", allowed {", ".join(LEVELS)}'
        )
    (custom_logger or logger).setLevel(level)


class RepeatingLoader:
    """A loader that restarts at its end."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


class OnDevice(contextlib.ExitStack):
    """Modules created inside of this context have their parameters on this device, with this
    dtype."""

    def __init__(self, dtype: torch.dtype, device: Any = "meta", enabled: bool = True) -> None:
        super().__init__()
        self.dtype = dtype
        self.device = device
        self.enabled = enabled

    def __enter__(self) -> OnDevice:
        if self.enabled:
            self.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(self.dtype)
            self.enter_context(torch.device(self.device))
        return self


def see_memory_usage(message: str, force: bool = False) -> None:
    """Prints the process's memory if `force` is set."""
    if force:
        from artesian.deepspeed.shim import get_accelerator

        now, peak = get_accelerator().memory_allocated(), get_accelerator().max_memory_allocated()
        print(f"{message}\nmemory of the process: {now / 2**30:.2f} GiB, peak {peak / 2**30:.2f}")


def move_to_device(
    item: Any, device: Any, criterion_func: Callable[[Any], bool] | None = None
) -> Any:
    """The nested value with its tensors on the device; for tensors that match the criterion, the
    tensor objects are kept and get other memory."""
    if criterion_func is not None and criterion_func(item):
        item.data = item.to(device).data
        return item
    if isinstance(item, list | tuple):
        return type(item)([move_to_device(element, device, criterion_func) for element in item])
    if isinstance(item, dict):
        return {key: move_to_device(v, device, criterion_func) for key, v in item.items()}
    return item.to(device) if hasattr(item, "to") else item


def set_random_seed(seed: int) -> None:
    """Seeds Python's, numpy's and torch's generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
