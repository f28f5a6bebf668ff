"""Hooks on the modules of a model: the only place that registers any.

Each unit, and each module above units, tells the engine of its calls. The outermost call on the
thread is a pass: an evaluation if gradients are off, unless a reentrant checkpoint has switched
them off, else a training pass.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from artesian.config import torch_dtype
from artesian.errors import UnsupportedError
from artesian.native import _C
from artesian.units import Plan

CHECKPOINT_FORWARD = CheckpointFunction.forward.__code__
# What is asked of a parameter without reading it.
FACTS = ("dtype", "device", "shape", "requires_grad", "grad", "is_leaf", "grad_fn", "layout")
HARMLESS = {getattr(torch.Tensor, name).__get__ for name in FACTS} | {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.is_floating_point,
}


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


class Reads(TorchFunctionMode):
    """Tells the engine which parameters are about to be read: one that belongs to another module
    than the one that runs is gathered with that one from then on."""

    def __init__(self, core: _C.Engine, numbers: dict[int, int]) -> None:
        super().__init__()
        self.core = core
        self.numbers = numbers

    def look(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            number = self.numbers.get(id(value))
            if number is not None:
                self.core.gather(number)
        elif isinstance(value, list | tuple):
            for element in value:
                self.look(element)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in HARMLESS:
            self.look(args)
            if kwargs:
                self.look(tuple(kwargs.values()))
        return func(*args, **(kwargs or {}))


def refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    raise UnsupportedError(
        "state_dict(): the parameters' memory is the engine's; call "
        "engine.consolidated_state_dict()"
    )


class Hooks:
    """From construction to remove(), the model's calls go through the engine."""

    def __init__(
        self, core: _C.Engine, model: nn.Module, plan: Plan, param_dtype: torch.dtype
    ) -> None:
        self.core = core
        self.param_dtype = param_dtype
        self.compute_dtype = torch_dtype(core.compute_dtype)
        self.outermost: nn.Module | None = None
        numbers = {id(parameter): n for n, parameter in enumerate(plan.parameters.values())}
        self.reads = Reads(core, numbers)
        self.reading = False  # the mode is on
        self.seen: set[tuple[int, bool]] = set()  # passes whose reads are known
        self.handles: list[torch.utils.hooks.RemovableHandle] = []
        modules = [unit.module for unit in plan.units] + [module for _, module in plan.containers]
        for number, module in enumerate(modules):
            self._register(module, number)
        self.handles.append(
            model.register_state_dict_pre_hook(refuse_state_dict)  # type: ignore[no-untyped-call]
        )

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def unwind(self) -> None:
        """Ends calls that Ctrl-C has broken off, of whose end torch tells no hook."""
        self._stop_reading()
        self.core.unwind()

    def _register(self, module: nn.Module, number: int) -> None:
        core = self.core

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if core.depth > 0 and self.outermost is not module:
                core.enter(number, False)  # of which pass it is has been decided
                return None
            return self._begin_pass(module, args, kwargs, number)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if self.reading and self.outermost is module:
                self._stop_reading()
            found: list[torch.Tensor] = []
            if torch.is_grad_enabled():
                collect(output, found)
            core.leave(number, found)

        self.handles.append(
            module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        )
        self.handles.append(module.register_forward_hook(after, always_call=True))

    def _begin_pass(self, module: nn.Module, args: Any, kwargs: Any, number: int) -> Any:
        core = self.core
        if core.depth > 0:  # the outermost module is called once more: its call was broken off
            self.unwind()
        evaluate = not torch.is_grad_enabled() and not inside_checkpoint()
        core.enter(number, evaluate)
        self.outermost = module
        if (number, evaluate) not in self.seen:
            self.seen.add((number, evaluate))
            self.reads.__enter__()  # type: ignore[no-untyped-call]
            self.reading = True
        if self.compute_dtype == self.param_dtype:
            return None
        return (
            convert(args, self.param_dtype, self.compute_dtype),
            convert(kwargs, self.param_dtype, self.compute_dtype),
        )

    def _stop_reading(self) -> None:
        if self.reading:
            self.reading = False
            self.reads.__exit__(None, None, None)  # type: ignore[no-untyped-call]
