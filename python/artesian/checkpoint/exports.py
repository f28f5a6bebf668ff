"""Shared by the exports: a checkpoint's tensors for torch, and its groups."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from artesian.checkpoint.zero_to_fp32 import (
    ELEMENTS_AT_ONCE,
    Bytes,
    Checkpoint,
    Floats,
    torch_tensor,
    widened,
)

# Optimizer state by torch.optim's names; DeepSpeed's Adagrad uses other names.
ARRAYS = ("fp32", "exp_avg", "exp_avg_sq")  # Adam's arrays
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "sum", "square_avg")
SIGNED = "_signed"  # suffix if the sign is a weight's tie bit


def floats(checkpoint: Checkpoint, index: int, array: str, first: int, count: int) -> Floats:
    dtype = checkpoint.manifest.arrays[index][array][0]
    return widened(checkpoint.read_array(index, array, first, count), dtype)


def read(checkpoint: Checkpoint, index: int, array: str, first: int, count: int) -> Floats:
    """Elements of an array as fp32, from any stored form; zeros if it is absent."""
    if array == "fp32":
        return checkpoint.master(index, first, count)
    if checkpoint.has(index, array + SIGNED):
        return np.abs(floats(checkpoint, index, array + SIGNED, first, count))
    if checkpoint.has(index, array):
        return floats(checkpoint, index, array, first, count)
    return np.zeros(count, np.float32)


def pieces(checkpoint: Checkpoint, index: int, array: str) -> Iterator[Floats]:
    numel = checkpoint.manifest.parameters[index].numel
    for first in range(0, numel, ELEMENTS_AT_ONCE):
        yield read(checkpoint, index, array, first, min(ELEMENTS_AT_ONCE, numel - first))


def gathered(parts: Iterable[np.ndarray[Any, Any]], size: int) -> Bytes:
    """The parts, concatenated in new memory of `size` bytes."""
    data = np.empty(size, np.uint8)
    at = 0
    for part in parts:
        flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        data[at : at + flat.size] = flat
        at += flat.size
    return data


def in_memory(checkpoint: Checkpoint, index: int, array: str) -> Any:
    """A torch tensor of a parameter's array, in its own memory."""
    parameter = checkpoint.manifest.parameters[index]
    data = gathered(pieces(checkpoint, index, array), parameter.numel * 4)
    return torch_tensor(data, "F32", parameter.shape)


class Spool:
    """Torch tensors in an unnamed mapped file, which the kernel may write out and drop from memory:
    a whole checkpoint as tensors, in bounded memory."""

    def __init__(self, folder: Path) -> None:
        self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self.at = 0

    def tensor(self, checkpoint: Checkpoint, index: int, array: str) -> Any:
        parameter = checkpoint.manifest.parameters[index]
        if parameter.numel == 0:
            return torch_tensor(np.zeros(0, np.uint8), "F32", parameter.shape)
        begin = self.at
        self.file.seek(begin)
        for piece in pieces(checkpoint, index, array):
            self.file.write(np.ascontiguousarray(piece).data)
        self.file.flush()
        self.at += -(-parameter.numel * 4 // 4096) * 4096
        self.file.truncate(self.at)
        mapped: Bytes = np.memmap(
            self.file, np.uint8, "r+", offset=begin, shape=(parameter.numel * 4,)
        )
        return torch_tensor(mapped, "F32", parameter.shape)


def buffers(checkpoint: Checkpoint) -> dict[str, Any]:
    """Torch tensors by name."""
    return {
        buffer.name: torch_tensor(checkpoint.buffer(buffer), buffer.dtype, buffer.shape)
        for buffer in checkpoint.manifest.buffers
    }


def moments_of(checkpoint: Checkpoint, index: int, optimizer: str) -> tuple[str, ...]:
    """The moments of a trained parameter. If nothing indicates others, they are Adam's, filled with
    zeros."""
    there = tuple(
        name
        for name in MOMENTS
        if checkpoint.has(index, name) or checkpoint.has(index, name + SIGNED)
    )
    return there or (ARRAYS[1:] if optimizer in ("adam", "adamw") else ())


def groups(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The manifest's groups, with names instead of numbers."""
    parameters = checkpoint.manifest.parameters
    return [
        group | {"names": [parameters[index].name for index in group["parameters"]]}
        for group in checkpoint.manifest.raw["groups"]
    ]


def step_of(checkpoint: Checkpoint, index: int, group: dict[str, Any]) -> int:
    """Number of updates of a parameter."""
    steps = checkpoint.manifest.raw["state"].get("parameter_steps")
    return int(steps[index] if steps else group["step"])
