"""Engine: a model whose parameters and optimizer state live in tiers; the caller runs the loop."""

from __future__ import annotations

import enum
import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from artesian.checkpoint.zero_to_fp32 import other_weights
from artesian.config import (
    ConfigLike,
    expand_dotted,
    folders_of,
    read_config,
    torch_dtype,
    values_of,
    with_own_folders,
    without_param_offload,
)
from artesian.devices import check_inputs, choose_device, move_model
from artesian.dispatched import take_hooks_off
from artesian.errors import AssertedError, Error, InvalidError, UnsupportedError
from artesian.freezing import freeze, leave_out, thaw
from artesian.hooks import Hooks, Removable
from artesian.masters import SavedMasters
from artesian.members import Members
from artesian.native import _C
from artesian.optim import (
    AdamW,
    Constants,
    NoOptimizer,
    TieredOptimizer,
    facade,
    facade_of,
    groups_of,
    matrices_of,
    refuse_training,
    section_of,
)
from artesian.ranks import ranks_of
from artesian.saving import load, save
from artesian.schedulers import schedule_of, take_rates
from artesian.shares import Share, give_back, now_of, shares_for, values_after
from artesian.state import (
    SMALL,
    AsStored,
    check_shape,
    consolidated_state_dict,
    empty_in_file,
)
from artesian.tables import find_tables, stages_of
from artesian.trackers import Trackers
from artesian.units import Plan, make_plan, other_tensors
from artesian.zero import engine_of, spool_folder

Scheduler = LRScheduler | Callable[[torch.optim.Optimizer], LRScheduler]


LIVE: weakref.WeakSet[Engine] = weakref.WeakSet()


class Manner(enum.Enum):
    """Whose semantics apply where DeepSpeed and torch differ. In DeepSpeed's manner, unknown config
    keys are ignored with a warning, and parameters without a gradient are updated with a gradient
    of zero. In the native manner, unknown keys are an error, and parameters without a gradient are
    skipped, as in torch.optim."""

    NATIVE = "native"
    DEEPSPEED = "deepspeed"


def close(core: _C.Engine, handles: list[Removable], process: int) -> None:
    """Closes an engine, which leaves nothing on the disk. Does nothing in a forked child, which has
    none of the engine's threads and locks. The arguments refer neither to the model nor to the
    engine."""
    if os.getpid() != process:
        return
    for handle in handles:
        handle.remove()
    core.close()


def _constants_of(
    optimizer: weakref.ref[TieredOptimizer],
) -> Callable[[], list[Constants]]:
    """Returns a function that returns the constants of the next step, called when its last backward
    begins."""

    def constants() -> list[Constants]:
        alive = optimizer()
        return [] if alive is None else alive.constants()

    return constants


def as_state(values: torch.Tensor) -> torch.Tensor:
    return values.detach().to("cpu", torch.float32).contiguous()


def check_model(model: nn.Module, plan: Plan) -> None:
    """Refuses models that would train to wrong numbers, or not at all."""
    for option in ("is_loaded_in_8bit", "is_loaded_in_4bit", "is_quantized"):
        if getattr(model, option, False):
            raise UnsupportedError(
                f"model: got quantized weights ({option} is True), allowed fp32, fp16 or bf16; "
                "load it without load_in_8bit, load_in_4bit and quantization_config: parameters "
                "on NVMe take 2 bytes each there, and no memory"
            )
    empty = [name for name, parameter in plan.parameters.items() if parameter.is_meta]
    if empty:
        raise InvalidError(
            f"model: got {len(empty)} parameters on the device meta, without values, allowed cpu: "
            + ", ".join(empty[:5])
            + (", ..." if len(empty) > 5 else "")
        )
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None and isinstance(
            module, nn.Embedding | nn.EmbeddingBag
        ):
            raise UnsupportedError(
                f'model: "{name}": {type(module).__name__}(max_norm=...) changes its weight '
                "in each forward, which is not supported; make it with max_norm=None"
            )


