"""Parameters that are frozen while an engine has them, and become trainable again afterwards."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn


def freeze(model: nn.Module) -> list[nn.Parameter]:
    """Freezes all parameters; returns those that were not frozen before."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    for parameter in trainable:
        _freeze(parameter)
    return trainable


def _freeze(parameter: nn.Parameter) -> None:
    parameter.requires_grad_(False)
    parameter._artesian_frozen = True  # type: ignore[attr-defined]


def is_frozen_here(parameter: torch.Tensor) -> bool:
    """True if an engine, rather than the caller, has frozen it."""
    return getattr(parameter, "_artesian_frozen", False)


def leave_out(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, model_parameters: Any
) -> list[nn.Parameter]:
    """Freezes and returns the trainable parameters that are in no group: as with DeepSpeed they are
    not trained, which is logged once."""
    groups: Any = model_parameters if optimizer is None else optimizer.param_groups
    if groups is None:
        return []
    chosen = {
        id(parameter)
        for group in groups
        for parameter in (group["params"] if isinstance(group, dict) else [group])
    }
    left = {name: p for name, p in model.named_parameters() if p.requires_grad}
    left = {name: p for name, p in left.items() if id(p) not in chosen}
    if not chosen or not left:
        return []
    logging.getLogger("artesian").warning(
        "initialize(): %d parameters are in no group of the optimizer, and are not trained: %s",
        len(left),
        ", ".join(list(left)[:3]) + (", ..." if len(left) > 3 else ""),
    )
    for parameter in left.values():
        _freeze(parameter)
    return list(left.values())


def thaw(parameters: list[nn.Parameter]) -> None:
    """Undoes freeze()."""
    for parameter in parameters:
        vars(parameter).pop("_artesian_frozen", None)
        parameter.requires_grad_(True)
