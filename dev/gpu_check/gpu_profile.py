"""Part profile: profiles the GPU in two steps of a Llama with a vocabulary of 128,256, four layers
and 8,192 tokens: the share of time in which it computes, launches per step, and the largest
kernels. It uses LibTorch's profiler, whose trace is kept beside the results."""

import collections
import gzip
import json
import shutil

from shell import Failure

WARM_UP, STEPS = 2, 2
LARGEST = 12
SHAPES = {
    "1.5b": {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "heads": 32},
    "tiny": {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "heads": 4},
}
LENGTH = {"1.5b": 2048, "tiny": 32}
MEMORY = {"1.5b": ("16GiB", "40GiB"), "tiny": ("16MiB", "64MiB")}


def write_inputs(name, folder):
    shape = dict(SHAPES[name])
    heads = shape.pop("heads")
    (folder / "model").mkdir(parents=True, exist_ok=True)
    model = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "max_position_embeddings": LENGTH[name],
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **shape,
    }
    (folder / "model/config.json").write_text(json.dumps(model, indent=1))
    device, host = MEMORY[name]
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "cpu"},
            "offload_optimizer": {"device": "cpu"},
        },
        "artesian": {"device_memory": device, "host_memory": host},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def union(intervals):
    """Total length covered by the intervals."""
    covered, end = 0.0, float("-inf")
    for first, last in sorted(intervals):
        covered += max(0.0, last - max(first, end))
        end = max(end, last)
    return covered


def summary(events, category, steps):
    """Summarises a trace's events, whose times are microseconds."""
    timed = [e for e in events if e.get("ph") == "X" and "dur" in e]
    work = [e for e in timed if e.get("cat") == category]
    if not work:
        raise Failure(f"the trace has no events of the category {category}")
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in work]
    length = max(last for _, last in spans) - min(first for first, _ in spans)
    copies = [(e["ts"], e["ts"] + e["dur"]) for e in timed if e.get("cat") == "gpu_memcpy"]
    total, count = collections.Counter(), collections.Counter()
    for event in work:
        total[event["name"]] += event["dur"]
        count[event["name"]] += 1
    rows = [
        {"kernel": name, "ms_a_step": total[name] / 1e3 / steps, "launches": count[name] / steps}
        for name, _ in total.most_common(LARGEST)
    ]
    return {
        "busy_share": union(spans) / length,
        "copy_share": union(copies) / length,
        "launches_a_step": len(work) / steps,
        "step_s": length / 1e6 / steps,
        "rows": rows,
    }


def run(context):
    on_cpu = context.options.bench_on_cpu
    if not on_cpu:
        context.need_gpu()
    program = context.program("bin/profile_bench")
    name, device = context.options.shape, "cpu" if on_cpu else "cuda:0"
    folder = context.work / "profile"
    write_inputs(name, folder)
    trace = folder / "trace.json"
    command = [program, folder / "model", folder / "config.json", LENGTH[name], device]
    done = context.run(
        [*command, WARM_UP, STEPS, trace], log=context.work / "logs/profile.log"
    )
    if done.code != 0:
        raise Failure(done.cause())
    events = json.loads(trace.read_text())["traceEvents"]
    context.options.out.mkdir(parents=True, exist_ok=True)
    with trace.open("rb") as whole, gzip.open(
        context.options.out / "profile.trace.json.gz", "wb"
    ) as packed:
        shutil.copyfileobj(whole, packed)
    found = summary(events, "cpu_op" if on_cpu else "kernel", STEPS)
    lines = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    return found | {"seconds_of_steps": [line["seconds"] for line in lines], "device": device}
