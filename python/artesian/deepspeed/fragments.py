"""deepspeed.utils' functions over a rank's part of a parameter. There is one rank, so the part is
the whole, as one row of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from artesian import zero
from artesian.errors import UnsupportedError


def row(values: torch.Tensor | None) -> torch.Tensor | None:
    return None if values is None else values.flatten()


def safe_get_local_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    return row(zero.safe_get_full_fp32_param(param))


def safe_get_local_optimizer_state(
    param: nn.Parameter, optim_state_key: str
) -> torch.Tensor | None:
    return row(zero.safe_get_full_optimizer_state(param, optim_state_key))


def safe_get_local_grad(param: nn.Parameter) -> torch.Tensor | None:
    return row(zero.safe_get_full_grad(param))


def safe_set_local_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    zero.safe_set_full_fp32_param(param, value.view(param.shape))


def safe_set_local_optimizer_state(
    param: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    zero.safe_set_full_optimizer_state(param, value.view(param.shape), optim_state_key)


def refuse(name: str) -> None:
    raise UnsupportedError(
        f"{name}: gradients cannot be set: they are added to the tiers as they come; change the "
        "loss, or register a hook on the parameter, which sees each gradient before"
    )


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    if zero.engine_of(param) is not None:
        refuse("safe_set_full_grad")


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    if zero.engine_of(param) is not None:
        refuse("safe_set_local_grad")


def safe_update_full_grad_vectorized(
    param_list: Iterable[nn.Parameter], update_func: Callable[..., Any]
) -> None:
    if any(zero.engine_of(param) is not None for param in param_list):
        refuse("safe_update_full_grad_vectorized")
