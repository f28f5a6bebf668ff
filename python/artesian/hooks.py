"""Hooks on the modules of a model. No other file registers any.

The hooks tell the engine about each call of a unit and of a module above units. The outermost call
on a thread is a pass. It is an evaluation if gradients are off, unless a reentrant checkpoint has
switched them off, and a training pass otherwise.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
import threading
import types
import weakref
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from artesian.config import torch_dtype
from artesian.errors import InvalidError, UnsupportedError
from artesian.native import _C
from artesian.state import AsStored
from artesian.tables import AsComputed, give_forwards
from artesian.units import Plan


class Removable(Protocol):
    """Something that an engine installs in or around a model, and removes when it ends."""

    def remove(self) -> None: ...


CHECKPOINT_FORWARD = CheckpointFunction.forward.__code__
# Attributes and methods of a parameter that do not read its values.
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
    """Appends all tensors in a nested value."""
    if isinstance(value, torch.Tensor):
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
    """A nested value with its tensors of one floating-point dtype converted to another."""
    if isinstance(value, torch.Tensor):
        return value.to(wanted) if value.dtype == given else value
    if type(value) in (list, tuple):
        return type(value)(convert(element, given, wanted) for element in value)
    if type(value) is dict:
        return {key: convert(element, given, wanted) for key, element in value.items()}
    return value


class Reads(TorchFunctionMode):
    """Tells the engine which parameters torch functions are about to read. A parameter that belongs
    to another module than the one that runs is gathered together with that module from then on."""

    def __init__(self, core: _C.Engine, numbers: dict[int, int], tables: AsComputed) -> None:
        super().__init__()
        self.core = core
        self.numbers = numbers
        self.tables = tables

    def remove(self) -> None:
        """Forgets all parameters. Ctrl-C may leave the mode on until the thread ends, and by then
        other tensors may have the ids of parameters that are gone."""
        self.numbers = {}
        self.tables = AsComputed((), self.tables.dtype)
        self.leave()

    def leave(self) -> None:
        """Ends the mode on this thread if it is on; Ctrl-C may arrive before it is entered."""
        modes: Any = torch.overrides
        if self in modes._get_current_function_mode_stack():
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def look(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            number = self.numbers.get(id(value))
            if number is not None:
                self.core.gather(number)
        elif isinstance(value, list | tuple):
            for element in value:
                self.look(element)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in HARMLESS:
            self.look(args)
            self.look(tuple(kwargs.values()))
            args, kwargs = self.tables.copied(func, args, kwargs)
        return func(*args, **kwargs)


def refuse_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    if any(getattr(p, "_artesian_lent", False) for p in module.parameters()):
        return  # a parameter that is not gathered raises when it is read
    raise UnsupportedError(
        "state_dict(): the parameters' memory is the engine's; call "
        "engine.consolidated_state_dict()"
    )


def refuse_load_state_dict(module: nn.Module, *_: Any) -> None:
    if all(hasattr(p, "_artesian_lent") and p._artesian_lent for p in module.parameters()):
        return
    raise UnsupportedError(
        "load_state_dict(): the parameters' memory is the engine's; load before "
        "artesian.initialize(), by engine.load_checkpoint(), or inside of "
        "zero.GatheredParameters(model.parameters(), modifier_rank=0)"
    )


class Tree:
    """The tree of a model's modules. Finds parameters that were added after the engine was made and
    would not be trained."""

    def __init__(self, model: nn.Module, known: set[int]) -> None:
        self.model = model
        self.known = known
        self._remember()

    def _remember(self) -> None:
        of_modules = [(m._parameters, m._modules) for m in self.model.modules()]
        self.seen = [(d, tuple(d.values())) for pair in of_modules for d in pair]

    def check(self) -> None:
        for now, before in self.seen:
            if len(now) != len(before) or not all(map(operator.is_, now.values(), before)):
                break
        else:
            return
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in self.known:
                raise InvalidError(
                    f'parameter "{name}" came after the engine was made, which does not train it; '
                    "change the model before artesian.initialize(), or freeze it by "
                    "requires_grad_(False)"
                )
        self._remember()


class Pass(NamedTuple):
    """The pass under way on a thread. On a GPU a checkpoint recomputes on another thread."""

    outermost: int = -1  # the number of the module that was called
    evaluates: bool = False
    is_read: bool = False  # Reads is on


def is_running(frame: types.FrameType | None) -> bool:
    """True if the frame is one of this call's callers."""
    now: types.FrameType | None = sys._getframe()
    while now is not None and now is not frame:
        now = now.f_back
    return now is not None