class Engine(Members):
    """Made by artesian.initialize(). Runs the model and its optimizer steps."""

    def __init__(
        self,
        model: nn.Module,
        config: ConfigLike,
        optimizer: torch.optim.Optimizer | None = None,
        model_parameters: Any = None,
        manner: Manner = Manner.NATIVE,
        adam: Callable[[dict[str, Any]], type[AdamW]] = lambda config: AdamW,
        device: torch.device | None = None,
        group: Any = None,
    ) -> None:
        super().__init__()
        self._adam = adam
        self._device = device or torch.device("cpu")
        self.manner = manner
        self.ranks, self._group = ranks_of(group), group
        plan = make_plan(model)
        check_model(model, plan)
        trainable = {name: p for name, p in plan.parameters.items() if p.requires_grad}
        hidden_size = getattr(getattr(model, "config", None), "hidden_size", None)
        self._read(config, optimizer, hidden_size)
        numbers = {name: index for index, name in enumerate(plan.parameters)}
        # With a device, gradients of tables are computed like all others.
        tables = find_tables(model, plan) if self._device.type == "cpu" else {}
        move_model(model, self._device)
        self.optimizer = self._facade_for(optimizer, model, trainable, model_parameters)
        self._core = _C.Engine(
            self.config_values,
            parameters=list(plan.parameters.items()),
            groups=groups_of(self.optimizer, plan.parameters),
            group_count=max(1, len(self.optimizer.param_groups)),
            skip_unreached=self.skips_unreached,
            divides_own_losses=manner is Manner.DEEPSPEED,
            stages=stages_of(plan, tables, numbers),
            tables=[numbers[name] for name in tables],
            matrices=[numbers[n] for n in matrices_of(self.optimizer, plan.parameters, tables)],
            others=other_tensors(model, plan),
            device=str(self._device),
            engines=self._engines_here(),
            constants=_constants_of(weakref.ref(self.optimizer)),
            group=self.ranks.group,
            shares=shares_for(plan.parameters, self.ranks),
        )
        self.saved_masters = SavedMasters(self.config_values.nvme_path, self.param_dtype)
        self._managed = list(plan.parameters.values())
        self._numbers = {id(p): numbers[name] for name, p in plan.parameters.items()}
        now_of(self, plan.parameters)
        self.resident = self._core.resident
        # True if each rank has a part of the parameters
        self.divides_parameters = self._core.divides_parameters
        self._looks = {numbers[n]: (p.dtype, p.shape) for n, p in plan.parameters.items()}
        self._hooks = self._make_hooks(model, plan, tables)
        self.monitor = Trackers(expand_dotted(self.config) if self.ranks.first else {})
        self._hooks.handles.append(self.monitor)
        # The finalizer closes the engine when it is collected and when the interpreter exits. It
        # compares process ids, so that a forked child leaves its parent's engine open.
        self._process = os.getpid()
        self._close = weakref.finalize(self, close, self._core, self._hooks.handles, self._process)
        self.module = model
        LIVE.add(self)
        self.optimizer.attach(self)
        self.lr_scheduler: LRScheduler | None = None
        self.global_steps = 0
        self.micro_steps = 0
        self.skipped_steps = 0
        self._frozen: list[nn.Parameter] = []  # kept for the engine's lifetime
        self._accumulation_steps = self.config_values.accumulation_steps
        self._micro_batch_size = self.config_values.micro_batch_size
        self._stepped = False
        self._last: dict[str, Any] | None = None

    def _read(
        self, config: ConfigLike, optimizer: torch.optim.Optimizer | None, hidden_size: int | None
    ) -> None:
        """The config, with the given optimizer instead of its own."""
        values, path = values_of(config)
        self.config = values
        if optimizer is not None:
            values = {**values, "optimizer": section_of(optimizer)}
        if self.manner is Manner.DEEPSPEED:
            values = without_param_offload(values)
        values, self._rates = take_rates(values, zero_is_one=self.manner is Manner.DEEPSPEED)
        values = with_own_folders(values, set().union(*map(Engine._folders_of, list(LIVE))))
        self._folders = folders_of(values)
        self.config_values = read_config(
            values,
            path,
            hidden_size=hidden_size,
            note_unknown_keys=self.manner is Manner.DEEPSPEED,
            ranks=self.ranks.world_size,
        )
        self.param_dtype = torch_dtype(self.config_values.param_dtype)
        self._tell_notes()

    def _folders_of(self) -> set[str]:
        return set() if self.is_closed else self._folders

    def _engines_here(self) -> int:
        """The number of engines that share this machine's memory, including this one."""
        live = 1 + sum(not engine.is_closed for engine in list(LIVE))
        return live * self.ranks.local_world_size

    def _tell_notes(self) -> None:
        if not self.ranks.first:
            return
        for note in self.config_values.notes:
            ignored = ": ignored; unknown key" in note
            logging.getLogger("artesian").log(logging.WARNING if ignored else logging.INFO, note)

    def _facade_for(
        self,
        optimizer: torch.optim.Optimizer | None,
        model: nn.Module,
        trainable: dict[str, nn.Parameter],
        model_parameters: Any,
    ) -> TieredOptimizer:
        if not trainable:
            return NoOptimizer()
        if optimizer is not None:
            return optimizer if isinstance(optimizer, TieredOptimizer) else facade_of(optimizer)
        given = list(trainable.values()) if model_parameters is None else model_parameters
        return facade(self.config_values.optimizer, given, self._adam(self.config), model)

    def _make_hooks(
        self, model: nn.Module, plan: Plan, tables: dict[str, list[nn.Module]]
    ) -> Hooks:
        taking = weakref.WeakMethod(self.take_changes) if self.resident else None
        as_stored = AsStored(self._managed, self.param_dtype, self.config_values.nvme_path)
        return Hooks(
            self._core,
            model,
            plan,
            tables,
            self.param_dtype,
            taking,
            as_stored,
            gives_names=self.manner is Manner.DEEPSPEED,
        )

    # Calls

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        check_inputs(self._device, args, kwargs)
        depth = self._core.depth
        try:
            return self.module(*args, **kwargs)
        finally:
            if self._core.depth > depth:  # after Ctrl-C, torch has not called the hooks
                self._hooks.unwind()

    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True
    ) -> torch.Tensor:
        """Computes gradients of the loss / accumulation steps, times the loss scale."""
        if self.evaluates:
            raise refuse_training("backward(loss)")
        if loss.numel() != 1 or not loss.requires_grad:
            self._give_up()
            raise InvalidError(
                f"backward(loss): got a tensor of shape {tuple(loss.shape)} with requires_grad="
                f"{loss.requires_grad}, allowed one number that depends on parameters"
            )
        steps = self._accumulation_steps if scale_wrt_gas else 1
        # A caller that has divided by the accumulation steps passes a part of the loss; the
        # reported loss is the whole.
        self._core.begin_backward(loss.detach().item() * (self._accumulation_steps // steps))
        self._backwards += 1
        weight = steps * self.ranks.world_size  # mean over all ranks' micro-batches
        scale = torch.full_like(loss, self._core.loss_scale / weight)
        try:
            torch.autograd.backward(loss, scale, retain_graph=retain_graph)
        except BaseException:
            self._core.backward_ended(True)  # raises the engine's error, if that was the cause
            raise
        self._core.backward_ended(False)
        return loss

    def _give_up(self) -> None:
        """Gives up this micro-batch; other ranks learn of it when they have finished theirs."""
        if self.ranks.group is not None:
            self._core.begin_backward(0.0)
            self._core.backward_ended(True)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss for a backward() by the caller, which must run before the next step."""
        if self.evaluates:
            raise refuse_training("scale(loss)")
        if loss.numel() != 1:
            raise AssertedError(f"scale(loss): got {tuple(loss.shape)}, allowed a scalar tensor")
        self._core.scales_by_itself(loss.detach().item())
        return loss * self._core.loss_scale

    def step(self) -> None:
        """At the end of an accumulation, makes the optimizer's and the scheduler's step; otherwise
        does nothing."""
        if self.evaluates:
            raise refuse_training("step()")
        self.refuse_within_no_sync()
        self._stepped = self.is_gradient_accumulation_boundary()
        if self._stepped:
            self.optimizer.step()
            if self.lr_scheduler is not None and not self.optimizer.overflow:
                self.lr_scheduler.step()
        self.micro_steps += 1

    def take_step(self) -> None:
        """Makes one optimizer step over all gradients since the last one."""
        self.take_changes()
        self._last = self._core.step(self.optimizer.constants())
        self.saved_masters.clear()
        self.optimizer.overflow = self._last["overflow"]
        self.global_steps += 1
        self.skipped_steps += self._last["overflow"]
        self.count_samples()
        self.monitor.step(self._last, self.global_samples)

    def take_changes(self, values: bool = True) -> None:
        """Below stage 3, takes values that the caller has written into parameters as their master
        weights. `values` False: does not search for writes through `data`, which would need a pass
        over the parameters; a forward does not need that, as it reads the present values."""
        if not self.resident:
            return
        looks = {number: self._managed[number] for number in self._core.changed(values=values)}
        # A parameter with a changed dtype or shape is an error, which the next pass or step raises.
        changed = {n: p for n, p in looks.items() if (p.dtype, p.shape) == self._looks[n]}
        if not changed:
            return
        self.saved_masters.take_room(self, list(changed.values()))
        for number, parameter in changed.items():
            written = parameter.detach().clone()
            self._core.accept([number])
            self.saved_masters.write(self, parameter, written)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients since the last step; also repairs an interrupted pass."""
        self._core.zero_gradients()
        self._backwards = 0

    # Properties that loops read

    def get_global_grad_norm(self) -> float | None:
        """Norm in the last step, before clipping."""
        return None if self._last is None else self._last["grad_norm"]

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    @property
    def loss_scale(self) -> float:
        return self._core.loss_scale

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def global_samples(self) -> int:
        return self.global_steps * self.train_batch_size() + self._samples_beside

    def train_batch_size(self) -> int:
        return self._micro_batch_size * self._accumulation_steps * self.ranks.world_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._micro_batch_size

    def gradient_accumulation_steps(self) -> int:
        return self._accumulation_steps

    def zero_optimization_stage(self) -> int:
        return self.config_values.stage

    @property
    def skips_unreached(self) -> bool:
        """True if a step skips parameters without a gradient."""
        return self.manner is Manner.NATIVE

    @property
    def evaluates(self) -> bool:
        """True if there is nothing to train."""
        return isinstance(self.optimizer, NoOptimizer)

    @property
    def bytes_nvme_read(self) -> int:
        """Total over all passes and updates since the engine was created."""
        return self._core.bytes_nvme_read

    def planned_pass(self) -> int:
        """Planned bytes that an evaluation, or one token of a generation, reads from NVMe after
        similar ones: those of the parameters on NVMe that are not kept in memory."""
        return self._core.planned_pass()

    @property
    def last_step(self) -> dict[str, Any] | None:
        """Figures of the last optimizer step: loss, lr, grad_norm, overflow, bytes and more."""
        return self._last

    def manages(self, parameter: nn.Parameter) -> bool:
        """True if the engine manages the parameter's memory."""
        return id(parameter) in self._numbers

    def full_parameter(
        self, parameter: nn.Parameter, target: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A copy of a parameter's master weights: fp32, or in `target`, rounded to its dtype."""
        number = self._number(parameter)
        self.take_changes()
        return self._read_master(number, target)

    def _read_master(self, number: int, target: torch.Tensor | None) -> torch.Tensor:
        return self._core.read_state(number, "fp32", target)

    def full_state(
        self, parameter: nn.Parameter, kind: str, target: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A copy of a parameter's moment by its name (`moment_names`): fp32, or in `target`."""
        return self._core.read_state(self._number(parameter), kind, target)

    @property
    def moment_names(self) -> list[str]:
        """Names of the optimizer's moments: for Adam "exp_avg" and "exp_avg_sq"."""
        return list(dict.fromkeys(n for p in self._managed for n in self.moment_names_of(p)))

    def moment_names_of(self, parameter: nn.Parameter) -> list[str]:
        return self._core.moments(self._number(parameter))

    def moments(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Copies of a parameter's moments, in files on NVMe if the engine has a folder there."""
        folder = self.config_values.nvme_path
        result = {}
        for kind in self.moment_names_of(parameter):
            target = None
            if folder is not None and 4 * parameter.numel() >= SMALL:
                target = empty_in_file(parameter.shape, torch.float32, folder)
            result[kind] = self.full_state(parameter, kind, target)
        return result

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """A copy of a parameter's gradient since the last step, fp32; None if there is none."""
        return self._core.read_gradient(self._number(parameter))

    def set_full_gradient(self, parameter: nn.Parameter, values: torch.Tensor) -> None:
        """Replaces the parameter's gradient since the last step, rounded to the parameters' dtype;
        between `backward()` and `step()`."""
        number = self._number(parameter)
        check_shape("set_full_gradient", parameter, values)
        if not self._core.write_gradient(number, as_state(values)):
            raise InvalidError(
                "set_full_gradient: no backward has come since the last step; gradients are set "
                "between backward() and step()"
            )

    def set_full_state(
        self, parameter: nn.Parameter, values: torch.Tensor, kind: str = "fp32"
    ) -> None:
        """Replaces the parameter's master weights, or a moment; between two steps, or two
        micro-batches of one step."""
        number = self._number(parameter)
        check_shape("set_full_state", parameter, values)
        if kind == "fp32":
            self.take_changes()
            self.saved_masters.forget(number)
            self._write_master(number, values)
        else:
            self._core.write_state(number, kind, as_state(values))

    def _write_master(self, number: int, values: torch.Tensor) -> None:
        self._core.write_state(number, "fp32", as_state(values))

    def _number(self, parameter: nn.Parameter) -> int:
        number = self._numbers.get(id(parameter))
        if number is None:
            raise InvalidError("this is no parameter of the engine's")
        return number

    def consolidated_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, torch.Tensor]:
        """The model's state_dict(), with parameters in their stored dtype; if the engine has a
        folder on NVMe, in mapped files there, so that it need not fit into memory."""
        self.take_changes()
        return consolidated_state_dict(self, exclude_frozen_parameters)

    _zero3_consolidated_16bit_state_dict = consolidated_state_dict

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        section = self.config.get("zero_optimization", {})
        names = ("stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save")
        return any(section.get(name) is True for name in names)

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves consolidated_state_dict() with torch.save."""
        folder = Path(save_dir)
        state = self.consolidated_state_dict(exclude_frozen_parameters)
        if not self.ranks.first:
            return True
        folder.mkdir(parents=True, exist_ok=True)
        if others := other_weights(folder, {save_filename}):
            logging.getLogger("artesian").warning(
                "save_16bit_model: %s has %s, too, which loaders may take in place of %s",
                folder, ", ".join(others), save_filename,
            )  # fmt: skip
        torch.save(state, folder / save_filename)
        return True

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves everything that the next step depends on, between two steps, in the folder
        `save_dir`/`tag`, by default "global_stepN"; returns when it is durable.

        `client_state`: numbers, texts, tensors, arrays, and lists and dicts of these, which
        load_checkpoint() returns. `save_latest` False: `latest` is not changed, so the tag must be
        given to load it. `exclude_frozen_parameters`: the loading program must have them.
        """
        self.take_changes()
        replace_any = self.manner is Manner.DEEPSPEED
        save(self, save_dir, tag, client_state, exclude_frozen_parameters, replace_any, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any]]:
        """Continues the training from a checkpoint, by default that of `load_dir`/latest, saved
        with any placement; between two steps. Returns its folder and the client state; (None, {})
        if there is no `latest`.

        `load_module_strict` False: parameters missing in either the model or the checkpoint are
        ignored. `load_module_only`, or `load_optimizer_states` False: loads only weights and
        buffers; moments and counts start anew.
        """
        self.take_changes()
        return load(
            self,
            load_dir,
            tag,
            strict=load_module_strict,
            optimizer_states=load_optimizer_states and not load_module_only,
            scheduler_states=load_lr_scheduler_states,
            custom_load_fn=custom_load_fn,
        )

    def digest(self) -> str:
        """XXH3-128 over names, master weights and moments: the same for every placement."""
        self.take_changes()
        return self._core.digest()

    @property
    def is_closed(self) -> bool:
        return not self._close.alive

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "an engine cannot be copied or pickled: its state is in tiers; save_checkpoint() saves "
            "it, and consolidated_state_dict() has the weights"
        )

    def destroy(self) -> None:
        """Closes the engine, which leaves nothing on the disk. The model's parameters become plain
        tensors again, in their stored dtype; if the engine has a folder on NVMe, in unnamed mapped
        files, as in consolidated_state_dict(). Parameters that ranks divide stay divided, as
        zero.Init leaves them. If they cannot be read, or there is no room for them, they have no
        memory, and a log line says so."""
        if self.is_closed or os.getpid() != self._process:
            return
        returned = self._values_to_return()
        self.saved_masters.clear()
        self._close()
        for parameter in self._managed:
            vars(parameter).pop("_artesian_engine", None)
        for parameter, values in zip(self._managed, returned, strict=bool(returned)):
            give_back(parameter, values)
        thaw(self._frozen)
        self.ranks.leave()
        if self.manner is Manner.DEEPSPEED:
            self._leave_trainer()

    def _values_to_return(self) -> list[torch.Tensor | Share]:
        try:
            self._core.zero_gradients()  # gradients of an incomplete step
            self.take_changes()
            return values_after(self, self._group)
        except (Error, OSError, MemoryError) as error:
            logging.getLogger("artesian").warning(
                "destroy(): the model's parameters have no memory any more, since their values "
                "cannot be read into it: %s",
                error,
            )
            return []

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
        module = self.module
        if not hasattr(module, name):
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, and neither has the model, "
                f"{type(module).__name__}",
                name=name,
                obj=self,
            )
        return getattr(module, name)


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Scheduler | None = None,
    config: ConfigLike | None = None,
    config_params: ConfigLike | None = None,
    device: torch.device | str | None = None,
    process_group: Any = None,
) -> tuple[Engine, TieredOptimizer | None, Any, LRScheduler | None]:
    """Takes over a model, and returns engine, optimizer, data loader and scheduler.

    The model's parameters must be on the CPU or on the engine's device; from now on the engine
    manages them there. Without an optimizer, the config's section defines one; model_parameters are
    its parameters or groups, by default all trainable ones. `device`: "cpu", or a supported PyTorch
    accelerator; None: the config's artesian.device, else an accelerator that is used by default,
    else the CPU.

    If a launcher has started several processes, or PyTorch's default process group has several
    ranks, they train one model together, each with its own batches, starting with rank 0's values;
    `process_group`: use the ranks of another group.
    """
    return begin(
        args=args,
        model=model,
        optimizer=optimizer,
        model_parameters=model_parameters,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        config=config if config is not None else config_params,
        manner=Manner.NATIVE,
        device=device,
        group=process_group,
    )


