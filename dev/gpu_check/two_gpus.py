"""Part ranks: trains a small model with one process, and with two that have a GPU each. Losses and
norms must be bit-identical, with parameters on the GPUs and in host memory, and NCCL must have
connected the GPUs. The same of a hooked model's state, if the build has the Python package."""

import json
import shutil
import sys

import bench
import hooked
from shell import Failure, Skip

STEPS = 4
SHAPE = bench.Shape(4, 256, 4, 2048, 128, 2, "256MiB", "256MiB")
WITHOUT_NCCL = "not by NCCL"  # comm/nccl_group.cpp
STAGES = {"gpu": 2, "host": 3}  # where parameters are


def config(place, ranks):
    made = bench.our_config("host", SHAPE, "")
    zero = made["zero_optimization"]
    zero["stage"] = STAGES[place]
    if place == "gpu":
        del zero["offload_param"]
    return made | {"gradient_accumulation_steps": 4 // ranks}


def train(context, folder, place, ranks, device):
    """Loss and norm of each step, and what the ranks said."""
    name = f"{place}-{ranks}"
    log = folder / f"{name}.jsonl"
    (folder / f"{name}.json").write_text(json.dumps(config(place, ranks), indent=1))
    command = [context.program("bin/artesian"), "train", "--model", folder / "model", "--init"]
    command += ["--data", folder / "tokens.bin", "--config", folder / f"{name}.json"]
    command += ["--device", device, "--steps", STEPS, "--seq-len", SHAPE.positions]
    command += ["--order", "sequential", "--seed", 1, "--log-jsonl", log, "--quiet"]
    if ranks > 1:
        run = ["torch.distributed.run", "--standalone", "--nproc-per-node", ranks, "--no-python"]
        command = [sys.executable, "-m", *run, *command]
    done = context.run(
        command, environment={"OMP_NUM_THREADS": "1"}, log=context.work / f"logs/ranks-{name}.log"
    )
    if done.code != 0:
        raise Failure(f"{name}: {done.cause()}")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [[line["loss"], line["grad_norm"]] for line in lines], done.output


def check_connected(said):
    line = next((line for line in said.splitlines() if WITHOUT_NCCL in line), None)
    if line is not None:
        raise Failure(line.strip())


def compare_hooked(context, found):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    one, _ = hooked.train(context, "ranks-hooked-1", more=["ranks"])
    two, said = hooked.train(context, "ranks-hooked-2", launcher, ["ranks"])
    found["hooked"] = {"one": one, "two": two}
    found["other_bits"] += [f"hooked {home}" for home in one if one[home] != two[home]]
    check_connected(said)


def run(context):
    on_cpu = context.options.bench_on_cpu
    if not on_cpu:
        context.need_gpu()
        if context.gpu_count < 2:
            raise Skip("one GPU")
    folder = context.work / "ranks"
    bench.write_model(SHAPE, folder / "model")
    bench.write_tokens(SHAPE, folder / "tokens.bin")
    found = {"other_bits": []}
    try:
        for place in STAGES:
            one, _ = train(context, folder, place, 1, "cpu" if on_cpu else "cuda:0")
            two, said = train(context, folder, place, 2, "cpu" if on_cpu else "cuda")
            found[place] = {"one": one, "two": two}
            found["other_bits"] += [place] if one != two or len(one) != STEPS else []
            check_connected(said)
        if hooked.has_package(context):
            compare_hooked(context, found)
    finally:
        shutil.rmtree(folder)
    if found["other_bits"]:
        return found | {"failed": True, "reason": f"other bits: {', '.join(found['other_bits'])}"}
    return found
