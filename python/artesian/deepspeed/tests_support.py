"""A plugin of pytest that runs DeepSpeed's own tests, as they are, on Artesian:

    cd DeepSpeed/tests
    ARTESIAN_AS_DEEPSPEED=1 python -m pytest -p artesian.deepspeed.tests_support unit/v1/zero

Tests of one process run in pytest's own. Those of several are skipped, and so are those that meet a
name or a setting that is refused with a sentence: they are counted, by sentence, at the end."""

from __future__ import annotations

import collections
import importlib.abc
import importlib.machinery
import os
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import artesian.deepspeed  # noqa: F401
from artesian.deepspeed import surface
from artesian.engine import LIVE
from artesian.errors import UnsupportedError

FIRST_SEED = 67280421310721  # the first seed of PyTorch's generator in a new process
OURS = ("<class 'deepspeed.", "<class 'artesian.", "Engine(")
NOT_SERVED = "a name that Artesian does not have"

refused: collections.Counter[str] = collections.Counter()
several: collections.Counter[int] = collections.Counter()


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for DeepSpeed's modules that Artesian does not have, so that a file can be imported
    whose other tests need none of them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("deepspeed."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin="artesian", is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        surface.fill(module)


def missing_name(name: str) -> Any:
    return surface.stand_in(name, NOT_SERVED)


def run_in_this_process(test: Any, request: Any, world_size: int | Sequence[int]) -> None:
    """In place of DistributedExec._launch_with_file_store."""
    message = test._dist_run(0, 1, 29500, None)
    if message:
        pytest.skip(message)


def use_this_process(kind: type) -> None:
    for base in kind.__mro__:
        if "_launch_with_file_store" in vars(base):
            base._launch_with_file_store = run_in_this_process  # type: ignore[attr-defined]


def pytest_configure(config: pytest.Config) -> None:
    surface.otherwise = missing_name
    sys.meta_path.insert(1, Missing())


def least_size(item: pytest.Item, kind: Any) -> int:
    """The fewest processes that the test is written for."""
    mark = item.get_closest_marker("world_size")
    size = kind.world_size if mark is None else mark.args[0]
    call = getattr(item, "callspec", None)
    size = size if call is None else call.params.get("world_size", size)
    return size if isinstance(size, int) else min(size)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind: Any = getattr(item, "cls", None)
        if not getattr(kind, "is_dist_test", False):
            continue
        use_this_process(kind)
        if (size := least_size(item, kind)) > 1:
            several[size] += 1
            item.add_marker(pytest.mark.skip(f"of {size} processes"))


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    """Gives a test the state of a fresh process, and restores the former state afterwards."""
    before = dict(os.environ)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(FIRST_SEED)
    random.seed()
    yield
    for engine in list(LIVE):
        engine.destroy()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)
    os.environ.clear()
    os.environ.update(before)


def sentence_of(error: BaseException | None) -> str | None:
    """Why the test is no test of Artesian: what it asks for is refused, or is a member that only
    DeepSpeed's own classes have."""
    if isinstance(error, UnsupportedError):
        return str(error).splitlines()[0]
    if isinstance(error, AttributeError) and error.obj is not None:
        kind = error.obj if isinstance(error.obj, type) else type(error.obj)
        if kind.__module__.startswith(("artesian.", "deepspeed.")):
            return f"{kind.__name__}.{error.name}: only DeepSpeed's own class has it"
    if isinstance(error, AttributeError) and str(error).startswith(OURS):  # monkeypatch's
        return f"{str(error).split()[-1]}: only DeepSpeed's own class has it"
    if error is not None and error.__context__ is not None:  # pytest.raises met it
        return sentence_of(error.__context__)
    return None


def asks_about(traceback: Any) -> str | None:
    """The name that Artesian does not have which the innermost function of a test's file names."""
    frames = [entry.frame.raw for entry in traceback if "/unit/" in str(entry.path)]
    if not frames:
        return None
    known = frames[-1].f_globals
    modules = [value for value in known.values() if isinstance(value, types.ModuleType)]
    owners = [known, *(vars(m) for m in modules if m.__name__.startswith("deepspeed"))]
    for name in frames[-1].f_code.co_names:
        for owner in owners:
            value = owner.get(name)
            if isinstance(value, type) and value.__doc__ == NOT_SERVED:
                return f"{value.__module__}.{name}: asked about, and not served"
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    sentence = sentence_of(call.excinfo.value if call.excinfo is not None else None)
    if report.failed and sentence is None:
        sentence = asks_about(call.excinfo.traceback)
    if report.failed and sentence is not None:
        refused[sentence] += 1
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {sentence}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    def part(title: str, lines: Callable[[], Iterator[str]]) -> None:
        terminalreporter.section(title)
        for line in lines():
            terminalreporter.line(line)

    part("refused", lambda: (f"{n:5} {sentence}" for sentence, n in refused.most_common()))
    part("of several processes", lambda: (f"{n:5} of {size}" for size, n in several.items()))
