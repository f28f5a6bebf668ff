"""The device for training from Python: the CPU, or a PyTorch accelerator for which the engine has a
backend. A GPU that PyTorch sees does not affect an engine on the CPU, but scripts that ask PyTorch
for a device put their batches there."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from typing import Any

import torch
from torch import nn

from artesian.config import expand_dotted
from artesian.errors import InvalidError, UnsupportedError
from artesian.native import _C

DEVICE = "ARTESIAN_DEVICE"  # used if the config has no artesian.device


@functools.cache
def trains_on(kind: str) -> bool:
    """True if engines can train on this type of device: CUDA if it is built in, and types for which
    a package has a backend, registered by its entry point in the group artesian.device_backends: a
    function that returns capsules of a MakeBackend and, optionally, a JoinDevices
    (zero3/torch/compute_device.h)."""
    if kind == "cpu":
        return True
    for entry in importlib.metadata.entry_points(group="artesian.device_backends", name=kind):
        made = entry.load()()
        _C.add_device_backend(kind, *(made if isinstance(made, tuple) else (made,)))
    return _C.has_device_backend(kind)


def current_accelerator() -> torch.device | None:
    """The accelerator that PyTorch sees, with the index for this process."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None
    return with_index(accelerator)


@functools.cache
def tell_unmeasured(device: str) -> None:
    logging.getLogger("artesian").warning(
        "artesian: trains on %s: the way there is tested on a simulated device, and not measured "
        "on hardware",
        device,
    )


def is_chosen(kind: str) -> bool:
    """True if engines use this type of accelerator by default; CUDA must be requested."""
    return kind != "cuda" and trains_on(kind)


def default_device() -> torch.device:
    """The default device of engines."""
    if os.environ.get(DEVICE):
        return named_device(os.environ[DEVICE], DEVICE)
    accelerator = current_accelerator()
    trains = accelerator is not None and is_chosen(accelerator.type)
    return accelerator if accelerator is not None and trains else torch.device("cpu")


def with_index(device: torch.device) -> torch.device:
    """Adds the index LOCAL_RANK, or that of PyTorch's current device, to a device without one."""
    if device.type == "cpu" or device.index is not None:
        return device
    count = devices_of(device.type)
    rank = os.environ.get("LOCAL_RANK", "")
    index = 0
    if rank.isdigit():
        index = int(rank)
    elif count > 0:
        index = torch.accelerator.current_device_index()
    return torch.device(device.type, max(0, min(index, count - 1)))


def choose_device(device: Any, config: dict[str, Any]) -> torch.device:
    """The device given by the caller, else by the config, else the accelerator if there is one that
    is used by default. `device`: None if the caller gives none."""
    section = expand_dotted(config).get("artesian")
    name = "initialize(device=...)"
    if device is None and isinstance(section, dict):
        device = section.get("device")
        name = "artesian.device"
    if (device is None or device == "auto") and os.environ.get(DEVICE):
        device, name = os.environ[DEVICE], DEVICE
    if device is not None and device != "auto":
        chosen = named_device(device, name)
        if chosen.type == "cuda":
            tell_unmeasured(str(chosen))
        return chosen
    accelerator = current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    if is_chosen(accelerator.type):
        return accelerator
    raise UnsupportedError(
        f'initialize(device=...): got none where PyTorch sees a GPU ("{accelerator.type}"), '
        'allowed "cpu" and "cuda": training on GPUs from Python is not measured yet; give '
        'device="cpu" (or "artesian": {"device": "cpu"} in the config) and leave model and batches '
        'on the CPU, or device="cuda" to try it'
    )


def named_device(device: Any, name: str) -> torch.device:
    """`name`: where the device was named, for messages."""
    try:
        wanted = device if isinstance(device, torch.device) else torch.device(str(device))
    except (RuntimeError, TypeError):
        raise InvalidError(
            f'{name}: got {device!r}, allowed "cpu", or a device of PyTorch\'s, "cuda:0" for '
            "instance"
        ) from None
    if trains_on(wanted.type):
        chosen = with_index(wanted)
        count = 1 if chosen.type == "cpu" else devices_of(chosen.type)
        if count == 0:
            raise UnsupportedError(
                f'{name}: got "{device}", allowed "cpu": PyTorch sees no such device'
            )
        if (chosen.index or 0) >= count:
            raise InvalidError(f'{name}: got "{device}", allowed an index of 0 to {count - 1}')
        return chosen
    raise UnsupportedError(
        f'{name}: got "{device}", allowed "cpu": this build of Artesian has no backend for it'
    )


def devices_of(kind: str) -> int:
    """How many devices of this type PyTorch sees."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    seen = accelerator is not None and accelerator.type == kind
    return torch.accelerator.device_count() if seen else 0


def takes_parameters(device: torch.device) -> bool:
    """True if PyTorch can give a CPU parameter memory there, as on its own device types."""
    return device.type != torch._C._get_privateuse1_backend_name()


def move_model(model: nn.Module, device: torch.device) -> None:
    """Moves buffers to the device, and also parameters if the engine cannot. For PyTorch's own
    device types the engine moves parameters from the CPU one by one, so that they need not all fit
    on the device."""
    if device.type == "cpu":
        return
    if not takes_parameters(device):
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)  # keeps the objects' identity
        try:
            model.to(device)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
        return
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                moved.setdefault(id(buffer), buffer.to(device))
                module._buffers[name] = moved[id(buffer)]


def check_inputs(device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses input tensors on another accelerator than the model's, or on any accelerator if the
    model is on the CPU. CPU tensors are allowed, for instance for lengths."""
    for value in (*args, *kwargs.values()):
        if not isinstance(value, torch.Tensor) or value.device.type in ("cpu", "meta", device.type):
            continue
        where = "the CPU" if device.type == "cpu" else str(device)
        raise InvalidError(
            f"engine(...): got an input on {value.device}, allowed {where}, where the model "
            f'is; move it there by .to("{device}")'
        )
