"""What is taken out of an engine as a whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from artesian.engine import Engine

SMALL = 1 << 20  # bytes: stays in memory


def in_file(tensor: torch.Tensor, folder: str) -> torch.Tensor:
    """The same in a file that is mapped, and has no name any more: so it may leave the memory. Each
    has a file of its own, since tensors that share one would be taken for tied."""
    handle, path = tempfile.mkstemp(prefix="artesian-export-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        mapped = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    finally:
        os.unlink(path)
    return mapped.view(tensor.shape)


def is_mapped(tensor: torch.Tensor) -> bool:
    """True if a tensor's memory is that of a file, as in_file()'s is."""
    return tensor.untyped_storage().filename is not None


def persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that a state_dict() has, by name."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def consolidated_state_dict(
    engine: Engine, exclude_frozen_parameters: bool = False
) -> dict[str, torch.Tensor]:
    """The model's state_dict(), parameters in the dtype that they are stored in. Where the engine
    has a folder on NVMe, those that are not small are mapped files there, whose bytes go when the
    tensors do: a model that memory cannot hold can be saved. Tied ones are one tensor."""
    folder = engine.config_values.nvme_path
    tensors: dict[int, torch.Tensor] = {}

    def read(parameter: torch.nn.Parameter) -> torch.Tensor:
        if not engine.manages(parameter):
            return parameter.detach()
        if id(parameter) not in tensors:
            values = engine.full_parameter(parameter).to(engine.param_dtype)
            if folder is not None and values.nbytes >= SMALL:
                values = in_file(values, folder)
            tensors[id(parameter)] = values
        return tensors[id(parameter)]

    result: dict[str, Any] = {}
    for prefix, module in engine.module.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            wanted = parameter is not None and not (
                exclude_frozen_parameters and not parameter.requires_grad
            )
            if wanted:
                result[start + name] = read(parameter)
    for name, buffer in persistent_buffers(engine.module):
        result[name] = buffer.detach()
    return result
