"""Proves that a rank which is killed, or stops, at any instant costs nothing but the run: while
ranks train and save checkpoints, of `artesian train` under torchrun and by themselves, and of a
Python script, one of them gets SIGKILL or SIGSTOP. The others end by themselves within the time
that they may wait; somebody names the one; the next run, on the same folders, begins with what the
last checkpoint has and leaves no file of the run before it. ARTESIAN_SOAK=1: 102
kills and 14 stops. And that ranks which wait in vain name the one that has not come."""

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import hf
import pytest
from build_folder import free_port
from ranks_test import with_stage
from train_cli_test import ENVIRONMENT, place, pytestmark  # noqa: F401

SOAK = os.environ.get("ARTESIAN_SOAK") == "1"
PARTS = 5 if SOAK else 1
WAIT_S = 4  # what a rank waits for one that does not answer
ENDS_S = WAIT_S + 5
START_S = 120
SCRIPT = """
import datetime, os, sys, artesian, torch
folder, checkpoints = sys.argv[1:]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=WAIT_S))
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16))
config = {
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": folder}},
}
engine = artesian.initialize(model=model, config=config)[0]
engine.load_checkpoint(checkpoints)
while True:
    loss = engine(torch.full((2, 16), 1.0 + rank)).square().mean()
    engine.backward(loss)
    engine.step()
    engine.save_checkpoint(checkpoints)
    if rank == 0:
        with open(checkpoints + ".log", "a") as log:
            log.write(f"{engine.global_steps}\\n")
"""


@dataclasses.dataclass(frozen=True)
class Turn:
    how: str  # train, torchrun, python
    ranks: int
    sent: int  # the signal
    victim: int
    delay: float  # seconds behind the start, or behind the first step
    started: bool  # waits for a step first
    itself: bool = False  # in front of a save, in place of the delay


class Ranks:
    """Of one run: their processes, and what they say."""

    def __init__(self, place, turn):  # noqa: F811
        self.place, self.turn = place, turn
        self.log = place.folder / ("saved.log" if turn.how == "python" else "steps.jsonl")
        self.log.unlink(missing_ok=True)
        self.saved = place.folder / ("saved" if turn.how == "python" else "checkpoints")
        self.launcher, self.pids = None, {}
        self.processes, self.said = [], []
        if turn.how == "train":
            port = str(free_port())
            for rank in range(turn.ranks):
                place_of = {"RANK": str(rank), "WORLD_SIZE": str(turn.ranks), "MASTER_PORT": port,
                            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(turn.ranks),
                            "MASTER_ADDR": "127.0.0.1"}  # fmt: skip
                self.start(self.train(), {**ENVIRONMENT, **place_of})
        else:
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                        "--nproc-per-node", str(turn.ranks)]  # fmt: skip
            if turn.how == "torchrun":
                self.start([*torchrun, "--no-python", *self.train()], ENVIRONMENT)
            else:
                script = place.folder / "script.py"
                text = SCRIPT.replace("WAIT_S", str(WAIT_S))
                if turn.itself:
                    strike = f"    if rank == {turn.victim}: os.kill(os.getpid(), {turn.sent})\n"
                    save = "    engine.save_checkpoint("
                    text = text.replace(save, strike + save)
                script.write_text(text)
                variables = hf.environment(place.folder, as_deepspeed=False)
                self.start([*torchrun, script, place.nvme, self.saved], variables)

    def train(self):
        turn = self.turn
        config = with_stage(self.place, 1 + turn.victim % 3, "nvme", 1)
        return self.place.words(
            "--quiet", "--resume", config=config, seq_len=16, steps=1_000_000, checkpoint_every=1,
            checkpoint_dir=self.saved, log_jsonl=self.log, rank_timeout=WAIT_S,
        )  # fmt: skip

    def start(self, command, variables):
        said = (self.place.folder / f"said{len(self.said)}").open("w+")
        self.said.append(said)
        self.processes.append(
            subprocess.Popen(list(map(str, command)), stdout=said, stderr=said, env=variables,
                             cwd=self.place.folder, start_new_session=True)  # fmt: skip
        )

    def words(self):
        return "".join(pathlib.Path(said.name).read_text() for said in self.said)

    def find(self):
        """Rank -> process, of those that are there."""
        if self.turn.how == "train":
            self.pids = {rank: process.pid for rank, process in enumerate(self.processes)}
            return
        listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.processes[0].pid)],
                                 capture_output=True, text=True, check=False).stdout  # fmt: skip
        for pid in map(int, listing.split()):
            with contextlib.suppress(OSError):
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                ranks = [v.partition(b"=")[2] for v in variables if v.startswith(b"RANK=")]
                self.pids |= {int(rank): pid for rank in ranks}

    def wait_for(self, holds, what):
        deadline = time.monotonic() + START_S
        while not holds():
            ended = [process.poll() for process in self.processes]
            assert all(code is None for code in ended), f"{what}: {self.words()[-3000:]}"
            assert time.monotonic() < deadline, f"{what}: {self.words()[-3000:]}"
            time.sleep(0.01)

    def has_begun(self):
        return self.log.exists() and self.log.read_text().count("\n") > 0

    def expect_no_leftovers(self):
        """Whatever lies in the folders is held by a process of this run."""
        self.find()
        for file in self.place.nvme.iterdir():
            links = []
            for pid in self.pids.values():
                for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        links.append(os.readlink(link))
            assert not file.exists() or str(file) in links, f"left behind: {file}"

    def strike(self):
        turn = self.turn
        self.wait_for(lambda: self.find() or len(self.pids) == turn.ranks, "start")
        if turn.started:
            self.wait_for(self.has_begun, "first step")
            self.expect_no_leftovers()
        if turn.itself:
            self.wait_for(lambda: stopped(self.pids[turn.victim]), "its own stop")
            return
        time.sleep(turn.delay)
        os.kill(self.pids[turn.victim], turn.sent)

    def expect_end(self):
        turn, begin = self.turn, time.monotonic()
        others = {rank: pid for rank, pid in self.pids.items() if rank != turn.victim}
        while any(alive(pid) for pid in others.values()):
            took = time.monotonic() - begin
            assert took < ENDS_S, f"{turn}: still there after {took} s: {self.words()[-3000:]}"
            time.sleep(0.01)
        took = time.monotonic() - begin
        if turn.sent == signal.SIGSTOP:
            os.kill(self.pids[turn.victim], signal.SIGKILL)
        for process in self.processes:
            process.wait(60)
        words = self.words()
        for said in self.said:
            said.close()
        own = f"rank {turn.victim} "
        named = any(own + end in words for end in ("is gone", "has not answered", "has not come"))
        torchrun = f"(local_rank: {turn.victim})" in words and "-9" in words
        assert named or torchrun, f"{turn}: nobody names it: {words[-3000:]}"
        silent = ", ".join(re.findall(r"rank ([0-9, ]+) has not answered", words)).split(", ")
        assert {*silent} <= {"", str(turn.victim)}, f"{turn}: others did: {words[-3000:]}"
        return took

    def end(self):
        self.find()
        for process in self.processes:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in self.pids.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def state(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid):
    """Not where only its parent has yet to hear of its end."""
    return state(pid) not in "XZ"


