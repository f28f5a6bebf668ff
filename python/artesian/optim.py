"""Optimizers: the objects that a loop or a scheduler uses while the engine has the state."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from artesian.config import expand_dotted
from artesian.errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    from artesian.engine import Engine

# Defaults of torch.optim.AdamW.
DEFAULTS: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 1e-2,
}
# lr, weight decay, beta1 or momentum, beta2 or alpha, and then these.
REST = ("eps", "dampening", "nesterov", "lr_decay", "min_coeff", "max_coeff", "matrix_lr",
        "momentum")  # fmt: skip
Constants = tuple[float, ...]
# Options of torch.optim that are refused unless they have these values.
REFUSED = {
    "amsgrad": False,
    "maximize": False,
    "centered": False,
}


class Moments(Mapping[torch.Tensor, dict[str, Any]]):
    """The value of `optimizer.state` with an engine: copies of a parameter's moments, read on
    demand."""

    def __init__(self, optimizer: TieredOptimizer) -> None:
        self._optimizer = weakref.ref(optimizer)

    def _parameters(self) -> list[Any]:
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [p for group in groups for p in group["params"]]

    def __getitem__(self, parameter: Any) -> dict[str, Any]:
        optimizer = self._optimizer()
        if optimizer is None or not optimizer.engine.manages(parameter):
            raise KeyError(parameter)
        engine = optimizer.engine
        names = engine.moment_names_of(parameter)
        state: dict[str, Any] = {name: engine.full_state(parameter, name) for name in names}
        if not engine.skips_unreached:  # otherwise each parameter has its own count
            state["step"] = torch.tensor(float(engine.global_steps - engine.skipped_steps))
        return state

    def __contains__(self, parameter: object) -> bool:
        return any(parameter is p for p in self._parameters())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._parameters())

    def __len__(self) -> int:
        return len(self._parameters())


class ParameterCoordinator:
    """Stand-in for DeepSpeed's coordinator, whose recorded order of parameters callers can drop.
    Our order adapts by itself when a pass departs from it, so there is nothing to drop."""

    def is_invalid_trace(self) -> bool:
        return True

    def _invalidate_trace(self) -> None:
        """Does nothing."""


class ParameterOffload:
    """Stand-in for DeepSpeed's class, whose hooks some programs remove while they generate and
    install again. The engine's hooks need not be removed for that, so this class has none."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []
        self.param_coordinator = ParameterCoordinator()

    def _register_deepspeed_module(self, module: torch.nn.Module, *_: Any, **__: Any) -> None:
        """Does nothing, as no hooks were removed."""


class LossScaler:
    """The engine's present loss scale."""

    def __init__(self, engine: Engine) -> None:
        section = expand_dotted(engine.config).get("fp16", {})
        self.cur_scale = self.loss_scale = engine.loss_scale
        self.dynamic = engine.fp16_enabled() and section.get("loss_scale", 0) in (0, "auto")
        self.dynamic_loss_scale = self.dynamic
        self.scale_window = section.get("loss_scale_window", 1000)
        self.cur_iter = engine.global_steps


