"""DeepSpeed's learning rate schedules as torch schedulers. The engine computes the rates."""

from __future__ import annotations

import dataclasses
import logging
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
WARMUP_MIN_RATIO = "warmup_min_ratio"
COS_MIN_RATIO = "cos_min_ratio"
TOTAL_NUM_STEPS = "total_num_steps"
LR_RANGE_TEST_MIN_LR = "lr_range_test_min_lr"
LR_RANGE_TEST_STEP_RATE = "lr_range_test_step_rate"
LR_RANGE_TEST_STEP_SIZE = "lr_range_test_step_size"
LR_RANGE_TEST_STAIRCASE = "lr_range_test_staircase"
EDGE_VALUE = "edge_value"
MID_VALUE = "mid_value"
CYCLE_FIRST_STEP_SIZE = "cycle_first_step_size"
CYCLE_FIRST_STAIR_COUNT = "cycle_first_stair_count"
CYCLE_SECOND_STEP_SIZE = "cycle_second_step_size"
CYCLE_SECOND_STAIR_COUNT = "cycle_second_stair_count"
DECAY_STEP_SIZE = "decay_step_size"
CYCLE_MIN_LR = "cycle_min_lr"
CYCLE_MAX_LR = "cycle_max_lr"
DECAY_LR_RATE = "decay_lr_rate"
CYCLE_MIN_MOM = "cycle_min_mom"
CYCLE_MAX_MOM = "cycle_max_mom"
DECAY_MOM_RATE = "decay_mom_rate"

# Parameters of schedules that may be lists with one number per parameter group, and the
# corresponding fields of Ends.
BY_GROUP = {
    WARMUP_MIN_LR: "low",
    WARMUP_MAX_LR: "high",
    LR_RANGE_TEST_MIN_LR: "low",
    CYCLE_MIN_LR: "low",
    CYCLE_MAX_LR: "high",
    CYCLE_MIN_MOM: "low_momentum",
    CYCLE_MAX_MOM: "high_momentum",
}
MOMENTA = (CYCLE_MIN_MOM, CYCLE_MAX_MOM)
COUNTS = (TOTAL_NUM_STEPS, WARMUP_NUM_STEPS)


@dataclasses.dataclass(frozen=True)
class Ends:
    """The rates between which a schedule moves a parameter group. lr: the group's own rate, without
    the schedule."""

    lr: float
    low: float
    high: float
    low_momentum: float
    high_momentum: float


