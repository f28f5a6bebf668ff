"""Configurations: a dict, a path or a JSON text becomes the engine's."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from artesian.errors import InvalidError
from artesian.native import _C

ConfigLike = dict[str, Any] | str | os.PathLike[str]

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def expand_dotted(values: dict[str, Any]) -> dict[str, Any]:
    """Keys such as "zero_optimization.reduce_bucket_size" go into their sections."""
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


def whole_numbers(value: Any) -> Any:
    """Floats that are integers, such as 0.9 * 1e9, as integers."""
    if isinstance(value, dict):
        return {key: whole_numbers(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [whole_numbers(element) for element in value]
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1e6:
        return int(value)
    return value


def text_of(config: ConfigLike) -> tuple[str, str]:
    """The JSON text, and what messages call it."""
    if isinstance(config, dict):
        values = whole_numbers(expand_dotted(config))
        if values.get("steps_per_print") == float("inf"):
            del values["steps_per_print"]
        return json.dumps(values, default=str), "config"
    given = os.fspath(config)
    if given.lstrip().startswith("{"):
        return given, "config"
    with open(given, encoding="utf-8") as file:
        return file.read(), given


def read_config(
    config: ConfigLike, *, defaults: dict[str, Any] | None = None, hidden_size: int | None = None
) -> _C.Config:
    """The engine's configuration. `defaults`: sections for where the config has none. A config that
    says nothing of batches has micro-batches of one sample, one a step: the loop decides."""
    text, path = text_of(config)
    named = any(f'"{key}"' in text for key in BATCH_KEYS)
    if defaults:
        values = json.loads(text)
        missing = {key: value for key, value in defaults.items() if key not in values}
        if missing:
            text = json.dumps({**values, **missing})
    count = None if named else 1
    return _C.parse_config(
        text, path, micro_batch=count, accumulation=count, hidden_size=hidden_size
    )


def torch_dtype(name: str) -> torch.dtype:
    return DTYPES[name]
