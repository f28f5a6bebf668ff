"""Part speeds: measures the values on which estimates of a step's time are based: the optimizer's
GB/s by number of threads and by elements per parallel region, with sleeping and spinning threads;
attention's backward with and without determinism, its time and whether its bits repeat; the time to
page-lock host memory for the GPU; and the best rates to give to `artesian plan` for this GPU."""

import json
import sys

from facts import measured
from shell import Failure

WAITING = {
    "sleeping": {"OMP_WAIT_POLICY": "passive"},
    "spinning": {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "10000"},
}


def team(context):
    program = context.program("bin/team_bench")
    rows = []
    for waiting, environment in WAITING.items():
        log = context.work / f"logs/team-{waiting}.log"
        done = context.run([program], environment=environment, log=log)
        if done.code != 0:
            raise Failure(f"team_bench: {done.cause()}")
        lines = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
        rows += [{"waiting": waiting, **line} for line in lines]
    return rows


def run(context):
    if context.gpu_seen:
        context.need_gpu()
    found = {"rows": team(context)}
    if not context.gpu_count and not context.options.bench_on_cpu:
        return found
    worker = context.root / "dev/gpu_check/measure.py"
    device = "cpu" if context.options.bench_on_cpu else "cuda"
    problems = []
    for what in ("attention", "page_lock", "plan_rates"):
        found[what] = measured(context, [sys.executable, worker, what, device], 180)
        problems += [f"{what}: {found[what]['error']}"] if "error" in found[what] else []
    if not problems and not found["attention"]["deterministic"]["same_bits"]:
        problems.append("attention: deterministic mode gives other bits in each run")
    return found | ({"failed": True, "reason": "; ".join(problems)} if problems else {})


def plan_flags(rates):
    """Measured rates as flags; failed measurements are left out."""
    return " ".join(f"{name} {value:g}" for name, value in rates.items() if name.startswith("--"))
