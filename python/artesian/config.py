"""Configurations: converts a dict, a path or a JSON text to the engine's configuration."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import os
from typing import Any

import torch

from artesian.errors import InvalidError
from artesian.native import _C

ConfigLike = dict[str, Any] | str | os.PathLike[str]

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def expand_dotted(values: dict[str, Any]) -> dict[str, Any]:
    """Moves keys such as "zero_optimization.reduce_bucket_size" into their sections."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        section = result
        *path, last = key.split(".")
        for name in path:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise InvalidError(f"{key}: {name} is no section of the config")
        if isinstance(value, dict) and isinstance(section.get(last), dict):
            section[last].update(value)
        else:
            section[last] = expand_dotted(value) if isinstance(value, dict) else value
    return result


def without_param_offload(values: dict[str, Any]) -> dict[str, Any]:
    """The config without offload_param if the stage is below 3, where many configs have it and
    DeepSpeed ignores it."""
    zero = expand_dotted(values).get("zero_optimization")
    if not isinstance(zero, dict) or zero.get("stage", 0) not in (0, 1, 2):
        return values
    section = zero.get("offload_param")
    if not isinstance(section, dict) or section.get("device", "none") in ("none", None):
        return values
    logging.getLogger("artesian").warning(
        "zero_optimization.offload_param: has no effect at zero_optimization.stage %d, where "
        "parameters are resident; it has at stage 3",
        zero.get("stage", 0),
    )
    rest = {key: value for key, value in zero.items() if key != "offload_param"}
    return {**expand_dotted(values), "zero_optimization": rest}


def nvme_paths(values: dict[str, Any]) -> list[tuple[dict[str, Any], list[str]]]:
    """The sections of an expanded config that name folders on NVMe, with those folders."""
    zero = values.get("zero_optimization")
    found = []
    for name in ("offload_param", "offload_optimizer"):
        section = zero.get(name) if isinstance(zero, dict) else None
        path = section.get("nvme_path") if isinstance(section, dict) else None
        if path and section is not None and section.get("device") == "nvme":
            paths = path.split(",") if isinstance(path, str) else list(path)
            found.append((section, [os.fspath(each).strip() for each in paths]))
    return found


def folders_of(values: dict[str, Any]) -> set[str]:
    """The NVMe folders in an expanded config."""
    return {os.path.realpath(path) for _, paths in nvme_paths(values) for path in paths}


def with_own_folders(values: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    """The expanded config; if other engines use one of its NVMe folders, with a separate folder
    below each."""
    for number in itertools.count(1):
        result = expand_dotted(copy.deepcopy(values))
        if number > 1:
            for section, paths in nvme_paths(result):
                section["nvme_path"] = ",".join(f"{path}/engine-{number}" for path in paths)
        if not folders_of(result) & taken:
            break
    return result


# Bounds in elements, which trainers compute from the hidden size: 0.9 * 36 * 36.
BOUNDS = (
    "allgather_bucket_size",
    "reduce_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
)


def whole_numbers(value: Any) -> Any:
    """Converts floats that are integers, such as 0.9 * 1e9, to integers, and rounds bounds down."""
    if isinstance(value, dict):
        return {
            key: int(element)
            if key in BOUNDS and isinstance(element, float) and math.isfinite(element)
            else whole_numbers(element)
            for key, element in value.items()
        }
    if isinstance(value, list | tuple):
        return [whole_numbers(element) for element in value]
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1e6:
        return int(value)
    return value


def values_of(config: ConfigLike) -> tuple[dict[str, Any], str]:
    """The config as a dict, and its name in messages."""
    if isinstance(config, dict):
        return config, "config"
    given = os.fspath(config)
    path = "config"
    if not given.lstrip().startswith("{"):
        path = given
        with open(path, encoding="utf-8") as file:
            given = file.read()
    values = _C.read_json(given, path)
    if not isinstance(values, dict):
        raise InvalidError(f"{path}: got {values!r}, allowed an object {{...}}")
    return values, path


def read_config(
    values: dict[str, Any],
    path: str,
    *,
    hidden_size: int | None = None,
    note_unknown_keys: bool = False,
    ranks: int = 1,
) -> _C.Config:
    """The engine's configuration. Batch sizes that are missing or "auto" become one, as the loop
    decides them. `note_unknown_keys`: unknown keys are noted instead of being errors. `ranks`:
    number of ranks that share a batch."""
    values = whole_numbers(expand_dotted(values))
    section = values.get("artesian")
    if isinstance(section, dict):  # the device is read by devices.py
        values["artesian"] = {key: value for key, value in section.items() if key != "device"}
    if values.get("steps_per_print") == float("inf"):
        del values["steps_per_print"]
    given = {key for key in BATCH_KEYS if values.get(key, "auto") != "auto"}
    micro_batch = 1 if not given & {*BATCH_KEYS[:2]} else None
    accumulation = 1 if not given & {BATCH_KEYS[0], BATCH_KEYS[2]} else None
    return _C.parse_config(
        json.dumps(values, default=str),
        path,
        micro_batch=micro_batch,
        accumulation=accumulation,
        hidden_size=hidden_size,
        note_unknown_keys=note_unknown_keys,
        ranks=ranks,
    )


def torch_dtype(name: str) -> torch.dtype:
    return DTYPES[name]


class ConfigFacts:
    """Attributes that programs read from a parsed DeepSpeed config."""

    def __init__(self, values: _C.Config, given: dict[str, Any]) -> None:
        self._param_dict = given
        self.train_batch_size = values.train_batch_size
        self.train_micro_batch_size_per_gpu = values.micro_batch_size
        self.gradient_accumulation_steps = values.accumulation_steps
        self.zero_optimization_stage = values.stage
        self.zero_enabled = values.stage > 0
        self.float16_config = self.bfloat16_config = None
        self.fp16_enabled = values.param_dtype == "fp16"
        self.bfloat16_enabled = values.param_dtype == "bf16"
        self.gradient_clipping = values.gradient_clipping
