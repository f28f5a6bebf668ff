"""Runs a DeepSpeed test that is written for several processes. tests_support.py calls it.

Each process is forked from a server that has imported PyTorch and this package and has no threads.
It unpickles the test, as DeepSpeed's own launcher does, and reports to pytest's process how the
test ended."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import pickle
import socket
import tempfile
import time
import traceback
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

SECONDS_MAX = 120.0  # limit for a test
SECONDS_TO_FOLLOW = 15.0  # limit for the other ranks, once one has failed or all have reported


@dataclasses.dataclass
class Outcome:
    """How a test ended on one rank."""

    rank: int
    skipped: str = ""
    failed: str = ""  # the traceback
    sentence: str | None = None  # why the test does not apply to Artesian


class RanksFailed(AssertionError):
    """A test failed on at least one rank."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"rank {outcome.rank}:\n{outcome.failed}")
        self.sentence = outcome.sentence


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def take_models_of_the_cpu() -> None:
    """Tests pass a device to DistributedDataParallel, which refuses that for a model on the CPU."""
    wraps = DistributedDataParallel.__init__

    def init(self: Any, module: Any, *args: Any, **named: Any) -> None:
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            named |= {"device_ids": None, "output_device": None}
        wraps(self, module, *args, **named)

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def outcome_of(test: Any, rank: int, size: int, port: int, meeting: str) -> Outcome:
    from artesian.deepspeed import tests_support

    outcome = Outcome(rank)
    try:
        outcome.skipped = test._dist_run(rank, size, port, meeting) or ""
    except BaseException as error:
        outcome.failed = traceback.format_exc()
        outcome.sentence = tests_support.why_no_test(error)
    return outcome


def one_rank(pickled: bytes, rank: int, size: int, port: int, meeting: str, pipe: Any) -> None:
    """The main function of one rank's process."""
    from artesian.deepspeed import tests_support

    torch.set_num_threads(1)
    torch.manual_seed(tests_support.FIRST_SEED)
    tests_support.answer_for_what_is_missing()
    take_models_of_the_cpu()
    test = pickle.loads(pickled)
    test.non_daemonic_procs = False  # _dist_run returns the reason for skipping
    pipe.send(outcome_of(test, rank, size, port, meeting))
    pipe.close()
    tests_support.leave_nothing()


def outcomes_of(pipes: dict[Any, int]) -> list[Outcome]:
    """Outcomes in the order in which ranks end. A rank that is silent for too long has failed,
    too."""
    outcomes: list[Outcome] = []
    until = time.monotonic() + SECONDS_MAX
    while pipes:
        seconds = max(until - time.monotonic(), 0)
        ready: list[Any] = multiprocessing.connection.wait(list(pipes), seconds)
        if not ready:
            outcomes += [Outcome(rank, failed="did not end") for rank in pipes.values()]
            break
        for pipe in ready:
            rank = pipes.pop(pipe)
            try:
                outcomes.append(pipe.recv())
            except EOFError:
                outcomes.append(Outcome(rank, failed="the process ended without a word"))
        if any(outcome.failed for outcome in outcomes):
            until = min(until, time.monotonic() + SECONDS_TO_FOLLOW)
    return outcomes


def run(test: Any, size: int, folder: str) -> None:
    """Runs the test's function in `size` processes; fails or skips if they do."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "artesian.deepspeed.tests_support"])
    file, name = tempfile.mkstemp(dir=folder, suffix="_filestore")
    os.close(file)
    pickled, port = pickle.dumps(test), free_port()
    pipes: dict[Any, int] = {}
    processes = []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (pickled, rank, size, port, f"file://{name}", theirs)
        process = context.Process(target=one_rank, args=arguments)
        process.start()
        theirs.close()
        pipes[ours] = rank
        processes.append(process)
    try:
        outcomes = outcomes_of(pipes)
    finally:
        until = time.monotonic() + SECONDS_TO_FOLLOW
        for process in processes:
            process.join(max(until - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()
    failed = [outcome for outcome in outcomes if outcome.failed]
    if failed:
        refused = [outcome for outcome in failed if outcome.sentence is not None]
        raise RanksFailed((refused or failed)[0])
    for outcome in outcomes:
        if outcome.skipped:
            pytest.skip(outcome.skipped)
