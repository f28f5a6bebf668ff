"""Proves that engines do not disturb other processes or each other: forked children refuse them
without touching or waiting for anything of the parent's; many may exist at once; an engine that
ends, is collected in a cycle, or breaks off leaves no file, thread, descriptor or mapping; and
Ctrl-C may come at any line."""

import gc
import os
import signal
import subprocess
import sys

import pytest
import small_models
import torch
from small_models import artesian, stack, start

NET = """
import sys
sys.path[:0] = sys.argv[1:3]
import torch, artesian
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
place = {"device": "nvme", "nvme_path": sys.argv[3]}
engine = artesian.initialize(model=model, config={
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
    "artesian": {"device_memory": "64MiB", "host_memory": "64MiB", "engine": "threads"}})[0]
x = torch.ones(2, 64)
engine.backward(engine(x).sum())
engine.step()
"""


def take_steps(engine, batch, steps=1, first=0):
    for step in range(first, first + steps):
        engine.backward(engine(batch(step)))
        engine.step()


def digest_after(steps):
    model, batch = stack()
    engine = start(model)
    take_steps(engine, batch, steps)
    return engine.digest()


def run(program, folder):
    """Runs the program in a new process, which may kill itself."""
    words = [sys.executable, "-c", program, str(small_models.BUILD / "python"),
             os.path.dirname(__file__), str(folder)]  # fmt: skip
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def in_child(function):
    """Returns what the function returns or raises in a forked child, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # the child might wait for a thread that it does not have
        try:
            text = str(function())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    assert os.waitpid(child, 0)[1] == 0, text
    return text


def test_children_are_refused_and_touch_nothing(tmp_path):
    model, batch = stack()
    engine = start(model, tmp_path)
    take_steps(engine, batch)
    with torch.no_grad():
        engine(batch(0))  # gathers the parameters that persist
    files = sorted(os.listdir(tmp_path))
    for call in (lambda: engine(batch(0)), lambda: model(batch(0)), engine.digest, engine.step):
        assert "InvalidError: the engine belongs to the process" in in_child(call)
    for read in (model.scale.item, model.blocks[0].weight.sum):
        assert "memory belongs to the process that this one was forked from" in in_child(read)
    assert in_child(engine.destroy) == "None"

    def collect():
        engine._core = engine._hooks = None
        engine.__dict__.clear()
        gc.collect()

    assert in_child(collect) == "None"
    assert sorted(os.listdir(tmp_path)) == files
    take_steps(engine, batch, 1, first=1)
    assert engine.digest() == digest_after(2)
    engine.destroy()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with open("/proc/self/status", encoding="utf-8") as file:
            lines = dict(line.split(":") for line in file)
        return float(lines["RssAnon"].split()[0]) / 1024


def test_workers_do_not_copy_the_pools():
    model, batch = stack()
    engine = start(model, device_memory="300MiB", host_memory="300MiB")
    begun = Numbers()[0]
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    for resident in loader:
        assert max(resident) < begun + 100
        take_steps(engine, batch)


def test_twenty_engines_at_once():
    engines = []
    for index in range(20):
        model, batch = stack()
        engines.append(start(model, device_memory="4MiB", host_memory="8MiB"))
        take_steps(engines[-1], batch, 1 + index % 2)
    digests = [engine.digest() for engine in engines]
    assert set(digests) == {digest_after(1), digest_after(2)}
    for engine in engines[::2]:
        engine.destroy()
    take_steps(engines[1], batch, 1, first=2)
    model = engines[1].module
    del engines[1]  # without destroy(), which would give the memory back
    gc.collect()
    with pytest.raises(RuntimeError, match="its engine is gone"):
        model.blocks[0].weight.sum()


def threads():
    return len(os.listdir("/proc/self/task"))


def open_files():
    return len(os.listdir("/proc/self/fd"))


def mapped_bytes():
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.readline().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("end", ["collected", "destroyed", "in a forward", "in a backward"])
def test_an_engine_leaves_nothing_however_it_ends(end, tmp_path):
    def use():
        model, batch = stack()
        engine = start(model, tmp_path, device_memory="80MiB", host_memory="80MiB")
        take_steps(engine, batch)
        model.engine = [engine]  # a reference cycle
        engine.kept = engine(batch(1))

        def stop(*_):
            raise KeyboardInterrupt

        def watch(output):
            output.register_hook(stop)

        if end == "in a forward":
            model.blocks[1].register_forward_pre_hook(stop)
        if end == "in a backward":
            model.blocks[1].register_forward_hook(lambda m, a, out: watch(out))
        if end.startswith("in"):
            with pytest.raises(KeyboardInterrupt):
                model(batch(2)).backward()
            return
        if end == "destroyed":
            engine.destroy()

    use()  # makes what is made once per process
    gc.collect()
    before = threads(), open_files(), mapped_bytes()
    for _ in range(3):
        use()
        gc.collect()
    assert os.listdir(tmp_path) == []
    assert (threads(), open_files()) == before[:2]
    assert mapped_bytes() - before[2] < 100 << 20


def test_an_uncaught_ctrl_c_in_a_forward_ends_the_program_as_any_other(tmp_path):
    program = NET + (
        "import signal\n"
        "model[1].register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))\n"
        "model(x)\n"
    )
    done = run(program, tmp_path)
    assert "KeyboardInterrupt" in done.stderr and "CHECK" not in done.stderr
    assert done.returncode in (-signal.SIGINT, 130)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_program_left_is_reclaimed(tmp_path):
    done = run(NET + "import os\nos.kill(os.getpid(), 9)\n", tmp_path)
    assert done.returncode == -9, done.stderr
    assert os.listdir(tmp_path) != []
    model, batch = stack()
    engine = start(model, tmp_path)
    take_steps(engine, batch)
    engine.destroy()
    assert os.listdir(tmp_path) == []


class CtrlC:
    """Raises KeyboardInterrupt at the n-th executed line of the package."""

    def __init__(self, line):
        self.left = line
        self.folder = os.path.dirname(artesian.__file__)

    def __enter__(self):
        sys.settrace(self.call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def call(self, frame, event, argument):
        name = os.path.basename(frame.f_code.co_filename)
        return self.line if name in ("engine.py", "hooks.py", "optim.py") else None

    def line(self, frame, event, argument):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line


def test_ctrl_c_at_any_line_of_a_forward_or_backward_changes_no_bit():
    model, batch = stack(blocks=2)
    engine = start(model)
    take_steps(engine, batch)
    reached = 0
    for line in range(1, 1000):
        try:
            with CtrlC(line) as interrupt:
                engine.backward(engine(batch(7)))
        except KeyboardInterrupt:
            reached += 1
        engine.zero_grad()
        if interrupt.left > 0:
            break
    assert reached > 50
    take_steps(engine, batch, 1, first=1)
    other, _ = stack(blocks=2)
    untouched = start(other)
    take_steps(untouched, batch, 2)
    assert engine.digest() == untouched.digest()
    assert engine._core.depth == 0
    assert not torch.overrides._get_current_function_mode_stack()
