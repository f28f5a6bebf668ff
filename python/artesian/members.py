"""Attributes and methods that training programs use besides those of a loop, under DeepSpeed's
names."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from artesian.config import ConfigFacts
from artesian.errors import AssertedError, InvalidError, UnsupportedError
from artesian.units import find_blocks

if TYPE_CHECKING:
    from artesian.native import _C
    from artesian.optim import TieredOptimizer
    from artesian.ranks import Ranks


def call_with(model: Callable[..., Any], batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, list | tuple) else model(batch)


def loss_of(model: Callable[..., Any], batch: Any) -> torch.Tensor:
    result = call_with(model, batch)
    loss = getattr(result, "loss", None)
    if loss is None:
        loss = result[0] if isinstance(result, list | tuple) else result
    if not isinstance(loss, torch.Tensor):
        raise InvalidError(
            f"the model returned {type(loss).__name__}, allowed a loss: a tensor, the first of "
            "several values, or the attribute loss"
        )
    return loss


class Members(nn.Module):
    """Base class of Engine."""

    if TYPE_CHECKING:  # declared for type checking: Engine defines what is used here
        config: dict[str, Any]
        config_values: _C.Config
        module: nn.Module
        optimizer: TieredOptimizer
        param_dtype: torch.dtype
        ranks: Ranks
        micro_steps: int
        _accumulation_steps: int
        _micro_batch_size: int
        _stepped: bool

        def __getattr__(self, name: str) -> Any: ...

    @property
    def planned_memory(self) -> dict[str, int]:
        """Bytes that the engine has reserved in this process on the device ("device"; on a CPU its
        share of memory), in host memory ("host") and on disks ("nvme"): all of its state and
        buffers, without activations and without gradients that PyTorch still holds."""
        planned: dict[str, int] = self._core.planned_memory
        return planned

    _within_no_sync = False

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Has no effect: gradients are exchanged once a step's micro-batches are done. Under
        DeepSpeed's name it is refused where DeepSpeed refuses it."""
        if self.manner.name != "DEEPSPEED":
            yield
            return
        stage = self.zero_optimization_stage()
        if stage >= 2:
            raise AssertedError(
                "no_sync context manager is incompatible with gradient partitioning logic of ZeRO "
                f"stage {stage}; leave it out: gradients accumulate without it"
            )
        if self._within_no_sync:
            raise AssertedError("no_sync context manager reentry is unsupported")
        self._within_no_sync = True
        try:
            yield
        finally:
            self._within_no_sync = False

    def refuse_within_no_sync(self) -> None:
        if self._within_no_sync:
            raise AssertedError(
                "It is illegal to call Engine.step() inside no_sync context manager; call it after"
            )

    def _leave_trainer(self) -> None:
        """A Trainer that starts training makes accelerate close the engine of its previous training
        or evaluation, and would then call that engine again. This makes it wrap its model again.
        Source: Trainer._inner_training_loop, which calls Accelerator.free_memory, which calls
        destroy()."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            owner: Any = frame.f_locals.get("self")
            if getattr(owner, "__dict__", {}).get("model_wrapped") is self:
                owner.model_wrapped = self.module
                return
            frame = frame.f_back

    mp_world_size = 1
    mpu: Any = None
    training_dataloader: Any = None
    _training_batches: Iterator[Any] | None = None
    collate_fn: Callable[..., Any] | None = None
    is_compiled = False
    _states_told = False

    # Ranks

    @property
    def global_rank(self) -> int:
        return self.ranks.rank

    @property
    def local_rank(self) -> int:
        return self.ranks.local_rank

    @property
    def world_size(self) -> int:
        return self.ranks.world_size

    @property
    def dp_world_size(self) -> int:
        return self.ranks.world_size

    # Compiling

    def compile(
        self,
        backend: Any = "inductor",
        compile_kwargs: dict[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
        **others: Any,
    ) -> None:
        """Applies torch.compile() to each of the model's blocks, between which parameters are
        gathered and released. `others`: further arguments of torch.compile(), as for
        nn.Module.compile."""
        if compiled_autograd_enabled:
            raise UnsupportedError("engine.compile: compiled_autograd_enabled is not supported")
        if schedule is not None:
            raise UnsupportedError("engine.compile: a schedule of passes is not supported")
        if self.is_compiled:
            return
        self.is_compiled = True
        blocks = find_blocks(self.module)
        if not blocks:
            logging.getLogger("artesian").warning(
                "engine.compile: has no effect: the model has no blocks, lists of modules of one "
                "class, which are what is compiled; set_z3_leaf_modules() names some"
            )
        arguments = {"backend": backend, **(compile_kwargs or {}), **others}
        for block in blocks.values():
            block.forward = torch.compile(block.forward, **arguments)

    # State as a whole

    def _consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.consolidated_state_dict(exclude_frozen_parameters)
        return state

    def module_state_dict(
        self,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, torch.Tensor]:
        """consolidated_state_dict() with a prefix to the names."""
        state = self.consolidated_state_dict(exclude_frozen_parameters)
        result = {} if destination is None else destination
        result.update({prefix + name: tensor for name, tensor in state.items()})
        return result

    def load_module_state_dict(
        self,
        state_dict: dict[str, Any],
        strict: bool = True,
        custom_load_fn: Any = None,
        fetch_z3_params: bool = False,
    ) -> None:
        """Replaces the model's weights by these, or by those under the key "module"; keeps the
        moments."""
        from artesian.zero import GatheredParameters

        if custom_load_fn is not None:
            raise UnsupportedError("load_module_state_dict: custom_load_fn is not supported")
        state = state_dict.get("module", state_dict)
        with GatheredParameters(self.module.parameters(), modifier_rank=0):
            self.module.load_state_dict(state, strict=strict)

    def save_fp16_model(
        self, save_dir: str | os.PathLike[str], save_filename: str = "pytorch_model.bin"
    ) -> bool:
        saved: bool = self.save_16bit_model(save_dir, save_filename)
        return saved

    def offload_states(
        self,
        include: Any = None,
        device: Any = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Does nothing: no state is on a GPU that another program could use, as states are in the
        config's tiers."""
        if not self._states_told:
            self._states_told = True
            logging.getLogger("artesian").info(
                "offload_states, reload_states: have no effect: states are in the tiers that the "
                "config names, and none of them on a GPU"
            )

    def reload_states(self, non_blocking: bool = False) -> None:
        """Does nothing, as offload_states() does not move states."""

    def empty_partition_cache(self) -> None:
        """Does nothing: only what a step needs is kept."""

    @contextlib.contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """Allows several backwards before one step. Has no effect, since gradients are added as
        they arrive."""
        self.refuse_unmanaged("coalesce_grad_reduction")
        yield

    # Batches

    _boundary: bool | None = None  # the caller's, if given
    _backwards = 0  # since the last step
    _samples_beside = 0  # of all steps, beside their number times the batch size

    def managed_gradient_accumulation(self) -> bool:
        """False if the config lets each step() make an optimizer step, after any number of
        backwards."""
        return bool(self.config_values.managed_gradient_accumulation)

    def is_gradient_accumulation_boundary(self) -> bool:
        if not self.managed_gradient_accumulation():
            return True
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self._accumulation_steps == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.refuse_unmanaged("set_gradient_accumulation_boundary")
        self._boundary = is_boundary

    def refuse_unmanaged(self, call: str) -> None:
        if not self.managed_gradient_accumulation():
            raise AssertedError(
                f"{call}: not allowed with managed_gradient_accumulation false, where each step() "
                "is a boundary; leave it out"
            )

    def count_samples(self) -> None:
        """Called behind each optimizer step."""
        if not self.managed_gradient_accumulation():
            micro = self._micro_batch_size * self.world_size
            self._samples_beside += self._backwards * micro - self.train_batch_size()
        self._backwards = 0

    def was_step_applied(self) -> bool:
        """True if the last step() made an optimizer step that was not skipped."""
        return self._stepped and not self.optimizer.overflow

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Sets the batch size by changing the number of micro-batches, from the next accumulation
        on."""
        micro = self.train_micro_batch_size_per_gpu() * self.world_size
        if train_batch_size <= 0 or train_batch_size % micro:
            of_all = " of all ranks" if self.world_size > 1 else ""
            raise InvalidError(
                f"set_train_batch_size: got {train_batch_size}, allowed a multiple of the "
                f"micro-batch size{of_all}, {micro}"
            )
        self._accumulation_steps = train_batch_size // micro

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Sets the size of the loop's batches from now on; the number of batches per step is
        kept."""
        if micro_batch_size <= 0:
            raise InvalidError(
                f"set_train_micro_batch_size: got {micro_batch_size}, allowed 1 and more"
            )
        self._micro_batch_size = micro_batch_size

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        num_local_io_workers: int | None = None,
    ) -> torch.utils.data.DataLoader[Any]:
        """A loader of micro-batches: shuffled for training, in order for evaluation. With several
        ranks each gets its part of the dataset, as with DistributedSampler."""
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if self.world_size > 1 and data_sampler is None and not iterable:
            data_sampler = torch.utils.data.DistributedSampler(
                dataset,
                num_replicas=self.world_size,
                rank=self.global_rank,
                shuffle=route == "train",
            )
        return torch.utils.data.DataLoader(
            dataset,
            batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            shuffle=route == "train" and data_sampler is None and not iterable,
            sampler=data_sampler,
            collate_fn=collate_fn or self.collate_fn,
            num_workers=num_local_io_workers or 0,
        )

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> torch.Tensor:
        """Makes one step with the micro-batches of one accumulation, from the iterator or else from
        the engine's own loader, which restarts at its end. A batch that is a tuple, list or dict is
        passed to the model as arguments; the model returns the loss, alone, first in a tuple, or as
        `loss`. Returns the mean loss."""
        if data_iter is None:
            data_iter = self._own_batches()
        self.train()
        losses = []
        for _ in range(self.gradient_accumulation_steps()):
            loss = loss_of(self, next(data_iter))
            self.backward(loss)
            self.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def eval_batch(self, data_iter: Iterator[Any], compute_loss: bool = True) -> Any:
        """The loss of the iterator's next batch, without gradients; `compute_loss` False: the
        model's whole result. Restores the training mode afterwards."""
        trained = self.training
        self.eval()
        try:
            with torch.no_grad():
                batch = next(data_iter)
                return loss_of(self, batch) if compute_loss else call_with(self, batch)
        finally:
            self.train(trained)

    def _own_batches(self) -> Iterator[Any]:
        loader = self.training_dataloader
        if loader is None:
            raise InvalidError(
                "train_batch(data_iter): got none, allowed an iterator of batches, or "
                "initialize(training_data=...)"
            )
        if self._training_batches is None:
            self._training_batches = (batch for _ in itertools.count() for batch in loader)
        return self._training_batches

    # Values from the config

    def get_mom(self) -> list[Any]:
        groups = self.optimizer.param_groups
        return [group.get("betas", group.get("momentum")) for group in groups]

    def get_type(self) -> list[Any]:
        return [group.get("type") for group in self.optimizer.param_groups]

    def optimizer_name(self) -> str:
        return self.optimizer.type_name().lower()

    def fp16_enabled(self) -> bool:
        return self.param_dtype == torch.float16

    def bfloat16_enabled(self) -> bool:
        return self.param_dtype == torch.bfloat16

    @property
    def _config(self) -> ConfigFacts:
        return ConfigFacts(self.config_values, self.config)

    def gradient_clipping(self) -> float:
        return self._config.gradient_clipping

    def steps_per_print(self) -> Any:
        return self.config.get("steps_per_print", 10)

    def wall_clock_breakdown(self) -> bool:
        return False

    def dump_state(self) -> bool:
        return False
