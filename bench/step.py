"""Part `step`: the training step of GPT-2 with everything on NVMe, with Artesian from C++ and from
Python, with DeepSpeed, and with plain PyTorch in RAM; with the same weights and tokens, on the same
two cores.

Every contestant runs alone, in a separate process, in several rounds if there is time. The order
changes from round to round, so that drift of the machine affects all alike."""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import deepspeed_setup
import step_jobs
from report import ROOT, median_ratio, say, spread, summary
from step_jobs import CONTESTANTS, MODELS, RIVALS

MIB = 1 << 20
# seconds of a step, summed over all contestants, on two cores
STEP_SECONDS = {"124m": 32, "355m": 96, "tiny": 1}
# seconds of all processes without the steps
START_SECONDS = {"124m": 190, "355m": 350, "tiny": 110}
POLL = 0.02
TIMEOUT = 3600


class Failed(Exception):
    """A contestant failed; the text is its last output."""


def plan(options):
    """Model -> (rounds, warm-up, measured steps)."""
    return {
        name: (options.rounds.get(name, 1), options.warm_up, options.steps.get(name, 5))
        for name in options.models
    }


def estimate(options):
    seconds = 0
    for name, (rounds, warm_up, steps) in plan(options).items():
        seconds += rounds * (START_SECONDS[name] + (warm_up + steps) * STEP_SECONDS[name])
    return f"about {max(1, round(seconds / 60))} minutes with all contestants"