def take_over(model: nn.Module) -> None:
    """Closes an engine that has the model's parameters: the later engine wins."""
    for parameter in model.parameters():
        earlier = engine_of(parameter)
        if earlier is not None and not earlier.is_closed:
            logging.getLogger("artesian").warning(
                "initialize(): the model has an engine already, which is closed; its optimizer "
                "state is gone"
            )
            earlier.destroy()


def asks_to_evaluate(
    model: nn.Module, optimizer: Any, model_parameters: Any, config: ConfigLike, manner: Manner
) -> bool:
    """True if there is nothing to train or, in DeepSpeed's manner, no optimizer to train it
    with."""
    if not any(p.requires_grad for p in model.parameters()):
        return True
    if optimizer is not None:
        return False
    return model_parameters == [] or (
        manner is Manner.DEEPSPEED and "optimizer" not in expand_dotted(values_of(config)[0])
    )


def begin(
    *,
    args: Any,
    model: nn.Module | None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None,
    model_parameters: Any,
    training_data: Any,
    lr_scheduler: Scheduler | None,
    config: ConfigLike | None,
    manner: Manner,
    collate_fn: Callable[..., Any] | None = None,
    device: torch.device | str | None = None,
    adam: Callable[[dict[str, Any]], type[AdamW]] = lambda config: AdamW,
    group: Any = None,
) -> tuple[Engine, TieredOptimizer | None, Any, LRScheduler | None]:
    """initialize(), in either manner. `adam`: the class for a config's Adam. `group`: the PyTorch
    group whose ranks train the model together; None: all ranks."""
    if model is None:
        raise InvalidError("initialize(model=...): got none, allowed a torch.nn.Module")
    chosen = config if config is not None else getattr(args, "deepspeed_config", None)
    if chosen is None:
        raise InvalidError("initialize(config=...): got none, allowed a dict, path or JSON text")
    chosen_device = choose_device(device, values_of(chosen)[0])
    take_over(model)
    if model_parameters is not None:
        model_parameters = list(model_parameters)
    frozen: list[nn.Parameter] = []
    if asks_to_evaluate(model, optimizer, model_parameters, chosen, manner):
        optimizer = lr_scheduler = model_parameters = None
        frozen = freeze(model)
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        parameters = model_parameters
        if parameters is None:
            parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizer(parameters)
    if manner is Manner.DEEPSPEED:
        frozen += leave_out(model, optimizer, model_parameters)
    try:
        engine = Engine(
            model, chosen, optimizer, model_parameters, manner, adam, chosen_device, group
        )
    except BaseException:
        thaw(frozen)
        raise
    engine._frozen = frozen
    if isinstance(lr_scheduler, LRScheduler):
        engine.lr_scheduler = lr_scheduler
    elif lr_scheduler is not None:
        engine.lr_scheduler = lr_scheduler(engine.optimizer)
    elif engine.config_values.has_schedule and not engine.evaluates:
        engine.lr_scheduler = schedule_of(
            engine.optimizer, engine.config, engine.config_values, engine._rates
        )
    engine.collate_fn = collate_fn
    if training_data is not None:
        engine.training_dataloader = engine.deepspeed_io(training_data)
    returned = None if engine.evaluates else engine.optimizer
    return engine, returned, engine.training_dataloader, engine.lr_scheduler


def init_inference(model: nn.Module, config: ConfigLike, device: Any = None) -> Engine:
    """Makes an engine that only evaluates: its parameters are in the tiers and the dtype given by
    the config, without moments and master weights, and are frozen until destroy(). The model may
    have been loaded with `device_map`."""
    take_hooks_off(model, spool_folder(config))
    return initialize(model=model, config=config, model_parameters=[], device=device)[0]
