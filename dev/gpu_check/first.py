"""Part first: a smoke test in nine minutes. It builds the programs and the tests with the label
gpu, or uses those that dev/carry.sh brought along, which takes a minute. It runs the tests, and
trains three steps of a small model with both homes, whose losses must be bit-identical. The part
build continues in the same folder. This part runs only if it is named."""

import math
import os
import shutil

import bench
import build
import carried
from shell import Failure, say

SECONDS = 540
STEPS = 3
SHAPE = bench.Shape(4, 256, 4, 2048, 128, 4, "256MiB", "256MiB")


def smoke(context, device):
    """Losses for each home."""
    folder = context.work / "first"
    bench.write_model(SHAPE, folder / "model")
    bench.write_tokens(SHAPE, folder / "tokens.bin")
    context.disk.mkdir(parents=True, exist_ok=True)
    losses = {}
    try:
        for kind in ("host", "nvme"):
            losses[kind] = bench.run_ours(context, kind, SHAPE, device, folder, STEPS)["losses"]
    finally:
        shutil.rmtree(context.disk / "swap", ignore_errors=True)
    for kind, values in losses.items():
        if len(values) != STEPS or not all(v is not None and math.isfinite(v) for v in values):
            raise Failure(f"{kind}: the losses are {values}")
    if losses["host"] != losses["nvme"]:
        raise Failure(f"the homes have other losses: {losses}")
    return losses["host"]


def build_here(context, on_cpu):
    build.configure(context)
    targets = ["programs"] + ([] if on_cpu else ["gpu_tests"])
    command = ["cmake", "--build", context.work, "-j", build.jobs(context), "--target", *targets]
    done = context.run(command, log=context.work / "logs/first-build.log")
    if done.code != 0:
        raise Failure(f"{done.cause()}; run it again: the build goes on where it stopped")
    say(f"built in {done.seconds:.0f} s, {context.seconds_left():.0f} s are left")
    return {"build_s": round(done.seconds, 1)}


def run_gpu_tests(context):
    """As carried.run_gpu_tests, of programs that were built here."""
    command = ["ctest", "--test-dir", context.work, "--output-on-failure", "-L", "gpu"]
    done = context.run(
        command, seconds=context.seconds_left() - 60, log=context.work / "logs/first-gpu.log"
    )
    return dict(build.ENDED.findall(done.output)), done.timed_out


def run(context):
    on_cpu = context.options.bench_on_cpu
    if not on_cpu:
        context.need_gpu()
    context.limit(SECONDS)
    brought = carried.take(context)
    found = {"carried": brought, "cpus": os.cpu_count()}
    if not brought:
        found |= build_here(context, on_cpu)
    problems = []
    if brought or not on_cpu:  # without a GPU, that they begin to run shows that all is carried
        run_tests = carried.run_gpu_tests if brought else run_gpu_tests
        gpu, timed_out = run_tests(context)
        judged = build.judge({"gpu": gpu, "others": {}}, timed_out, context.gpu_count)
        problems += [judged.pop("reason")] if judged.pop("failed", False) else []
        found |= judged
    try:  # failing tests do not prevent the other checks
        found["losses"] = smoke(context, "cpu" if on_cpu else "cuda:0")
    except Failure as failure:
        problems.append(f"three steps: {failure}")
    return found | ({"failed": True, "reason": "; ".join(problems)} if problems else {})
