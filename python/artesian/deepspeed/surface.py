"""The modules and names of DeepSpeed that Artesian provides, and where each is implemented; and
those that it refuses, with the reason. Only a table; modules are loaded when they are used."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

from artesian.errors import UnsupportedError

VERSION = "0.19.8"  # the version whose config and functions are provided

SHIM = "artesian.deepspeed.shim"
COMM = "artesian.deepspeed.comm"
ZERO = "artesian.zero"
SCHEDULERS = "artesian.schedulers"
BUILDERS = "artesian.deepspeed.builders"
CHECKPOINTING = "artesian.deepspeed.checkpointing"
DESCRIBED = "artesian.described"
FRAGMENTS = "artesian.deepspeed.fragments"
LEAVES = "artesian.deepspeed.leaves"
TILED = "artesian.deepspeed.tiled"
TYPES = "artesian.deepspeed.types"
UTILITIES = "artesian.deepspeed.utilities"

SCHEDULES = dict.fromkeys(
    (
        "COS_MIN_RATIO",
        "CYCLE_FIRST_STAIR_COUNT",
        "CYCLE_FIRST_STEP_SIZE",
        "CYCLE_MAX_LR",
        "CYCLE_MAX_MOM",
        "CYCLE_MIN_LR",
        "CYCLE_MIN_MOM",
        "CYCLE_SECOND_STAIR_COUNT",
        "CYCLE_SECOND_STEP_SIZE",
        "DECAY_LR_RATE",
        "DECAY_MOM_RATE",
        "DECAY_STEP_SIZE",
        "EDGE_VALUE",
        "LRRangeTest",
        "LR_RANGE_TEST",
        "LR_RANGE_TEST_MIN_LR",
        "LR_RANGE_TEST_STAIRCASE",
        "LR_RANGE_TEST_STEP_RATE",
        "LR_RANGE_TEST_STEP_SIZE",
        "LR_SCHEDULE",
        "MID_VALUE",
        "ONE_CYCLE",
        "OneCycle",
        "TOTAL_NUM_STEPS",
        "VALID_LR_SCHEDULES",
        "WARMUP_COSINE_LR",
        "WARMUP_DECAY_LR",
        "WARMUP_LINEAR_RATE",
        "WARMUP_LOG_RATE",
        "WARMUP_LR",
        "WARMUP_MAX_LR",
        "WARMUP_MIN_LR",
        "WARMUP_MIN_RATIO",
        "WARMUP_NUM_STEPS",
        "WARMUP_TYPE",
        "WarmupCosineLR",
        "WarmupDecayLR",
        "WarmupLR",
    ),
    SCHEDULERS,
)
COMMUNICATION = dict.fromkeys(
    (
        "ReduceOp",
        "all_gather",
        "all_gather_object",
        "all_reduce",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "destroy_process_group",
        "gather",
        "irecv",
        "is_available",
        "isend",
        "new_group",
        "recv",
        "reduce",
        "reduce_scatter_tensor",
        "scatter",
        "send",
    ),
    "torch.distributed",
) | dict.fromkeys(
    (
        "all_gather_into_tensor",
        "get_local_rank",
        "get_rank",
        "get_world_group",
        "get_world_size",
        "init_distributed",
        "is_initialized",
    ),
    COMM,
)
ACTIVATIONS = dict.fromkeys(
    (
        "checkpoint",
        "configure",
        "detach_variable",
        "get_cuda_rng_tracker",
        "is_configured",
        "model_parallel_cuda_manual_seed",
        "model_parallel_reconfigure_tp_seed",
        "non_reentrant_checkpoint",
        "partition_activations_in_checkpoint",
        "reset",
        "set_num_layers",
    ),
    CHECKPOINTING,
)
LEAF_MODULES = dict.fromkeys(
    (
        "get_z3_leaf_modules",
        "set_z3_leaf_module",
        "set_z3_leaf_modules",
        "set_z3_leaf_modules_by_name",
        "set_z3_leaf_modules_by_suffix",
        "unset_z3_leaf_modules",
        "z3_leaf_module",
        "z3_leaf_parameter",
    ),
    LEAVES,
)
TENSOR_FRAGMENTS = dict.fromkeys(
    (
        "safe_get_full_fp32_param",
        "safe_get_full_grad",
        "safe_get_full_optimizer_state",
        "safe_set_full_fp32_param",
        "safe_set_full_optimizer_state",
    ),
    ZERO,
) | dict.fromkeys(
    (
        "safe_get_local_fp32_param",
        "safe_get_local_grad",
        "safe_get_local_optimizer_state",
        "safe_set_full_grad",
        "safe_set_local_fp32_param",
        "safe_set_local_grad",
        "safe_set_local_optimizer_state",
        "safe_update_full_grad_vectorized",
    ),
    FRAGMENTS,
)
OFFLOAD = {"OffloadDeviceEnum": TYPES, "OffloadStateTypeEnum": TYPES}
ZERO_TO_FP32 = dict.fromkeys(
    ("get_model_state_file", "get_model_state_files", "get_optim_files"), SHIM
)
TILES = {"TiledLinear": TILED, "TiledLinearReturnBias": TILED}
PARTITIONED = {
    "GatheredParameters": ZERO,
    "Init": ZERO,
    "register_external_parameter": ZERO,
    "unregister_external_parameter": ZERO,
}
OP_BUILDERS = dict.fromkeys(
    (
        "AsyncIOBuilder",
        "CPUAdagradBuilder",
        "CPUAdamBuilder",
        "CPULionBuilder",
        "EvoformerAttnBuilder",
        "FPQuantizerBuilder",
        "FusedAdamBuilder",
        "FusedLambBuilder",
        "FusedLionBuilder",
        "GDSBuilder",
        "InferenceBuilder",
        "OpBuilder",
        "PinMemoryBuilder",
        "QuantizerBuilder",
        "RaggedOpsBuilder",
        "SparseAttnBuilder",
        "SpatialInferenceBuilder",
        "TransformerBuilder",
        "UtilsBuilder",
    ),
    BUILDERS,
)
ADAM = {"DeepSpeedCPUAdam": SHIM, "FusedAdam": SHIM}
ADAGRAD = {"DeepSpeedCPUAdagrad": SHIM}
LAMB = {"FusedLamb": SHIM}
MUON = {"MuonWithAuxAdam": SHIM}
LION = {"DeepSpeedCPULion": SHIM, "FusedLion": SHIM}

# Module -> name -> the module that implements it: one of ours, or PyTorch's where DeepSpeed passes
# calls on.
MODULES: dict[str, dict[str, str]] = {
    "deepspeed": {
        "DeepSpeedConfig": TYPES,
        "DeepSpeedConfigError": TYPES,
        "DeepSpeedEngine": SHIM,
        "DeepSpeedOptimizer": TYPES,
        "OnDevice": UTILITIES,
        "ZeROOptimizer": TYPES,
        "add_config_arguments": SHIM,
        "get_accelerator": SHIM,
        "init_distributed": COMM,
        "initialize": SHIM,
        "log_dist": UTILITIES,
        "logger": UTILITIES,
        "version": SHIM,
    },
    "deepspeed.accelerator": {"get_accelerator": SHIM},
    "deepspeed.accelerator.real_accelerator": {"get_accelerator": SHIM},
    "deepspeed.checkpoint": {},
    "deepspeed.checkpoint.utils": {"clone_tensors_for_torch_save": SHIM},
    "deepspeed.checkpointing": ACTIVATIONS,
    "deepspeed.comm": COMMUNICATION,
    "deepspeed.comm.comm": COMMUNICATION,
    "deepspeed.git_version_info": {"torch_info": TYPES, "version": TYPES},
    "deepspeed.launcher": {},
    "deepspeed.launcher.runner": {"DEEPSPEED_ENVIRONMENT_NAME": SHIM},
    "deepspeed.ops": {"__compatible_ops__": BUILDERS},
    "deepspeed.ops.adagrad": ADAGRAD,
    "deepspeed.ops.adam": ADAM,
    "deepspeed.ops.aio": {"AsyncIOBuilder": BUILDERS},
    "deepspeed.ops.lamb": LAMB,
    "deepspeed.ops.lion": LION,
    "deepspeed.ops.op_builder": OP_BUILDERS,
    "deepspeed.runtime": {},
    "deepspeed.runtime.activation_checkpointing": {},
    "deepspeed.runtime.activation_checkpointing.checkpointing": ACTIVATIONS,
    "deepspeed.runtime.base_optimizer": {"DeepSpeedOptimizer": TYPES, "ZeROOptimizer": TYPES},
    "deepspeed.runtime.checkpoint_engine": {"TorchCheckpointEngine": TYPES},
    "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine": {"TorchCheckpointEngine": TYPES},
    "deepspeed.runtime.config": dict.fromkeys(
        (
            "ADAGRAD_OPTIMIZER",
            "ADAMW_OPTIMIZER",
            "ADAM_OPTIMIZER",
            "DeepSpeedConfig",
            "DeepSpeedConfigError",
            "LAMB_OPTIMIZER",
            "LION_OPTIMIZER",
            "MUON_OPTIMIZER",
        ),
        TYPES,
    ),
    "deepspeed.runtime.dataloader": {"RepeatingLoader": UTILITIES},
    "deepspeed.runtime.engine": {"DeepSpeedEngine": SHIM},
    "deepspeed.runtime.lr_schedules": SCHEDULES,
    "deepspeed.runtime.swap_tensor": {"MIN_AIO_BYTES": TYPES, "MIN_SWAPPABLE_BYTES": TYPES},
    "deepspeed.runtime.swap_tensor.utils": {"MIN_AIO_BYTES": TYPES, "MIN_SWAPPABLE_BYTES": TYPES},
    "deepspeed.runtime.utils": {
        "move_to_device": UTILITIES,
        "partition_uniform": TILED,
        "see_memory_usage": UTILITIES,
        "set_random_seed": UTILITIES,
    },
    "deepspeed.runtime.zero": PARTITIONED
    | TILES
    | {
        "ZeroParamStatus": DESCRIBED,
        "ZeroParamType": TYPES,
        "unwrap_model_for_generation": TYPES,
    },
    "deepspeed.runtime.zero.muon": {},
    "deepspeed.runtime.zero.muon.muon_optimizer": MUON,
    "deepspeed.runtime.zero.muon.original_muon": MUON,
    "deepspeed.runtime.zero.offload_config": OFFLOAD,
    "deepspeed.runtime.zero.partition_parameters": PARTITIONED
    | {
        "ZeroParamStatus": DESCRIBED,
        "ZeroParamType": TYPES,
        "_orig_torch_arange": SHIM,
        "get_accelerator": SHIM,
        "zero_wrapper_for_fp_tensor_constructor": SHIM,
    },
    "deepspeed.runtime.zero.stage3": {"DeepSpeedZeroOptimizer_Stage3": TYPES},
    "deepspeed.runtime.zero.stage_1_and_2": {"DeepSpeedZeroOptimizer": TYPES},
    "deepspeed.runtime.zero.tiling": TILES,
    "deepspeed.runtime.zero.utils": {"ZeRORuntimeException": TYPES},
    "deepspeed.utils": TENSOR_FRAGMENTS
    | LEAF_MODULES
    | {
        "OnDevice": UTILITIES,
        "RepeatingLoader": UTILITIES,
        "log_dist": UTILITIES,
        "logger": UTILITIES,
        "set_log_level_from_string": UTILITIES,
    },
    "deepspeed.utils.logging": {
        "log_dist": UTILITIES,
        "logger": UTILITIES,
        "set_log_level_from_string": UTILITIES,
    },
    "deepspeed.utils.tensor_fragment": TENSOR_FRAGMENTS,
    "deepspeed.utils.torch": {"required_torch_version": TYPES},
    "deepspeed.utils.z3_leaf_module": LEAF_MODULES,
    "deepspeed.utils.zero_to_fp32": {
        "convert_zero_checkpoint_to_fp32_state_dict": "artesian.checkpoint.zero_to_fp32",
        "get_fp32_state_dict_from_zero_checkpoint": "artesian.checkpoint",
        "load_state_dict_from_zero_checkpoint": SHIM,
    }
    | ZERO_TO_FP32,
    "deepspeed.zero": PARTITIONED | TILES,
}

# Known but refused: modules, with everything below them, and names. Importing them is allowed,
# since scripts import names that they may never use; using them is an error.
REFUSED_MODULES: dict[str, str] = {
    "deepspeed.compression": "compression, which DeepSpeed 0.19.8 does not have any more",
    "deepspeed.elasticity": "elastic training, which DeepSpeed 0.19.8 does not have any more",
    "deepspeed.inference": "the inference engine",
    "deepspeed.module_inject": "tensor parallelism",
    "deepspeed.moe": "DeepSpeed's own expert layers; models with experts of their own train",
    "deepspeed.ops.sparse_attention": "its sparse attention; use PyTorch's attention",
    "deepspeed.ops.transformer": "its CUDA kernels",
    "deepspeed.pipe": "pipeline parallelism",
    "deepspeed.profiling": "its profiler; use torch.profiler",
    "deepspeed.runtime.pipe": "pipeline parallelism",
    "deepspeed.runtime.sequence_parallel": "sequence parallelism",
    "deepspeed.sequence": "sequence parallelism",
    "deepspeed.utils.groups": "parallelism of other kinds than over data",
}
REFUSED: dict[str, str] = {
    "deepspeed.DeepSpeedTransformerConfig": "its CUDA kernels",
    "deepspeed.DeepSpeedTransformerLayer": "its CUDA kernels",
    "deepspeed.PipelineEngine": "pipeline parallelism",
    "deepspeed.PipelineModule": "pipeline parallelism",
    "deepspeed.init_inference": "the inference engine; artesian.init_inference() makes an engine "
    "that only evaluates, from the same config",
    "deepspeed.tp_model_init": "tensor parallelism",
}


# Value of unknown names, where that is not an error: for tests_support.py.
otherwise: Callable[[str], Any] | None = None


def refused_module(name: str) -> str | None:
    """The refused module that this one is, or is below."""
    parts = name.split(".")
    above = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((module for module in above if module in REFUSED_MODULES), None)


def stand_in(name: str, reason: str) -> type:
    """A class for a refused name: it can be imported, named and used in isinstance(), but creating
    or calling it is an error."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(
            f"{name}: not supported by Artesian, which answers for DeepSpeed here: {reason}"
        )

    module, _, own = name.rpartition(".")
    return type(own, (), {"__init__": refuse, "__module__": module, "__doc__": reason})