class Hooks:
    """Routes the model's calls through the engine until its handles are removed."""

    def __init__(
        self,
        core: _C.Engine,
        model: nn.Module,
        plan: Plan,
        tables: dict[str, list[nn.Module]],
        param_dtype: torch.dtype,
        take_changes: weakref.WeakMethod[Any] | None,
        as_stored: AsStored,
        *,
        gives_names: bool,
    ) -> None:
        """`gives_names`: state_dict() works without gathering and has names and shapes, as PEFT
        needs; reading the values is still an error."""
        self.core = core
        self.take_changes = take_changes  # None: parameters are not resident
        self.param_dtype = param_dtype
        self.compute_dtype = torch_dtype(core.compute_dtype)
        self.passes = _C.ThreadLocal(Pass())
        # Torch's frame for each thread's outermost module call, while it runs. After a call
        # interrupted by Ctrl-C the frame remains until it is garbage collected.
        self.calls: dict[int, types.FrameType] = {}
        numbers = {id(parameter): n for n, parameter in enumerate(plan.parameters.values())}
        self.tables = AsComputed((plan.parameters[name] for name in tables), self.compute_dtype)
        self.reads = Reads(core, numbers, self.tables)
        self.tree = Tree(model, set(numbers))
        self.seen: set[tuple[int, bool]] = set()  # passes whose reads are known
        by_name = {name: number for number, name in enumerate(plan.parameters)}
        self.handles: list[Removable] = [self.reads, *give_forwards(core, tables, by_name)]
        modules = [unit.module for unit in plan.units] + [module for _, module in plan.containers]
        for number, module in enumerate(modules):
            self._register(module, number)
        for each in dict.fromkeys([model, *modules]):
            untyped: Any = each
            if take_changes is None:
                if not gives_names:
                    self.handles.append(untyped.register_state_dict_pre_hook(refuse_state_dict))
                self.handles.append(
                    untyped.register_load_state_dict_pre_hook(refuse_load_state_dict)
                )
            else:
                self._give_as_stored(untyped, as_stored, is_model=each is model)

    def unwind(self) -> None:
        """Ends calls interrupted by Ctrl-C, for whose end torch has called no hook."""
        self._stop_reading()
        self.core.unwind()

    def _give_as_stored(self, module: Any, as_stored: AsStored, is_model: bool) -> None:
        def after(module: nn.Module, values: Any, prefix: str, metadata: Any) -> None:
            if is_model or not prefix:  # otherwise the enclosing module does it
                as_stored(values)

        self.handles.append(module.register_state_dict_post_hook(after))

    def _register(self, module: nn.Module, number: int) -> None:
        core = self.core
        registered = weakref.ref(module)  # false for a copy of the module

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if module is not registered():
                return None
            begun = self.passes.get()
            if core.depth > 0 and (begun.outermost != number or is_running(self._call())):
                core.enter(number, False)  # the kind of pass is already known
                return None
            if not torch.compiler.is_compiling():
                self.calls[threading.get_ident()] = sys._getframe(1)
            return self._begin_pass(module, args, kwargs, number)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if module is not registered():
                return
            begun = self.passes.get()
            ends = begun.outermost == number and core.depth <= 1
            if ends and not torch.compiler.is_compiling():
                self.calls.pop(threading.get_ident(), None)
            if begun.is_read and ends:
                self._stop_reading()
                # Without an output, an exception ended the call. Copies are made in each pass.
                if output is not None and not self.tables.has_copied:
                    self.seen.add((number, begun.evaluates))
            found: list[torch.Tensor] = []
            collect(output, found)
            failed = (
                ends
                and output is None
                and not torch.compiler.is_compiling()
                and sys.exc_info()[0] is not None
            )
            core.leave(number, found, failed)

        self.handles.append(
            module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        )
        self.handles.append(module.register_forward_hook(after, always_call=True))

    def _call(self) -> types.FrameType | None:
        return None if torch.compiler.is_compiling() else self.calls.get(threading.get_ident())

    def _begin_pass(self, module: nn.Module, args: Any, kwargs: Any, number: int) -> Any:
        core = self.core
        # the outermost module is called while none of its calls runs: an earlier call was
        # interrupted
        if core.depth > 0:
            self.unwind()
        self._stop_reading()  # left by a forward that zero_grad() has ended
        self.tree.check()
        take_changes = None if self.take_changes is None else self.take_changes()
        if take_changes is not None:
            take_changes(False)
        evaluate = not torch.is_grad_enabled() and not inside_checkpoint()
        core.enter(number, evaluate)
        is_read = (number, evaluate) not in self.seen
        self.passes.set(Pass(number, evaluate, is_read))
        if is_read:
            self.reads.__enter__()  # type: ignore[no-untyped-call]
        if self.compute_dtype == self.param_dtype:
            return None
        return (
            convert(args, self.param_dtype, self.compute_dtype),
            convert(kwargs, self.param_dtype, self.compute_dtype),
        )

    def _stop_reading(self) -> None:
        begun = self.passes.get()
        if begun.is_read:
            self.passes.set(begun._replace(is_read=False))
            self.reads.leave()
