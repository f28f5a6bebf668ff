"""Hooks on the modules of a model: the only place that registers any.

Each unit, and each module above units, tells the engine of its calls. The outermost call on the
thread is a pass: an evaluation if gradients are off, unless a reentrant checkpoint has switched
them off, else a training pass.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from artesian.config import torch_dtype
from artesian.native import _C
from artesian.units import Plan

CHECKPOINT_FORWARD = CheckpointFunction.forward.__code__


def inside_checkpoint() -> bool:
    """True if a reentrant checkpoint's forward is on this thread's stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CHECKPOINT_FORWARD:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def collect(value: Any, found: list[torch.Tensor]) -> None:
    """Appends all tensors with a graph in a nested value."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            found.append(value)
    elif isinstance(value, dict):
        for element in value.values():
            collect(element, found)
    elif isinstance(value, list | tuple):
        for element in value:
            collect(element, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        collect(vars(value), found)


def convert(value: Any, given: torch.dtype, wanted: torch.dtype) -> Any:
    """A nested value with its tensors of one floating dtype in another."""
    if isinstance(value, torch.Tensor):
        return value.to(wanted) if value.dtype == given else value
    if type(value) in (list, tuple):
        return type(value)(convert(element, given, wanted) for element in value)
    if type(value) is dict:
        return {key: convert(element, given, wanted) for key, element in value.items()}
    return value


class Hooks:
    """From construction to remove(), the model's calls go through the engine."""

    def __init__(self, core: _C.Engine, plan: Plan, param_dtype: torch.dtype) -> None:
        self.core = core
        self.param_dtype = param_dtype
        self.compute_dtype = torch_dtype(core.compute_dtype)
        self.outermost: nn.Module | None = None
        self.handles: list[torch.utils.hooks.RemovableHandle] = []
        for index, unit in enumerate(plan.units):
            self._register(unit.module, index, core.enter, self._leave_unit(index))
        for index, (_, module) in enumerate(plan.containers):
            self._register(module, index, core.enter_container, self._leave_container(index))

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def _register(
        self,
        module: nn.Module,
        index: int,
        enter: Callable[[int, bool], None],
        leave: Callable[..., None],
    ) -> None:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            return self._begin(module, args, kwargs, index, enter)

        self.handles.append(
            module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        )
        self.handles.append(module.register_forward_hook(leave, always_call=True))

    def _begin(
        self,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        index: int,
        enter: Callable[[int, bool], None],
    ) -> Any:
        core = self.core
        if self.outermost is module and core.depth > 0:
            core.unwind()  # Ctrl-C has ended the call before it, and hooks were not told
        evaluate = False
        outermost = core.depth == 0
        if outermost:
            self.outermost = module
            evaluate = not torch.is_grad_enabled() and not inside_checkpoint()
        enter(index, evaluate)
        if outermost and self.compute_dtype != self.param_dtype:
            return (
                convert(args, self.param_dtype, self.compute_dtype),
                convert(kwargs, self.param_dtype, self.compute_dtype),
            )
        return None

    def _leave_unit(self, index: int) -> Callable[..., None]:
        leave = self.core.leave

        def after(module: nn.Module, args: Any, output: Any) -> None:
            found: list[torch.Tensor] = []
            if torch.is_grad_enabled():
                collect(output, found)
            leave(index, found)

        return after

    def _leave_container(self, index: int) -> Callable[..., None]:
        leave = self.core.leave_container

        def after(module: nn.Module, args: Any, output: Any) -> None:
            leave(index)

        return after
