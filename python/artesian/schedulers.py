"""DeepSpeed's learning-rate schedules as torch schedulers. The numbers are the engine's."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from artesian.config import read_config
from artesian.native import _C

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]


class ConfigSchedule(LRScheduler):
    """The config's schedule, as DeepSpeed counts: from the optimizer step after this many calls of
    step()."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, config: _C.Config, last_batch_iteration: int = -1
    ) -> None:
        self.config = config
        super().__init__(optimizer, last_batch_iteration)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "config"}

    def get_lr(self) -> list[float | torch.Tensor]:
        return [self.config.learning_rate(self.last_epoch)] * len(self.optimizer.param_groups)


class _Named(ConfigSchedule):
    """A schedule with its parameters as arguments."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, last_batch_iteration: int = -1, **params: Any
    ) -> None:
        kind = type(self).__name__
        rate = float(optimizer.param_groups[0]["lr"])
        values = {
            "optimizer": {"type": "AdamW", "params": {"lr": rate}},
            "scheduler": {"type": kind, "params": params},
        }
        super().__init__(optimizer, read_config(values, kind), last_batch_iteration)


class WarmupLR(_Named):
    """warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type."""


class WarmupDecayLR(_Named):
    """Those of WarmupLR, and total_num_steps."""


class WarmupCosineLR(_Named):
    """total_num_steps, warmup_min_ratio, warmup_num_steps, cos_min_ratio, warmup_type."""
