"""DeepSpeed's attributes of parameters that may be released: ds_id, ds_shape, ds_numel, ds_status
and others."""

from __future__ import annotations

import enum
import functools
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from artesian.errors import UnsupportedError

NUMBERS = itertools.count()


class ZeroParamStatus(enum.Enum):
    """Values of a parameter's ds_status."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class Status:
    """A parameter's ds_status: compares equal to its current state."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = weakref.ref(parameter)

    def now(self) -> ZeroParamStatus:
        parameter = self.parameter()
        try:
            if parameter is not None:
                parameter.data_ptr()  # raises if the parameter is released
                return ZeroParamStatus.AVAILABLE
        except RuntimeError:
            pass
        return ZeroParamStatus.NOT_AVAILABLE

    def __eq__(self, other: object) -> bool:
        return self.now() is (other.now() if isinstance(other, Status) else other)

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:  # makes a copy without memory of its own
        return ZeroParamStatus, (ZeroParamStatus.AVAILABLE.value,)

    def __repr__(self) -> str:
        return repr(self.now())

    @property
    def name(self) -> str:
        return self.now().name

    @property
    def value(self) -> Any:
        return self.now().value


class Partition:
    """A parameter's ds_tensor: one rank's part, without a readable tensor."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.ds_numel = parameter.numel()
        self.shape = torch.Size([parameter.numel()])
        self.dtype = parameter.dtype
        self.device = torch.device("cpu")
        self.status = ZeroParamStatus.NOT_AVAILABLE

    def numel(self) -> int:
        return self.ds_numel

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(
            f"ds_tensor.{name}: a parameter's part lies in a tier, and no tensor has it; "
            "GatheredParameters has its values, and safe_get_local_fp32_param() its master weights"
        )


def describe(parameter: nn.Parameter) -> None:
    if "ds_id" in vars(parameter):
        return
    vars(parameter).update(
        ds_id=next(NUMBERS),
        ds_numel=parameter.numel(),
        ds_shape=parameter.shape,
        ds_status=Status(parameter),
        ds_active_sub_modules=set(),
        ds_tensor=Partition(parameter),
        partition_numel=functools.partial(int, parameter.numel()),  # there is one rank
    )


def no_external_parameters() -> Iterator[tuple[str, nn.Parameter]]:
    """No external parameters: the first pass detects which parameters of other modules a module
    reads."""
    return iter(())


def describe_modules(model: nn.Module) -> None:
    """Adds DeepSpeed's method to each module, which programs call to find external parameters."""
    for module in model.modules():
        if "ds_external_parameters" not in vars(module):
            vars(module)["ds_external_parameters"] = no_external_parameters


def forget(parameter: nn.Parameter) -> None:
    for name in ("ds_id", "ds_numel", "ds_shape", "ds_status", "ds_active_sub_modules",
                 "ds_persist", "ds_tensor", "is_external_param", "partition_numel"):  # fmt: skip
        vars(parameter).pop(name, None)
