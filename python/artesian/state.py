"""State exported as a whole: a model's state_dict(), copies of its parameters."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from artesian.errors import InvalidError

if TYPE_CHECKING:
    from artesian.engine import Engine

SMALL = 1 << 20  # bytes: tensors up to this size stay in memory


def empty_in_file(shape: torch.Size, dtype: torch.dtype, folder: str) -> torch.Tensor:
    """A tensor in an unnamed mapped file, so that the kernel may write it out and drop it from
    memory. Its disk space is reserved at once. Each tensor has its own file, because savers treat
    tensors that share a file as tied."""
    handle, path = tempfile.mkstemp(prefix="artesian-export-", dir=folder)
    try:
        try:
            os.posix_fallocate(handle, 0, shape.numel() * dtype.itemsize)
        except OSError as error:  # the file system cannot reserve space
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


def check_shape(call: str, parameter: torch.nn.Parameter, values: torch.Tensor) -> None:
    if values.shape != parameter.shape:
        raise InvalidError(
            f"{call}: got the shape {tuple(values.shape)}, allowed that of the parameter, "
            f"{tuple(parameter.shape)}"
        )


class AsStored:
    """Converts the values of a state_dict() to the dtype in which parameters are stored, like
    consolidated_state_dict(). For models with resident parameters and another compute dtype. It is
    a hook of the model and of each module below, whose state_dict() may be called separately."""

    def __init__(
        self, parameters: list[torch.nn.Parameter], dtype: torch.dtype, folder: str | None
    ) -> None:
        self.parameters = [weakref.ref(parameter) for parameter in parameters]
        self.dtype = dtype
        self.folder = folder

    def __call__(self, values: dict[str, Any]) -> None:
        alive = [parameter for each in self.parameters if (parameter := each()) is not None]
        ours = {p.data_ptr() for p in alive if p.dtype != self.dtype}
        converted: dict[int, torch.Tensor] = {}  # tied parameters must remain one tensor
        for name, value in values.items():
            if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
                continue
            if value.dtype == self.dtype or value.data_ptr() not in ours:
                continue
            if value.data_ptr() not in converted:
                converted[value.data_ptr()] = self.convert(value)
            values[name] = converted[value.data_ptr()]

    def convert(self, value: torch.Tensor) -> torch.Tensor:
        if self.folder is None or value.numel() * self.dtype.itemsize < SMALL:
            return value.to(self.dtype)
        return empty_in_file(value.shape, self.dtype, self.folder).copy_(value)


def is_mapped(tensor: torch.Tensor) -> bool:
    """True if the tensor's memory is a mapped file, as made by empty_in_file()."""
    return tensor.untyped_storage().filename is not None


def persistent_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of the buffers that are part of a state_dict()."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def is_in_memory(folder: str) -> bool:
    """True if the folder is on a file system whose files take memory."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            mount, _, of_system = line.partition(" - ")
            if mount.split()[2] == number:
                return of_system.split()[0] in ("tmpfs", "ramfs")
    return False


def folder_of_copies(engine: Engine) -> str | None:
    """Where copies of all parameters lie in mapped files: on NVMe, if the config has that; else, if
    no rank has room for all parameters, in the temporary folder. None: they are in memory."""
    folder = engine.config_values.nvme_path
    if folder is not None or not engine.divides_parameters:
        return folder
    folder = tempfile.gettempdir()
    size = sum(p.numel() for p in engine._managed) * engine.param_dtype.itemsize
    if not is_in_memory(folder) and shutil.disk_usage(folder).free >= size:
        return folder
    logging.getLogger("artesian").warning(
        "this rank gathers the model in memory, %d bytes: the temporary folder, %s, is no disk "
        "with room for it; TMPDIR can name another",
        size,
        folder,
    )
    return None


def copy_of(engine: Engine, parameter: torch.nn.Parameter, folder: str | None) -> torch.Tensor:
    """A parameter's values in the stored dtype; large ones in a mapped file of the folder, if there
    is one."""
    dtype = engine.param_dtype
    target = None
    if folder is not None and parameter.numel() * dtype.itemsize >= SMALL:
        target = empty_in_file(parameter.shape, dtype, folder)
    return engine._read_master(engine._number(parameter), target).to(dtype)


def consolidated_state_dict(
    engine: Engine, exclude_frozen_parameters: bool = False
) -> dict[str, torch.Tensor]:
    """The model's state_dict(), with parameters in the dtype in which they are stored. If the
    engine has a folder on NVMe, or ranks divide the parameters, larger ones are mapped files
    (folder_of_copies), so that a model larger than memory can be saved; a file disappears with its
    tensor. Tied parameters are one tensor.
    With several ranks all must call it; rank 0 gets the result, the others {}."""
    tensors: dict[int, torch.Tensor] = {}
    if not engine.ranks.first:
        for parameter in dict.fromkeys(p for _, p in engine.module.named_parameters()):
            if engine.manages(parameter) and (
                parameter.requires_grad or not exclude_frozen_parameters
            ):
                engine._core.help_read_state(engine._number(parameter), "fp32")
        return {}
    folder = folder_of_copies(engine)

    def read(parameter: torch.nn.Parameter) -> torch.Tensor:
        if not engine.manages(parameter):
            return parameter.detach()
        if id(parameter) not in tensors:
            tensors[id(parameter)] = copy_of(engine, parameter, folder)
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