def stopped(pid):
    return state(pid) == "T"


def turns():
    draw = random.Random(os.environ.get("ARTESIAN_TEST_SEED", "7"))
    if not SOAK:
        return [
            Turn("train", 2, signal.SIGKILL, 1, draw.random() * 0.3, True),
            Turn("train", 3, signal.SIGKILL, 0, draw.random() * 0.3, True),
            Turn("torchrun", 2, signal.SIGKILL, 0, draw.random() * 0.3, True),
            Turn("python", 2, signal.SIGKILL, 1, draw.random() * 0.3, True),
            Turn("python", 2, signal.SIGSTOP, 0, draw.random() * 0.3, True),
            Turn("python", 2, signal.SIGSTOP, 0, 0, False, itself=True),
        ]
    made = []
    for number in range(116):
        how = ("train", "torchrun", "train", "python")[number % 4]
        ranks = draw.choice([2, 3])
        started = draw.random() < 0.5
        stopped = number % 12 == 11 or number % 24 == 12  # of a script, and of train by itself
        sent = signal.SIGSTOP if stopped else signal.SIGKILL
        delay = draw.random() * (1.0 if started else 2.0)
        made.append(Turn(how, ranks, sent, draw.randrange(ranks), delay, started))
    return made


@pytest.mark.parametrize("missing", [0, 1])
def test_who_has_not_come_is_named_by_all(place, missing):  # noqa: F811
    """Nobody starts it, or it ends before the ranks have met."""
    variables = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(free_port())}  # fmt: skip
    words = place.words("--quiet", config=with_stage(place, 2, "cpu", 1), seq_len=16, steps=1,
                        rank_timeout=1)  # fmt: skip
    waiting = [
        subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, text=True,
                         cwd=place.folder, env={**ENVIRONMENT, **variables, "RANK": str(rank)})
        for rank in range(3) if rank != missing
    ]  # fmt: skip
    for process in waiting:
        err = process.communicate(timeout=60)[1]
        assert process.returncode == 2, err
        assert f"rank {missing} has not come within 1 s to 127.0.0.1:" in err, err
    assert list(place.nvme.iterdir()) == []


def last_step(saved):
    latest = saved / "latest"
    return int(latest.read_text().strip().removeprefix("global_step")) if latest.exists() else 0


@pytest.mark.parametrize("part", range(PARTS))
def test_a_rank_that_is_killed_or_stops_costs_nothing_but_the_run(place, part):  # noqa: F811
    slowest = 0.0
    all_turns = turns()[part::PARTS]
    for turn in all_turns:
        ranks = Ranks(place, turn)
        before = last_step(ranks.saved)
        try:
            ranks.strike()
            took = ranks.expect_end()
        finally:
            ranks.end()
        waits = turn.sent == signal.SIGSTOP or not turn.started
        slowest = max(slowest, took - (WAIT_S if waits else 0))
        assert last_step(ranks.saved) >= before
    # What is there in the end loads, too, and goes on with another number of ranks.
    steps = last_step(place.folder / "checkpoints")
    assert steps > 0 and last_step(place.folder / "saved") > 0
    place.log.unlink()
    lines = place.trained("--resume", config=with_stage(place, 2, "nvme", 2), seq_len=16,
                          steps=steps + 1, checkpoint_dir=place.folder / "checkpoints")  # fmt: skip
    assert [line["step"] for line in lines] == [steps + 1]
    assert list(place.nvme.iterdir()) == []
    names = [path.name for path in (place.folder / "checkpoints").iterdir()]
    assert [name for name in names if name.startswith(".") and name != ".lock"] == []
    print(f"{len(all_turns)} ranks struck; the slowest end took {slowest:.2f} s")
