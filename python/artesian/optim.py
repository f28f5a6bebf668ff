"""Optimizers: what a loop or a scheduler holds while the engine has the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from artesian.errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    from artesian.engine import Engine

# Of torch.optim.AdamW.
DEFAULTS: dict[str, Any] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 1e-2,
}
FIXED = ("betas", "eps", "weight_decay")


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW's constants; step() is the engine's.

    Made with parameters and given to artesian.initialize(), or made by it. The learning rate of
    param_groups[0] is that of the next step, so any torch scheduler works.
    """

    decoupled_decay = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = DEFAULTS["lr"],
        betas: tuple[float, float] = DEFAULTS["betas"],
        eps: float = DEFAULTS["eps"],
        weight_decay: float = DEFAULTS["weight_decay"],
    ) -> None:
        self._engine: Engine | None = None
        constants = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, constants)
        self.overflow = False

    def attach(self, engine: Engine) -> None:
        self._engine = engine
        self._begun = [{key: group[key] for key in FIXED} for group in self.param_groups]

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

    def learning_rate(self) -> float:
        """Of the next step. Raises where something else was changed, which the engine cannot do."""
        for group, begun in zip(self.param_groups, self._begun, strict=True):
            for key in FIXED:
                if group[key] != begun[key]:
                    raise UnsupportedError(
                        f"param_groups: {key}: got {group[key]}, allowed {begun[key]}, which the "
                        "engine was made with"
                    )
        rates = {float(group["lr"]) for group in self.param_groups}
        if len(rates) != 1:
            raise UnsupportedError(
                f"param_groups: lr: got {sorted(rates)}, allowed one for all groups"
            )
        return rates.pop()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.engine.take_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._engine is None:
            super().zero_grad(set_to_none)
        else:
            self._engine.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        raise UnsupportedError(
            "optimizer.state_dict(): the moments are in the engine's tiers, and saving them is not "
            "supported yet"
        )


class Adam(AdamW):
    """torch.optim.Adam's constants: weight decay is part of the gradient."""

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


def section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The config's optimizer section for a client's optimizer: ours, or torch's Adam and AdamW."""
    if isinstance(optimizer, AdamW):
        decoupled = optimizer.decoupled_decay
    elif type(optimizer) is torch.optim.AdamW:
        decoupled = True
    elif type(optimizer) is torch.optim.Adam:
        decoupled = bool(optimizer.defaults.get("decoupled_weight_decay", False))
    else:
        raise UnsupportedError(
            f"optimizer: got {type(optimizer).__name__}, allowed Adam and AdamW of torch.optim or "
            "artesian.optim"
        )
    for flag in ("amsgrad", "maximize"):
        if optimizer.defaults.get(flag):
            raise UnsupportedError(f"optimizer: {flag}=True is not supported")
    groups = [{key: group[key] for key in ("lr", *FIXED)} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups):
        raise UnsupportedError(
            "optimizer: param_groups with different constants are not supported yet; give all the "
            "same lr, betas, eps and weight_decay"
        )
    params = {**groups[0], "lr": float(groups[0]["lr"]), "betas": list(groups[0]["betas"])}
    params["adam_w_mode"] = decoupled
    return {"type": "AdamW" if decoupled else "Adam", "params": params}


def facade(values: dict[str, Any], groups: list[dict[str, Any]]) -> AdamW:
    """The optimizer that a loop sees, with the engine's constants in every group."""
    clean = [{"params": group["params"]} for group in groups]
    return AdamW(clean, values["lr"], values["betas"], values["eps"], values["weight_decay"])
