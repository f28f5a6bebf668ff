"""Part python: trains hooked models on the GPU in a separate process (hooked_worker.py). Losses and
gradients must be bit-identical to plain PyTorch's on the same GPU, wherever the state is. Uses the
Python package of the part build, which exists if this Python has its headers."""

import json
import os
import re
import sys

from shell import Failure, Skip


def run(context):
    on_cpu = context.options.bench_on_cpu
    if not on_cpu:
        context.need_gpu()
    package = context.work / "python"
    context.program("python/artesian/engine.py")
    if not list((package / "artesian").glob("_C.*")):
        raise Skip("the build has no Python package, as this Python has no headers")
    context.disk.mkdir(parents=True, exist_ok=True)
    worker = context.root / "dev/gpu_check/hooked_worker.py"
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    words = [sys.executable, worker, "cpu" if on_cpu else "cuda", context.disk / "swap"]
    done = context.run(words, environment=environment, log=context.work / "logs/python.log")
    said = re.findall(r"^RESULT (.*)$", done.output, re.MULTILINE)
    if done.code != 0 or not said:
        raise Failure(done.cause())
    found = json.loads(said[-1])
    if found["other_bits"]:
        return found | {"failed": True, "reason": f"other bits: {', '.join(found['other_bits'])}"}
    return found
