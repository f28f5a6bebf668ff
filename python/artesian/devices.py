"""Where Python trains: on the CPU, so far. A GPU that PyTorch sees does not disturb the engine, but
a script that asks PyTorch for a device puts its batches there."""

from __future__ import annotations

from typing import Any

import torch

from artesian.config import expand_dotted
from artesian.errors import InvalidError, UnsupportedError


def check_device(device: Any, config: dict[str, Any]) -> None:
    """Refuses any device but the CPU; and, where neither caller nor config names one, a machine
    with an accelerator. `device`: what the caller names, or None."""
    section = expand_dotted(config).get("artesian")
    name = "initialize(device=...)"
    if device is None and isinstance(section, dict):
        device = section.get("device")
        name = "artesian.device"
    if device is not None and device != "auto":
        try:
            kind = torch.device(device).type
        except (RuntimeError, TypeError):
            raise InvalidError(f'{name}: got {device!r}, allowed "cpu"') from None
        if kind != "cpu":
            raise UnsupportedError(
                f'{name}: got "{device}", allowed "cpu": Python does not train on GPUs yet; '
                "`artesian train` does"
            )
        return
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        raise UnsupportedError(
            f'initialize(device=...): got none where PyTorch sees a GPU ("{accelerator}"), allowed '
            '"cpu": Python does not train on GPUs yet; give device="cpu", or "artesian": '
            '{"device": "cpu"} in the config, and leave model and batches on the CPU, or hide the '
            "GPU by CUDA_VISIBLE_DEVICES= before Python starts"
        )


def check_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses tensors that are not where the model is."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            raise InvalidError(
                f"engine(...): got an input on {value.device}, allowed the CPU, where the model "
                'is; move it there by .to("cpu")'
            )