class TieredOptimizer(torch.optim.Optimizer):
    """Holds parameter groups and their constants; step() is the engine's.

    Created with parameters and passed to artesian.initialize(), or created by it. A step uses the
    values in param_groups when step() is called, so any torch scheduler works.
    """

    type = ""  # name in a config's optimizer.type
    keys: tuple[str, ...] = ()  # keys of a group besides its parameters
    decoupled_decay = False

    def __init__(self, params: Iterable[Any], constants: dict[str, Any]) -> None:
        self._engine: Engine | None = None
        self._client: torch.optim.Optimizer | None = None
        # skips torch's Adam, which has its own constructor
        torch.optim.Optimizer.__init__(self, params, constants)
        self.overflow = False

    def type_name(self) -> str:
        return self.type

    def section(self) -> dict[str, Any]:
        """The config's section: the first group's constants."""
        return {"type": self.type_name(), "params": params_of(type(self), self.param_groups)}

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        self.state = Moments(self)  # type: ignore[assignment]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if getattr(self, "_engine", None) is not None:
            raise UnsupportedError(
                "add_param_group: the engine has its parameters; name all groups before "
                "artesian.initialize()"
            )
        super().add_param_group(param_group)

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise InvalidError("this optimizer has no engine; give it to artesian.initialize()")
        return self._engine

    def _attached(self, name: str) -> Engine:
        """Returns the engine's attribute; without an engine the optimizer lacks it."""
        if self._engine is None:
            raise AttributeError(f"{type(self).__name__} without an engine has no {name}")
        return self._engine

    @property
    def parameter_offload(self) -> ParameterOffload:
        return ParameterOffload(self._attached("parameter_offload").module)

    @property
    def loss_scale(self) -> float:
        return self._attached("loss_scale").loss_scale

    cur_scale = loss_scale

    @property
    def loss_scaler(self) -> LossScaler:
        return LossScaler(self._attached("loss_scaler"))

    @property
    def loss_scale_config(self) -> LossScaler:
        return LossScaler(self._attached("loss_scale_config"))

    @property
    def dynamic_loss_scale(self) -> bool:
        return LossScaler(self._attached("dynamic_loss_scale")).dynamic

    @property
    def optimizer(self) -> TieredOptimizer:
        """In DeepSpeed the wrapped optimizer; here the optimizer itself."""
        self._attached("optimizer")
        return self

    def offload_states(self, *arguments: Any, **named: Any) -> None:
        """Calls engine.offload_states() with these arguments."""
        self._attached("offload_states").offload_states(*arguments, **named)

    def reload_states(self, non_blocking: bool = False) -> None:
        self._attached("reload_states").reload_states(non_blocking)

    def empty_partition_cache(self) -> None:
        self._attached("empty_partition_cache").empty_partition_cache()

    @property
    def fp32_partitioned_groups_flat(self) -> list[torch.Tensor]:
        """A copy of each group's master weights, flattened: all in memory at once.
        zero.safe_get_full_fp32_param() reads one parameter's."""
        engine = self._attached("fp32_partitioned_groups_flat")
        return [
            torch.cat([engine.full_parameter(p).flatten() for p in group["params"]])
            for group in self.param_groups
        ]

    single_partition_of_fp32_groups = fp32_partitioned_groups_flat

    @property
    def _global_grad_norm(self) -> float | None:
        return self._attached("_global_grad_norm").get_global_grad_norm()

    def constants(self) -> list[Constants]:
        """Constants of the next step, by group. Those that the optimizer lacks are 0."""
        return [constants_of(group) for group in self.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.engine.take_step()
        # a scheduler made for the client's optimizer checks this attribute
        if self._client is not None:
            self._client._opt_called = True  # type: ignore[attr-defined]
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._engine is None:
            super().zero_grad(set_to_none)
        else:
            self._engine.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Groups and moments in torch.optim's form, without step counts; moments are in mapped
        files if the engine has a folder on NVMe. To resume training, use engine.save_checkpoint()
        and engine.load_checkpoint()."""
        if self._engine is None:
            return super().state_dict()
        parameters = [p for group in self.param_groups for p in group["params"]]
        numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        groups = [
            {**group, "params": [numbers[id(p)] for p in group["params"]]}
            for group in self.param_groups
        ]
        return {"state": dict(enumerate(map(self._engine.moments, parameters))),
                "param_groups": groups}  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the groups' constants."""
        if state_dict.get("state"):
            raise UnsupportedError(
                "optimizer.load_state_dict(): got moments, allowed param_groups only: the moments "
                "are in the engine's tiers"
            )
        super().load_state_dict({**state_dict, "state": {}})
        if self._engine is not None:
            self.state = Moments(self)  # type: ignore[assignment]


def refuse_training(call: str) -> InvalidError:
    """The error of a call that needs an optimizer, which the engine does not have."""
    return InvalidError(
        f"{call}: this engine only evaluates: it was made without an optimizer, or with nothing to "
        "train; call initialize() again, with an optimizer, or a section of the config that says "
        "which, and parameters whose requires_grad is True"
    )


class NoOptimizer(TieredOptimizer):
    """The optimizer of an engine that only evaluates: no groups, no state, no step."""

    type = "AdamW"

    def __init__(self) -> None:
        self._engine = self._client = None
        self.param_groups = []
        self.defaults = {}
        self.state = {}  # type: ignore[assignment]
        self.overflow = False

    def attach(self, engine: Engine) -> None:
        self._engine = engine

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        raise refuse_training("step()")

    def state_dict(self) -> dict[str, Any]:
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Does nothing: there is nothing to load."""


class AdamW(TieredOptimizer):
    """With torch.optim.AdamW's constants."""

    type = "AdamW"
    decoupled_decay = True
    keys = ("lr", "betas", "eps", "weight_decay")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = DEFAULTS["lr"],
        betas: tuple[float, float] = DEFAULTS["betas"],
        eps: float = DEFAULTS["eps"],
        weight_decay: float = DEFAULTS["weight_decay"],
    ) -> None:
        constants = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, constants)

    def type_name(self) -> str:
        return "AdamW" if self.decoupled_decay else "Adam"

    def section(self) -> dict[str, Any]:
        section = super().section()
        section["params"]["adam_w_mode"] = self.decoupled_decay
        return section


