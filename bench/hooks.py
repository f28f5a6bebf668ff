"""Part `hooks`: the time of the Python engine's hooks, relative to a step of 12 units of 1M
parameters each with all state in memory.

The hooks' time does not depend on a unit's size, so it is measured in units of 72 parameters, where
other times are small. Forward and backward run with and without hooks in turn; the difference
between the medians of 20 passes each is divided by the median step of the large units. That step is
also compared with plain PyTorch with the same modules and fused AdamW, and with a step at stage 2,
which completes its update before it returns and checks for changes by the caller."""

import os
import statistics
import sys

from report import ROOT, paired_ratio, say, spread, summary
from step import output_of, result_in

UNITS = 12
AIM = 0.05  # as a share of the step
TOGETHER = 20  # number of passes whose median is one measurement


def estimate(options):
    return "about 1 minute"


def started(options):
    """The seconds printed by bench/hooks_worker.py."""
    words = ["--units", UNITS, "--steps", options.hooks_steps, "--warm-up", 5]
    words += ["--samples", options.hooks_samples, "--passes", TOGETHER]
    variables = os.environ | {
        "PYTHONPATH": str(options.programs.parent / "python"),
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",  # as `artesian` sets it
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, ROOT / "bench/hooks_worker.py", *words]
    return result_in(output_of(command, variables))


def medians(seconds):
    """Medians of TOGETHER passes each, in order."""
    return [
        statistics.median(seconds[at : at + TOGETHER]) for at in range(0, len(seconds), TOGETHER)
    ]


def run(report, options, programs):
    seconds = started(options)
    parameters = {"units": UNITS, "samples": options.hooks_samples}
    step = report.add("step, 1M parameters a unit", parameters, seconds["step"])
    plain = report.add("step of plain PyTorch", parameters, seconds["plain_step"])
    resident = report.add("step at stage 2", parameters, seconds["stage_2"])
    ours, plain_passes = medians(seconds["passes"]), medians(seconds["plain_passes"])
    differences = [a - b for a, b in zip(ours, plain_passes, strict=True)]
    hooks = report.add("hooks of forward and backward", parameters, differences)
    middle = step["seconds"]["median"]
    report.ratio("hooks over step", summary(each / middle for each in differences), AIM)
    report.ratio("step over plain PyTorch's", paired_ratio(seconds["step"], seconds["plain_step"]))
    report.ratio("step at stage 2 over 3", paired_ratio(seconds["stage_2"], seconds["step"]))
    say(f"hooks: {hooks['seconds']['median'] * 1e6:.0f} us of {middle * 1e3:.1f} ms")
    rows = [
        ["a step", spread(scaled(step["seconds"], 1e3))],
        ["the same at stage 2", spread(scaled(resident["seconds"], 1e3))],
        ["the same in plain PyTorch", spread(scaled(plain["seconds"], 1e3))],
        ["hooks", spread(scaled(hooks["seconds"], 1e3))],
    ]
    report.table(f"{UNITS} units, {options.hooks_samples} samples", ["what", "ms"], rows)


def scaled(seconds, factor):
    return {key: seconds[key] * factor for key in ("min", "median", "max")}
