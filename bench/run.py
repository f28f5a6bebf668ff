#!/usr/bin/env python3
"""Runs benchmarks side by side and writes their results: see `make bench` and `--help`.

Each part is a module with estimate(options) -> words and run(report, options, programs); report.py
describes the files. Ratios are printed beside their aims, without judging them."""

import argparse
import importlib
import pathlib
import signal
import sys

from bound import SHAPES
from disk import points
from ranks import CASES as RANKS_CASES
from ranks import WORDS as RANKS_WHO
from report import ROOT, Report, say
from step_jobs import CONTESTANTS, MODELS, SETTLED, per_model, some_of

PARTS = ["micro", "adam", "disk", "step", "bound", "plan", "ladder", "checkpoint", "trainer",
         "hooks", "ranks", "inference"]  # fmt: skip


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--part", choices=PARTS, action="append", help="only this one; may be given again")
    add("--micro-repeats", type=int, default=5)
    add("--micro-seconds", type=float, default=0.2, help="micro: of one repeat of one case")
    add("--micro-filter", default="", help="micro: only cases that this regular expression finds")
    add("--repeats", type=int, default=9, help="of each measurement of adam; disk makes 5")
    add("--elements", type=float, default=100e6, help="adam: parameters of one step")
    add("--disk-repeats", type=int, default=5)
    add("--disk-seconds", type=int, default=2, help="disk: of each; 0: once over the file")
    add("--size", default="1GiB", help="disk and plan: bytes of the file")
    add("--points", type=points, default="128K/8,128K/32,1M/8,1M/32,8M/8",
        help="disk: block size/queue depth")  # fmt: skip
    add("--models", type=some_of(MODELS), default="124m,355m",
        help="step: sizes, of " + ", ".join(MODELS))  # fmt: skip
    add("--contestants", type=some_of(CONTESTANTS), default="",
        help="step: only these, of " + ", ".join(CONTESTANTS))  # fmt: skip
    add("--rounds", type=per_model, default="124m=2,355m=1", help="step: processes per contestant")
    add("--steps", type=per_model, default="124m=3,355m=5", help="step: measured steps of each")
    add("--warm-up", type=int, default=SETTLED, help="step: steps before those")
    add("--ladder-model", default="124m", choices=["124m", "355m", "tiny"])
    add("--ladder-rounds", type=int, default=2, help="ladder: processes per rung")
    add("--ladder-steps", type=int, default=3, help="ladder: measured steps of one process")
    add("--checkpoint-models", type=some_of(MODELS), default="124m,355m",
        help="checkpoint: sizes, of " + ", ".join(MODELS))  # fmt: skip
    add("--checkpoint-rounds", type=int, default=5, help="checkpoint: of each window, and loads")
    add("--bound-model", default="124m", choices=["124m", "355m", "tiny"])
    add("--bound-shapes", type=some_of(SHAPES), default=",".join(SHAPES),
        help="bound: samples x tokens of a step, of " + ", ".join(SHAPES))  # fmt: skip
    add("--bound-rounds", type=int, default=3, help="bound: of step, memory and fio in turn")
    add("--plan-model", default="124m", choices=["124m", "355m", "tiny"])
    add("--plan-rounds", type=int, default=2, help="plan: of each case, planned, run, planned")
    add("--plan-cases", default="", help="plan: only these, by the words in the table")
    add("--trainer-model", default="124m", choices=["124m", "355m", "tiny"])
    add("--trainer-rounds", type=int, default=1, help="trainer: processes per contestant")
    add("--trainer-steps", type=int, default=50, help="trainer: steps of each")
    add("--hooks-steps", type=int, default=40, help="hooks: of each of both, in turn")
    add("--hooks-samples", type=int, default=32, help="hooks: rows of a batch")
    add("--ranks-model", default="124m", choices=["124m", "355m", "tiny"])
    add("--ranks-cases", type=some_of(RANKS_CASES), default="",
        help="ranks: only these, of " + ", ".join(RANKS_CASES))  # fmt: skip
    add("--ranks-who", type=some_of(RANKS_WHO), default="",
        help="ranks: only these, of " + ", ".join(RANKS_WHO))  # fmt: skip
    add("--ranks-rounds", type=int, default=3, help="ranks: processes per contestant")
    add("--ranks-steps", type=int, default=4, help="ranks: measured steps of each")
    add("--ranks-micro-batch", type=int, default=4, help="ranks: samples of a micro-batch")
    add("--inference-model", default="3b", choices=["3b", "tiny"])
    add("--inference-rounds", type=int, default=1, help="inference: processes of each")
    add("--tune-seconds", type=float, default=60, help="plan: of aio_bench tune, before all")
    add("--without-deepspeed", action="store_true")
    add("--without-fio", action="store_true")
    add("--work", type=pathlib.Path, default=ROOT / "bench/out/work", help="folder on the disk")
    add("--out", type=pathlib.Path, default=ROOT / "bench/out", help="folder of the results")
    add("--programs", type=pathlib.Path, default=ROOT / "build/bin")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    sys.dont_write_bytecode = True
    # On a signal, ends the running measurement and restores the machine's settings before exiting.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    options.work.mkdir(parents=True, exist_ok=True)
    modules = {part: importlib.import_module(part) for part in options.part or PARTS}
    for part, module in modules.items():
        say(f"{part}: {module.estimate(options)}")
    for part, module in modules.items():
        report = Report(part, options.work)
        module.run(report, options, options.programs)
        report.write(options.out)
        took = report.as_json()["took_seconds"]
        say(f"{part}: {took:.0f} s; {options.out}/{part}.json, .jsonl and .md")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
