"""deepspeed.comm: the process group; surface.py lists the names that are PyTorch's own."""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any

import torch.distributed

from artesian import devices, ranks
from artesian.deepspeed import gpus
from artesian.errors import AssertedError, UnsupportedError
from artesian.ranks import is_initialized as is_initialized


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Creates the launcher's process group, unless one exists; a group of one process needs no
    port. `rank`, `world_size`: used if there is no launcher. `dist_init_required` False: a group of
    several processes must exist already. DeepSpeed's other arguments have no effect."""
    gpus.tell()
    if dist_init_required is False and not is_initialized() and ranks.launched() > 1:
        raise AssertedError(
            f"init_distributed: dist_init_required is False, and the {ranks.launched()} processes "
            "have no process group; make it first, or pass None"
        )
    if is_initialized() and world_size > 1 and world_size != get_world_size():
        raise UnsupportedError(
            f"init_distributed: got world_size {world_size}, and there is a group of "
            f"{get_world_size()} already"
        )
    if not is_initialized() and world_size > 1:
        torch.distributed.init_process_group(
            process_group_backend(),
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
    ranks.join(timeout)
    if not is_initialized():
        torch.distributed.init_process_group(
            process_group_backend(),
            store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
        )
    tell_accelerate()


def tell_accelerate() -> None:
    """Tells accelerate, while it searches for other processes, of the backend: on a CPU it assumes
    one process unless a backend is named. The attributes used have been stable for years."""
    module = sys.modules.get("accelerate.state")
    shared = getattr(getattr(module, "PartialState", None), "_shared_state", None)
    if shared is not None and get_world_size() > 1 and shared.get("backend") is None:
        shared["backend"] = torch.distributed.get_backend()


def process_group_backend() -> str:
    """Gloo, which supports CPU and CUDA tensors; for another device, the device's own backend."""
    kind = devices.default_device().type
    own = torch.distributed.Backend.default_device_backend_map.get(kind)
    return "gloo" if kind in ("cpu", "cuda") or own is None else f"cpu:gloo,{kind}:{own}"


def get_rank(group: Any = None) -> int:
    return torch.distributed.get_rank(group) if is_initialized() else 0


def get_world_size(group: Any = None) -> int:
    return torch.distributed.get_world_size(group) if is_initialized() else 1


def get_local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_world_group() -> Any:
    return torch.distributed.group.WORLD


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    tensor: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
    **_of_the_logger: Any,
) -> Any:
    """PyTorch's function; unlike NCCL, Gloo accepts no tensor without dimensions."""
    flat = tensor.reshape(1) if tensor.dim() == 0 else tensor
    return torch.distributed.all_gather_into_tensor(output_tensor, flat, group, async_op)
