"""The config's learning-rate schedule as a torch scheduler. The numbers are the engine's."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LRScheduler

from artesian.native import _C


class ConfigSchedule(LRScheduler):
    """WarmupLR, WarmupDecayLR and WarmupCosineLR as DeepSpeed counts them: from the optimizer step
    after this many calls of step()."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: _C.Config) -> None:
        self.config = config
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [self.config.learning_rate(self.last_epoch)] * len(self.optimizer.param_groups)
