"""DeepSpeed's functions, implemented with Artesian's."""

from __future__ import annotations

import argparse
import glob
import logging
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from artesian import devices, ranks
from artesian.build_facts import VERSION
from artesian.checkpoint import get_fp32_state_dict_from_zero_checkpoint
from artesian.config import expand_dotted
from artesian.deepspeed import comm, surface, utilities
from artesian.described import describe, describe_modules, forget
from artesian.engine import Engine, Manner, begin
from artesian.errors import MissingError, UnsupportedError
from artesian.optim import (
    DEFAULTS,
    Adagrad,
    AdamW,
    Lamb,
    Lion,
    Muon,
    TieredOptimizer,
    TorchAdam,
    TorchAdamW,
)

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
DeepSpeedEngine = Engine
PERSISTS = 100_000  # elements: DeepSpeed's stage3_param_persistence_threshold
version = surface.VERSION


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[Engine, TieredOptimizer | None, Any, Any]:
    """deepspeed.initialize."""
    if model is None:
        raise MissingError("deepspeed.initialize(model=...): got none, allowed a torch.nn.Module")
    comm.init_distributed(dist_init_required=dist_init_required)
    utilities.log_dist(
        f"DeepSpeed info: version={version}, git-hash=artesian, git-branch=artesian: answered by "
        f"Artesian {VERSION}",
        ranks=[0],
    )
    group = None
    if mpu is not None or mesh_param is not None:
        group = ranks.data_parallel_group(mpu, mesh_param)
    result = begin(
        args=args,
        model=model,
        optimizer=optimizer,
        model_parameters=model_parameters,
        training_data=training_data,
        lr_scheduler=lr_scheduler,
        collate_fn=collate_fn,
        config=config if config is not None else config_params or old_config_of(args),
        manner=Manner.DEEPSPEED,
        adam=adam_of,
        group=group,
    )
    describe_parameters(result[0])
    return result


def old_config_of(args: Any) -> Any:
    """The config under the flag's old name, if no other is given."""
    given = getattr(args, "deepspeed_config", None)
    return getattr(args, "deepscale_config", None) if given is None else given


def describe_parameters(engine: Engine) -> None:
    """Adds attributes that libraries read on parameters that may be released; a resident parameter
    has none of them."""
    if engine.resident:
        for parameter in engine.module.parameters():
            forget(parameter)
        return
    zero = expand_dotted(engine.config).get("zero_optimization", {})
    threshold = zero.get("stage3_param_persistence_threshold", PERSISTS)
    for parameter in filter(engine.manages, engine.module.parameters()):
        describe(parameter)
        parameter.is_external_param = False  # type: ignore[attr-defined]
        parameter.ds_persist = (  # type: ignore[attr-defined]
            isinstance(threshold, int | float) and parameter.numel() <= threshold
        )
    describe_modules(engine.module)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments that enable DeepSpeed in a script and give its config."""
    group = parser.add_argument_group("DeepSpeed", "answered by Artesian")
    group.add_argument("--deepspeed", default=False, action="store_true")
    group.add_argument("--deepspeed_config", default=None, type=str)
    group.add_argument("--deepscale", default=False, action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--deepscale_config", default=None, type=str, help=argparse.SUPPRESS)
    return parser


# For each optimizer of torch.optim: a key of its groups that other optimizers lack.
KEY_OF: dict[str, str] = {
    "dampening": "SGD",
    "centered": "RMSprop",
    "momentum_decay": "NAdam",
    "rho": "Adadelta",
    "lambd": "ASGD",
    "etas": "Rprop",
    "history_size": "LBFGS",
}
_warned: set[str] = set()


def warn_of_replaced(groups: list[dict[str, Any]]) -> None:
    """With offload, accelerate makes a DeepSpeedCPUAdam from the groups of any optimizer that it
    does not know. The groups' keys tell which optimizer it was."""
    for key, name in KEY_OF.items():
        if name in _warned or not any(key in group for group in groups):
            continue
        _warned.add(name)
        logging.getLogger("artesian").warning(
            "DeepSpeedCPUAdam: got parameter groups of torch.optim.%s (they have %r): accelerate "
            "replaces it by Adam where the optimizer is offloaded; set "
            '"zero_force_ds_cpu_optimizer" to false in the DeepSpeed config to train with the one '
            "that you made",
            name,
            key,
        )


