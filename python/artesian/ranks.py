"""The processes that train one model together: PyTorch's process group lists them and moves their
data."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

from artesian.errors import UnsupportedError
from artesian.native import _C

DEADLINE_S = 1800.0  # PyTorch's default for Gloo


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The ranks of an engine. `group`: a separate group, so that the engine's messages do not mix
    with others; None with one rank."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    group: _C.Group | None = None
    of_torch: Any = None  # the PyTorch group on which `group` is built

    def leave(self) -> None:
        """Frees the group's connections and threads, unless its owner has already destroyed all
        groups of the process."""
        if self.of_torch is None or not is_initialized():
            return
        with contextlib.suppress(ValueError):  # the default group was recreated meanwhile
            dist.destroy_process_group(self.of_torch)

    @property
    def first(self) -> bool:
        """True for the rank that writes files and logs for all."""
        return self.rank == 0


def is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def launched() -> int:
    """How many processes the launcher has started."""
    return int(_C.this_launch()[1])


def join(timeout: Any = None) -> None:
    """Creates the process group for the launcher's environment, unless one exists. With one process
    there is none."""
    rank, ranks, local_rank, local_ranks, address, port = _C.this_launch()
    if ranks == 1 or is_initialized():
        return
    # mpirun and srun have other names for these variables.
    for name, value in {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_ranks,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }.items():
        os.environ.setdefault(name, str(value))
    dist.init_process_group("gloo", timeout=timeout)


def ranks_of(group: Any = None) -> Ranks:
    """The ranks of an engine that is being created; all ranks of the group must call it. `group`: a
    PyTorch group, by default the default group."""
    join()
    if not is_initialized():
        return Ranks()
    members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    if len(members) == 1:
        return Ranks()
    deadline = deadline_of(group)
    own = dist.new_group(
        members,
        timeout=datetime.timedelta(seconds=deadline),
        backend="gloo",
        use_local_synchronization=len(members) < dist.get_world_size(),
    )
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank(group)))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", len(members)))
    return Ranks(
        rank=dist.get_rank(group),
        world_size=len(members),
        local_rank=local_rank,
        local_world_size=local_ranks,
        group=_C.Group(
            own,
            local_rank=local_rank,
            local_ranks=local_ranks,
            deadline_seconds=deadline,
        ),
        of_torch=own,
    )


def deadline_of(group: Any) -> float:
    """Seconds that a rank may be late for an operation: the group's timeout."""
    chosen: Any = group if group is not None else dist.group.WORLD
    for device in ("cpu", "cuda"):
        try:
            backend = chosen._get_backend(torch.device(device))
            return float(backend.options._timeout.total_seconds())
        # it has no backend for the device, or does not expose the timeout
        except (AttributeError, RuntimeError):
            continue
    return DEADLINE_S


def data_parallel_group(mpu: Any, mesh: Any) -> Any:
    """The group of the ranks that have the same part of the model, as defined by a model parallel
    unit, a DeviceMesh or DeepSpeed's pair (data parallel, sequence parallel). That part must be the
    whole model, since the norm of a part would be wrong. None: all ranks."""
    if mpu is not None:
        group = getattr(mpu, "get_data_parallel_group", None)
        if group is None:
            raise UnsupportedError("mpu: got an object without get_data_parallel_group()")
        for call in ("get_model_parallel_world_size", "get_tensor_model_parallel_world_size"):
            size = getattr(mpu, call, lambda: 1)()
            if size > 1:
                raise UnsupportedError(
                    f"mpu: {call}() is {size}, allowed 1: model parallelism is not supported"
                )
        return group()
    names = getattr(mesh, "mesh_dim_names", None)
    if names is None:
        others = list(mesh)[1:] if isinstance(mesh, list | tuple) else [mesh]
        if any(size != 1 for size in others):
            raise UnsupportedError(
                f"mesh: got {mesh}, allowed (ranks, 1): sequence parallelism is not supported"
            )
        return None
    data = [name for name in names if name in ("data_parallel", "dp")]
    for name in set(names) - set(data[:1] or names[:1]):
        if mesh[name].size() > 1:
            raise UnsupportedError(
                f"mesh: its dimension {name!r} has {mesh[name].size()} ranks, allowed 1: beside "
                "data_parallel there is no other parallelism"
            )
    return mesh[(data or names)[0]].get_group()
