"""A pytest plugin that runs DeepSpeed's own, unchanged tests on Artesian:

    cd DeepSpeed/tests
    ARTESIAN_AS_DEEPSPEED=1 python -m pytest -p artesian.deepspeed.tests_support unit/v1/zero

Tests for one process run in pytest's process, others in separate processes (tests_ranks.py). Tests
that use a refused name or setting are skipped, and counted at the end by the refusal's sentence.
`--ranks-min 2 --ranks-max 4`: only tests with this many processes."""

from __future__ import annotations

import collections
import importlib.abc
import importlib.machinery
import os
import random
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import artesian.deepspeed  # noqa: F401
from artesian.deepspeed import surface, tests_ranks
from artesian.engine import LIVE
from artesian.errors import UnsupportedError

FIRST_SEED = 67280421310721  # the first seed of PyTorch's generator in a new process
OURS = ("<class 'deepspeed.", "<class 'artesian.", "Engine(")
NOT_SERVED = "a name that Artesian does not have"

refused: collections.Counter[str] = collections.Counter()
ranks_allowed = [1, 4]


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides DeepSpeed modules that Artesian lacks, so that files can be imported whose other
    tests do not need them."""

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


def some_of(world_size: int | Sequence[int]) -> list[int]:
    """The numbers of processes that --ranks-min and --ranks-max allow."""
    sizes = [world_size] if isinstance(world_size, int) else list(world_size)
    return [size for size in sizes if ranks_allowed[0] <= size <= ranks_allowed[1]]


def run_here_or_in_processes(test: Any, request: Any, world_size: int | Sequence[int]) -> None:
    """Replaces DistributedExec._launch_with_file_store."""
    fixture = getattr(test, "is_dist_fixture", False)
    for size in [int(world_size)] if fixture else some_of(world_size):  # type: ignore[arg-type]
        if size > 1:
            tests_ranks.run(test, size, str(request.getfixturevalue("tmpdir")))
        elif message := test._dist_run(0, 1, 29500, None):
            pytest.skip(message)


def launch_by_us(kind: type) -> None:
    for base in kind.__mro__:
        if "_launch_with_file_store" in vars(base):
            base._launch_with_file_store = run_here_or_in_processes  # type: ignore[attr-defined]


def answer_for_what_is_missing() -> None:
    surface.otherwise = missing_name
    sys.meta_path.insert(1, Missing())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ranks-min", type=int, default=1, help="processes of a test, at least")
    parser.addoption("--ranks-max", type=int, default=4, help="processes of a test, at most")


def pytest_configure(config: pytest.Config) -> None:
    answer_for_what_is_missing()


def ranks_of(item: pytest.Item, kind: Any) -> int | Sequence[int]:
    """The number of processes of a test, or a list of numbers to run it with in turn."""
    mark = item.get_closest_marker("world_size")
    size: int | Sequence[int] = kind.world_size if mark is None else mark.args[0]
    call = getattr(item, "callspec", None)
    if call is not None:
        size = call.params.get("world_size", size)
    return size


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ranks_allowed[:] = config.getoption("--ranks-min"), config.getoption("--ranks-max")
    for item in items:
        kind: Any = getattr(item, "cls", None)
        if not getattr(kind, "is_dist_test", False):
            continue
        launch_by_us(kind)
        if not some_of(ranks := ranks_of(item, kind)):
            item.add_marker(pytest.mark.skip(f"of {ranks} processes"))


def leave_nothing() -> None:
    for engine in list(LIVE):
        engine.destroy()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    """Gives a test the state of a new process, and restores the former state afterwards."""
    before = dict(os.environ)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(FIRST_SEED)
    random.seed()
    yield
    leave_nothing()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)
    os.environ.clear()
    os.environ.update(before)


def sentence_of(error: BaseException | None) -> str | None:
    """Why the test does not apply to Artesian: it uses something refused, or a member that only
    DeepSpeed's own classes have."""
    if isinstance(error, tests_ranks.RanksFailed):
        return error.sentence
    if isinstance(error, UnsupportedError):
        return str(error).splitlines()[0]
    if isinstance(error, AttributeError) and error.obj is not None:
        kind = error.obj if isinstance(error.obj, type) else type(error.obj)
        if kind.__module__.startswith(("artesian.", "deepspeed.")):
            return f"{kind.__name__}.{error.name}: only DeepSpeed's own class has it"
    if isinstance(error, AttributeError) and str(error).startswith(OURS):  # from monkeypatch
        return f"{str(error).split()[-1]}: only DeepSpeed's own class has it"
    if error is not None and error.__context__ is not None:  # pytest.raises met it
        return sentence_of(error.__context__)
    return None


def asks_about(error: BaseException) -> str | None:
    """The name, missing in Artesian, that the innermost function of a test's file uses."""
    frames = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if "/unit/" in frame.f_code.co_filename and "/unit/common" not in frame.f_code.co_filename
    ]
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


def why_no_test(error: BaseException) -> str | None:
    return sentence_of(error) or asks_about(error)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    sentence = why_no_test(call.excinfo.value) if report.failed else None
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
