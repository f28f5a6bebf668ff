"""Answers `import deepspeed`, imports of its submodules, and queries for the installed distribution
of that name. Loads neither torch nor the engine until the first name is used."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.metadata import DistributionFinder
from typing import Any

from artesian.deepspeed import gpus, surface

SWITCH = "ARTESIAN_AS_DEEPSPEED"
# the variable's value if the wheel artesian-deepspeed requests it for every process
INSTALLED = "installed"

METADATA = f"""Metadata-Version: 2.1
Name: deepspeed
Version: {surface.VERSION}
Summary: answered by Artesian, in DeepSpeed's place
"""


class Distribution(importlib.metadata.Distribution):
    """The distribution metadata of deepspeed. It has no files."""

    def read_text(self, filename: str) -> str | None:
        return {"METADATA": METADATA, "top_level.txt": "deepspeed\n"}.get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


class Loader(importlib.abc.Loader):
    def exec_module(self, module: types.ModuleType) -> None:
        gpus.hide()
        surface.fill(module)


class Finder(DistributionFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not surface.has_module(fullname):
            return None
        return importlib.machinery.ModuleSpec(
            fullname, Loader(), origin="artesian", is_package=True
        )

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[importlib.metadata.Distribution]:
        return [Distribution()] if context.name in (None, "deepspeed") else []


def install() -> None:
    """Stands in for DeepSpeed from now on, in this process and its children. It cannot replace a
    DeepSpeed that is already imported. GPUs are hidden from now on, too; with the wheel, which is
    active in all processes, only from the first `import deepspeed` on."""
    everywhere = os.environ.get(SWITCH) == INSTALLED
    if not everywhere:
        os.environ[SWITCH] = "1"
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    known = sys.modules.get("deepspeed")
    if known is not None:
        raise ImportError(
            f"import artesian.deepspeed: {known} is imported already; put this line before all "
            f"other imports, or start Python with {SWITCH}=1"
        )
    if not everywhere:
        gpus.hide()
    sys.meta_path.insert(0, Finder())
