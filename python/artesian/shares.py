"""Parameters of which each rank keeps a share, from zero.Init on until an engine has them."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

from artesian.devices import takes_parameters
from artesian.errors import InvalidError
from artesian.native import _C
from artesian.ranks import Ranks, is_initialized, ranks_of
from artesian.state import SMALL, copy_of, empty_in_file

if TYPE_CHECKING:
    from artesian.engine import Engine

RELEASED = (
    "zero.Init has divided this parameter among the ranks; read and write it inside of "
    "zero.GatheredParameters, or make an engine"
)
RETURNED = (
    "destroy() has left each rank its part of this parameter; read and write it inside of "
    "zero.GatheredParameters, or make an engine"
)
WHOLE_AT_ONCE = 64 << 20  # bytes of parameters that zero.Init leaves whole, beside the latest

# What torch can be asked about a parameter that has no memory.
FACTS = {
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "requires_grad", "grad"),
    *("is_leaf", "grad_fn", "is_meta", "is_sparse", "is_cuda", "is_quantized", "_version", "names"),
    *("size", "dim", "numel", "nelement", "element_size", "stride", "storage_offset", "__len__"),
    *("__hash__", "is_floating_point", "is_complex", "is_contiguous", "requires_grad_"),
}


@dataclasses.dataclass
class Share:
    """A rank's elements of a parameter, as a flat tensor: as in zero3/torch/divided_weights.h."""

    values: torch.Tensor
    ranks: Ranks
    folder: str | None  # where the whole parameter is put if it is large


def share_of(parameter: Any) -> Share | None:
    """What this rank has of a divided parameter; None if it is not divided."""
    return getattr(parameter, "_artesian_share", None)


class Meeting:
    """The ranks that meet in zero.Init. They stay while PyTorch's group exists, since models may be
    made at any time."""

    ranks: tuple[Any, Ranks] | None = None
    moves = False  # True while parameters are divided or gathered


@contextlib.contextmanager
def moving() -> Iterator[None]:
    before, Meeting.moves = Meeting.moves, True
    try:
        yield
    finally:
        Meeting.moves = before


class Window:
    """Parameters that are whole while a model is being made, so that its constructors can read and
    write them. The oldest are divided when there are more than WHOLE_AT_ONCE, and gathered again
    when a constructor uses them. All ranks do the same, as they run the same constructors."""

    def __init__(self, ranks: Ranks, folder: str | None) -> None:
        self.ranks, self.folder = ranks, folder
        self.whole: dict[int, nn.Parameter] = {}  # in the order in which they became whole
        self.bytes = 0
        self.mode = Gathering(self.gather_again)

    def add(self, parameter: nn.Parameter) -> None:
        if id(parameter) in self.whole or not can_be_divided(parameter):
            return
        while self.whole and self.bytes > WHOLE_AT_ONCE:
            self.divide_oldest()
        self.whole[id(parameter)] = parameter
        self.bytes += parameter.nbytes

    def divide_oldest(self) -> None:
        parameter = self.whole.pop(next(iter(self.whole)))
        self.bytes -= parameter.nbytes
        if can_be_divided(parameter):
            divide(parameter, self.ranks, self.folder)

    def divide_all(self) -> None:
        while self.whole:
            self.divide_oldest()

    def gather_again(self, parameter: nn.Parameter) -> None:
        share = share_of(parameter)
        assert share is not None
        with moving():
            parameter.data = gather(parameter, share)
        del parameter._artesian_share  # type: ignore[attr-defined]
        self.add(parameter)


class Gathering(TorchFunctionMode):
    """Calls a function for each divided parameter that a torch function is about to use."""

    def __init__(self, used: Callable[[nn.Parameter], None]) -> None:
        super().__init__()
        self.used = used

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not Meeting.moves and name_of(func) not in FACTS:
            for each in (*args, *(kwargs or {}).values()):
                for one in each if isinstance(each, list | tuple) else (each,):
                    if share_of(one) is not None and not getattr(one, "_artesian_lent", False):
                        self.used(one)
        return func(*args, **(kwargs or {}))


def name_of(func: Any) -> str:
    """The name of a torch function, or of the attribute that it reads or sets."""
    name: str = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        name = getattr(func.__self__, "__name__", "")
    return name


def room_for(shape: torch.Size, dtype: torch.dtype, least: int, folder: str | None) -> torch.Tensor:
    """An empty tensor: in a file of the folder, if there is one, from `least` bytes on."""
    if folder is not None and shape.numel() * dtype.itemsize >= least:
        return empty_in_file(shape, dtype, folder)
    return torch.empty(shape, dtype=dtype)


def ranks_for_init(group: Any = None) -> Ranks | None:
    """The ranks among which zero.Init divides parameters: those of the PyTorch group, by default
    all. None with one rank, or if released parameters could be read by mistake. All ranks must call
    it."""
    if not is_initialized() or not _C.freed_tensors_throw():
        return None
    key = group if group is not None else dist.group.WORLD
    if Meeting.ranks is None or Meeting.ranks[0] is not key:
        Meeting.ranks = (key, ranks_of(group))
    ranks = Meeting.ranks[1]
    return None if ranks.group is None else ranks


