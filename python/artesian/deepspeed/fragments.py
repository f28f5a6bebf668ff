"""deepspeed.utils' functions on a rank's part of a parameter. There is one rank, so the part is the
whole parameter, flattened."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from artesian import zero


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


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the parameter's gradient between backward() and step(); does nothing for a frozen
    parameter or without an engine."""
    engine = zero.engine_of(param)
    if engine is not None and param.requires_grad:
        engine.set_full_gradient(param, value)


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    safe_set_full_grad(param, value.view(param.shape))


def safe_update_full_grad_vectorized(
    param_list: Iterable[nn.Parameter],
    update_func: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
) -> None:
    """Replaces each gradient by the result of `update_func(gradient, parameter)`; parameters
    without a gradient are skipped."""
    for param in param_list:
        gradient = zero.safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))
