"""DeepSpeed's classes that programs use in isinstance(), or as constants."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from artesian.config import ConfigFacts, read_config, values_of
from artesian.deepspeed import surface
from artesian.errors import InvalidError
from artesian.optim import TieredOptimizer
from artesian.zero import GatheredParameters

DeepSpeedOptimizer = TieredOptimizer
ZeROOptimizer = TieredOptimizer
DeepSpeedConfigError = InvalidError
version = surface.VERSION
torch_info = {"version": torch.__version__, "cuda_version": "0.0", "nccl_version": "0.0",
              "hip_version": "0.0"}  # fmt: skip


ADAGRAD_OPTIMIZER = "adagrad"
ADAM_OPTIMIZER = "adam"
ADAMW_OPTIMIZER = "adamw"
LAMB_OPTIMIZER = "lamb"
LION_OPTIMIZER = "lion"
MUON_OPTIMIZER = "muon"

MIN_AIO_BYTES = MIN_SWAPPABLE_BYTES = 1 << 20  # DeepSpeed keeps smaller tensors in memory


class OfStages(type):
    """Metaclass: an engine's optimizer is an instance of the class at certain stages."""

    stages: tuple[int, ...]

    def __instancecheck__(self, instance: Any) -> bool:
        engine = getattr(instance, "_engine", None)
        return (
            isinstance(instance, TieredOptimizer)
            and engine is not None
            and (engine.zero_optimization_stage() in self.stages)
        )


class DeepSpeedZeroOptimizer(metaclass=OfStages):
    """deepspeed.runtime.zero.stage_1_and_2's class, for isinstance()."""

    stages = (1, 2)


class DeepSpeedZeroOptimizer_Stage3(metaclass=OfStages):  # noqa: N801
    """deepspeed.runtime.zero.stage3's class, for isinstance()."""

    stages = (3,)


def required_torch_version(min_version: Any = None, max_version: Any = None) -> bool:
    """True if torch's version is between the two."""
    version = torch.torch_version.TorchVersion(torch.__version__)
    too_old = min_version is not None and version < str(min_version)
    return not too_old and not (max_version is not None and version > str(max_version))


class OffloadDeviceEnum(enum.StrEnum):
    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(enum.StrEnum):
    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


class ZeroParamType(enum.Enum):
    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


class ZeRORuntimeException(Exception):
    """Never raised: Artesian's errors are artesian.Error."""


class DeepSpeedConfig(ConfigFacts):
    """A config's batch sizes, and the config itself."""

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        given, path = values_of(config)
        super().__init__(read_config(given, path, note_unknown_keys=True), given)


class TorchCheckpointEngine:
    """Saves and loads with torch. Checkpoints of engines do not use it."""

    def __init__(self, config_params: Any = None) -> None:
        self.name = "TorchCheckpointEngine"

    def create(self, info: Any) -> None:
        """No effect: save() needs no preparation."""

    def save(self, state_dict: Any, path: str) -> None:
        torch.save(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        return torch.load(path, map_location=map_location, weights_only=False)

    def commit(self, info: Any) -> bool:
        return True


@contextlib.contextmanager
def unwrap_model_for_generation(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the model; its parameters may be read inside of the context."""
    with GatheredParameters(model.parameters()):
        yield model
