"""Units: which modules have their parameters gathered together.

A unit is a block, or a module outside of all blocks that owns parameters itself, with everything
below it. Blocks are the elements of the outermost ModuleLists whose elements are of one class, and
modules of the classes that a Hugging Face model must not have split (`_no_split_modules`), or that
set_z3_leaf_modules() has named. Pure: the tree of modules is only read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

# Modules that hold parameters for the module above them, and are never called.
HOLDERS = (nn.ParameterList, nn.ParameterDict)


@dataclasses.dataclass
class Unit:
    """A module, and the parameters that are gathered while it runs, by their names in the model."""

    name: str
    module: nn.Module
    parameters: list[str]
    # True if there are units below it. Its parameters are gathered while these run, so memory plans
    # must count both.
    above_others: bool = False


@dataclasses.dataclass
class Plan:
    """The units of a model, and the modules above them."""

    units: list[Unit]
    containers: list[tuple[str, nn.Module]]
    blocks: dict[str, nn.Module]  # the outermost blocks, by name
    parameters: dict[str, nn.Parameter]  # the engine's parameters: floating point, each once
    kept: dict[str, nn.Parameter]  # parameters that the engine does not manage


def is_managed(parameter: nn.Parameter) -> bool:
    return parameter.is_floating_point()


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost blocks by name."""
    classes = set(getattr(model, "_no_split_modules", None) or ())
    blocks: dict[str, nn.Module] = {}

    def is_block_list(module: nn.Module) -> bool:
        kinds = {type(child) for child in module.children()}
        return isinstance(module, nn.ModuleList) and len(kinds) == 1 and len(module) > 1

    def visit(name: str, module: nn.Module, in_list: bool) -> None:
        own = next(module.parameters(), None) is not None
        leaf = in_list or type(module).__name__ in classes or getattr(module, "_z3_leaf", False)
        if name and own and leaf:
            blocks[name] = module
            return
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            visit(path, child, is_block_list(module))

    visit("", model, in_list=False)
    return blocks


def owned(module: nn.Module) -> Iterator[nn.Parameter]:
    """Parameters of a module that belong to no module called below it."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, HOLDERS):
            yield from owned(child)


def above_of(names: Iterable[str]) -> set[str]:
    """The names of all modules above these, including the model's own, which is empty."""
    paths = [name.split(".") for name in names]
    return {""} | {".".join(path[:count]) for path in paths for count in range(len(path))}


def make_plan(model: nn.Module) -> Plan:
    """The units of a model, in the order of its modules."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    blocks = find_blocks(model)
    above = above_of(blocks)
    units: list[Unit] = []
    seen: set[nn.Module] = set()

    def visit(name: str, module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        has_blocks = name in above
        if isinstance(module, HOLDERS) and not has_blocks:
            return
        inside = owned(module) if has_blocks else module.parameters()
        is_unit = name in blocks or next(owned(module), None) is not None
        if is_unit:
            mine = [names[p] for p in dict.fromkeys(inside) if is_managed(p)]
            if mine:
                units.append(Unit(name, module, mine, has_blocks))
            if not has_blocks:
                seen.update(module.modules())
                return
        for child_name, child in module.named_children():
            visit(f"{name}.{child_name}" if name else child_name, child)

    visit("", model)
    for unit in units:
        for upper in units:
            inside = unit is not upper and unit.name.startswith(upper.name and f"{upper.name}.")
            if inside and upper.above_others:
                unit.parameters += [n for n in upper.parameters if n not in unit.parameters]
    of_units = {id(unit.module) for unit in units}
    prefixes = above_of(unit.name for unit in units)
    containers = [
        (name, module)
        for name, module in model.named_modules()
        if name in prefixes and id(module) not in of_units and not isinstance(module, nn.ModuleList)
    ]
    managed = {name: p for name, p in model.named_parameters() if is_managed(p)}
    kept = {name: p for name, p in model.named_parameters() if not is_managed(p)}
    return Plan(units, containers, blocks, managed, kept)


def explain(model: nn.Module) -> str:
    """Lists the modules that would be units, and what is gathered for each."""
    plan = make_plan(model)
    uses: dict[str, int] = {}
    for unit in plan.units:
        for name in unit.parameters:
            uses[name] = uses.get(name, 0) + 1
    lines = []
    for unit in plan.units:
        count = sum(plan.parameters[name].numel() for name in unit.parameters)
        shared = [name for name in unit.parameters if uses[name] > 1]
        text = f"{unit.name or '(the model itself)'}: {type(unit.module).__name__}"
        text += f", {len(unit.parameters)} parameters, {count:,} elements"
        if shared:
            text += f"; shared with other units: {', '.join(shared)}"
        lines.append(text)
    frozen = [p.numel() for p in plan.parameters.values() if not p.requires_grad]
    for text, sizes in (
        ("frozen, which are read and never written", frozen),
        ("left in memory, as not floating-point", [p.numel() for p in plan.kept.values()]),
    ):
        if sizes:
            lines.append(f"{text}: {len(sizes)} parameters, {sum(sizes):,} elements")
    return "\n".join(lines)


def other_tensors(model: nn.Module, plan: Plan) -> list[tuple[str, torch.Tensor]]:
    """Tensors of the model that are not parameters of the engine: buffers, other parameters, and
    plain attributes, also in lists."""
    ours = {id(parameter) for parameter in plan.parameters.values()}
    found: list[tuple[str, torch.Tensor]] = list(model.named_buffers())
    found.extend(plan.kept.items())

    def look(name: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            if id(value) not in ours:
                found.append((name, value))
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            for index, element in enumerate(value):
                if isinstance(element, torch.Tensor):
                    look(f"{name}[{index}]", element)

    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if not attribute.startswith(("_parameters", "_buffers", "_modules")):
                look(f"{name}.{attribute}" if name else attribute, value)
    return [(name, tensor) for name, tensor in found if tensor.layout == torch.strided]
