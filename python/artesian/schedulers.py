"""DeepSpeed's learning-rate schedules as torch schedulers. The numbers are the engine's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from artesian.config import expand_dotted, read_config
from artesian.errors import InvalidError
from artesian.native import _C

# DeepSpeed's names of schedules and of their parameters.
LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_MIN_LR = "warmup_min_lr"
WARMUP_MAX_LR = "warmup_max_lr"
WARMUP_NUM_STEPS = "warmup_num_steps"
WARMUP_TYPE = "warmup_type"
WARMUP_LOG_RATE = "log"
WARMUP_LINEAR_RATE = "linear"
TOTAL_NUM_STEPS = "total_num_steps"

# Parameters of a schedule that may be lists, of one rate for each parameter group.
BY_GROUP = (WARMUP_MIN_LR, WARMUP_MAX_LR)
COUNTS = (TOTAL_NUM_STEPS, WARMUP_NUM_STEPS)


@dataclasses.dataclass(frozen=True)
class Ends:
    """What a schedule leads a parameter group between. lr: its own, before the schedule."""

    lr: float
    warmup_min_lr: float
    warmup_max_lr: float


class Rates:
    """What a config says of a schedule's rates by parameter group, which the engine does not read.

    lists: by name, one rate for each group.  has_maximum: false if each group is led to its own.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        given = {name: params.get(name) for name in BY_GROUP}
        self.lists = {name: list(r) for name, r in given.items() if isinstance(r, list | tuple)}
        self.has_maximum = given["warmup_max_lr"] not in (None, "auto")
        for name, rates in self.lists.items():
            for rate in rates or [None]:
                if not isinstance(rate, int | float) or not math.isfinite(rate) or rate < 0:
                    raise InvalidError(
                        f"scheduler.params.{name}: got {rates}, allowed a number of at least 0, or "
                        "a list of them, one for each parameter group"
                    )

    def ends_of(self, groups: list[dict[str, Any]], config: _C.Config) -> list[Ends]:
        """By parameter group, whose rates are still those before the schedule."""
        for name, rates in self.lists.items():
            if len(rates) != len(groups):
                raise InvalidError(
                    f"scheduler.params.{name}: got {len(rates)} rates, allowed {len(groups)}, one "
                    "for each parameter group, or one number for all"
                )
        result = []
        for number, group in enumerate(groups):
            own = float(group["lr"])
            ends = {
                "warmup_min_lr": config.warmup_min_lr,
                "warmup_max_lr": config.warmup_max_lr if self.has_maximum else own,
            }
            ends.update({name: float(rates[number]) for name, rates in self.lists.items()})
            result.append(Ends(own, **ends))
        return result


def take_rates(values: dict[str, Any], zero_is_one: bool = False) -> tuple[dict[str, Any], Rates]:
    """The config for the engine, where the first rate stands for a list; and all of them.

    `zero_is_one`: a schedule of no steps, which Trainer asks for where it only evaluates, is one of
    one step, whose rates are the same, as in DeepSpeed.
    """
    section = expand_dotted(values).get("scheduler")
    params = section.get("params") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(params, dict):
        return values, Rates({})
    rates = Rates(params)
    changed: dict[str, Any] = {name: by_group[0] for name, by_group in rates.lists.items()}
    if zero_is_one:
        changed |= {name: 1 for name in COUNTS if params.get(name) == 0}
    if not changed:
        return values, rates
    rest = {key: v for key, v in values.items() if key.split(".")[0] != "scheduler"}
    return {**rest, "scheduler": {**section, "params": {**params, **changed}}}, rates


class ConfigSchedule(LRScheduler):
    """The config's schedule, as DeepSpeed counts: from the optimizer step after this many calls of
    step(). Each parameter group is led to its own rate where the config names none, and
    WarmupCosineLR takes shares of it."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        config: _C.Config,
        rates: Rates,
        last_batch_iteration: int = -1,
    ) -> None:
        if config.schedule_ends and config.total_num_steps == 0:
            raise InvalidError(
                "scheduler.params.total_num_steps: got none, allowed an integer of at least 1, at "
                "which the schedule ends; set it to the number of optimizer steps"
            )
        self.config = config
        self.ends = rates.ends_of(optimizer.param_groups, config)
        super().__init__(optimizer, last_batch_iteration)

    def state_dict(self) -> dict[str, Any]:
        """Without what the config and the groups say: a changed config counts from here on."""
        left = ("config", "ends")
        return {key: value for key, value in super().state_dict().items() if key not in left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also of a state of DeepSpeed's."""
        iteration = state_dict.get("last_batch_iteration")
        if iteration is not None:
            state_dict = {"last_epoch": iteration + 1}
        super().load_state_dict(state_dict)

    @property
    def last_batch_iteration(self) -> int:
        """DeepSpeed's name and count."""
        return self.last_epoch - 1

    def get_lr(self) -> list[float | torch.Tensor]:
        taken = self.last_epoch
        return [self.config.learning_rate(taken, **vars(ends)) for ends in self.ends]


class _Named(ConfigSchedule):
    """A schedule with its parameters as arguments, in DeepSpeed's order."""

    def __init__(
        self, optimizer: Any, params: dict[str, Any], last_batch_iteration: int = -1
    ) -> None:
        kind = type(self).__name__
        wrapped = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer.optimizer
        values, rates = take_rates({"scheduler": {"type": kind, "params": params}})
        if last_batch_iteration >= 0:  # nothing is written yet, and torch asks for it
            for group in wrapped.param_groups:
                group.setdefault("initial_lr", group["lr"])
        super().__init__(wrapped, read_config(values, kind), rates, last_batch_iteration)


class WarmupLR(_Named):
    """deepspeed.runtime.lr_schedules.WarmupLR. warmup_max_lr None: each group's own rate."""

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: float | list[float] = 0.0,
        warmup_max_lr: float | list[float] | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        params = {
            "warmup_min_lr": warmup_min_lr,
            "warmup_max_lr": warmup_max_lr,
            "warmup_num_steps": warmup_num_steps,
            "warmup_type": warmup_type,
        }
        super().__init__(optimizer, params, last_batch_iteration)


class WarmupDecayLR(_Named):
    """deepspeed.runtime.lr_schedules.WarmupDecayLR."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: float | list[float] = 0.0,
        warmup_max_lr: float | list[float] = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        params = {
            "total_num_steps": total_num_steps,
            "warmup_min_lr": warmup_min_lr,
            "warmup_max_lr": warmup_max_lr,
            "warmup_num_steps": warmup_num_steps,
            "warmup_type": warmup_type,
        }
        super().__init__(optimizer, params, last_batch_iteration)


class WarmupCosineLR(_Named):
    """deepspeed.runtime.lr_schedules.WarmupCosineLR, of shares of each group's own rate."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        params = {
            "total_num_steps": total_num_steps,
            "warmup_min_ratio": warmup_min_ratio,
            "warmup_num_steps": warmup_num_steps,
            "cos_min_ratio": cos_min_ratio,
            "warmup_type": warmup_type,
        }
        super().__init__(optimizer, params, last_batch_iteration)