class DeepSpeedCPUAdam(AdamW):
    """Has the arguments of deepspeed.ops.adam.DeepSpeedCPUAdam."""

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = DEFAULTS["lr"],
        bias_correction: bool = True,
        betas: tuple[float, float] = DEFAULTS["betas"],
        eps: float = DEFAULTS["eps"],
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad or not bias_correction or not fp32_optimizer_states:
            raise UnsupportedError(
                "DeepSpeedCPUAdam: amsgrad=True, bias_correction=False and "
                "fp32_optimizer_states=False are not supported"
            )
        self.decoupled_decay = self.adam_w_mode = adamw_mode
        self._alone: torch.optim.Optimizer | None = None
        super().__init__(model_params, lr, betas, eps, weight_decay)
        warn_of_replaced(self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The engine's step; before there is an engine, torch's, with the parameters' gradients."""
        if self._engine is not None:
            return super().step(closure)
        if self._alone is None:
            kind = torch.optim.AdamW if self.decoupled_decay else torch.optim.Adam
            self._alone = kind(self.param_groups)
            self._alone.state = self.state
        self._alone.param_groups = self.param_groups
        return self._alone.step(closure)


class FusedAdam(DeepSpeedCPUAdam):
    """Has the arguments of deepspeed.ops.adam.FusedAdam."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = DEFAULTS["lr"],
        bias_correction: bool = True,
        betas: tuple[float, float] = DEFAULTS["betas"],
        eps: float = DEFAULTS["eps"],
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(
            params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode
        )


def adam_of(config: dict[str, Any]) -> type[AdamW]:
    """The class that DeepSpeed makes for a config's Adam, depending on where its state is."""
    zero = expand_dotted(config).get("zero_optimization", {})
    section = zero.get("offload_optimizer") if isinstance(zero, dict) else None
    device = section.get("device", "cpu") if isinstance(section, dict) else None
    offloaded = device in ("cpu", "nvme") or (isinstance(zero, dict) and zero.get("cpu_offload"))
    given = expand_dotted(config).get("optimizer")
    optimizer: dict[str, Any] = given if isinstance(given, dict) else {}
    params = optimizer.get("params") or {}
    if params.get("torch_adam"):
        adam = str(optimizer.get("type")).lower() == "adam" and not params.get("adam_w_mode", True)
        return TorchAdam if adam else TorchAdamW
    return DeepSpeedCPUAdam if offloaded else FusedAdam


def check_states(name: str, amsgrad: bool, fp32_optimizer_states: bool) -> None:
    if amsgrad or not fp32_optimizer_states:
        raise UnsupportedError(
            f"{name}: amsgrad=True and fp32_optimizer_states=False are not supported"
        )


class DeepSpeedCPUAdagrad(Adagrad):
    """Has the arguments of deepspeed.ops.adagrad.DeepSpeedCPUAdagrad."""

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        check_states("DeepSpeedCPUAdagrad", amsgrad, fp32_optimizer_states)
        super().__init__(model_params, lr, 0.0, weight_decay, eps)


class DeepSpeedCPULion(Lion):
    """Has the arguments of deepspeed.ops.lion.DeepSpeedCPULion."""

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        check_states("DeepSpeedCPULion", False, fp32_optimizer_states)
        super().__init__(model_params, lr, betas, weight_decay)


class FusedLion(Lion):
    """Has the arguments of deepspeed.ops.lion.FusedLion."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)


class FusedLamb(Lamb):
    """Has the arguments of deepspeed.ops.lamb.FusedLamb."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if amsgrad or eps_inside_sqrt or max_grad_norm or not bias_correction:
            raise UnsupportedError(
                "FusedLamb: amsgrad=True, eps_inside_sqrt=True, bias_correction=False and a "
                "max_grad_norm are not supported; gradient_clipping of the config clips"
            )
        super().__init__(params, lr, betas, eps, weight_decay, max_coeff, min_coeff)


class MuonWithAuxAdam(Muon):
    """Has the arguments of deepspeed.runtime.zero.muon.muon_optimizer.MuonWithAuxAdam."""

    def __init__(
        self,
        param_groups: Iterable[dict[str, Any]],
        adam_optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        adam_optimizer_kwargs: dict[str, Any] | None = None,
        adam_w_mode: bool = True,
        fallback_to_inline: bool = False,
    ) -> None:
        groups = [dict(group) for group in param_groups]
        methods = {g.pop("ns_method", "gram") for g in groups if g.get("use_muon", False)}
        if not adam_w_mode or adam_optimizer_kwargs or len(methods) > 1:
            raise UnsupportedError(
                "MuonWithAuxAdam: adam_w_mode=False, adam_optimizer_kwargs and groups of different "
                "ns_method are not supported; AdamW updates what Muon does not, with the constants "
                "of its groups"
            )
        super().__init__(groups, *methods)


class Accelerator:
    """deepspeed.accelerator.get_accelerator(): the device on which engines train if neither
    initialize() nor the config names another."""

    _communication_backend_name = "gloo"
    Event = Stream = None

    @property
    def _name(self) -> str:
        return self.device().type

    def device(self, device_index: int | str | None = None) -> torch.device:
        chosen = devices.default_device()
        if device_index is None or chosen.type == "cpu":
            return chosen
        if isinstance(device_index, str):
            return torch.device(device_index)
        return torch.device(chosen.type, device_index)

    def device_name(self, device_index: int | str | None = None) -> str:
        return self._name if device_index is None else str(self.device(device_index))

    def current_device_name(self) -> str:
        return str(self.device())

    def current_device(self) -> int | str:
        return "cpu" if self._on_cpu else torch.accelerator.current_device_index()

    def set_device(self, device_index: int | str) -> None:
        """On the CPU there is only one device."""
        if not self._on_cpu:
            torch.accelerator.set_device_index(self.device(device_index).index)

    def device_count(self) -> int:
        """On the CPU, the number of processes that the launcher started here, as with DeepSpeed."""
        if self._on_cpu:
            return int(os.environ.get("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1")))
        return torch.accelerator.device_count()

    def is_available(self) -> bool:
        return True

    def is_synchronized_device(self) -> bool:
        return self._on_cpu

    def synchronize(self, device_index: int | str | None = None) -> None:
        if not self._on_cpu:
            torch.accelerator.synchronize(self.device(device_index))

    def communication_backend_name(self) -> str:
        return "gloo"

    def get_compile_backend(self) -> str:
        return "inductor"

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def is_triton_supported(self) -> bool:
        return False

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.float16, torch.bfloat16]

    def manual_seed(self, seed: int) -> torch.Generator:
        return torch.manual_seed(seed)  # seeds all devices

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        state: torch.Tensor = (torch if self._on_cpu else self._module).get_rng_state()
        return state

    def set_rng_state(self, new_state: torch.Tensor, device_index: Any = None) -> None:
        (torch if self._on_cpu else self._module).set_rng_state(new_state)

    def random(self) -> Any:
        return torch.random

    def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
        return tensor if self._on_cpu else tensor.pin_memory()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return not self._on_cpu and tensor.is_pinned()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def memory_allocated(self, device_index: int | str | None = None) -> int:
        if self._on_cpu:
            return process_bytes("VmRSS")
        return torch.accelerator.memory_allocated(self.device(device_index))

    def max_memory_allocated(self, device_index: int | str | None = None) -> int:
        if self._on_cpu:
            return process_bytes("VmHWM")
        return torch.accelerator.max_memory_allocated(self.device(device_index))

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def total_memory(self, device_index: int | str | None = None) -> int:
        if self._on_cpu:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return torch.accelerator.get_memory_info(self.device(device_index))[1]

    def available_memory(self, device_index: int | str | None = None) -> int:
        if self._on_cpu:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return torch.accelerator.get_memory_info(self.device(device_index))[0]

    def reset_peak_memory_stats(self, device_index: int | str | None = None) -> None:
        """No effect: the kernel keeps the peak of a process."""
        if not self._on_cpu:
            torch.accelerator.reset_peak_memory_stats(self.device(device_index))

    def empty_cache(self) -> None:
        if not self._on_cpu:
            torch.accelerator.empty_cache()

    @property
    def _on_cpu(self) -> bool:
        return self._name == "cpu"

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self._name)


