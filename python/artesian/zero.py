"""DeepSpeed's functions for parameters that are not completely in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from artesian.config import expand_dotted, values_of
from artesian.described import describe
from artesian.errors import UnsupportedError
from artesian.shares import (
    WHOLE_AT_ONCE,
    Window,
    can_be_divided,
    gather,
    moving,
    ranks_for_init,
    scatter,
    share_of,
)
from artesian.state import SMALL, empty_in_file, is_mapped

if TYPE_CHECKING:
    from artesian.engine import Engine


def spool_folder(config: Any) -> str | None:
    """The config's NVMe folder for parameters, else that for the optimizer or, until that exists,
    its parent."""
    if config is None:
        return None
    values = expand_dotted(values_of(config)[0]).get("zero_optimization", {})
    for section in ("offload_param", "offload_optimizer"):
        offload = values.get(section) if isinstance(values, dict) else None
        if isinstance(offload, dict) and offload.get("device") == "nvme":
            path = os.fspath(offload.get("nvme_path") or "")
            return path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    return None


def stage_of(config: Any) -> Any:
    """The stage in a config; without one, that of Init's caller."""
    if config is None:
        return 3
    section = expand_dotted(values_of(config)[0]).get("zero_optimization", {})
    return section.get("stage", 0) if isinstance(section, dict) else int(bool(section))


def spool(parameter: nn.Parameter, folder: str) -> None:
    """Moves a parameter's data into a mapped file, which the kernel can drop from memory; the
    parameter object stays the same, and can be read and written as before. Small parameters are not
    moved."""
    values = parameter.detach()
    if values.device.type == "cpu" and values.nbytes >= SMALL and not is_mapped(values):
        parameter.data = empty_in_file(values.shape, values.dtype, folder).copy_(values)


