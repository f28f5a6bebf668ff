"""Proves that processes which torchrun starts together train one model with `artesian train`: its
log, its digest and its saved model are those of one process that runs all their micro-batches; that
what they have otherwise, and what they cannot do yet, ends all of them with one line and exit code
2; that a rank which is killed ends the others, and nothing is left; and that all stop after the
same step. And that a batch script of Slurm, which is one process of an allocation of many, trains
alone."""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import train_cli_test
from memory_group import made_group
from train_cli_test import place, pytestmark  # noqa: F401

BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NPROCS": "8"}


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]


def in_memory(config):
    config["zero_optimization"]["offload_param"] = {"device": "cpu"}
    config["artesian"] = {}
    config["train_micro_batch_size_per_gpu"] = 2


def with_stage(place, stage, device, accumulation, params="cpu", **budgets):  # noqa: F811
    def change(config):
        folder = config["zero_optimization"]["offload_param"]
        in_memory(config)
        config["artesian"] = budgets
        if params == "nvme":
            config["zero_optimization"]["offload_param"] = folder
        elif params == "none":
            config["zero_optimization"]["offload_param"] = {"device": "none"}
        config["gradient_accumulation_steps"] = accumulation
        config["zero_optimization"]["stage"] = stage
        if stage < 3:
            del config["zero_optimization"]["offload_param"]
        config["zero_optimization"]["offload_optimizer"]["device"] = device

    return place.write_config(change)


def start_ranks(place, ranks, *arguments, words=(), **flags):  # noqa: F811
    flags = {"seq_len": 16, **flags}
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), *words, *place.words(*arguments, **flags)]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=place.folder, env=train_cli_test.ENVIRONMENT)  # fmt: skip


