"""Part `adam`: our SIMD AdamW, compared with a stream of the same reads and writes, and with
DeepSpeed's CPU Adam plus the separate copy to 16 bit that it needs."""

import json
import os
import subprocess
import sys

import deepspeed_setup
from report import ROOT, paired_ratio, spread

SLICE = 256 * 1024
KERNELS = {
    "adam_step": "Adam",
    "adam_step_split": "Adam, split master weights",
    "expand": "expand, 16 bit to fp32",
    "narrow": "narrow, fp32 to 16 bit",
    "accumulate_gradient": "accumulate a gradient",
    "sum_squares": "sum of squares, inf/nan",
    "checksum64": "XXH3-64 checksum",
}
CONTESTANTS = {  # name -> (description, bytes per parameter)
    "artesian": ("Artesian: fp32 state, bf16 gradient in, bf16 parameter out", 28),
    "stream": ("stream of the same reads and writes", 28),
    "deepspeed": ("DeepSpeedCPUAdam fp32, then bf16.copy_(fp32)", 34),
    "deepspeed_fp32": ("the first of the two alone", 28),
    "deepspeed_bf16": ("DeepSpeedCPUAdam, bf16 parameter and gradient, no fp32 copy", 22),
    "deepspeed_fp16": ("the same in fp16", 22),
    "torch": ("torch AdamW(fused=True), then bf16.copy_(fp32)", 34),
}


def estimate(options):
    return "about 1 minute"


def elements_of(options):
    return max(1, round(options.elements / SLICE)) * SLICE


def kernels(report, options, programs):
    """Each kernel beside a memory stream of the same bytes; CPU time of the busiest thread."""
    elements = max(1, round(options.elements / (1 << 20) / 3))  # in Mi
    command = [programs / "adam_bench", elements, options.repeats]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    rows = []
    for line in map(json.loads, done.stdout.splitlines()):
        parameters = {key: line[key] for key in ("target", "threads", "elements", "dtype")}
        wanted = ["gb_per_s", "ceiling_gb_per_s", "ratio", "ratio_min", "ratio_max"]
        rates = {key: line[key] for key in wanted}
        seconds = line["seconds"]  # min, median, max: adam_bench reports only these
        added = report.add(line["name"], parameters, seconds.values(), line["bytes"], **rates)
        added["seconds"] = seconds
        if line["threads"] != 2:
            continue
        kernel = f"{KERNELS[line['name']]}, {line['dtype']}"
        rows.append([kernel, f"{line['gb_per_s']:.1f}", f"{line['ratio']:.2f}"])
        if line["name"] == "adam_step":
            ratio = {"min": rates["ratio_min"], "median": rates["ratio"], "max": rates["ratio_max"]}
            report.ratio(f"{kernel}: CPU time, stream / kernel (adam_bench)", ratio, 0.95)
    title = "Kernels beside streams of the same reads and writes"
    title += f", {elements} Mi elements, 2 threads"
    report.table(title, ["kernel", "GB/s", "of its stream"], rows)


def worker(options, programs, environment):
    """Results of adam_worker.py, run by DeepSpeed's Python if there is one."""
    python = environment.python if environment else sys.executable
    variables = environment.variables() if environment else dict(os.environ)
    variables["OMP_NUM_THREADS"] = "2"
    arguments = [programs / "libartesian_adam.so", elements_of(options), options.repeats, 2]
    command = [python, ROOT / "bench/adam_worker.py", *arguments]
    done = subprocess.run(
        list(map(str, command)), check=True, env=variables, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def optimizers(report, options, measured):
    elements = elements_of(options)
    for pages, found in measured["pages"].items():
        seconds = found["seconds"]
        rows = []
        for name, (words, bytes_each) in CONTESTANTS.items():
            if name not in seconds:
                continue
            result = report.add(
                f"optimizer_{name}",
                {"elements": elements, "threads": 2, "pages": pages},
                seconds[name],
                elements * bytes_each,
                huge_bytes=found["huge_bytes"],
            )
            rate = result["bytes"] / result["seconds"]["median"] / 1e9
            quotient = paired_ratio(seconds[name], seconds["artesian"])
            rows.append([words, spread(result["seconds"], 4), f"{rate:.1f}", spread(quotient)])
        report.table(
            f"One step on {elements / 1e6:.0f}M parameters, 2 threads, arrays on {pages} pages",
            ["optimizer", "s, median (min..max)", "GB/s", "time / Artesian's"],
            rows,
        )
        for name, aim in [("stream", 0.95), ("deepspeed", 1.4)]:
            if name in seconds:
                quotient = paired_ratio(seconds[name], seconds["artesian"])
                report.ratio(f"{CONTESTANTS[name][0]} / Artesian, {pages} pages", quotient, aim)


def run(report, options, programs):
    environment = deepspeed_setup.prepare_if_wanted(report, options)
    kernels(report, options, programs)
    optimizers(report, options, worker(options, programs, environment))
