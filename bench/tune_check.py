#!/usr/bin/env python3
"""Checks the quality of `aio_bench tune`: python3 bench/tune_check.py --path DIR

Measures the whole grid (`aio_bench tune --exhaustive`), then lets tune choose within its budget,
and compares the grid's best with tune's choice head to head, in turn, with `aio_bench run`. Prints
one JSON object; the exit code is 1 if tune's choice is more than 3% slower by the median of the
pairs, or took 90 seconds or more. The score of a pair is tune's: the harmonic mean of read, write
and mixed GB/s. Only a quiet machine can resolve 3%: --pairs sets the number of pairs, and the
spread is printed."""

import argparse
import json
import pathlib
import subprocess
import sys
import time

from report import machine, mount_of, paired_ratio

ROOT = pathlib.Path(__file__).resolve().parents[1]
OPERATIONS = ["read", "write", "mixed"]
SHARE_MIN = 0.97
SECONDS_MAX = 90


def say(message):
    print(f"tune_check: {message}", file=sys.stderr, flush=True)


def tune(options, *arguments):
    """(output of tune, seconds it took)."""
    command = [options.program, "tune", "--path", options.path, "--size", options.size]
    command += ["--json", "-", *map(str, arguments)]
    begin = time.monotonic()
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.monotonic() - begin


def settings_of(found):
    return found["aio"] | {"engine": found["engine"]}


def rate(options, settings, operation):
    command = [options.program, "run", "--path", options.path, "--size", options.size, "--op",
               operation, "--block-size", settings["block_size"], "--queue-depth",
               settings["queue_depth"], "--threads", settings["intra_op_parallelism"], "--engine",
               settings["engine"], "--seconds", options.seconds, "--json", "-"]  # fmt: skip
    command += ["--single-submit"] if settings["single_submit"] else []
    command += [] if settings["overlap_events"] else ["--no-overlap-events"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["gb_per_s"]


def harmonic_mean(rates):
    return len(rates) / sum(1 / value for value in rates)


def score_pair(options, settings, first):
    """Scores of both, operation by operation, beginning with `first`."""
    rates = {name: [] for name in settings}
    order = sorted(settings, key=lambda name: name != first)
    for operation in OPERATIONS:
        for name in order:
            rates[name].append(rate(options, settings[name], operation))
    return {name: harmonic_mean(values) for name, values in rates.items()}


def head_to_head(options, settings):
    scores = {name: [] for name in settings}
    for pair in range(options.pairs):
        found = score_pair(options, settings, list(settings)[pair % len(settings)])
        for name, value in found.items():
            scores[name].append(value)
        say(f"pair {pair + 1} of {options.pairs}: " + ", ".join(
            f"{name} {value:.3f} GB/s" for name, value in found.items()))  # fmt: skip
    return scores


def check(options):
    device, file_system = mount_of(options.path)
    say("the whole grid")
    grid, grid_seconds = tune(options, "--budget-seconds", options.budget, "--exhaustive")
    say(f"{len(grid['points'])} settings in {grid_seconds:.0f} s; now tune")
    chosen, tune_seconds = tune(options, "--budget-seconds", options.budget)
    settings = {"grid": settings_of(grid), "tune": settings_of(chosen)}
    scores = head_to_head(options, settings)
    share = paired_ratio(scores["tune"], scores["grid"])
    # Equal settings are equally good, whatever the noise.
    good = settings["grid"] == settings["tune"] or share["median"] >= SHARE_MIN
    return {
        "settings": settings,
        "grid_points": len(grid["points"]),
        "seconds": {"grid": grid_seconds, "tune": tune_seconds},
        "scores": scores,
        "tune / grid": share,
        "passed": good and tune_seconds < SECONDS_MAX,
        "warnings": sorted({*grid["warnings"], *chosen["warnings"]}),
        "device": device,
        "file_system": file_system,
        "machine": machine(),
    }


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", type=pathlib.Path, required=True)
    parser.add_argument("--program", default=ROOT / "build/bin/aio_bench", type=pathlib.Path)
    parser.add_argument("--size", default="2GiB")
    parser.add_argument("--budget", default=60.0, type=float, help="seconds of tune")
    parser.add_argument("--pairs", default=9, type=int, help="of the head to head")
    parser.add_argument("--seconds", default=1.0, type=float, help="of each measurement")
    return parser.parse_args(arguments)


def main(arguments):
    result = check(parse(arguments))
    print(json.dumps(result, indent=1))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