def run_ranks(*arguments, **flags):
    process = start_ranks(*arguments, **flags)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def weights_in(folder):
    files = sorted(folder.glob("*.safetensors"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.parametrize(
    ("stage", "device", "params", "ranks"),
    [(1, "none", "cpu", 3), (3, "nvme", "cpu", 2), (3, "nvme", "nvme", 3)],
)
def test_ranks_have_the_log_and_the_weights_of_one(
    place, stage, device, params, ranks  # noqa: F811
):  # fmt: skip
    flags = {"steps": 4, "order": "sequential"}
    one = place.trained(seq_len=16, config=with_stage(place, stage, device, 2 * ranks, params),
                        save=place.folder / "one", **flags)  # fmt: skip
    done = run_ranks(place, ranks, config=with_stage(place, stage, device, 2, params),
                     save=place.folder / "many", log_jsonl=place.log, **flags)  # fmt: skip
    assert done.returncode == 0, done.stderr
    many = place.steps()
    same = ["step", "loss", "grad_norm", "loss_scale", "overflow", "lr", "tokens"]
    assert [[line[key] for key in same] for line in many] == [
        [line[key] for key in same] for line in one
    ]
    assert many[-1]["digest"] == one[-1]["digest"]
    assert weights_in(place.folder / "many") == weights_in(place.folder / "one") != []
    assert all(line["bytes"]["bus"] > 0 for line in many)
    assert done.stdout.count("Training, 4 steps") == 1
    assert "nvme, written in all" in done.stdout and "TiB" not in done.stdout
    assert done.stderr.count("done after step 4 of 4") == 1
    assert list(place.nvme.iterdir()) == []


def planned(place, config, ranks):  # noqa: F811
    words = ["plan", "--model", place.model, "--config", config, "--seq-len", 16, "--json", "-"]
    words += ["--ranks", ranks, "--tflops", 1, "--memory-bandwidth", 10]
    command = [train_cli_test.PROGRAM, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fast_sends_gradients_once_a_step(place):  # noqa: F811
    found = {}
    for reduction in ("exact", "fast"):
        config = with_stage(place, 2, "cpu", 4, reduction=reduction)
        done = run_ranks(place, 2, config=config, steps=4, order="sequential",
                         log_jsonl=place.log)  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[reduction] = place.steps()
        place.log.unlink()
        # All but the words by which ranks agree, and where the rows of a table happen to be.
        of_each = planned(place, config, 2)["bytes_per_step"]["bus"]["total"]
        assert found[reduction][-1]["bytes"]["bus"] == pytest.approx(2 * of_each, rel=0.005)
    exact, fast = found["exact"], found["fast"]
    losses = [[line["loss"] for line in lines] for lines in (fast, exact)]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    assert fast[-1]["digest"] != exact[-1]["digest"]
    # Parameters, gradients and rows of one micro-batch in place of four.
    sent = [lines[-1]["bytes"]["bus"] for lines in (fast, exact)]
    assert sent[0] < 0.6 * sent[1]
    other = with_stage(place, 2, "cpu", 4, reduction="faster")
    refused = run_ranks(place, 2, config=other, steps=1)
    assert 'artesian.reduction: got "faster", allowed exact or fast' in refused.stderr


@pytest.mark.skipif(os.environ.get("ARTESIAN_SOAK") != "1", reason="ARTESIAN_SOAK=1 asks for it")
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_two_ranks_have_the_digest_of_one_wherever_the_state_is(place, dtype):  # noqa: F811
    def run(start, *where, accumulation):
        config = json.loads(with_stage(place, *where[:2], accumulation, where[2]).read_text())
        fp16 = {"enabled": True, "initial_scale_power": 20, "hysteresis": 1}
        half = {"bf16": {"enabled": True}, "fp16": fp16}
        config = {**config, "fp16": {"enabled": False}, dtype: half.get(dtype, {})}
        config.pop("fp32", None)
        path = place.write_config()
        path.write_text(json.dumps(config))
        done = start(config=path, steps=10, order="sequential", log_jsonl=place.log, seq_len=16)
        assert done.returncode == 0, (where, done.stderr)
        keys = ["loss", "grad_norm", "loss_scale", "overflow"]
        lines = place.steps()
        place.log.unlink()
        return [[line[key] for key in keys] for line in lines], lines[-1]["digest"]

    one = run(place.run, 3, "cpu", "cpu", accumulation=4)
    assert any(line[3] for line in one[0]) == (dtype == "fp16")
    homes = ["none", "cpu", "nvme"]
    places = [(0, "none", "none")]  # stage 0 has no offloading
    places += [(stage, home, "none") for stage in (1, 2, 3) for home in homes]
    for where in [*places, *((3, home, "cpu") for home in homes)]:
        many = run(lambda **flags: run_ranks(place, 2, **flags), *where, accumulation=2)
        assert many == one, where


def test_sums_of_many_are_in_fp32_whatever_ranks_they_are_of(place):  # noqa: F811
    flags = {"seq_len": 16, "steps": 2, "order": "sequential", "log_jsonl": place.log}
    one = place.run(config=with_stage(place, 2, "cpu", 8), **flags)
    alone = place.steps()[-1]["digest"]
    done = run_ranks(place, 2, config=with_stage(place, 2, "cpu", 4), **flags)
    for each in (one, done):
        assert each.returncode == 0, each.stderr
        assert each.stderr.count("grad_accum_dtype: absent: fp32, as a step adds 8 grad") == 1
    assert place.steps()[-1]["digest"] == alone


def test_any_number_of_ranks_goes_on_with_the_bits_of_one(place):  # noqa: F811
    def config(accumulation):
        return with_stage(place, 3, "nvme", accumulation, params="nvme")

    one = place.trained(steps=6, seq_len=16, order="sequential", config=config(6))
    folder = place.folder / "checkpoints"
    flags = {"order": "sequential", "checkpoint_dir": folder, "log_jsonl": place.log}
    for ranks, steps in [(3, 2), (2, 4), (3, 6)]:
        done = run_ranks(place, ranks, *(["--resume"] if steps > 2 else []), steps=steps,
                         config=config(6 // ranks), **flags)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"checkpoint global_step{steps}: " in done.stderr
        names = {path.name for path in (folder / f"global_step{steps}").glob("rank*.safetensors")}
        assert names == {f"rank{rank}.safetensors" for rank in range(ranks)}
    many = place.steps()
    assert [line["step"] for line in many] == [1, 2, 3, 4, 5, 6]
    assert [line["loss"] for line in many] == [line["loss"] for line in one]
    assert many[-1]["digest"] == one[-1]["digest"]


def test_what_ranks_have_otherwise_ends_them_all(place):  # noqa: F811
    script = place.folder / "start.sh"
    script.write_text('#!/bin/sh\nexec "$@" --seed "$RANK"\n')
    script.chmod(0o755)
    done = run_ranks(place, 2, words=[script], config=place.write_config(in_memory))
    assert done.returncode != 0 and done.stdout == ""
    line = "error: --seed: rank 0 has 0, rank 1 has 1; give all ranks the same"
    assert line in done.stderr and "exitcode  : 2" in done.stderr, done.stderr


def processes_of(torchrun):
    listing = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(torchrun.pid)],
                             capture_output=True, text=True, check=True).stdout  # fmt: skip
    return [int(line.split()[0]) for line in listing.splitlines() if "train" in line]


def started(place, *arguments, **flags):  # noqa: F811
    """Two ranks that have made some steps, and will not end by themselves."""
    flags = {"config": with_stage(place, 2, "nvme", 1)} | flags
    process = start_ranks(place, 2, *arguments, steps=1_000_000, log_jsonl=place.log, **flags)
    deadline = time.monotonic() + 60
    while not (place.log.exists() and len(place.log.read_text().splitlines()) > 3):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    return process


def test_a_rank_that_is_killed_ends_the_others(place):  # noqa: F811
    process = started(place)
    os.kill(processes_of(process)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "exitcode  : -9" in err and "rank" in err, err
    # What the killed one could not remove goes when the next run begins.
    assert run_ranks(place, 2, config=with_stage(place, 2, "nvme", 1)).returncode == 0
    assert list(place.nvme.iterdir()) == []


@contextlib.contextmanager
def slow_disk(folder, bytes_per_second):
    """A control group (version 1) whose processes read and write the disk of `folder` no faster.
    Yields a function that puts a process in; None if no such group can be made."""
    device = os.stat(folder).st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
    files = [f"blkio.throttle.{way}_bps_device" for way in ("read", "write")]
    with made_group("/sys/fs/cgroup/blkio", [(file, limit) for file in files]) as group:
        yield group and (lambda pid: (group / "cgroup.procs").write_text(str(pid)))


def test_a_rank_with_a_slow_disk_is_named_and_is_no_fault(place):  # noqa: F811
    with slow_disk(place.nvme, 4 << 20) as enter:
        if enter is None:
            pytest.skip("the disk of one process cannot be slowed down here")
        # The state does not fit in memory, so that each step reads it and writes it.
        budgets = {"device_memory": "272KiB", "host_memory": "256KiB"}
        config = with_stage(place, 3, "nvme", 1, "nvme", **budgets)
        process = started(place, config=config)
        before = len(place.log.read_text().splitlines())
        slow = processes_of(process)[1]
        enter(slow)
        while len(place.log.read_text().splitlines()) < before + 12:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(slow, signal.SIGTERM)
        err = process.communicate(timeout=60)[1]
    assert "exitcode  : 143" in err, err
    named = [line["waited_for"] for line in place.steps()][before + 2 :]
    assert named.count(1) > 2 * named.count(0), named


@pytest.mark.parametrize("to", ["one", "all", "torchrun"])
def test_ranks_stop_after_the_same_step(place, to):  # noqa: F811
    process = started(place, "--save", place.folder / "saved")
    ranks = processes_of(process)
    assert len(ranks) == 2
    for pid in {"one": ranks[1:], "all": ranks, "torchrun": [process.pid]}[to]:
        os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0 and (to == "torchrun" or "exitcode  : 143" in err), err
    steps = place.steps()
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    assert f"after step {len(steps)} of 1000000" in err
    assert weights_in(place.folder / "saved") != []
    assert list(place.nvme.iterdir()) == []


def test_a_batch_script_of_slurm_trains(place, monkeypatch):  # noqa: F811
    for name, value in BATCH_SCRIPT.items():
        monkeypatch.setitem(train_cli_test.ENVIRONMENT, name, value)
    assert len(place.trained(steps=1)) == 1
