"""What is taken out of an engine as a whole."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from artesian.engine import Engine

SMALL = 1 << 20  # bytes: stays in memory


def empty_in_file(shape: torch.Size, dtype: torch.dtype, folder: str) -> torch.Tensor:
    """A tensor in a file that is mapped, and has no name any more: so it may leave the memory. Its
    room on the disk is taken at once. Each has a file of its own, since tensors that share one
    would be taken for tied."""
    handle, path = tempfile.mkstemp(prefix="artesian-export-", dir=folder)
    try:
        try:
            os.posix_fallocate(handle, 0, shape.numel() * dtype.itemsize)
        except OSError as error:  # a file system that reserves nothing
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
            os.truncate(handle, shape.numel() * dtype.itemsize)
        mapped = torch.from_file(path, shared=True, size=shape.numel(), dtype=dtype)
    except OSError as error:
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)}: {folder}") from None
    finally:
        os.close(handle)
        os.unlink(path)
    return mapped.view(shape)


def is_mapped(tensor: torch.Tensor) -> bool:
    """True if a tensor's memory is that of a file, as empty_in_file()'s is."""
    return tensor.untyped_storage().filename is not None


def persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that a state_dict() has, by name."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def values_of_parameters(
    engine: Engine, parameters: Iterable[torch.nn.Parameter]
) -> dict[int, torch.Tensor]:
    """Copies of the engine's parameters, by id, in the dtype that they are stored in; in mapped
    files, as consolidated_state_dict() says."""
    folder, dtype = engine.config_values.nvme_path, engine.param_dtype
    values = {}
    for parameter in parameters:
        target = None
        if folder is not None and parameter.numel() * dtype.itemsize >= SMALL:
            target = empty_in_file(parameter.shape, dtype, folder)
        values[id(parameter)] = engine.full_parameter(parameter, target).to(dtype)
    return values


def consolidated_state_dict(
    engine: Engine, exclude_frozen_parameters: bool = False
) -> dict[str, torch.Tensor]:
    """The model's state_dict(), parameters in the dtype that they are stored in. Where the engine
    has a folder on NVMe, those that are not small are mapped files there, whose bytes go when the
    tensors do: a model that memory cannot hold can be saved. Tied ones are one tensor."""
    tensors: dict[int, torch.Tensor] = {}

    def read(parameter: torch.nn.Parameter) -> torch.Tensor:
        if not engine.manages(parameter):
            return parameter.detach()
        if id(parameter) not in tensors:
            tensors.update(values_of_parameters(engine, [parameter]))
        return tensors[id(parameter)]

    buffers = dict(persistent_buffers(engine.module))
    result: dict[str, Any] = {}
    for prefix, module in engine.module.named_modules(remove_duplicate=False):
        start = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            wanted = parameter is not None and not (
                exclude_frozen_parameters and not parameter.requires_grad
            )
            if wanted:
                result[start + name] = read(parameter)
        for name in module._buffers:
            if start + name in buffers:
                result[start + name] = buffers[start + name].detach()
    return result
