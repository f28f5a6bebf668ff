"""Shared by the importers: values from other programs' files, checked on the way in."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artesian.checkpoint.pickles import Record
from artesian.checkpoint.torch_files import Tensor
from artesian.checkpoint.writer import SavedBuffer, SavedGroup, SavedParameter, SavedState, zeros
from artesian.checkpoint.zero_to_fp32 import Bytes, Damaged, Refused, shown, widened

FLOATING = ("F32", "F16", "BF16")


def naming(folder: Path, writer: str, read: Callable[[Path], SavedState]) -> SavedState:
    """Returns the result of `read` for a folder of this writer. Raises Refused, Damaged, each
    naming a file."""
    try:
        return read(folder)
    except (Refused, Damaged) as error:
        if str(folder) in str(error):
            raise
        raise type(error)(f"{folder}: {error}") from None
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder}: not as {writer} writes it: {shown(str(error))}") from None


def item(mapping: Any, key: Any, kind: type | tuple[type, ...] = object) -> Any:
    """mapping[key], which must exist and have this type. Raises Damaged."""
    if not isinstance(mapping, dict) or key not in mapping:
        raise Damaged(f"{shown(key)} is missing")
    if not isinstance(mapping[key], kind):
        raise Damaged(f"{shown(key)} is not what it should be")
    return mapping[key]


def whole(value: Any, what: str) -> int:
    """A whole number, given as an int, a tensor, or a float such as 3.0. Raises Damaged."""
    if isinstance(value, Tensor):
        value = value.number()
    if isinstance(value, Record) and len(value.arguments) == 1:  # a member of an enumeration
        value = value.arguments[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise Damaged(f"{what} is no whole number")
    return value


def real(value: Any, otherwise: float) -> float:
    if isinstance(value, Tensor):
        value = value.number()
    if isinstance(value, (int, float)) and np.isfinite(value):
        return float(value)
    return otherwise


def shape_of(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or len(value) > 64:
        raise Damaged(f"the shape of {shown(name)} is none")
    return tuple(whole(extent, f"the shape of {shown(name)}") for extent in value)


@dataclass(frozen=True)
class Span:
    """Elements [first, first + count) of a flat tensor; without a tensor: zeros."""

    tensor: Tensor | None
    first: int
    count: int


def as_fp32(spans: list[Span]) -> Iterator[Bytes]:
    """The spans' elements as fp32, in order, in small pieces."""
    for span in spans:
        if span.tensor is None:
            yield from zeros(span.count * 4)
            continue
        for piece in span.tensor.pieces(span.first, span.count):
            yield widened(piece, span.tensor.dtype).view(np.uint8)


def check_floating(tensor: Any, what: str) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise Damaged(f"{what} is no tensor")
    if tensor.dtype not in FLOATING:
        raise Refused(f"{what} has the type {tensor.dtype}, allowed F32, F16 and BF16")
    return tensor


def flat_tensors(value: Any, what: str) -> list[Tensor]:
    """A list of flat floating-point tensors."""
    if not isinstance(value, (list, tuple)):
        raise Damaged(f"{what} is no list")
    tensors = [check_floating(each, what) for each in value]
    if any(len(tensor.shape) != 1 for tensor in tensors):
        raise Damaged(f"{what} is not flat")
    return tensors


def frozen_parameter(name: str, shape: tuple[int, ...], tensors: list[Tensor]) -> SavedParameter:
    """A weight that is not trained, stored as the first elements of tensors, in order."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise Damaged(f"the parts of {shown(name)} are not of one type")
    numel = math.prod(shape)
    if sum(tensor.numel for tensor in tensors) < numel:
        raise Damaged(f"of {shown(name)} not all elements are there")

    def pieces() -> Iterator[Bytes]:
        left = numel
        for tensor in tensors:
            now = min(left, tensor.numel)
            yield from tensor.pieces(0, now)
            left -= now

    return SavedParameter(name, shape, {"weight": pieces}, dtypes.pop())


def buffer_of(name: str, tensor: Any) -> SavedBuffer:
    if not isinstance(tensor, Tensor):
        raise Damaged(f"the buffer {shown(name)} is no tensor")
    return SavedBuffer(name, tensor.dtype, tensor.shape, tensor.flat())


def group_of(settings: Any, parameters: list[str], step: int, optimizer: str) -> SavedGroup:
    """A group of parameters, with settings in the form of torch's optimizers."""
    if not isinstance(settings, dict):
        raise Damaged("a group of parameters is no dictionary")
    betas = settings.get("betas", (0.9, 0.999))
    if not isinstance(betas, (list, tuple)) or len(betas) != 2:
        raise Refused("the optimizer's betas are not two: only Adam and AdamW can be imported")
    if settings.get("decoupled_weight_decay") is True:
        optimizer = "adamw"
    return SavedGroup(
        parameters,
        step,
        lr=real(settings.get("lr"), 0.0),
        betas=(real(betas[0], 0.9), real(betas[1], 0.999)),
        eps=real(settings.get("eps"), 1e-8),
        weight_decay=real(settings.get("weight_decay"), 0.0),
        optimizer=optimizer,
    )


def groups_by_step(settings: Any, steps: dict[str, int], optimizer: str) -> list[SavedGroup]:
    """One group for each distinct number of updates of its parameters."""
    by_step: dict[int, list[str]] = {}
    for name, step in steps.items():
        by_step.setdefault(step, []).append(name)
    return [group_of(settings, names, step, optimizer) for step, names in by_step.items()]
