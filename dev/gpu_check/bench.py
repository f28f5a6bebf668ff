"""Part bench: trains a GPT-2 of random weights with `artesian train`, offloaded to host memory and
to NVMe, beside PyTorch FSDP2 with CPU offload: same shapes, sequence length, batch, optimizer and
clipping, bf16 compute with fp32 master weights. They alternate, round by round, while the part's
time lasts. Figures are medians over the steps of all rounds, from the third step of each on: before
that, Artesian records its accesses and PyTorch warms up."""

import dataclasses
import json
import math
import random
import re
import shutil
import statistics
import struct
import sys
import time

from shell import Failure, say

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    positions: int
    batch: int
    device_memory: str
    host_memory_nvme: str  # for the run on NVMe: gradients, a ring, and part of the state

    def parameters(self):
        block = 12 * self.hidden * self.hidden + 13 * self.hidden
        tables = (self.vocabulary + self.positions) * self.hidden
        return self.layers * block + tables + 2 * self.hidden


SHAPES = {
    "1.5b": Shape(48, 1600, 25, 50257, 1024, 8, "8GiB", "8GiB"),
    "tiny": Shape(2, 64, 2, 512, 64, 2, "1MiB", "1MiB"),
}
STEPS, STEPS_LEFT_OUT = 6, 2
OPTIMIZER = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
CLIPPING = 1.0
FSDP2 = "FSDP2, CPU offload"
WORDS = {"fsdp2": FSDP2, "host": "Artesian, host offload", "nvme": "Artesian, NVMe offload"}


def write_model(shape, folder):
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "gpt2",
        "n_layer": shape.layers,
        "n_embd": shape.hidden,
        "n_head": shape.heads,
        "n_positions": shape.positions,
        "vocab_size": shape.vocabulary,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        **{key: 0.0 for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop")},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def write_tokens(shape, path):
    """Tokens of which few are common, so that the loss changes within a few steps."""
    draw = random.Random(1)
    count = STEPS * shape.batch * shape.positions + 1
    tokens = (min(int(draw.paretovariate(1.0)) - 1, shape.vocabulary - 1) for _ in range(count))
    path.write_bytes(struct.pack(f"<{count}H", *tokens))


def our_config(kind, shape, disk):
    place = {"device": "cpu"} if kind == "host" else {"device": "nvme", "nvme_path": str(disk)}
    # Parameters, gradients and optimizer state, and an eighth for staging.
    state = f"{math.ceil(shape.parameters() * 16 * 1.125 / GIB)}GiB"
    return {
        "train_micro_batch_size_per_gpu": shape.batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIPPING,
        "optimizer": {"type": "AdamW", "params": OPTIMIZER},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": dict(place),
            "offload_optimizer": dict(place),
        },
        "artesian": {
            "device_memory": shape.device_memory,
            "host_memory": state if kind == "host" else shape.host_memory_nvme,
        },
    }


def run_ours(context, kind, shape, device, folder, steps=STEPS):
    log = folder / f"{kind}.jsonl"
    config = folder / f"{kind}.json"
    config.write_text(json.dumps(our_config(kind, shape, context.disk / "swap"), indent=1))
    command = [context.program("bin/artesian"), "train", "--model", folder / "model", "--init"]
    command += ["--data", folder / "tokens.bin", "--config", config, "--device", device]
    command += ["--steps", steps, "--seq-len", shape.positions, "--order", "sequential"]
    command += ["--seed", 1, "--log-jsonl", log, "--quiet"]
    done = context.run(command, log=context.work / f"logs/{folder.name}-{kind}.log")
    if done.code != 0:
        raise Failure(done.cause())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    last = lines[-1]
    return {
        "seconds": [line["step_s"] for line in lines],
        "losses": [line["loss"] for line in lines],
        "predicted_s": last.get("predicted_step_s"),
        "device_peak_bytes": last["peak"]["device"],
        "host_peak_bytes": last["peak"]["process_rss"],
        "nvme_read_bytes": last["bytes"]["nvme_read"],
        "nvme_write_bytes": last["bytes"]["nvme_write"],
    }


