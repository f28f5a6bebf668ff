"""deepspeed.comm: the process group, of one process so far; surface.py has what is PyTorch's."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch.distributed

from artesian import devices
from artesian.deepspeed import gpus
from artesian.ranks import check_one_process


def is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


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
    """Makes the process group, unless there is one, without a port: nobody else takes part. The
    arguments are DeepSpeed's; those that concern other processes have no effect."""
    check_one_process(world_size)
    gpus.tell()
    if is_initialized():
        return
    torch.distributed.init_process_group(
        process_group_backend(),
        store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )


def process_group_backend() -> str:
    """Gloo, which has tensors of the CPU and of CUDA; and for another device, that of its own."""
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
