"""Handles models loaded with `device_map`, whose weights accelerate's hooks move from memory or a
disk: gives the weights back to the model, and removes the hooks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from artesian.zero import spool


def hooks_of(hook: Any) -> Iterator[Any]:
    """Yields the hook, or the hooks of a sequence."""
    yield from getattr(hook, "hooks", None) or [hook]


def bring_back(module: nn.Module, hook: Any, folder: str | None) -> None:
    """Gives parameters without memory the values that the hook would lend them for a call; if a
    folder is given, in mapped files there, one by one."""
    weights = getattr(hook, "weights_map", None)
    if weights is None:
        return
    below = module.named_modules() if hook.place_submodules else [("", module)]
    for prefix, owner in below:
        for name, parameter in owner._parameters.items():
            key = f"{prefix}.{name}" if prefix else name
            if parameter is None or not parameter.is_meta:
                continue
            try:
                whole = nn.Parameter(weights[key], parameter.requires_grad)
            except KeyError:  # tied to another parameter
                continue
            if folder is not None:
                spool(whole, folder)
            owner._parameters[name] = whole
    hook.original_devices = {}  # otherwise removing the hook would restore them


def take_hooks_off(model: nn.Module, folder: str | None) -> None:
    """Undoes `device_map`; does nothing to other models."""
    hooked = [module for module in model.modules() if hasattr(module, "_hf_hook")]
    if not hooked:
        return
    accelerate = importlib.import_module("accelerate.hooks")  # that module made the hooks
    for module in hooked:
        for hook in hooks_of(module._hf_hook):
            bring_back(module, hook, folder)
    accelerate.remove_hook_from_module(model, recurse=True)
    tie_weights = getattr(model, "tie_weights", None)
    if tie_weights is not None:
        tie_weights()
    vars(model).pop("hf_device_map", None)