class Adam(AdamW):
    """With torch.optim.Adam's constants: weight decay is added to the gradient."""

    type = "Adam"
    decoupled_decay = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = DEFAULTS["lr"],
        betas: tuple[float, float] = DEFAULTS["betas"],
        eps: float = DEFAULTS["eps"],
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


class TorchAdamW(AdamW, torch.optim.AdamW):
    """Also an instance of torch's own class, for code that checks the type."""


class TorchAdam(Adam, torch.optim.Adam):
    """The same for torch.optim.Adam."""


class SGD(TieredOptimizer):
    """With torch.optim.SGD's constants."""

    type = "SGD"
    keys = ("lr", "momentum", "dampening", "weight_decay", "nesterov")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        constants = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, constants)


class Adagrad(TieredOptimizer):
    """With torch.optim.Adagrad's constants."""

    type = "Adagrad"
    keys = ("lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
        initial_accumulator_value: float = 0.0,
    ) -> None:
        constants = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "eps": eps,
            "initial_accumulator_value": initial_accumulator_value,
        }
        super().__init__(params, constants)


class RMSprop(TieredOptimizer):
    """With torch.optim.RMSprop's constants. A momentum buffer is kept if any group has momentum
    when the engine is created."""

    type = "RMSprop"
    keys = ("lr", "alpha", "eps", "weight_decay", "momentum")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        constants = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
        }
        super().__init__(params, constants)


class Lion(TieredOptimizer):
    """Lion (Chen et al. 2023), with DeepSpeed's defaults."""

    type = "Lion"
    keys = ("lr", "betas", "weight_decay")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


class Lamb(TieredOptimizer):
    """LAMB (You et al. 2020), with DeepSpeed's defaults: the last two constants bound the trust
    ratio."""

    type = "Lamb"
    keys = ("lr", "betas", "eps", "weight_decay", "min_coeff", "max_coeff")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
    ) -> None:
        constants = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
        }
        super().__init__(params, constants)


# Defaults of DeepSpeed's MuonWithAuxAdam, by a group's use_muon.
MUON: dict[bool, dict[str, Any]] = {
    True: {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.0},
    False: {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.0},
}
MATRICES = (2, 4)  # dimensions; a filter of a 4-D convolution is a row of one matrix


