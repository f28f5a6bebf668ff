"""Part `micro`: separate measurements of kernels, pool, ring and planner in micro_bench, with
Google Benchmark: if a step becomes slower, these show which part is responsible. Google Benchmark's
own JSON is kept as micro_google.json."""

import json
import os
import shutil
import subprocess

from report import say, spread, summary

CASES = 25


def estimate(options):
    seconds = CASES * options.micro_repeats * (options.micro_seconds + 0.1)
    return f"about {max(1, round(seconds / 60))} minutes"


def measure(options, programs):
    """The program's output: {"context": ..., "benchmarks": [...]}."""
    written = options.work / "micro_google.json"
    command = [programs / "micro_bench", f"--benchmark_out={written}"]
    command += ["--benchmark_out_format=json", f"--benchmark_repetitions={options.micro_repeats}"]
    command += [f"--benchmark_min_time={options.micro_seconds}"]
    command += [f"--benchmark_filter={options.micro_filter}"] if options.micro_filter else []
    folder = options.work / "micro"
    folder.mkdir(parents=True, exist_ok=True)
    variables = os.environ | {"ARTESIAN_MICRO_FOLDER": str(folder)}
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, env=variables)
    folder.rmdir()
    options.out.mkdir(parents=True, exist_ok=True)
    shutil.move(written, options.out / "micro_google.json")
    return json.loads((options.out / "micro_google.json").read_text())


def seconds_of(line):
    """Seconds of one call: wall-clock time if the disk takes part, else CPU time."""
    time = line["real_time" if line["run_name"].endswith("/real_time") else "cpu_time"]
    return time * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[line["time_unit"]]


def run(report, options, programs):
    if not (programs / "micro_bench").exists():
        report.note("left out: micro_bench was not built (Debian's package is libbenchmark-dev)")
        return
    repeats = {}
    for line in measure(options, programs)["benchmarks"]:
        if line.get("error_occurred"):
            report.note(f"{line['name']}: {line['error_message']}")
        elif line["run_type"] == "iteration":
            repeats.setdefault(line["run_name"], []).append(line)
    rows = []
    for name, lines in repeats.items():
        seconds = [seconds_of(line) for line in lines]
        rate = lines[0].get("bytes_per_second")
        moved = None if rate is None else round(rate * seconds_of(lines[0]))
        base, _, argument = name.removesuffix("/real_time").partition("/")
        report.add(f"micro: {base}", {"case": argument}, seconds, moved)
        rates = "" if rate is None else spread(summary(x["bytes_per_second"] * 1e-9 for x in lines))
        rows.append([name, spread(summary(s * 1e6 for s in seconds)), rates])
    say(f"micro: {len(rows)} cases")
    report.table("One call, on one thread", ["case", "microseconds", "GB/s"], rows)
