"""Part `ranks`: the cost of dividing a step among processes. Two ranks with one thread each,
started by torchrun, are compared with one rank with two threads and the same global batch, and with
DeepSpeed with two ranks over Gloo, stage 2, optimizer in host memory. All run several times, in
turn, and must have equal losses, except for the effect of the number of threads."""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import deepspeed_setup
import step_jobs
from report import ROOT, median_ratio, say, spread
from step import Failed, result_in, two_cores

CASES = {  # description, config without batch sizes
    "bf16_cpu": ("bf16, stage 2, optimizer on cpu", "bf16", "cpu"),
    "bf16_nvme": ("bf16, stage 2, optimizer on nvme", "bf16", "nvme"),
    "fp32": ("fp32, stage 2, nothing offloaded", "fp32", None),
}
DEEPSPEED_CASE = "bf16_cpu"
AIM, DEEPSPEED_AIM = 1.25, 2.0
# tolerance: the number of threads changes the order of additions, and DeepSpeed and Python use
# other kernels
LOSSES_WITHIN = 0.01
RANKS = 2
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]


def estimate(options):
    processes = options.ranks_rounds * (2 * len(CASES) + 2)
    steps = options.warm_up + options.ranks_steps
    seconds = processes * (15 + steps * (1 + 1.5 * options.ranks_micro_batch))
    return f"about {max(1, round(seconds / 60))} minutes"


def config_of(case, micro_batch, ranks, swap):
    """The same global batch for any number of ranks. All state is in memory, as the cost of ranks
    is measured, not that of placement."""
    _, dtype, optimizer = CASES[case]
    zero = {"stage": 2}
    if optimizer is not None:
        zero["offload_optimizer"] = {"device": optimizer}
    if optimizer == "nvme":
        zero["offload_optimizer"]["nvme_path"] = str(swap)
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": RANKS // ranks,
        "gradient_clipping": step_jobs.CLIPPING,
        "optimizer": {"type": "AdamW", "params": step_jobs.OPTIMIZER},
        "zero_optimization": zero,
        "aio": step_jobs.AIO,
    }
    return config | ({"bf16": {"enabled": True}} if dtype == "bf16" else {})


