"""DeepSpeed's classes that programs ask about, or pass as words."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from artesian.config import read_config, values_of
from artesian.deepspeed import surface
from artesian.optim import AdamW
from artesian.zero import GatheredParameters

DeepSpeedOptimizer = AdamW
ZeROOptimizer = AdamW
version = surface.VERSION
torch_info = {"version": torch.__version__, "cuda_version": "0.0", "nccl_version": "0.0",
              "hip_version": "0.0"}  # fmt: skip


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
    """Is never raised here: errors are artesian.Error."""


class DeepSpeedConfig:
    """A config's batch sizes, and the config itself."""

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        self._param_dict, path = values_of(config)
        values = read_config(self._param_dict, path, note_unknown_keys=True)
        self.train_batch_size = values.train_batch_size
        self.train_micro_batch_size_per_gpu = values.micro_batch_size
        self.gradient_accumulation_steps = values.accumulation_steps
        self.zero_optimization_stage = values.stage
        self.zero_enabled = values.stage > 0
        self.float16_config = self.bfloat16_config = None
        self.fp16_enabled = values.param_dtype == "fp16"
        self.bfloat16_enabled = values.param_dtype == "bf16"
        self.gradient_clipping = values.gradient_clipping


class TorchCheckpointEngine:
    """Saves and loads by torch. Checkpoints of engines are not made by it."""

    def __init__(self, config_params: Any = None) -> None:
        self.name = "TorchCheckpointEngine"

    def create(self, info: Any) -> None:
        """Nothing comes before save()."""

    def save(self, state_dict: Any, path: str) -> None:
        torch.save(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        return torch.load(path, map_location=map_location, weights_only=False)

    def commit(self, info: Any) -> bool:
        return True


@contextlib.contextmanager
def unwrap_model_for_generation(model: nn.Module) -> Iterator[nn.Module]:
    """The model, whose parameters may be read inside of it."""
    with GatheredParameters(model.parameters()):
        yield model
