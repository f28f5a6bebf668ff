"""DeepSpeed's calls around parameters that are not in memory as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from artesian.errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    from artesian.engine import Engine


class Init(contextlib.AbstractContextManager["Init"]):
    """Models are made inside of it. They are made in memory, as without it; the engine takes them
    over from there. The arguments are DeepSpeed's, and have no effect."""

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

    def __enter__(self) -> Init:
        if self.enabled:
            from artesian.deepspeed import comm

            comm.init_distributed()  # scripts count on it from here on
        return self

    def __exit__(self, *error: Any) -> None:
        pass


def engine_of(parameter: Any) -> Engine | None:
    """The engine that has the parameter's memory, if one has."""
    reference = getattr(parameter, "_artesian_engine", None)
    return None if reference is None else reference()


def checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))


@dataclasses.dataclass
class Lent:
    """A parameter that has a copy of its values."""

    parameter: nn.Parameter
    released: torch.Tensor  # the memory that it has otherwise
    version: int
    checksum: int


class GatheredParameters(contextlib.AbstractContextManager[None]):
    """Parameters can be read inside of it: each has a copy of its values, all in memory at once.
    What the engine does not have is left alone. Of parameters that it has, what is changed inside
    is refused at the end: writing it back is not supported yet. Not inside a module's call."""

    def __init__(
        self,
        params: Any,
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given = [params] if isinstance(params, torch.Tensor) else list(params)
        # Each once, and not those that a context around this one has gathered.
        self.parameters = {id(p): p for p in given if enabled and engine_of(p) is not None}
        self.lent: list[Lent] = []

    def __enter__(self) -> None:
        try:
            for parameter in self.parameters.values():
                if not getattr(parameter, "_artesian_lent", False):
                    self._lend(parameter)
        except BaseException:
            self._take_back()
            raise

    def _lend(self, parameter: nn.Parameter) -> None:
        engine = engine_of(parameter)
        assert engine is not None
        if engine._core.depth > 0:
            raise InvalidError(
                "GatheredParameters: a module's call is under way; use it outside of the forward, "
                "or call the module that owns the parameter"
            )
        values = engine.full_parameter(parameter).to(parameter.dtype)
        self.lent.append(
            Lent(parameter, parameter.detach(), parameter._version, checksum(values))
        )
        parameter._artesian_lent = True  # type: ignore[attr-defined]
        parameter.data = values

    def _take_back(self) -> list[nn.Parameter]:
        """Returns those that have changed."""
        changed = []
        for lent in reversed(self.lent):
            parameter = lent.parameter
            if parameter._version != lent.version or checksum(parameter.data) != lent.checksum:
                changed.append(parameter)
            parameter.data = lent.released
            # The engine has not changed it, and takes whoever else does for a mistake.
            torch._C._autograd._unsafe_set_version_counter((parameter,), (lent.version,))
            parameter._artesian_lent = False  # type: ignore[attr-defined]
        self.lent.clear()
        return changed

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        changed = self._take_back()
        if changed and error is None:
            shapes = ", ".join(str(tuple(parameter.shape)) for parameter in changed)
            raise UnsupportedError(
                f"GatheredParameters: got changed parameters of shape {shapes}, allowed none: "
                "writing them back is not supported yet; change weights before initialize()"
            )


def safe_get_full_fp32_param(parameter: nn.Parameter) -> torch.Tensor | None:
    """A copy of the parameter's master weights; None if no engine has it."""
    engine = engine_of(parameter)
    return None if engine is None else engine.full_parameter(parameter)


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Says that the module reads a parameter of another one. The engine finds that out by itself,
    in the module's first pass."""


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Takes that back; what the first pass has found stays."""
