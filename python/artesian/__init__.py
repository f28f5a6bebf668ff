"""Artesian: trains PyTorch models whose parameters and optimizer state do not fit into memory.

    engine, optimizer, loader, scheduler = artesian.initialize(model=model, config="ds.json")
    loss = engine(**batch).loss
    engine.backward(loss)
    engine.step()

Importing the package loads nothing: torch and the engine are loaded with the first name that needs
them, so that artesian.checkpoint works without either.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from artesian import checkpoint, errors, optim, schedulers, zero
    from artesian.build_facts import VERSION as __version__
    from artesian.engine import Engine, init_inference, initialize
    from artesian.errors import Error
    from artesian.units import explain

__all__ = [
    "Engine",
    "Error",
    "__version__",
    "checkpoint",
    "errors",
    "explain",
    "init_inference",
    "initialize",
    "optim",
    "schedulers",
    "zero",
]

# Maps a public name to its module and its name there.
PLACES = {
    "Engine": ("engine", "Engine"),
    "Error": ("errors", "Error"),
    "__version__": ("build_facts", "VERSION"),
    "explain": ("units", "explain"),
    "init_inference": ("engine", "init_inference"),
    "initialize": ("engine", "initialize"),
}
MODULES = ("checkpoint", "engine", "errors", "optim", "schedulers", "units", "zero")


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(f"artesian.{name}")
    if name not in PLACES:
        raise AttributeError(f"module 'artesian' has no attribute {name!r}")
    module, attribute = PLACES[name]
    value = getattr(importlib.import_module(f"artesian.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES, *MODULES})
