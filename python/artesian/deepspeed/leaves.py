"""deepspeed.utils.z3_leaf_module: modules that are gathered as a whole, with everything below
them."""

from __future__ import annotations

from typing import Any

from torch import nn

from artesian.errors import InvalidError


def z3_leaf_module(model: nn.Module) -> bool:
    return bool(getattr(model, "_z3_leaf", False))


def z3_leaf_parameter(model: nn.Parameter) -> bool:
    return hasattr(model, "ds_z3_leaf_module")


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    model._z3_leaf = flag  # type: ignore[assignment]


def is_of(module: nn.Module, kind: Any) -> bool:
    """True if the module's class, or one of its base classes, is this class or has this name, short
    or full."""
    if isinstance(kind, type):
        return isinstance(module, kind)
    own = type(module)
    return kind in (own.__name__, f"{own.__module__}.{own.__qualname__}")


def mark(
    model: nn.Module, classes: list[Any], flag: bool, raise_if_not_found: bool, call: str
) -> list[nn.Module]:
    found = [m for m in model.modules() if any(is_of(m, kind) for kind in classes)]
    if not found and raise_if_not_found:
        raise InvalidError(f"{call}: got {classes}, allowed classes of modules that the model has")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[Any], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Marks modules of these classes, or class names, as whole units."""
    return mark(model, leaf_module_classes, True, raise_if_not_found, "set_z3_leaf_modules")


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: list[Any], raise_if_not_found: bool = True
) -> list[nn.Module]:
    return mark(model, leaf_module_classes, False, raise_if_not_found, "unset_z3_leaf_modules")


def mark_named(
    found: dict[str, list[nn.Module]], flag: bool, raise_if_not_found: bool, call: str
) -> tuple[list[nn.Module], list[str]]:
    missing = [name for name, modules in found.items() if not modules]
    if missing and raise_if_not_found:
        raise InvalidError(f"{call}: got {missing}, allowed names of modules that the model has")
    modules = list(dict.fromkeys(module for modules in found.values() for module in modules))
    for module in modules:
        set_z3_leaf_module(module, flag)
    return modules, missing


def set_z3_leaf_modules_by_name(
    model: nn.Module, module_names: list[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[nn.Module], list[str]]:
    """Returns the modules, and the names that do not exist in the model."""
    known = dict(model.named_modules())
    found = {name: [known[name]] if name in known else [] for name in module_names}
    return mark_named(found, flag, raise_if_not_found, "set_z3_leaf_modules_by_name")


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: list[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Returns the modules, and the suffixes that match none."""
    known = list(model.named_modules())
    found = {
        suffix: [module for name, module in known if name.endswith(suffix)]
        for suffix in module_name_suffixes
    }
    return mark_named(found, flag, raise_if_not_found, "set_z3_leaf_modules_by_suffix")
