"""Tables: the matrices of vocabularies, which are much larger than all other parameters.

A look-up reads single rows of a table and adds gradients row by row; a product works on it tile by
tile. So its gradient is never a whole tensor, and a table that is stored in 16 bit is never
expanded whole to fp32. A matrix is a table if it is large, outside of all blocks, and owned by
plain nn.Embedding and nn.Linear modules alone. These modules get the engine's functions as their
forward."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from artesian.freezing import is_frozen_here
from artesian.native import _C
from artesian.units import Plan

SMALLEST = 1 << 22  # elements, as many as a tile


class Forward:
    """Puts the engine's forward into a module until remove(). Holds no reference to the module."""

    def __init__(self, module: nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        untyped: Any = module
        untyped.forward = forward
        self.module = weakref.ref(module)

    def remove(self) -> None:
        module = self.module()
        if module is not None:
            vars(module).pop("forward", None)


def reads_as_a_table(module: nn.Module) -> bool:
    """True if the module's forward is a plain look-up or product."""
    if "forward" in vars(module):  # the caller has replaced forward
        return False
    if type(module) is nn.Embedding:
        return module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
    return type(module) is nn.Linear


def find_tables(model: nn.Module, plan: Plan) -> dict[str, list[nn.Module]]:
    """The modules that own each table, by its name."""
    in_blocks = {inner for block in plan.blocks.values() for inner in block.modules()}
    large = {id(p): name for name, p in plan.parameters.items() if p.numel() >= SMALLEST}
    owners: dict[str, list[nn.Module]] = {}
    others = set()
    for module in model.modules():
        for key, parameter in module._parameters.items():
            name = None if parameter is None else large.get(id(parameter))
            if name is None:
                continue
            owners.setdefault(name, []).append(module)
            if key != "weight" or module in in_blocks or not reads_as_a_table(module):
                others.add(name)
    return {name: modules for name, modules in owners.items() if name not in others}


def stages_of(
    plan: Plan, tables: dict[str, list[nn.Module]], numbers: dict[str, int]
) -> list[tuple[str, list[int], int | None]]:
    """The engine's stages, one for each unit: name, parameters, and the table that it looks up, if
    that is all it does."""
    owned = {module: numbers[name] for name, modules in tables.items() for module in modules}
    stages = []
    for unit in plan.units:
        table = owned.get(unit.module) if isinstance(unit.module, nn.Embedding) else None
        stages.append((unit.name or "model", [numbers[name] for name in unit.parameters], table))
    return stages


def give_forwards(
    core: _C.Engine, tables: dict[str, list[nn.Module]], numbers: dict[str, int]
) -> list[Forward]:
    """Gives modules that own tables the engine's functions as their forward."""
    given = []
    for name, modules in tables.items():
        for module in modules:
            if isinstance(module, nn.Embedding):
                padding = -1 if module.padding_idx is None else module.padding_idx
                forward = functools.partial(core.look_up, numbers[name], padding)
            else:
                assert isinstance(module, nn.Linear)
                frozen_here = is_frozen_here(module.weight)
                forward = functools.partial(core.multiply, numbers[name], module.bias, frozen_here)
            given.append(Forward(module, forward))
    return given


def writes(func: Any) -> bool:
    """True if a torch function may change or return its argument: x.add_(y), x.data."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in ("__get__", "__set__", "__setitem__") or name.startswith("__i")
    return name.endswith("_")


class AsComputed:
    """Gives copies of tables, in the compute dtype, to code that reads a table in any other way
    than the owning module's look-up or product."""

    def __init__(self, tables: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self.tables = {id(table) for table in tables if table.dtype != dtype}
        self.dtype = dtype
        self.has_copied = False

    def copied(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments of a torch function with tables replaced by copies. A function that writes
        gets the table itself; so does a function that also gets another tensor with the table's
        dtype, as the caller has then adapted to that dtype."""
        if not self.tables or writes(func):
            return args, kwargs
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        tables = [tensor for tensor in tensors if id(tensor) in self.tables]
        narrow = {table.dtype for table in tables}
        if not tables or any(t.dtype in narrow and id(t) not in self.tables for t in tensors):
            return args, kwargs
        self.has_copied = True

        def copy(value: Any) -> Any:
            return value.to(self.dtype) if id(value) in self.tables else value

        return [copy(value) for value in args], {key: copy(v) for key, v in kwargs.items()}
