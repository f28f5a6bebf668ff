"""Part python: trains hooked models on the GPU in a separate process (hooked_worker.py). Losses and
gradients must be bit-identical to plain PyTorch's on the same GPU, wherever the state is. Uses the
Python package of the part build, which exists if this Python has its headers."""

import json
import os
import re
import sys

from shell import Failure, Skip


def has_package(context):
    return bool(list((context.work / "python/artesian").glob("_C.*")))


def train(context, log, launcher=(), more=()):
    """Runs the worker. Returns what it has found, and all that it said."""
    context.disk.mkdir(parents=True, exist_ok=True)
    worker = context.root / "dev/gpu_check/hooked_worker.py"
    paths = [str(context.work / "python"), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    device = "cpu" if context.options.bench_on_cpu else "cuda"
    words = [sys.executable, *launcher, worker, device, context.disk / "swap", *more]
    done = context.run(words, environment=environment, log=context.work / f"logs/{log}.log")
    said = re.findall(r"^RESULT (.*)$", done.output, re.MULTILINE)
    if done.code != 0 or not said:
        raise Failure(done.cause())
    return json.loads(said[-1]), done.output


def run(context):
    if not context.options.bench_on_cpu:
        context.need_gpu()
    context.program("python/artesian/engine.py")
    if not has_package(context):
        raise Skip("the build has no Python package, as this Python has no headers")
    found, _ = train(context, "python")
    if found["other_bits"]:
        return found | {"failed": True, "reason": f"other bits: {', '.join(found['other_bits'])}"}
    return found
