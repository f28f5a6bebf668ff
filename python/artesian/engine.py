"""Engine: a model whose parameters and optimizer state live in tiers; the loop is the caller's."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from artesian.config import ConfigLike, read_config, torch_dtype
from artesian.errors import InvalidError
from artesian.hooks import Hooks
from artesian.native import _C
from artesian.optim import AdamW, facade, section_of
from artesian.schedulers import ConfigSchedule
from artesian.units import make_plan, other_tensors

Scheduler = LRScheduler | Callable[[torch.optim.Optimizer], LRScheduler]


def close(core: _C.Engine, hooks: Hooks, process: int) -> None:
    """Ends an engine, of which nothing stays on the disk; in a forked child, which has none of its
    threads and locks, nothing."""
    if os.getpid() != process:
        return
    hooks.remove()
    core.close()


class Engine(nn.Module):
    """Made by artesian.initialize(). Calls the model, and takes its steps."""

    def __init__(
        self, model: nn.Module, config: ConfigLike, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        super().__init__()
        plan = make_plan(model)
        if not plan.parameters:
            raise InvalidError("model: got no trainable parameter, allowed 1 and more")
        defaults = None if optimizer is None else {"optimizer": section_of(optimizer)}
        hidden_size = getattr(getattr(model, "config", None), "hidden_size", None)
        self.config_values = read_config(config, defaults=defaults, hidden_size=hidden_size)
        numbers = {name: index for index, name in enumerate(plan.parameters)}
        stages = [
            (unit.name or "model", [numbers[name] for name in unit.parameters])
            for unit in plan.units
        ]
        self._core = _C.Engine(
            self.config_values,
            list(plan.parameters.items()),
            stages,
            other_tensors(model, plan),
        )
        self._numbers = {id(p): numbers[name] for name, p in plan.parameters.items()}
        self._hooks = Hooks(self._core, plan, torch_dtype(self.config_values.param_dtype))
        # Also when the engine is collected, and at the interpreter's end.
        self._close = weakref.finalize(self, close, self._core, self._hooks, os.getpid())
        self.module = model
        if isinstance(optimizer, AdamW):
            self.optimizer = optimizer
        else:
            groups = [{"params": list(plan.parameters.values())}]
            if optimizer is not None:
                groups = [
                    {"params": [p for p in group["params"] if id(p) in self._numbers]}
                    for group in optimizer.param_groups
                ]
            self.optimizer = facade(self.config_values.optimizer, groups)
        self.optimizer.attach(self)
        self.lr_scheduler: LRScheduler | None = None
        self.global_steps = 0
        self.micro_steps = 0
        self.skipped_steps = 0
        self._boundary: bool | None = None
        self._last: dict[str, Any] | None = None

    # Calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        depth = self._core.depth
        try:
            return self.module(*args, **kwargs)
        finally:
            if self._core.depth > depth:  # Ctrl-C: torch has not called the hooks
                self._hooks.unwind()

    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Gradients of the loss, divided by the accumulation steps, times the loss scale."""
        if loss.numel() != 1 or not loss.requires_grad:
            raise InvalidError(
                f"backward(loss): got a tensor of shape {tuple(loss.shape)} with requires_grad="
                f"{loss.requires_grad}, allowed one number that depends on parameters"
            )
        steps = self.config_values.accumulation_steps if scale_wrt_gas else 1
        self._core.begin_backward(loss.detach().item())
        scale = torch.full_like(loss, self._core.loss_scale / steps)
        try:
            torch.autograd.backward(loss, scale, retain_graph=retain_graph)
        except BaseException:
            self._core.backward_ended(True)  # raises what the engine ran into, if it was that
            raise
        self._core.backward_ended(False)
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss as a bare backward() needs it."""
        return loss * self._core.loss_scale

    def step(self) -> None:
        """At the end of an accumulation, the optimizer's step and the scheduler's; else nothing."""
        if self.is_gradient_accumulation_boundary():
            self.optimizer.step()
            if self.lr_scheduler is not None and not self.optimizer.overflow:
                self.lr_scheduler.step()
        self.micro_steps += 1

    def take_step(self) -> None:
        """One optimizer step over all gradients since the last one."""
        self._last = self._core.step(self.optimizer.learning_rate())
        self.optimizer.overflow = self._last["overflow"]
        self.global_steps += 1
        self.skipped_steps += self._last["overflow"]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients since the last step; after a pass that broke off, goes on from there."""
        self._core.zero_gradients()

    # What a loop asks

    def is_gradient_accumulation_boundary(self) -> bool:
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.config_values.accumulation_steps == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self._boundary = is_boundary

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield

    def get_global_grad_norm(self) -> float | None:
        """Of the last step, before clipping."""
        return None if self._last is None else self._last["grad_norm"]

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    @property
    def loss_scale(self) -> float:
        return self._core.loss_scale

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def global_samples(self) -> int:
        return self.global_steps * self.train_batch_size()

    def train_batch_size(self) -> int:
        return self.config_values.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.config_values.micro_batch_size

    def gradient_accumulation_steps(self) -> int:
        return self.config_values.accumulation_steps

    def zero_optimization_stage(self) -> int:
        return self.config_values.stage

    @property
    def last_step(self) -> dict[str, Any] | None:
        """What the last optimizer step did: loss, lr, grad_norm, overflow, bytes and more."""
        return self._last

    def full_parameter(self, parameter: nn.Parameter) -> torch.Tensor:
        """A copy of a parameter's master weights, fp32."""
        number = self._numbers.get(id(parameter))
        if number is None:
            raise InvalidError("full_parameter: this is no parameter of the engine's")
        return self._core.read_parameter(number)

    def digest(self) -> str:
        """XXH3-128 over names, master weights and moments: the same for every placement."""
        return self._core.digest()

    def destroy(self) -> None:
        """Closes the engine: nothing stays on the disk, and the parameters have no memory."""
        self._close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Scheduler | None = None,
    config: ConfigLike | None = None,
    config_params: ConfigLike | None = None,
) -> tuple[Engine, AdamW, Any, LRScheduler | None]:
    """Takes a model over, and returns engine, optimizer, data loader and scheduler.

    The model's parameters must be in memory, on the CPU; from here on the engine has them. Without
    an optimizer the config's section says which it is.
    """
    if model is None:
        raise InvalidError("initialize(model=...): got none, allowed a torch.nn.Module")
    chosen = config if config is not None else config_params
    if chosen is None:
        chosen = getattr(args, "deepspeed_config", None)
    if chosen is None:
        raise InvalidError("initialize(config=...): got none, allowed a dict, path or JSON text")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        parameters = model_parameters
        if parameters is None:
            parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizer(parameters)
    engine = Engine(model, chosen, optimizer)
    if isinstance(lr_scheduler, LRScheduler):
        engine.lr_scheduler = lr_scheduler
    elif lr_scheduler is not None:
        engine.lr_scheduler = lr_scheduler(engine.optimizer)
    elif engine.config_values.has_schedule:
        engine.lr_scheduler = ConfigSchedule(engine.optimizer, engine.config_values)
    loader = None
    if training_data is not None:
        loader = torch.utils.data.DataLoader(
            training_data, batch_size=engine.train_micro_batch_size_per_gpu()
        )
    return engine, engine.optimizer, loader, engine.lr_scheduler
