"""deepspeed.checkpointing: activation checkpointing by PyTorch's own function, bit for bit.
DeepSpeed's other settings for it are not applied: if one is set, the log says why, once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from artesian.config import expand_dotted, values_of
from artesian.errors import MissingError

SECTION = "activation_checkpointing"
# The effect of each setting here.
EFFECTS = {
    "partition_activations": "has no effect: there is one process to keep activations",
    "contiguous_memory_optimization": "has no effect: PyTorch's allocator keeps activations",
    "number_checkpoints": "has no effect: it belongs to contiguous_memory_optimization",
    "cpu_checkpointing": "is so already: what a checkpoint keeps is in host memory",
    "synchronize_checkpoint_boundary": "has no effect on the CPU",
    "profile": "has no effect; use torch.profiler",
}

configured = False
told: set[str] = set()


def tell(settings: dict[str, Any]) -> None:
    for name, effect in EFFECTS.items():
        if settings.get(name) and name not in told:
            told.add(name)
            logging.getLogger("artesian").info("%s.%s: %s", SECTION, name, effect)


def configure(
    mpu_: Any,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Nothing needs to be configured. `mpu_`: ignored."""
    global configured
    settings: dict[str, Any] = {}
    if deepspeed_config is not None:
        settings.update(expand_dotted(values_of(deepspeed_config)[0]).get(SECTION, {}))
    given = {
        "partition_activations": partition_activations,
        "contiguous_memory_optimization": contiguous_checkpointing,
        "number_checkpoints": num_checkpoints,
        "cpu_checkpointing": checkpoint_in_cpu,
        "synchronize_checkpoint_boundary": synchronize,
        "profile": profile,
    }
    settings.update({name: value for name, value in given.items() if value is not None})
    contiguous = settings.get("contiguous_memory_optimization")
    if contiguous and settings.get("number_checkpoints") is None:
        raise MissingError(
            f"{SECTION}.number_checkpoints: got none, allowed the number of layers where "
            "contiguous_memory_optimization is set; leave both out, they have no effect here"
        )
    tell(settings)
    configured = True


def is_configured() -> bool:
    return configured


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch.utils.checkpoint.checkpoint, reentrant like DeepSpeed's. Tensors passed by keyword get
    gradients, too. Returns the function's result, but the element itself instead of a tuple with
    one element."""
    names = tuple(kwargs)

    def positional(*values: Any) -> Any:
        count = len(values) - len(names)
        return function(*values[:count], **dict(zip(names, values[count:], strict=True)))

    result = torch_checkpoint(positional, *args, *kwargs.values(), use_reentrant=True)
    return result[0] if isinstance(result, tuple) and len(result) == 1 else result


def non_reentrant_checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    result = torch_checkpoint(function, *args, use_reentrant=False)
    return result[0] if isinstance(result, tuple) and len(result) == 1 else result


def reset() -> None:
    """Nothing to reset: nothing is kept between passes."""


def set_num_layers(nlayers: int) -> None:
    """For contiguous_memory_optimization; no effect."""


def partition_activations_in_checkpoint(partition_activation: bool) -> None:
    tell({"partition_activations": partition_activation})


def detach_variable(inputs: Any, device: Any = None) -> tuple[Any, ...]:
    """The tuple with its tensors detached; requires_grad is kept."""
    if not isinstance(inputs, tuple):
        raise RuntimeError(
            f"detach_variable: got {type(inputs).__name__}, allowed a tuple of tensors and others"
        )

    def detached(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        moved = value if device is None else value.to(device)
        return moved.detach().requires_grad_(value.requires_grad)

    return tuple(detached(value) for value in inputs)


class RNGStatesTracker:
    """States of PyTorch's generators by name; each continues where it stopped."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        self.states_.clear()
        self.seeds_.clear()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        if seed in self.seeds_ or name in self.states_:
            raise Exception(f"{name}, seed {seed}: got one that is there already")
        self.seeds_.add(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.states_[name] = torch.get_rng_state()

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        if name not in self.states_:
            raise Exception(f"{name}: got no such state; add() it")
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()


TRACKER = RNGStatesTracker()


def get_cuda_rng_tracker() -> RNGStatesTracker:
    return TRACKER


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seeds the generator, and a separate state for regions of model parallelism."""
    TRACKER.reset()
    torch.manual_seed(seed)
    TRACKER.add("model-parallel-rng", seed + 2718)


def model_parallel_reconfigure_tp_seed(seed: int) -> None:
    with TRACKER.fork():
        torch.manual_seed(seed + 2718)
