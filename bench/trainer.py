"""Part `trainer`: the same unchanged script for Hugging Face's Trainer with PyTorch in RAM, with
DeepSpeed and with Artesian: seconds per step, peak memory, losses.

GPT-2 in fp32. Both engines get a config with parameters in RAM and the optimizer on NVMe, since
DeepSpeed cannot train fp32 with parameters on NVMe on a CPU. With parameters on NVMe, too, only
Artesian runs. Each contestant runs in a separate process, in an order that changes from round to
round."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import deepspeed_setup
import step_jobs
from report import ROOT, median_ratio, say, spread
from step import result_in, two_cores

MIB = 1 << 20
WARM_UP = 5  # steps not counted, because of page faults and the engine's measurements
CONTESTANTS = {  # description, config
    "torch": ("Trainer, all in RAM", None),
    "deepspeed": ("DeepSpeed, parameters in RAM, optimizer on NVMe", "cpu"),
    "artesian": ("Artesian, the same config, as much in memory as fits", "cpu"),
    "artesian_nvme": ("Artesian, both on NVMe, in small budgets", "nvme"),
}
AIMS = {"deepspeed": 2.0}


def estimate(options):
    return f"about {max(1, options.trainer_rounds * options.trainer_steps // 7)} minutes"


def config_of(model, params, swap):
    """The config of DeepSpeed and Artesian; if only Artesian runs, with its budgets."""
    nvme = {"device": "nvme", "nvme_path": str(swap)}
    param = nvme | {"max_in_cpu": 0} if params == "nvme" else {"device": "cpu"}
    small = dict.fromkeys(["device_memory", "host_memory"], step_jobs.MODELS[model][4])
    return ({"artesian": small} if params == "nvme" else {}) | {
        "zero_optimization": {"stage": 3, "offload_param": param, "offload_optimizer": nvme},
        "aio": step_jobs.AIO,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
    }


class Runner:
    def __init__(self, options, environment):
        self.options, self.environment = options, environment
        self.work = options.work
        lock = ROOT / "dev/requirements-hf.lock"
        self.extras = subprocess.run(
            [ROOT / "dev/extras.sh", lock], check=True, capture_output=True, text=True
        ).stdout.strip()
        self.package = options.programs.parent / "python"

    def run(self, name):
        swap = self.work / "swap"
        shutil.rmtree(swap, ignore_errors=True)
        swap.mkdir()
        params = CONTESTANTS[name][1]
        model, _ = step_jobs.prepare(self.options.trainer_model, self.work)
        command = [ROOT / "bench/trainer_script.py", "--output", self.work / "trainer-out"]
        command += ["--steps", self.options.trainer_steps, "--model", model]
        if params is not None:
            config = self.work / "trainer.json"
            config.write_text(json.dumps(config_of(self.options.trainer_model, params, swap)))
            command += ["--deepspeed", config]
        try:
            return self.started(name, list(map(str, command)))
        finally:
            shutil.rmtree(swap, ignore_errors=True)

    def started(self, name, words):
        python, variables = sys.executable, dict(os.environ)
        paths = [self.extras]
        if name == "deepspeed":
            python, variables = self.environment.python, self.environment.variables()
        if name.startswith("artesian"):
            variables["ARTESIAN_AS_DEEPSPEED"] = "1"
            paths.append(str(self.package))
            words = ["-m", "artesian.run", *words]
        variables |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": "",
        }
        done = subprocess.run(
            [python, *words], cwd=self.work, env=variables, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, preexec_fn=two_cores,
        )  # fmt: skip
        result = result_in(done.stdout)
        if done.returncode != 0 or result is None:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise RuntimeError(f"{name}: exit code {done.returncode}: {' / '.join(lines[-3:])}")
        return result


def largest_difference(losses, others):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def run(report, options, programs):
    environment = deepspeed_setup.prepare_if_wanted(report, options)
    names = [name for name in CONTESTANTS if name != "deepspeed" or environment is not None]
    runner = Runner(options, environment)
    seconds = {name: [] for name in names}
    memory, losses = {}, {}
    for round_number in range(options.trainer_rounds):
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            result = runner.run(name)
            seconds[name] += result["seconds"][WARM_UP:]
            memory[name] = max(memory.get(name, 0), result["peak_rss"])
            losses[name] = result["losses"]
            say(f"trainer: {name}: {sorted(seconds[name])[len(seconds[name]) // 2]:.2f} s a step")
    rows = []
    for name in names:
        parameters = {"model": options.trainer_model, "contestant": name}
        difference = largest_difference(losses[name], losses["torch"])
        result = report.add("trainer step", parameters, seconds[name], peak_rss=memory[name],
                            loss_difference=difference)  # fmt: skip
        rows.append([CONTESTANTS[name][0], spread(result["seconds"]),
                     f"{memory[name] / MIB:.0f} MiB", f"{difference:.1e}"])  # fmt: skip
    for rival in [name for name in names if not name.startswith("artesian")]:
        for ours in ("artesian", "artesian_nvme"):
            report.ratio(f"{rival} over {ours}, seconds of a step",
                         median_ratio(seconds[rival], seconds[ours]), AIMS.get(rival))  # fmt: skip
    header = ["Trainer with", "seconds of a step", "peak memory", "losses against Trainer's"]
    title = f"GPT-2 {options.trainer_model}, fp32, {options.trainer_steps} steps"
    report.table(title, header, rows)
