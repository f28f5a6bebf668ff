"""The modules and names of DeepSpeed that are answered, and where their answer is; and those that
cannot be, with the reason. A table; nothing is loaded before it is used."""

from __future__ import annotations

import importlib
import types
from typing import Any

VERSION = "0.19.8"  # whose config and calls these are

SHIM = "artesian.deepspeed.shim"
COMM = "artesian.deepspeed.comm"
ZERO = "artesian.zero"
SCHEDULERS = "artesian.schedulers"

SCHEDULES = dict.fromkeys(
    ("VALID_LR_SCHEDULES", "WarmupCosineLR", "WarmupDecayLR", "WarmupLR"), SCHEDULERS
)
COMMUNICATION = dict.fromkeys(
    (
        "all_gather",
        "all_reduce",
        "barrier",
        "broadcast",
        "get_local_rank",
        "get_rank",
        "get_world_size",
        "init_distributed",
        "is_available",
        "is_initialized",
    ),
    COMM,
)
PARTITIONED = {
    "GatheredParameters": ZERO,
    "Init": ZERO,
    "register_external_parameter": ZERO,
    "unregister_external_parameter": ZERO,
}
ADAM = {"DeepSpeedCPUAdam": SHIM, "FusedAdam": SHIM}

# Module -> name -> the module of ours that has it.
MODULES: dict[str, dict[str, str]] = {
    "deepspeed": {
        "DeepSpeedEngine": SHIM,
        "add_config_arguments": SHIM,
        "init_distributed": COMM,
        "initialize": SHIM,
        "version": SHIM,
    },
    "deepspeed.accelerator": {"get_accelerator": SHIM},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"clone_tensors_for_torch_save": SHIM},
    "deepspeed.comm": COMMUNICATION,
    "deepspeed.comm.comm": COMMUNICATION,
    "deepspeed.launcher": {},
    "deepspeed.launcher.runner": {"DEEPSPEED_ENVIRONMENT_NAME": SHIM},
    "deepspeed.ops": {},
    "deepspeed.ops.adam": ADAM,
    "deepspeed.runtime": {},
    "deepspeed.runtime.engine": {"DeepSpeedEngine": SHIM},
    "deepspeed.runtime.lr_schedules": SCHEDULES,
    "deepspeed.runtime.zero": PARTITIONED,
    "deepspeed.runtime.zero.partition_parameters": PARTITIONED
    | {
        "ZeroParamStatus": SHIM,
        "_orig_torch_arange": SHIM,
        "get_accelerator": SHIM,
        "zero_wrapper_for_fp_tensor_constructor": SHIM,
    },
    "deepspeed.utils": {
        "logger": SHIM,
        "safe_get_full_fp32_param": ZERO,
        "safe_get_full_grad": ZERO,
        "safe_get_full_optimizer_state": ZERO,
        "safe_set_full_fp32_param": ZERO,
        "safe_set_full_optimizer_state": ZERO,
        "set_z3_leaf_modules": SHIM,
    },
    "deepspeed.utils.logging": {"logger": SHIM},
    "deepspeed.utils.zero_to_fp32": {
        "get_fp32_state_dict_from_zero_checkpoint": "artesian.checkpoint",
        "load_state_dict_from_zero_checkpoint": SHIM,
    },
    "deepspeed.zero": PARTITIONED,
}

# What is known, and cannot be served.
REFUSED: dict[str, str] = {
    "deepspeed.DeepSpeedTransformerLayer": "its CUDA kernels",
    "deepspeed.PipelineModule": "pipeline parallelism",
    "deepspeed.init_inference": "the inference engine",
    "deepspeed.moe": "DeepSpeed's own expert layers; models with experts of their own train",
    "deepspeed.ops.adagrad": "Adagrad; Adam and AdamW are supported",
    "deepspeed.ops.lion": "Lion; Adam and AdamW are supported",
    "deepspeed.pipe": "pipeline parallelism",
    "deepspeed.runtime.pipe": "pipeline parallelism",
    "deepspeed.runtime.sequence_parallel": "sequence parallelism",
    "deepspeed.runtime.lr_schedules.LRRangeTest": "this schedule; WarmupLR is supported",
    "deepspeed.runtime.lr_schedules.OneCycle": "this schedule; WarmupLR is supported",
    "deepspeed.sequence": "sequence parallelism",
    "deepspeed.tp_model_init": "tensor parallelism",
}


def refusal(name: str) -> str:
    return f"{name}: not supported by Artesian, which answers for DeepSpeed here: {REFUSED[name]}"


def has_module(name: str) -> bool:
    return name in MODULES or name in REFUSED


def fill(module: types.ModuleType) -> None:
    """Makes the module one of DeepSpeed's."""
    name = module.__name__
    if name in REFUSED:
        raise ImportError(refusal(name), name=name)
    names = MODULES[name]
    module.__doc__ = f"{name}, as Artesian answers it."
    if name == "deepspeed":
        module.__version__ = VERSION  # type: ignore[attr-defined]

    def find(attribute: str) -> Any:
        full = f"{name}.{attribute}"
        if attribute in names:
            value = getattr(importlib.import_module(names[attribute]), attribute)
        elif full in MODULES:
            value = importlib.import_module(full)
        elif full in REFUSED:
            raise NotImplementedError(refusal(full))
        else:
            raise AttributeError(
                f"module {name!r} has no attribute {attribute!r}: Artesian answers for DeepSpeed "
                "here, and does not have it"
            )
        setattr(module, attribute, value)
        return value

    module.__getattr__ = find  # type: ignore[method-assign]
    module.__all__ = sorted(names)  # type: ignore[attr-defined]