class Muon(TieredOptimizer):
    """Muon for the matrices in groups with `use_muon` True, AdamW for all other parameters, with
    the defaults of DeepSpeed's MuonWithAuxAdam."""

    type = "Muon"
    keys = ("momentum", "betas", "eps", "weight_decay", "muon_lr", "adam_lr")

    def __init__(self, params: Iterable[dict[str, Any]], ns_method: str = "gram") -> None:
        groups = []
        for group in params:
            if not isinstance(group, dict) or "use_muon" not in group:
                raise InvalidError(
                    "Muon: got a group without use_muon, allowed groups that say with True or "
                    "False whether Muon updates their parameters, which are matrices then"
                )
            groups.append({**MUON[bool(group["use_muon"])], **group})
        self.ns_method = ns_method
        super().__init__(groups, {})

    def section(self) -> dict[str, Any]:
        halves = {
            use: next((g for g in self.param_groups if bool(g["use_muon"]) is use), MUON[use])
            for use in MUON
        }
        params = {
            "muon_lr": float(halves[True]["lr"]),
            "adam_lr": float(halves[False]["lr"]),
            "momentum": float(halves[True]["momentum"]),
            "betas": list(halves[False]["betas"]),
            "eps": float(halves[False]["eps"]),
            "weight_decay": float(halves[False]["weight_decay"]),
            "ns_method": self.ns_method,
        }
        return {"type": self.type, "params": params}


def mark_matrices(model: torch.nn.Module) -> None:
    """Sets `use_muon`, as in DeepSpeed, on parameters without it: true for matrices and filters of
    2-D convolutions, except embeddings and heads."""
    embeddings = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
    }
    head = getattr(model, "get_output_embeddings", lambda: None)()
    embeddings.add(id(getattr(head, "weight", None)))
    other = []
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "use_muon"):
            continue
        named = any(word in name.lower() for word in ("embed", "lm_head"))
        hidden = not named and id(parameter) not in embeddings
        matrix = hidden and parameter.dim() in MATRICES
        parameter.use_muon = matrix  # type: ignore[attr-defined]
        if hidden and parameter.dim() > 1 and not matrix and parameter.requires_grad:
            other.append(f'"{name}" of {tuple(parameter.shape)}')
    if other:
        logging.getLogger("artesian").warning(
            "Muon: AdamW updates %s, where DeepSpeed's Muon does; Artesian's updates parameters of "
            "2 dimensions, and of 4 as filters of a convolution",
            other[0] if len(other) == 1 else f"{other[0]} and {len(other) - 1} more",
        )