def two_cores():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def output_of(command, env=None):
    """Output of a command, run to its end on two cores. Raises Failed with its last line."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, preexec_fn=two_cores, env=env
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def result_in(output):
    """The JSON in the last line "RESULT ..."; None if there is none."""
    found = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return json.loads(found[-1].removeprefix("RESULT ")) if found else None


def process_io(pid):
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    counters = dict(line.split(": ") for line in lines)
    return int(counters["read_bytes"]), int(counters["write_bytes"])


def watch(process, log):
    """The steps of an artesian run as they appear in its log, each with the time and the kernel's
    byte counts at that moment. If the process fails, the list is shorter."""
    seen, pending = [], ""
    while not log.exists() and process.poll() is None:
        time.sleep(POLL)
    if not log.exists():
        return seen
    with log.open() as file:
        while True:
            ended = process.poll() is not None
            pending += file.read()
            *lines, pending = pending.split("\n")
            for line in lines:
                counted = (0, 0) if ended else process_io(process.pid)
                seen.append((json.loads(line), time.monotonic(), counted))
            if ended:
                return seen
            time.sleep(POLL)


def checks(seen, first):
    """Artesian's own figures divided by external measurements, from the end of step `first` on:
    time by the clock, bytes from /proc/PID/io. The last step is left out, as it includes a digest
    of all state."""
    middle = [entry for entry in seen[first - 1 : -1] if entry[2] != (0, 0)]
    if len(middle) < 2:
        return {}
    (_, start, before), (_, end, after) = middle[0], middle[-1]
    own = [entry[0] for entry in middle[1:]]
    outside = {
        "seconds": end - start,
        "read": after[0] - before[0],
        "written": after[1] - before[1],
    }
    inside = {
        "seconds": sum(line["step_s"] for line in own),
        "read": sum(line["bytes"]["nvme_read"] for line in own),
        "written": sum(line["bytes"]["nvme_write"] for line in own),
    }
    return {key: inside[key] / outside[key] for key in outside if outside[key]}


class Runner:
    def __init__(self, options, programs, environment):
        self.options, self.programs, self.environment = options, programs, environment
        self.work = options.work
        self.swap = self.work / "swap"

    def run(self, contestant, name, steps, warm_up):
        """The output of step_worker.py; for artesian the same, made from its log."""
        model, tokens = step_jobs.prepare(name, self.work)
        shutil.rmtree(self.swap, ignore_errors=True)
        self.swap.mkdir()
        try:
            if contestant.kind == "artesian":
                return self.ours(contestant, name, model, tokens, steps, warm_up)
            return self.theirs(contestant, name, model, tokens, steps)
        finally:
            shutil.rmtree(self.swap, ignore_errors=True)

    def start(self, command, variables, log, **options):
        return subprocess.Popen(
            list(map(str, command)), cwd=self.work, env=variables, stdin=subprocess.DEVNULL,
            stderr=log, preexec_fn=two_cores, text=True, **options,
        )  # fmt: skip

    def ours(self, contestant, name, model, tokens, steps, warm_up):
        config, log = self.work / "artesian.json", self.work / "steps.jsonl"
        config.write_text(json.dumps(step_jobs.our_config(contestant, name, self.swap)))
        log.unlink(missing_ok=True)
        command = [self.programs / "artesian", "train", "--model", model, "--data", tokens]
        command += ["--config", config, "--steps", steps, "--seq-len", step_jobs.LENGTH]
        command += ["--order", "sequential", "--log-jsonl", log, "--quiet"]
        with (self.work / "errors.txt").open("w+") as errors:
            process = self.start(command, dict(os.environ), errors)
            try:
                seen = watch(process, log)
            finally:
                end(process)
            self.check(process, errors, len(seen) == steps)
        lines = [entry[0] for entry in seen]
        return {
            "steps": [
                {
                    "seconds": line["step_s"],
                    "loss": line["loss"],
                    "read": line["bytes"]["nvme_read"],
                    "written": line["bytes"]["nvme_write"],
                }
                for line in lines
            ],
            "rss_steps": lines[-1]["peak"]["process_rss"],
            "rss_process": lines[-1]["peak"]["process_rss"],
            "own_over_outside": checks(seen, warm_up),
        }

    def theirs(self, contestant, name, model, tokens, steps):
        job = self.work / "job.json"
        job.write_text(
            step_jobs.worker_job(contestant, name, model, tokens, steps, self.swap)
        )  # fmt: skip
        python, variables = sys.executable, dict(os.environ)
        if contestant.kind == "deepspeed":
            python, variables = self.environment.python, self.environment.variables()
        if contestant.kind == "python":
            variables["PYTHONPATH"] = str(self.programs.parent / "python")
        variables |= {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
        command = [python, ROOT / "bench/step_worker.py", job]
        with (self.work / "errors.txt").open("w+") as errors:
            process = self.start(command, variables, errors, stdout=subprocess.PIPE)
            try:
                output, _ = process.communicate(timeout=TIMEOUT)
            finally:
                end(process)
            result = result_in(output)
            self.check(process, errors, result is not None)
        return result

    def check(self, process, errors, complete):
        if process.returncode == 0 and complete:
            return
        errors.seek(0)
        lines = [line for line in errors.read().splitlines() if line.strip()]
        raise Failed(f"exit code {process.returncode}: {' / '.join(lines[-3:])}")


def end(process):
    """When this process ends, for whatever reason, its children must end."""
    if process.poll() is None:
        process.kill()
    process.wait()


def chosen(options, environment):
    names = options.contestants or list(CONTESTANTS)
    return [n for n in names if environment or CONTESTANTS[n].kind != "deepspeed"]


def rounds_of(names, rounds):
    """The order of each round: every second round reverses the previous one, so that all
    contestants have the same mean position; each pair of rounds begins with a different one."""
    for number in range(rounds):
        turn = number // 2 % len(names)
        order = names[turn:] + names[:turn]
        yield order[::-1] if number % 2 else order


def measure(report, runner, name, names, plan_of_model):
    """Contestant -> the results of its rounds."""
    rounds, warm_up, steps = plan_of_model
    found = {}
    for number, order in enumerate(rounds_of(names, rounds)):
        for who in order:
            try:
                result = runner.run(CONTESTANTS[who], name, warm_up + steps, warm_up)
            except Failed as failed:
                report.note(f"{name}: {CONTESTANTS[who].words}: failed: {failed}")
                continue
            measured = [step["seconds"] for step in result["steps"][warm_up:]]
            say(f"step: {name}, round {number + 1}: {who}: {spread(summary(measured))} s")
            found.setdefault(who, []).append(result)
    return found


def measured_steps(results, warm_up):
    return [step for result in results for step in result["steps"][warm_up:]]


def add_results(report, name, found, plan_of_model):
    """One result per contestant; returns them by name."""
    rounds, warm_up, steps = plan_of_model
    added = {}
    for who, results in found.items():
        contestant = CONTESTANTS[who]
        measured = measured_steps(results, warm_up)
        losses = [step["loss"] for step in results[0]["steps"]]
        moved = {
            key: statistics.median(step[key] for step in measured) for key in ("read", "written")
        }
        parameters = {
            "model": f"gpt2-{name}",
            "sequence": step_jobs.LENGTH,
            "micro_batch": 1,
            "threads": 2,
            "rounds": rounds,
            "warm_up_steps": warm_up,
            "steps": steps,
        }
        if contestant.kind in ("artesian", "python") and contestant.setting != "ram":
            parameters["budget_each_tier"] = MODELS[name][4]
        added[who] = report.add(
            f"step_{who}",
            parameters,
            [step["seconds"] for step in measured],
            moved["read"] + moved["written"],
            direct=None if contestant.kind == "torch" else True,
            bytes_read=moved["read"],
            bytes_written=moved["written"],
            rss_steps=max(result["rss_steps"] for result in results),
            rss_process=max(result["rss_process"] for result in results),
            losses=losses,
            updated_under_backward=[
                step["updated_under_backward"]
                for step in measured
                if "updated_under_backward" in step
            ],
            own_over_outside=[result.get("own_over_outside") for result in results],
        )
    return added


def rows_of(added):
    for who, result in added.items():
        yield [
            CONTESTANTS[who].words,
            spread(result["seconds"]),
            f"{result['bytes_read'] / 1e6:.0f} / {result['bytes_written'] / 1e6:.0f}",
            f"{result['rss_steps'] / MIB:.0f}",
            f"{result['rss_process'] / MIB:.0f}",
            f"{result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}",
        ]


def compare(report, name, added):
    for who, rivals in RIVALS.items():
        for rival in rivals:
            if who not in added or rival not in added:
                continue
            ours, theirs = added[who]["seconds"]["all"], added[rival]["seconds"]["all"]
            pair = f"{name}: {CONTESTANTS[who].words} / {CONTESTANTS[rival].words}"
            report.ratio(f"seconds, {pair}", median_ratio(ours, theirs))
            peaks = added[who]["rss_steps"], added[rival]["rss_steps"]
            report.ratio(f"peak RSS, {pair}", median_ratio(*([peak] for peak in peaks)))


def one_model(report, runner, name, names, plan_of_model):
    found = measure(report, runner, name, names, plan_of_model)
    added = add_results(report, name, found, plan_of_model)
    rounds, warm_up, steps = plan_of_model
    budget = MODELS[name][4]
    title = (
        f"GPT-2 {name}, sequence {step_jobs.LENGTH}, micro-batch 1, AdamW unless a row says Muon, "
        f"2 threads; Artesian with {budget} for each tier; median (min..max) of {rounds} x {steps} "
        f"steps after {warm_up}"
    )
    header = ["", "s a step", "MB read / written a step", "peak RSS, steps, MiB"]
    header += ["peak RSS, process, MiB", f"loss, step 1 -> {warm_up + steps}"]
    report.table(title, header, rows_of(added))
    compare(report, name, added)


def run(report, options, programs):
    environment = deepspeed_setup.prepare_if_wanted(report, options)
    runner = Runner(options, programs, environment)
    for name, plan_of_model in plan(options).items():
        try:
            names = chosen(options, environment)
            one_model(report, runner, name, names, plan_of_model)
        finally:
            shutil.rmtree(options.work / f"gpt2-{name}", ignore_errors=True)