def process_bytes(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines[key].split()[0]) * 1024


ACCELERATOR = Accelerator()


def get_accelerator() -> Accelerator:
    return ACCELERATOR


def clone_tensors_for_torch_save(item: Any, device: Any = None) -> Any:
    """A nested value with its tensors cloned, so that they share no memory."""
    if isinstance(item, torch.Tensor):
        return item.detach().clone().to(device or "cpu")
    if isinstance(item, list | tuple):
        return type(item)(clone_tensors_for_torch_save(element, device) for element in item)
    if isinstance(item, dict):
        return type(item)(
            {key: clone_tensors_for_torch_save(value, device) for key, value in item.items()}
        )
    return item


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str, tag: str | None = None
) -> nn.Module:
    """Loads a checkpoint's weights, in fp32, into the model on the CPU, and returns the model."""
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model.cpu().load_state_dict(state, strict=False)
    return model


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., Any], target_fp_dtype: Any = None, **kwargs: Any
) -> Callable[..., Any]:
    """Returns the function, changed so that tensors have the model's dtypes, under zero.Init,
    too."""
    return fn


_orig_torch_arange = torch.arange


def by_numbers(path: str) -> list[Any]:
    """A sort key: rank 2 before rank 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def files_of(checkpoint_dir: str, pattern: str) -> list[str]:
    found = sorted(glob.glob(os.path.join(checkpoint_dir, pattern)), key=by_numbers)
    if not found:
        raise FileNotFoundError(
            f"{checkpoint_dir}: got no {pattern}, allowed a folder of DeepSpeed's; Artesian's own "
            "checkpoints have other files, which `artesian inspect` lists"
        )
    return found


def get_optim_files(checkpoint_dir: str) -> list[str]:
    """For a checkpoint written by DeepSpeed."""
    return files_of(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir: str) -> list[str]:
    return files_of(checkpoint_dir, "*_model_states.pt")


def get_model_state_file(checkpoint_dir: str, zero_stage: int) -> str:
    name = "mp_rank_00_model_states.pt"
    return files_of(checkpoint_dir, name if zero_stage <= 2 else f"zero_pp_rank_0_{name}")[0]
