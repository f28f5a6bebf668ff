"""Where Python trains: on the CPU, or on an accelerator of PyTorch's that the engine has a backend
for. A GPU that PyTorch sees does not disturb an engine on the CPU, but a script that asks PyTorch
for a device puts its batches there."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from artesian.config import expand_dotted
from artesian.errors import InvalidError, UnsupportedError
from artesian.native import _C


def trains_on(kind: str) -> bool:
    """True if engines train on devices of the type. A GPU is not measured yet, and is refused."""
    return kind == "cpu" or (kind != "cuda" and _C.has_device_backend(kind))


def current_accelerator() -> torch.device | None:
    """The accelerator that PyTorch sees, with the index of this process."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None
    return with_index(accelerator)


def default_device() -> torch.device:
    """Where engines train that nobody has named a device for."""
    accelerator = current_accelerator()
    trains = accelerator is not None and trains_on(accelerator.type)
    return accelerator if accelerator is not None and trains else torch.device("cpu")


def with_index(device: torch.device) -> torch.device:
    """The device, with LOCAL_RANK, or else PyTorch's current device, where it has no index."""
    if device.type == "cpu" or device.index is not None:
        return device
    rank = os.environ.get("LOCAL_RANK", "")
    index = int(rank) if rank.isdigit() else torch.accelerator.current_device_index()
    return torch.device(device.type, min(index, torch.accelerator.device_count() - 1))


def choose_device(device: Any, config: dict[str, Any]) -> torch.device:
    """What the caller names, or else the config; or else the accelerator, if there is one and
    Python trains on it. `device`: None, where the caller names none."""
    section = expand_dotted(config).get("artesian")
    name = "initialize(device=...)"
    if device is None and isinstance(section, dict):
        device = section.get("device")
        name = "artesian.device"
    if device is not None and device != "auto":
        return named_device(device, name)
    accelerator = current_accelerator()
    if accelerator is None:
        return torch.device("cpu")
    if trains_on(accelerator.type):
        return accelerator
    raise UnsupportedError(
        f'initialize(device=...): got none where PyTorch sees a GPU ("{accelerator.type}"), '
        'allowed "cpu": Python does not train on GPUs yet; give device="cpu", or "artesian": '
        '{"device": "cpu"} in the config, and leave model and batches on the CPU, or hide the '
        "GPU by CUDA_VISIBLE_DEVICES= before Python starts"
    )


def named_device(device: Any, name: str) -> torch.device:
    """`name`: where it is named, for messages."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidError(f'{name}: got {device!r}, allowed "cpu"') from None
    if trains_on(wanted.type):
        return with_index(wanted)
    raise UnsupportedError(
        f'{name}: got "{device}", allowed "cpu": Python does not train on GPUs yet; '
        "`artesian train` does"
    )


def move_model(model: nn.Module, device: torch.device) -> None:
    """Moves buffers to the device, and parameters where the engine cannot: between PyTorch's own
    kinds of devices it takes them over from the CPU, so that all need not fit there at once."""
    if device.type == "cpu":
        return
    if device.type == torch._C._get_privateuse1_backend_name():
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)  # they stay the same objects
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
    """Refuses tensors that are on another accelerator than the model, or on any, where that is on
    the CPU. Models may take single tensors of the CPU's, of lengths for instance."""
    for value in (*args, *kwargs.values()):
        if not isinstance(value, torch.Tensor) or value.device.type in ("cpu", "meta", device.type):
            continue
        where = "the CPU" if device.type == "cpu" else str(device)
        raise InvalidError(
            f"engine(...): got an input on {value.device}, allowed {where}, where the model "
            f'is; move it there by .to("{device}")'
        )