class Runner:
    def __init__(self, options, environment):
        self.options, self.environment = options, environment
        self.work = options.work
        self.swap = self.work / "swap"
        self.steps = options.warm_up + options.ranks_steps

    def run(self, case, who):
        """Seconds and loss of each step. `who`: one, ranks, python or deepspeed."""
        shutil.rmtree(self.swap, ignore_errors=True)
        self.swap.mkdir()
        model, tokens = step_jobs.prepare(self.options.ranks_model, self.work)
        ranks = 1 if who == "one" else RANKS
        config = config_of(case, self.options.ranks_micro_batch, ranks, self.swap)
        try:
            if who in ("one", "ranks"):
                return self.ours(config, ranks, model, tokens)
            return self.scripts(case, who, config, model, tokens)
        finally:
            shutil.rmtree(self.swap, ignore_errors=True)

    def ours(self, config, ranks, model, tokens):
        log, path = self.work / "steps.jsonl", self.work / "artesian.json"
        path.write_text(json.dumps(config))
        log.unlink(missing_ok=True)
        command = [self.options.programs / "artesian", "train", "--model", model, "--data", tokens]
        command += ["--config", path, "--steps", self.steps, "--seq-len", step_jobs.LENGTH]
        command += ["--order", "sequential", "--log-jsonl", log, "--quiet"]
        if ranks > 1:
            command = [sys.executable, *TORCHRUN, "--no-python", *command]
        self.output_of(command, os.environ | {"OMP_NUM_THREADS": str(2 // ranks)})
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        if len(lines) != self.steps:
            raise Failed(f"{len(lines)} steps of {self.steps}")
        return [
            {
                "seconds": line["step_s"],
                "loss": line["loss"],
                "wait_bus": line["wait_s"].get("bus", 0.0),
                "bytes_bus": line["bytes"].get("bus", 0),
            }
            for line in lines
        ]

    def scripts(self, case, who, config, model, tokens):
        job = self.work / "job.json"
        job.write_text(
            json.dumps(
                {
                    "kind": who,
                    "dtype": CASES[case][1],
                    "model": str(model),
                    "tokens": str(tokens),
                    "length": step_jobs.LENGTH,
                    "samples": self.options.ranks_micro_batch,
                    "steps": self.steps,
                    "threads": 1,
                    "optimizer": step_jobs.OPTIMIZER,
                    "clipping": step_jobs.CLIPPING,
                    "config": config,
                }
            )
        )
        python, variables = sys.executable, dict(os.environ)
        if who == "deepspeed":
            python, variables = self.environment.python, self.environment.variables()
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                del variables[name]  # set by torchrun itself
        else:
            variables["PYTHONPATH"] = str(self.options.programs.parent / "python")
        variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [python, *TORCHRUN, ROOT / "bench/step_worker.py", job]
        result = result_in(self.output_of(command, variables))
        if result is None:
            raise Failed("no result")
        return result["steps"]

    def output_of(self, command, variables):
        done = subprocess.run(
            list(map(str, command)), cwd=self.work, env=variables, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, preexec_fn=two_cores,
        )  # fmt: skip
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "rror" in line]
            raise Failed(f"exit code {done.returncode}: {' / '.join(lines[-3:])}")
        return done.stdout


WORDS = {
    "one": "1 rank, 2 threads",
    "ranks": "2 ranks, 1 thread each",
    "python": "2 ranks from Python",
    "deepspeed": "2 ranks of DeepSpeed over Gloo",
}


def contestants(case, options, environment):
    names = ["one", "ranks"]
    if case == DEEPSPEED_CASE:
        names += ["python"] + (["deepspeed"] if environment is not None else [])
    return [name for name in names if name in (options.ranks_who or names)]


def measure_case(report, runner, case, names, rounds):
    """Name -> steps of all rounds, without the first round's warm-up."""
    warm_up = runner.options.warm_up
    found, losses = {}, {}
    for number in range(rounds):
        for who in names if number % 2 == 0 else names[::-1]:
            try:
                steps = runner.run(case, who)
            except Failed as failed:
                report.note(f"{case}, {WORDS[who]}: failed: {failed}")
                continue
            found.setdefault(who, []).extend(steps[warm_up:])
            losses[who] = [step["loss"] for step in steps]
            middle = statistics.median(step["seconds"] for step in steps[warm_up:])
            say(f"ranks: {case}, round {number + 1}: {who}: {middle:.3f} s a step")
    for who in set(losses) - {"one"} if "one" in losses else ():
        pairs = zip(losses[who], losses["one"], strict=True)
        if max(abs(mine - other) / other for mine, other in pairs) > LOSSES_WITHIN:
            report.note(f"{case}, {WORDS[who]}: other losses than {WORDS['one']}: {losses[who]}")
    return found


def add_case(report, runner, case, found):
    options = runner.options
    rows, seconds = [], {}
    for who, steps in found.items():
        seconds[who] = [step["seconds"] for step in steps]
        parameters = {"model": options.ranks_model, "case": case, "contestant": who}
        parameters |= {"micro_batch": options.ranks_micro_batch, "length": step_jobs.LENGTH}
        waits = [step.get("wait_bus", 0.0) for step in steps]
        result = report.add("step of ranks", parameters, seconds[who], wait_bus=waits,
                            losses=[step["loss"] for step in steps])  # fmt: skip
        sent = steps[0].get("bytes_bus", 0) / 1e6
        wait = f"{statistics.median(waits):.2f}" if who in ("one", "ranks") else ""
        rows.append([WORDS[who], spread(result["seconds"]), wait, f"{sent:.0f}" if sent else ""])
    words = CASES[case][0]
    if "one" in seconds and "ranks" in seconds:
        report.ratio(f"{words}: two ranks over one", median_ratio(seconds["ranks"], seconds["one"]),
                     AIM)  # fmt: skip
    for who in ("ranks", "python"):
        if who in seconds and "deepspeed" in seconds:
            ratio = median_ratio(seconds["deepspeed"], seconds[who])
            report.ratio(f"{words}: DeepSpeed over {WORDS[who]}", ratio, DEEPSPEED_AIM)
    title = (
        f"GPT-2 {options.ranks_model}, {words}; a global batch of {RANKS} x "
        f"{options.ranks_micro_batch} samples of {step_jobs.LENGTH} tokens"
    )
    report.table(title, ["", "s a step", "s of it in the exchange", "MB sent"], rows)


def run(report, options, programs):
    environment = deepspeed_setup.prepare_if_wanted(report, options)
    runner = Runner(options, environment)
    try:
        for case in options.ranks_cases or CASES:
            names = contestants(case, options, environment)
            found = measure_case(report, runner, case, names, options.ranks_rounds)
            add_case(report, runner, case, found)
    finally:
        shutil.rmtree(pathlib.Path(options.work) / f"gpt2-{options.ranks_model}",
                      ignore_errors=True)  # fmt: skip