class Rates:
    """A schedule's rates by parameter group, from the config; the engine does not read these.

    lists: by name, one number for each group.  has_maximum: false if each group's maximum is its
    own rate.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        given = {name: params.get(name) for name in BY_GROUP}
        self.lists = {name: list(r) for name, r in given.items() if isinstance(r, list | tuple)}
        maxima = (given[WARMUP_MAX_LR], given[CYCLE_MAX_LR])
        self.has_maximum = any(maximum not in (None, "auto") for maximum in maxima)
        for name, rates in self.lists.items():
            below = 1.0 if name in MOMENTA else math.inf
            for rate in rates or [None]:
                if not isinstance(rate, int | float) or not 0 <= rate < below:
                    allowed = "from 0 to below 1" if name in MOMENTA else "of at least 0"
                    raise InvalidError(
                        f"scheduler.params.{name}: got {rates}, allowed a number {allowed}, or "
                        "a list of them, one for each parameter group"
                    )

    def ends_of(self, groups: list[dict[str, Any]], config: _C.Config) -> list[Ends]:
        """The ends for each parameter group; the groups' rates must be those from before the
        schedule."""
        for name, rates in self.lists.items():
            if len(rates) != len(groups):
                raise InvalidError(
                    f"scheduler.params.{name}: got {len(rates)} values, allowed {len(groups)}, one "
                    "for each parameter group, or one number for all"
                )
        result = []
        for number, group in enumerate(groups):
            own = float(group["lr"])
            low, high = config.rate_ends
            low_momentum, high_momentum = config.momentum_ends
            ends = Ends(own, low, high if self.has_maximum else own, low_momentum, high_momentum)
            lists = {BY_GROUP[name]: float(rates[number]) for name, rates in self.lists.items()}
            result.append(dataclasses.replace(ends, **lists))
        return result


def with_known_curve(section: Any) -> Any:
    """A config's scheduler section; an unknown warm-up curve becomes "log", with a warning, as in
    DeepSpeed."""
    params = section.get("params") if isinstance(section, dict) else None
    curve = params.get(WARMUP_TYPE, "log") if isinstance(params, dict) else "log"
    if curve in (WARMUP_LOG_RATE, WARMUP_LINEAR_RATE, "auto"):
        return section
    logging.getLogger("artesian").warning(
        'scheduler.params.warmup_type: got "%s", allowed log or linear: it is log', curve
    )
    return {**section, "params": {**(params or {}), WARMUP_TYPE: WARMUP_LOG_RATE}}


def take_rates(values: dict[str, Any], zero_is_one: bool = False) -> tuple[dict[str, Any], Rates]:
    """The config for the engine, with each list of rates replaced by its first; and the lists.

    `zero_is_one`: a schedule of zero steps, which Trainer uses when it only evaluates, becomes one
    of one step with the same rates, as in DeepSpeed.
    """
    section = expand_dotted(values).get("scheduler")
    if zero_is_one:
        section = with_known_curve(section)
    params = section.get("params") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(params, dict):
        return values, Rates({})
    rates = Rates(params)
    changed: dict[str, Any] = {name: by_group[0] for name, by_group in rates.lists.items()}
    if zero_is_one:
        changed |= {name: 1 for name in COUNTS if params.get(name) == 0}
    if not changed and section == expand_dotted(values)["scheduler"]:
        return values, rates
    rest = {key: v for key, v in values.items() if key.split(".")[0] != "scheduler"}
    return {**rest, "scheduler": {**section, "params": {**params, **changed}}}, rates


class ConfigSchedule(LRScheduler):
    """The config's schedule, counted as in DeepSpeed: after n calls of step(), the rates are those
    of the following optimizer step. If the config names no maximum, each parameter group uses its
    own rate; WarmupCosineLR multiplies it. OneCycle also sets the groups' betas."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        config: _C.Config,
        rates: Rates,
        last_batch_iteration: int = -1,
        params: dict[str, Any] | None = None,
    ) -> None:
        if config.schedule_ends and config.total_num_steps == 0:
            raise InvalidError(
                "scheduler.params.total_num_steps: got none, allowed an integer of at least 1, at "
                "which the schedule ends; set it to the number of optimizer steps"
            )
        self.config = config
        self.ends = rates.ends_of(optimizer.param_groups, config)
        self.params = dict(params or {})
        super().__init__(optimizer, last_batch_iteration)

    def state_dict(self) -> dict[str, Any]:
        """State without the config's and the groups' values, so that a changed config applies from
        here on."""
        left = ("config", "ends", "params")
        return {key: value for key, value in super().state_dict().items() if key not in left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also accepts a state of DeepSpeed's."""
        iteration = state_dict.get("last_batch_iteration")
        if iteration is not None:
            state_dict = {"last_epoch": iteration + 1}
        super().load_state_dict(state_dict)

    @property
    def last_batch_iteration(self) -> int:
        """The count under DeepSpeed's name."""
        return self.last_epoch - 1

    def __getattr__(self, name: str) -> Any:
        """The schedule's parameters, by name."""
        if name != "params" and name in vars(self).get("params", ()):
            return self.params[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def min_lrs(self) -> list[float]:
        """The rates at the schedule's low end, by group, under DeepSpeed's name."""
        return [ends.low for ends in self.ends]

    @property
    def max_lrs(self) -> list[float]:
        return [ends.high for ends in self.ends]

    def get_lr_ratio(self) -> float:
        """For WarmupCosineLR: the factor of each group's own rate."""
        return self.config.learning_rate(self.last_epoch, lr=1.0, low=0.0, high=1.0)

    def get_lr(self) -> list[float | torch.Tensor]:
        taken = self.last_epoch
        return [
            self.config.learning_rate(taken, lr=ends.lr, low=ends.low, high=ends.high)
            for ends in self.ends
        ]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Both betas by group; None if momentum is not cycled. As in DeepSpeed they are those of
        the next step, except before the first step: then DeepSpeed reports the high end but uses
        the low one."""
        betas = self._betas()
        if betas is not None and self.last_epoch == 0:
            highs = [ends.high_momentum for ends in self.ends]
            return [(high, second) for high, (_, second) in zip(highs, betas, strict=True)]
        return betas

    def _betas(self) -> list[tuple[float, float]] | None:
        by_group = [
            self.config.betas(self.last_epoch, low=ends.low_momentum, high=ends.high_momentum)
            for ends in self.ends
        ]
        betas = [each for each in by_group if each is not None]
        return betas or None

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Sets the next rates or, counted as in DeepSpeed, those after the step with this number,
        from 0."""
        if last_batch_iteration is not None:
            self.last_epoch = last_batch_iteration
        super().step()
        for group, betas in zip(self.optimizer.param_groups, self._betas() or (), strict=False):
            if "betas" in group:  # as in DeepSpeed, momentum of other optimizers is not cycled
                group["betas"] = betas


class _Named(ConfigSchedule):
    """A schedule with its parameters as arguments, in DeepSpeed's order."""

    def __init__(
        self, optimizer: Any, params: dict[str, Any], last_batch_iteration: int = -1
    ) -> None:
        kind = type(self).__name__
        wrapped = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer.optimizer
        section = with_known_curve({"type": kind, "params": params})
        params = section["params"]
        values, rates = take_rates({"scheduler": section})
        if last_batch_iteration >= 0:  # torch asks for the rates before they are first written
            for group in wrapped.param_groups:
                group.setdefault("initial_lr", group["lr"])
        config = read_config(values, kind)
        super().__init__(wrapped, config, rates, last_batch_iteration, params)


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
    """deepspeed.runtime.lr_schedules.WarmupCosineLR, whose rates are factors of each group's own
    rate."""

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


class LRRangeTest(_Named):
    """deepspeed.runtime.lr_schedules.LRRangeTest."""

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: float | list[float] = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        params = {
            "lr_range_test_min_lr": lr_range_test_min_lr,
            "lr_range_test_step_size": lr_range_test_step_size,
            "lr_range_test_step_rate": lr_range_test_step_rate,
            "lr_range_test_staircase": lr_range_test_staircase,
        }
        super().__init__(optimizer, params, last_batch_iteration)


class OneCycle(_Named):
    """deepspeed.runtime.lr_schedules.OneCycle."""

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: float | list[float],
        cycle_max_lr: float | list[float],
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: float | list[float] = 0.8,
        cycle_max_mom: float | list[float] = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        params = {
            "cycle_min_lr": cycle_min_lr,
            "cycle_max_lr": cycle_max_lr,
            "decay_lr_rate": decay_lr_rate,
            "cycle_first_step_size": cycle_first_step_size,
            "cycle_second_step_size": cycle_second_step_size,
            "cycle_first_stair_count": cycle_first_stair_count,
            "cycle_second_stair_count": cycle_second_stair_count,
            "decay_step_size": decay_step_size,
            "cycle_momentum": cycle_momentum,
            "cycle_min_mom": cycle_min_mom,
            "cycle_max_mom": cycle_max_mom,
            "decay_mom_rate": decay_mom_rate,
        }
        super().__init__(optimizer, params, last_batch_iteration)


NAMED = {
    kind.__name__: kind for kind in (WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle)
}


def schedule_of(
    optimizer: torch.optim.Optimizer, values: dict[str, Any], config: _C.Config, rates: Rates
) -> ConfigSchedule:
    """The config's schedule, as one of the classes above. `values`: the config as given."""
    section = expand_dotted(values)["scheduler"]
    schedule = object.__new__(NAMED[section["type"]])
    params = dict(section.get("params") or {})
    if params.get(WARMUP_TYPE) != WARMUP_LINEAR_RATE:  # take_rates() has logged other values
        params[WARMUP_TYPE] = WARMUP_LOG_RATE
    ConfigSchedule.__init__(schedule, optimizer, config, rates, params=params)
    return schedule