def has_module(name: str) -> bool:
    return name in MODULES or refused_module(name) is not None


def fill(module: types.ModuleType) -> None:
    """Gives the module DeepSpeed's names."""
    name = module.__name__
    names = MODULES.get(name, {})
    above = refused_module(name)
    module.__doc__ = f"{name}, as Artesian answers it."
    if name == "deepspeed":
        numbers = dict(zip(("major", "minor", "patch"), VERSION.split("."), strict=True))
        vars(module).update({f"__version_{part}__": int(n) for part, n in numbers.items()})
        vars(module).update(__version__=VERSION, __git_hash__="artesian", __git_branch__="artesian")

    def find(attribute: str) -> Any:
        full = f"{name}.{attribute}"
        value: Any
        if attribute in names:
            value = getattr(importlib.import_module(names[attribute]), attribute)
        elif full in MODULES or full in REFUSED_MODULES:
            value = importlib.import_module(full)
        elif full in REFUSED:
            value = stand_in(full, REFUSED[full])
        elif above is not None and not attribute.startswith("__"):
            value = stand_in(full, REFUSED_MODULES[above])
        elif otherwise is not None and not attribute.startswith("__"):
            value = otherwise(full)
        else:
            raise AttributeError(
                f"module {name!r} has no attribute {attribute!r}: Artesian answers for DeepSpeed "
                "here, and does not have it"
            )
        setattr(module, attribute, value)
        return value

    module.__getattr__ = find  # type: ignore[method-assign]
    module.__all__ = sorted(names)  # type: ignore[attr-defined]
