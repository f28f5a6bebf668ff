"""Proves what the engine asks of a GPU from Python, without one: an unmodified script of Trainer's
on the real LibTorch above a CUDA runtime that does nothing (tests/support/cuda_of_nothing/
nothing.h).
It ends well wherever its state is; its memory on the GPU is what was planned, to the byte; PyTorch
needs no more beside it than a plain run without its parameters, gradients and optimizer state; and
the host waits at most three times a micro-batch more than in a plain run. Numbers are zeros there,
so bits show elsewhere: simulated_accelerator_test.py."""

import json
import os
import subprocess
import sys

import cuda_of_nothing
import hf
import pytest
import trainer_test

PACKAGE = cuda_of_nothing.FOLDER / "python"
pytestmark = [
    cuda_of_nothing.needs_it,
    pytest.mark.skipif(
        not list((PACKAGE / "artesian").glob("_C.*.so")), reason=f"{PACKAGE} is not built"
    ),
]
MEASURED = """
import json, os, runpy, sys, torch, transformers

train = transformers.Trainer.train

class Marks(transformers.TrainerCallback):
    def on_step_begin(self, *args, **kwargs):
        with open(os.environ["ARTESIAN_CUDA_OF_NOTHING_LOG"], "a") as log:
            log.write("step|||||\\n")

def measured(self, *args, **kwargs):
    self.add_callback(Marks())
    torch.cuda.reset_peak_memory_stats()
    result = train(self, *args, **kwargs)
    print("MEASURED", json.dumps({
        "peak": torch.cuda.max_memory_allocated(),
        "numel": sum(p.numel() for p in self.model.parameters()),
        "planned": getattr(self.model_wrapped, "planned_memory", None),
    }))
    return result

transformers.Trainer.train = measured
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(tmp_path):
    """Runs the example for four steps of two micro-batches. Returns its figures, and the calls that
    the GPU received as (kind, bytes), by step; calls before the first step come first."""

    def start(config=None):
        (tmp_path / "measured.py").write_text(MEASURED)
        log = tmp_path / "calls.log"
        log.unlink(missing_ok=True)
        environment = hf.environment(tmp_path, as_deepspeed=config is not None)
        environment = cuda_of_nothing.variables(environment, log)
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"  # otherwise most of the memory is cuBLAS's
        (tmp_path / "start" / "sitecustomize.py").write_text(hf.START.format(folder=str(PACKAGE)))
        paths = environment["PYTHONPATH"].split(os.pathsep)
        paths[paths.index(str(hf.BUILD / "python"))] = str(PACKAGE)
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        words = ["measured.py", trainer_test.SCRIPT, "--steps", 4]
        if config is not None:
            environment["ARTESIAN_DEVICE"] = "cuda"
            words += ["--deepspeed", config]
        done = subprocess.run([sys.executable, *map(str, words)], cwd=tmp_path, env=environment,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        line = next(x for x in done.stdout.splitlines() if x.startswith("MEASURED "))
        calls, main = [[]], None
        for call in log.read_text().splitlines():
            kind, thread, _, _, size, _ = call.split("|", 5)
            main = main or thread
            if kind == "step":
                calls.append([])
            elif kind != "wait" or thread == main:  # Gloo's threads also wait
                calls[-1].append((kind, int(size)))
        return json.loads(line.removeprefix("MEASURED ")), calls

    return start


def config_of(folder, stage, offload):
    config = json.loads(trainer_test.config_for(folder).read_text())
    section = {"device": offload, "nvme_path": str(folder)}
    config["zero_optimization"] = {"stage": stage, "offload_optimizer": section}
    if stage == 3:
        config["zero_optimization"]["offload_param"] = section
    host = "8MiB" if offload == "cpu" else "2MiB"  # a budget that does not hold everything
    config["artesian"] |= {"device_memory": "1500KiB", "host_memory": host}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def count(calls, kind):
    return sum(1 for each, _ in calls if each == kind)


def test_the_example_asks_of_a_gpu_what_is_planned(run, tmp_path):
    plain, plain_calls = run()
    state = 16 * plain["numel"]  # parameters, gradients and Adam's two moments, in fp32
    for stage, offload in ((2, "cpu"), (2, "nvme"), (3, "cpu"), (3, "nvme")):
        ours, calls = run(config_of(tmp_path, stage, offload))
        assert calls[0].count(("allocate", ours["planned"]["device"])) == 1, (stage, offload)
        assert (ours["planned"]["nvme"] > 0) == (offload == "nvme")
        assert ours["peak"] <= 1.05 * (plain["peak"] - state), (stage, offload, ours, plain)
        assert len(calls) == len(plain_calls) == 5
        step, plain_step = calls[3], plain_calls[3]
        assert count(step, "product") == count(plain_step, "product")
        # more waits than Trainer's own, which are for its log
        more = count(step, "wait") - count(plain_step, "wait")
        assert more <= 3 * 2, (stage, offload)
        figures = {kind: (count(step, kind), count(plain_step, kind))
                   for kind in ("launch", "copy", "wait")}  # fmt: skip
        print(stage, offload, "a step, and plain:", figures, ours["peak"], plain["peak"] - state)