def run_fsdp2(context, shape, device, folder):
    job = dataclasses.asdict(shape) | {
        "tokens": str(folder / "tokens.bin"),
        "steps": STEPS,
        "optimizer": OPTIMIZER,
        "clipping": CLIPPING,
        "device": device.partition(":")[0],
    }
    path = folder / "fsdp2.json"
    path.write_text(json.dumps(job, indent=1))
    worker = context.root / "dev/gpu_check/fsdp2_worker.py"
    done = context.run([sys.executable, worker, path], log=context.work / "logs/bench-fsdp2.log")
    if done.code != 0:
        raise Failure(done.cause())
    return json.loads(re.findall(r"^RESULT (.*)$", done.output, re.MULTILINE)[-1])


def row(kind, runs, error, shape):
    found = {"kind": kind, "words": WORDS[kind], "rounds": len(runs)}
    if error or not runs:
        return found | {"status": "failed", "error": error or "no time was left for a run"}
    steps = [seconds for run in runs for seconds in run["seconds"][STEPS_LEFT_OUT:]]
    losses = runs[0]["losses"]
    if not all(loss is not None and math.isfinite(loss) for loss in losses):
        return found | {"status": "failed", "error": f"the loss is not finite: {losses}"}
    median = statistics.median(steps)
    rest = {key: value for key, value in runs[-1].items() if key not in ("seconds", "losses")}
    return found | {
        "status": "ok",
        "step_s": median,
        "step_s_min": min(steps),
        "step_s_max": max(steps),
        "step_s_of_rounds": [statistics.median(run["seconds"][STEPS_LEFT_OUT:]) for run in runs],
        "tokens_per_s": shape.batch * shape.positions / median,
        "loss_first": losses[0],
        "loss_last": losses[-1],
        **rest,
    }


def one_run(context, kind, shape, device, folder):
    if kind == "fsdp2":
        return run_fsdp2(context, shape, device, folder)
    return run_ours(context, kind, shape, device, folder)


def take_turns(context, shape, device, folder):
    """(runs, first error) of each contestant; one that failed is left out of later rounds."""
    runs, errors = {kind: [] for kind in WORDS}, {}
    longest = 0.0
    for _ in range(context.options.rounds):
        if len(errors) == len(WORDS) or context.seconds_left() < longest * 1.2 + 1:
            break
        start = time.monotonic()
        for kind in WORDS:
            if kind in errors:
                continue
            try:
                runs[kind].append(one_run(context, kind, shape, device, folder))
                say(
                    f"{kind}: {statistics.median(runs[kind][-1]['seconds'][STEPS_LEFT_OUT:]):.3f} s"
                )
            except Failure as failure:
                say(f"{kind}: failed: {failure}")
                errors[kind] = str(failure)
        longest = max(longest, time.monotonic() - start)
    return runs, errors


def run(context):
    on_cpu = context.options.bench_on_cpu
    if not on_cpu:
        context.need_gpu()
    context.program("bin/artesian")
    shape, device = SHAPES[context.options.shape], "cpu" if on_cpu else "cuda:0"
    folder = context.work / "bench"
    write_model(shape, folder / "model")
    write_tokens(shape, folder / "tokens.bin")
    context.disk.mkdir(parents=True, exist_ok=True)
    try:
        runs, errors = take_turns(context, shape, device, folder)
    finally:
        shutil.rmtree(context.disk / "swap", ignore_errors=True)
    rows = [row(kind, runs[kind], errors.get(kind), shape) for kind in WORDS]
    base = rows[0]
    for each in rows[1:]:
        if each["status"] == base["status"] == "ok":
            each["speed_up_over_fsdp2"] = base["step_s"] / each["step_s"]
    found = {"shape": dataclasses.asdict(shape) | {"parameters": shape.parameters()}}
    found |= {"device": device, "rows": rows}
    failed = [f"{each['words']}: {each['error']}" for each in rows if each["status"] != "ok"]
    return found | ({"failed": True, "reason": "; ".join(failed)} if failed else {})