def halves_of(parameters: Iterable[Any], values: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits each group in two: matrices for Muon, and all other parameters, with the config's
    constants."""
    given = list(parameters)
    groups = [item for item in given if isinstance(item, dict)]
    loose = [item for item in given if not isinstance(item, dict)]
    if loose:
        groups.append({"params": loose})
    halves = []
    for group in groups:
        members = list(group["params"])
        for use, defaults in MUON.items():
            half = [p for p in members if bool(getattr(p, "use_muon", False)) is use]
            if not half:
                continue
            own = {key: values[key] for key in defaults}
            own["lr"] = values["muon_lr" if use else "adam_lr"]
            halves.append({**own, **group, "params": half, "use_muon": use})
    return halves


def matrices_of(
    optimizer: TieredOptimizer,
    parameters: dict[str, torch.nn.Parameter],
    tables: Iterable[str],
) -> list[str]:
    """The names of the parameters that Muon updates as matrices."""
    marked = {
        id(p) for g in optimizer.param_groups if g.get("use_muon", False) for p in g["params"]
    }
    names = [name for name, parameter in parameters.items() if id(parameter) in marked]
    for name in names:
        if parameters[name].dim() in MATRICES and name not in tables:
            continue
        raise InvalidError(
            f'Muon: got "{name}" of {tuple(parameters[name].shape)} in a group with use_muon True, '
            "allowed 2 dimensions, or 4 of a convolution, and no embedding or tied head; set "
            "use_muon False"
        )
    return names


# By optimizer.type; torch.optim's classes have the same names.
OPTIMIZERS: dict[str, Any] = {
    kind.type: kind for kind in (AdamW, Adam, SGD, Adagrad, RMSprop, Lion, Lamb, Muon)
}


def constants_of(group: dict[str, Any]) -> Constants:
    average, squares = group.get("betas", (group.get("momentum", 0.0), group.get("alpha", 0.0)))
    rest = (group["lr"] if key == "matrix_lr" else group.get(key, 0.0) for key in REST)
    return tuple(map(float, (group["lr"], group["weight_decay"], average, squares, *rest)))


def params_of(kind: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A config's optimizer.params: the first group's constants, with the largest momentum of any
    group, which decides whether the engine keeps a momentum buffer."""
    params = {key: groups[0][key] for key in kind.keys}
    params["lr"] = float(params["lr"])
    if "betas" in params:
        params["betas"] = [float(beta) for beta in params["betas"]]
    if "momentum" in params:
        params["momentum"] = max(float(group["momentum"]) for group in groups)
    return params


def kind_of(optimizer: torch.optim.Optimizer) -> Any:
    """Our class for a class of torch.optim."""
    kind = OPTIMIZERS.get(type(optimizer).__name__)
    if kind in (None, Muon) or type(optimizer) is not getattr(torch.optim, kind.type, None):
        raise UnsupportedError(
            f"optimizer: got {type(optimizer).__name__}, allowed AdamW, Adam, SGD, Adagrad and "
            f"RMSprop of torch.optim, and {', '.join(OPTIMIZERS)} of artesian.optim; in a config: "
            "optimizer.type"
        )
    if kind is AdamW or optimizer.defaults.get("decoupled_weight_decay", False):
        return AdamW
    return kind


def section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The config's optimizer section for a client's optimizer, ours or torch's."""
    if isinstance(optimizer, TieredOptimizer):
        return optimizer.section()
    kind = kind_of(optimizer)
    for flag, allowed in REFUSED.items():
        if optimizer.defaults.get(flag, allowed) != allowed:
            raise UnsupportedError(f"optimizer: {flag}={optimizer.defaults[flag]} is not supported")
    section = {"type": kind.type, "params": params_of(kind, optimizer.param_groups)}
    if issubclass(kind, AdamW):
        section["params"]["adam_w_mode"] = kind.decoupled_decay
    return section


def facade(
    values: dict[str, Any], parameters: Iterable[Any], adam: type[AdamW], model: torch.nn.Module
) -> TieredOptimizer:
    """The optimizer that a loop sees if the config defines it. `parameters`: parameters or groups,
    which use the config's constants unless they have their own. `adam`: the class for either
    Adam."""
    kind = OPTIMIZERS[values["type"]]
    if kind is Muon:
        mark_matrices(model)
        return Muon(halves_of(parameters, values), values["ns_method"])
    decoupled = kind.decoupled_decay
    if issubclass(kind, AdamW) and adam is not AdamW:
        kind = adam
    made: TieredOptimizer = kind(parameters, **{key: values[key] for key in kind.keys})
    if isinstance(made, AdamW):
        made.decoupled_decay = decoupled
        if hasattr(made, "adam_w_mode"):
            made.adam_w_mode = decoupled
    return made


def facade_of(optimizer: torch.optim.Optimizer) -> TieredOptimizer:
    """The same for a client's optimizer. It shares the client's groups, so that a scheduler made
    for the client's optimizer works."""
    kind = kind_of(optimizer)
    kind = {AdamW: TorchAdamW, Adam: TorchAdam}.get(kind, kind)
    result: TieredOptimizer = kind(optimizer.param_groups)
    result._client = optimizer
    return result


def groups_of(optimizer: TieredOptimizer, parameters: dict[str, torch.nn.Parameter]) -> list[int]:
    """The group index of each of a model's parameters; 0 for frozen ones, which are in no group."""
    groups = {id(p): n for n, g in enumerate(optimizer.param_groups) for p in g["params"]}
    left = set(groups) - {id(parameter) for parameter in parameters.values()}
    if left:
        raise InvalidError(
            f"optimizer: got {len(left)} parameters that are none of the model's; make it with the "
            "model's own"
        )
    for name, parameter in parameters.items():
        if parameter.requires_grad and id(parameter) not in groups:
            raise InvalidError(
                f'optimizer: got no group with the parameter "{name}", which is trainable; add it '
                "to one, or freeze it by requires_grad_(False)"
            )
    return [groups.get(id(parameter), 0) for parameter in parameters.values()]
