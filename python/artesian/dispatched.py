"""Models that were loaded with `device_map`, which has weights in memory or on a disk and moves
them by accelerate's hooks: the weights become the model's own again, and the hooks go."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from artesian.zero import spool


def hooks_of(hook: Any) -> Iterator[Any]:
    """A hook, or those that it is a sequence of."""
    yield from getattr(hook, "hooks", None) or [hook]


def bring_back(module: nn.Module, hook: Any, folder: str | None) -> None:
    """Gives parameters without memory the values that the hook would lend them for a call; where a
    folder is given, in mapped files there, one after the other."""
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
            except KeyError:  # tied to another one
                continue
            if folder is not None:
                spool(whole, folder)
            owner._parameters[name] = whole
    hook.original_devices = {}  # else they would be restored again


def take_hooks_off(model: nn.Module, folder: str | None) -> None:
    """Undoes `device_map`. Nothing is done to another model."""
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