class Init(contextlib.AbstractContextManager["Init"]):
    """A context in which models are created. If the config has state on NVMe, each new parameter of
    a module is put into a mapped file there, so that models larger than memory can be created,
    loaded and initialized. The files are unnamed, and disappear when the engine takes over the
    parameters. Otherwise models are created in memory, as without this context.

    At stage 3 several ranks keep a share of each parameter, of rank 0's values, so that no rank
    holds a whole model. Inside of the context constructors can read and write all parameters, and
    all ranks must run the same ones; after it GatheredParameters has the values.

    `module`: an existing module, whose parameters are moved. `data_parallel_group`: the ranks, by
    default all. The other arguments are DeepSpeed's, and have no effect."""

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: Any = None,
        mpu: Any = None,
        **others: Any,
    ) -> None:
        self.enabled = enabled
        given = config_dict_or_path if config_dict_or_path is not None else config
        self.folder = spool_folder(given) if enabled else None
        self.partitioned = enabled and stage_of(given) == 3
        self.group = data_parallel_group
        self.window: Window | None = None
        self.modes = contextlib.ExitStack()
        self.handle: torch.utils.hooks.RemovableHandle | None = None
        if module is not None:
            self._meet()
            for parameter in module.parameters():
                self._take(module, "", parameter)
            if self.window is not None:
                self.window.divide_all()

    def __enter__(self) -> Init:
        if self.enabled:
            from artesian.deepspeed import comm

            comm.init_distributed()  # scripts rely on it from now on
            self._meet()
            if self.window is not None:
                self.modes.enter_context(self.window.mode)
            self.handle = register_module_parameter_registration_hook(self._take)
        return self

    def _meet(self) -> None:
        ranks = ranks_for_init(self.group) if self.partitioned else None
        if ranks is not None:
            self.window = Window(ranks, self.folder)

    def _take(self, module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if share_of(parameter) is not None:  # a tied one, or a module that is moved
            return
        divided = self.window is not None and can_be_divided(parameter)
        if self.folder is not None and not (divided and parameter.nbytes < WHOLE_AT_ONCE):
            spool(parameter, self.folder)
        if self.partitioned and isinstance(parameter, nn.Parameter):
            describe(parameter)
        if self.window is not None:
            self.window.add(parameter)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.modes.close()
        if self.handle is not None:
            self.handle.remove()
            self.handle = None
            if self.window is not None and error is None:
                self.window.divide_all()


def engine_of(parameter: Any) -> Engine | None:
    """The engine that manages the parameter's memory, if any."""
    reference = getattr(parameter, "_artesian_engine", None)
    return None if reference is None else reference()


def is_released(parameter: Any) -> bool:
    """True if an engine manages the parameter's memory, and the parameter is not resident, or if
    zero.Init has divided it."""
    engine = engine_of(parameter)
    if engine is None:
        return share_of(parameter) is not None
    return not engine.resident


def checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def check_is_there(parameter: nn.Parameter, engine: Engine) -> None:
    """Checks a read in the middle of a backward, which gathers only what its forward has read."""
    try:
        parameter.data_ptr()
    except RuntimeError:
        name = next((n for n, p in engine.module.named_parameters() if p is parameter), "?")
        raise UnsupportedError(
            f'GatheredParameters: parameter "{name}" cannot be gathered in the middle of a '
            "backward whose forward has not read it: gather it, or read it, in the forward, too"
        ) from None


@dataclasses.dataclass
class Lent:
    """A parameter that was lent a copy of its values."""

    parameter: nn.Parameter
    released: torch.Tensor  # its memory while it is not lent
    version: int
    checksum: int


@dataclasses.dataclass
class Returned:
    """A parameter that was lent, with its values at the end."""

    parameter: nn.Parameter
    values: torch.Tensor
    changed: bool


class GatheredParameters(contextlib.AbstractContextManager[None]):
    """A context in which parameters can be read: each has a copy of its values, all in memory at
    once. Inside of a module's call they are gathered for that module until its end, and cannot be
    changed. Resident parameters, and those that the engine does not manage, are left alone. With a
    `modifier_rank`, changes are written back at the end, unless an exception occurs: unchanged
    elements keep their master weights, and a swap that is undone before the next step restores
    them. Without it, changes are dropped, with one warning. Several ranks must enter and leave the
    context together; the modifier's changes are used."""

    def __init__(
        self,
        params: Any,
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given: list[Any] = [params] if isinstance(params, torch.Tensor) else list(params)
        # Duplicates, and parameters that an outer context has gathered, are skipped.
        self.parameters = {id(p): p for p in given if enabled and is_released(p)}
        self.modifier = modifier_rank
        self.lent: list[Lent] = []

    def __enter__(self) -> None:
        try:
            with moving():
                for parameter in self.parameters.values():
                    if not getattr(parameter, "_artesian_lent", False):
                        self._lend(parameter)
        except BaseException:
            self._take_back()
            raise

    def _lend(self, parameter: nn.Parameter) -> None:
        engine = engine_of(parameter)
        share = share_of(parameter)
        if engine is None:
            assert share is not None
            values = gather(parameter, share)
        else:
            if engine._core.depth > 0:
                engine._core.gather(engine._number(parameter))
                return
            if torch._C._current_graph_task_id() != -1:
                check_is_there(parameter, engine)
                return
            values = engine.full_parameter(parameter).to(parameter.device, parameter.dtype)
        self.lent.append(Lent(parameter, parameter.detach(), parameter._version, checksum(values)))
        if engine is not None:
            engine._core.lend(engine._number(parameter), True)
        parameter._artesian_lent = True  # type: ignore[attr-defined]
        parameter.data = values

    def _take_back(self) -> list[Returned]:
        returned = []
        for lent in reversed(self.lent):
            parameter = lent.parameter
            changed = parameter._version != lent.version
            changed = changed or checksum(parameter.data) != lent.checksum
            returned.append(Returned(parameter, parameter.data, changed))
            parameter.data = lent.released
            # The engine would treat an unexpected version as a user's mistake, so restore the old
            # one.
            torch._C._autograd._unsafe_set_version_counter((parameter,), (lent.version,))
            parameter._artesian_lent = False  # type: ignore[attr-defined]
            engine = engine_of(parameter)
            if engine is not None and not engine.is_closed:
                engine._core.lend(engine._number(parameter), False)
        self.lent.clear()
        return returned

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with moving():
            returned = self._take_back()
        if error is not None:
            return
        if self.modifier is not None:
            for each in returned:
                take_from(self.modifier, each)
        changed = [(each.parameter, each.values) for each in returned if each.changed]
        if not changed:
            return
        if self.modifier is None:
            tell_dropped_once()
            return
        write_back(changed)


def take_from(rank: int, returned: Returned) -> None:
    """Copies one rank's values of a parameter to all ranks."""
    engine = engine_of(returned.parameter)
    share = share_of(returned.parameter)
    if share is not None:
        scatter(returned.values, share, rank)
        returned.changed = False  # each rank has its share of the change
        return
    if engine is None or engine.ranks.group is None:
        return
    changed = torch.tensor([returned.changed])
    engine._core.broadcast(changed, rank)
    returned.changed = bool(changed)
    if returned.changed:
        returned.values = returned.values.detach().contiguous()
        engine._core.broadcast(returned.values, rank)


@functools.cache
def tell_dropped_once() -> None:
    logging.getLogger("artesian").warning(
        "GatheredParameters: changes of parameters are dropped at the end, since modifier_rank is "
        "not given; with modifier_rank=0 they are written back (said once)"
    )


def write_back(changed: list[tuple[nn.Parameter, torch.Tensor]]) -> None:
    """Replaces the parameters' values, in their dtypes: all of them or, if there is no room for
    their master weights (masters.py), none."""
    engines = {id(engine): engine for p, _ in changed if (engine := engine_of(p)) is not None}
    for engine in engines.values():
        engine.saved_masters.take_room(engine, [p for p, _ in changed if engine_of(p) is engine])
    for parameter, values in changed:
        engine = engine_of(parameter)
        assert engine is not None
        engine.saved_masters.write(engine, parameter, values)


def trainer_of(parameter: nn.Parameter) -> Engine | None:
    """The engine that trains the parameter; DeepSpeed's functions give None for a frozen one."""
    return engine_of(parameter) if parameter.requires_grad else None


def safe_get_full_fp32_param(parameter: nn.Parameter) -> torch.Tensor | None:
    """A copy of the parameter's master weights; None if it is frozen or no engine manages it."""
    engine = trainer_of(parameter)
    return None if engine is None else engine.full_parameter(parameter)


def safe_get_full_optimizer_state(
    parameter: nn.Parameter, optim_state_key: str
) -> torch.Tensor | None:
    """A copy of the parameter's "exp_avg", "exp_avg_sq" or another moment of its optimizer; None if
    it is frozen or no engine manages it."""
    engine = trainer_of(parameter)
    return None if engine is None else engine.full_state(parameter, optim_state_key)


def safe_get_full_grad(parameter: nn.Parameter) -> torch.Tensor | None:
    """A copy of the parameter's gradient, between backward() and step(); else None."""
    engine = engine_of(parameter)
    return None if engine is None else engine.full_gradient(parameter)


def safe_set_full_fp32_param(parameter: nn.Parameter, value: torch.Tensor) -> None:
    """Replaces the parameter's master weights; does nothing without an engine."""
    engine = engine_of(parameter)
    if engine is not None:
        engine.set_full_state(parameter, value)


def safe_set_full_optimizer_state(
    parameter: nn.Parameter, value: torch.Tensor, optim_state_key: str
) -> None:
    """Replaces the parameter's moment of this name; does nothing without an engine."""
    engine = engine_of(parameter)
    if engine is not None:
        engine.set_full_state(parameter, value, optim_state_key)


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Declares that the module reads a parameter of another one. The engine detects that by itself,
    in the module's first pass."""


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undoes register_external_parameter; what the first pass has detected is kept."""
