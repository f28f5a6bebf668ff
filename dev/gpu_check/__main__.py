"""Builds and tests Artesian from this checkout on a machine with a GPU, without access to package
registries.

Parts, in this order, each with its own time limit; without arguments, all except the first:
  first     in nine minutes, or one with carried programs: builds programs and GPU tests, runs the
            tests, and trains three steps
  facts     PCIe link, memory, disk, io_uring, driver, copy bandwidths between host and GPU
  build     a Release build, in a separate folder
  test      ctest, those of the label gpu first
  python    hooked models on the GPU have the bits of plain PyTorch
  ranks     with two GPUs: two processes, joined by NCCL, have the bits of one
  profile   GPU utilisation, launches per step and largest kernels, for a Llama with 128,256 words
  speeds    the optimizer by threads, attention's backward and its bits, page-locking
  sanitize  compute-sanitizer on the tests of the label gpu
  bench     a GPT-2 1.5B-shaped run: host and NVMe offload beside PyTorch FSDP2 with CPU offload

Needs g++, CMake, ninja, a python3 that has torch, a CUDA toolkit, and the libraries of
dev/packages.txt: installed, or in the folder that dev/carry.sh made elsewhere (--prefix). Without a
GPU, only parts that need none run, with a message; if a GPU exists but the driver does not count
it, the parts that need it fail. If the build uses another torch than python3 imports, the parts
that build or use it fail. Name several parts in one call, as a machine, with its build, may be gone
between calls: `first`, then `facts build test python`, `profile speeds`, `bench`, `sanitize`.
Results go to gpu_check.json and gpu_check.md in --out, and the logs of parts that failed to
failed.log, since few files come back from a machine that is lent. Parts that ran before on the same
sources are kept, so parts may be run one by one. Exit codes: 0 all well, 1 a part failed, 2 wrong
arguments or a tool is missing.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import bench
import build
import facts
import first
import gpu_profile
import hooked
import report
import sanitize
import speeds
import torch_build
import two_gpus
from shell import Context, Failure, Skip, fail, say, sources_digest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG_TAIL = 100_000  # characters kept of each log
PARTS = {
    "first": first.run,
    "facts": facts.run,
    "build": build.run,
    "test": build.test,
    "python": hooked.run,
    "ranks": two_gpus.run,
    "profile": gpu_profile.run,
    "speeds": speeds.run,
    "sanitize": sanitize.run,
    "bench": bench.run,
}
USE_THE_BUILD = ("test", "python", "ranks", "profile", "speeds", "sanitize", "bench")


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(f"arguments: {message}; see --help")


def parse(arguments):
    parser = Parser(
        prog="dev/gpu_check.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    carried = ROOT / "build/carry"
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all but first")
    parser.add_argument(
        "--prefix",
        type=pathlib.Path,
        default=carried if carried.exists() else None,
        help="folder made by dev/carry.sh (default: build/carry, if there is one)",
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("OUT") or ROOT / "build/gpu_check"),
        help="where the results go (default: $OUT, else build/gpu_check)",
    )
    parser.add_argument(
        "--work", type=pathlib.Path, default=ROOT / "build-gpu", help="build folder"
    )
    parser.add_argument(
        "--disk", type=pathlib.Path, help="folder on the NVMe disk (default: in --work)"
    )
    parser.add_argument(
        "--jobs", type=int, help="compilers at a time (default: by cores and memory)"
    )
    parser.add_argument("--part-seconds", type=float, default=540, help="limit of each part")
    parser.add_argument(
        "--shape",
        choices=bench.SHAPES,
        default="1.5b",
        help="model of bench; tiny tries the script",
    )
    parser.add_argument("--rounds", type=int, default=7, help="of bench, at most")
    parser.add_argument(
        "--bench-on-cpu",
        action="store_true",
        help="run first, python and bench on the CPU; with --shape tiny, to try it",
    )
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            fail(f"PART: got {part!r}, allowed {', '.join(PARTS)}")
    if options.prefix and not (options.prefix / "carried.txt").exists():
        fail(f"--prefix: {options.prefix}: got no carried.txt, allowed a folder of dev/carry.sh")
    for flag in ("part_seconds", "rounds", "jobs"):
        value = getattr(options, flag)
        if value is not None and not value > 0:
            fail(f"--{flag.replace('_', '-')}: got {value}, allowed numbers above 0")
    return options


def run_part(name, context):
    """Runs a part; returns its result and its outcome: ok, failed or skipped."""
    say(f"== {name}")
    start = time.monotonic()
    context.start_part()
    try:
        if name in USE_THE_BUILD:
            torch_build.check(context)
        found = PARTS[name](context)
        outcome = {"status": "failed" if found.pop("failed", False) else "ok", **found}
    except Skip as reason:
        outcome = {"status": "skipped", "reason": str(reason)}
    except Failure as reason:
        outcome = {"status": "failed", "reason": str(reason)}
    if outcome["status"] == "failed":
        keep_logs(name, context)
    outcome |= {"seconds": round(time.monotonic() - start, 1), "sources": context.digest}
    why = f": {outcome['reason']}" if "reason" in outcome else ""
    say(f"{name}: {outcome['status']} in {outcome['seconds']} s{why}")
    return outcome


def keep_logs(name, context):
    """Keeps a failed part's logs beside the results, as machines are returned with their files."""
    if context.logs:
        context.options.out.mkdir(parents=True, exist_ok=True)
        tails = [f"== {name}: {log.name}\n{log.read_text()[-LOG_TAIL:]}\n" for log in context.logs]
        with (context.options.out / "failed.log").open("a") as kept:
            kept.write("".join(tails))


def kept_results(folder, digest):
    """Results of parts that ran before, on the same sources."""
    kept = {}
    for name in PARTS:
        path = folder / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text())
            if found["sources"] == digest:
                kept[name] = found
    return kept


def main(arguments):
    options = parse(arguments)
    context = Context(ROOT, options, sources_digest(ROOT))
    results = context.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    none = "none; what needs one is left out"
    if context.gpu_seen:
        none = f"none by the driver, but {context.gpu_seen} says that there is one"
    say(f"GPUs: {context.gpu_count or none}")
    found = kept_results(results, context.digest)
    (options.out / "failed.log").unlink(missing_ok=True)  # of an earlier run
    ran = options.parts or [name for name in PARTS if name != "first"]
    for name in ran:
        found[name] = run_part(name, context)
        (results / f"{name}.json").write_text(json.dumps(found[name], indent=1))
        report.write(options.out, context, {n: found[n] for n in PARTS if n in found})
    say(f"results: {options.out}/gpu_check.json, {options.out}/gpu_check.md")
    return 1 if any(found[name]["status"] == "failed" for name in ran) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