def pieces(values: torch.Tensor, ranks: Ranks) -> list[torch.Tensor]:
    """Each rank's elements of a tensor, as views."""
    flat = values.view(-1)
    share = -(-flat.numel() // ranks.world_size)
    return [flat[rank * share : (rank + 1) * share] for rank in range(ranks.world_size)]


def can_be_divided(parameter: nn.Parameter) -> bool:
    return (
        share_of(parameter) is None
        and getattr(parameter, "_artesian_engine", None) is None
        and not nn.parameter.is_lazy(parameter)
        and parameter.device.type == "cpu"
        and parameter.is_floating_point()
    )


def divide(parameter: nn.Parameter, ranks: Ranks, folder: str | None) -> None:
    """Leaves each rank its share of rank 0's values: in memory, or in a file of the folder."""
    with moving():
        whole = parameter.detach().contiguous()
        count = pieces(whole, ranks)[ranks.rank].shape
        share = Share(room_for(count, whole.dtype, SMALL, folder), ranks, folder)
        scatter(whole, share, 0)
        leave(parameter, share, RELEASED)


def leave(parameter: nn.Parameter, share: Share, message: str) -> None:
    """Leaves the parameter nothing but this share; a read raises the message."""
    parameter.data = torch.empty(parameter.shape, dtype=share.values.dtype)
    _C.free_memory(parameter, message)
    parameter._artesian_share = share  # type: ignore[attr-defined]


def scatter(whole: torch.Tensor, share: Share, root: int) -> None:
    """Replaces all ranks' shares by those of rank `root`'s tensor. All ranks must call it."""
    ranks = share.ranks
    assert ranks.group is not None
    nothing: list[torch.Tensor | None] = [None] * ranks.world_size
    if ranks.rank != root:
        received = [share.values if rank == root else None for rank in range(ranks.world_size)]
        ranks.group.all_to_all(nothing, received, "values of a parameter")
        return
    of_ranks = pieces(whole.detach().contiguous(), ranks)
    share.values.copy_(of_ranks[root])
    sent = [None if rank == root else piece for rank, piece in enumerate(of_ranks)]
    ranks.group.all_to_all(sent, nothing, "values of a parameter")


def gather(parameter: nn.Parameter, share: Share) -> torch.Tensor:
    """A divided parameter's values. All ranks must call it."""
    ranks = share.ranks
    assert ranks.group is not None
    whole = room_for(parameter.shape, share.values.dtype, WHOLE_AT_ONCE, share.folder)
    of_ranks = pieces(whole, ranks)
    of_ranks[ranks.rank].copy_(share.values)
    others = [rank != ranks.rank for rank in range(ranks.world_size)]
    sent = [share.values if other else None for other in others]
    received = [piece if other else None for piece, other in zip(of_ranks, others, strict=True)]
    ranks.group.all_to_all(sent, received, "values of a parameter")
    return whole


def shares_for(parameters: dict[str, nn.Parameter], ranks: Ranks) -> list[torch.Tensor | None]:
    """What this rank has of each parameter, for an engine of these ranks; None: all of it."""
    result: list[torch.Tensor | None] = []
    for name, parameter in parameters.items():
        share = share_of(parameter)
        if share is not None and (share.ranks.rank, share.ranks.world_size) != (
            ranks.rank,
            ranks.world_size,
        ):
            raise InvalidError(
                f'model: parameter "{name}": zero.Init has divided it among '
                f"{share.ranks.world_size} ranks, and the engine has {ranks.world_size}; make both "
                "with the same process group"
            )
        result.append(None if share is None else share.values)
    return result


def values_after(engine: Engine, group: Any) -> list[torch.Tensor | Share]:
    """The values of an engine's parameters for the time after it: of those that the ranks divide
    each rank's share, on the CPU, where PyTorch can move a parameter there. On NVMe if the engine
    has a folder there. All ranks must call it."""
    folder = engine.config_values.nvme_path
    divides = engine.divides_parameters and takes_parameters(engine.device)
    ranks = ranks_for_init(group) if divides else None
    result: list[torch.Tensor | Share] = []
    for parameter in engine._managed:
        whole = copy_of(engine, parameter, folder)
        if ranks is None:
            result.append(whole)
            continue
        part = pieces(whole, ranks)[ranks.rank]
        part = room_for(part.shape, part.dtype, SMALL, folder).copy_(part)
        result.append(Share(part, ranks, folder))
    return result


def give_back(parameter: nn.Parameter, values: torch.Tensor | Share) -> None:
    if isinstance(values, Share):
        leave(parameter, values, RETURNED)
    else:
        parameter.data = values.to(parameter.device)


def now_of(engine: Any, parameters: dict[str, nn.Parameter]) -> None:
    """The engine has the parameters from now on; zero.GatheredParameters finds it through their
    attribute."""
    for parameter in parameters.values():
        vars(parameter).pop("_artesian_share", None)
        parameter._artesian_engine = weakref.ref(engine)  # type: ignore[attr-defined]
