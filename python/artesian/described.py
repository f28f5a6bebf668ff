"""What DeepSpeed says of a parameter that is not always there, as attributes: ds_id, ds_shape,
ds_numel, ds_status and others."""

from __future__ import annotations

import enum
import functools
import itertools
import weakref
from typing import Any

from torch import nn

NUMBERS = itertools.count()


class ZeroParamStatus(enum.Enum):
    """Of a parameter: ds_status."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class Status:
    """A parameter's ds_status: equal to what it is at the moment."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = weakref.ref(parameter)

    def now(self) -> ZeroParamStatus:
        parameter = self.parameter()
        try:
            if parameter is not None:
                parameter.data_ptr()  # of one that is released it cannot be had
                return ZeroParamStatus.AVAILABLE
        except RuntimeError:
            pass
        return ZeroParamStatus.NOT_AVAILABLE

    def __eq__(self, other: object) -> bool:
        return self.now() is (other.now() if isinstance(other, Status) else other)

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:  # a copy has its memory
        return ZeroParamStatus, (ZeroParamStatus.AVAILABLE.value,)

    def __repr__(self) -> str:
        return repr(self.now())

    @property
    def name(self) -> str:
        return self.now().name

    @property
    def value(self) -> Any:
        return self.now().value


def describe(parameter: nn.Parameter) -> None:
    if "ds_id" in vars(parameter):
        return
    vars(parameter).update(
        ds_id=next(NUMBERS),
        ds_numel=parameter.numel(),
        ds_shape=parameter.shape,
        ds_status=Status(parameter),
        ds_active_sub_modules=set(),
        partition_numel=functools.partial(int, parameter.numel()),  # of one rank
    )


def forget(parameter: nn.Parameter) -> None:
    for name in ("ds_id", "ds_numel", "ds_shape", "ds_status", "ds_active_sub_modules",
                 "partition_numel"):  # fmt: skip
        vars(parameter).pop(name, None)
