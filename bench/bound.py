"""Part `bound`: our step from NVMe, compared with a bound that no schedule can beat: the longer of
the same step with everything in memory, and of its bytes at fio's rate for the same mix of reads
and writes. It is measured with few tokens, where the disk takes longer, with many, where the cores
take longer, and in between. It is also compared with the step in memory while fio moves as many
bytes at the step's pace, which shows what a busy disk costs the cores. All are measured in turn, so
that drift of the machine affects all alike."""

import contextlib
import json
import shutil
import statistics
import subprocess

import disk
import step
import step_jobs
from report import say, spread, summary

# Cases of the config's norm: gradients are clipped; they could be clipped but are not; clipping is
# off.
CLIPPED, IN_BOUNDS, FREE = "clipped", "within the norm", "not clipped"
NORMS = [CLIPPED, IN_BOUNDS, FREE]
SHAPES = {"1x16": (1, 16), "1x128": (1, 128), "4x256": (4, 256)}  # samples, tokens per sample
COLUMNS = {
    "step": "step",
    "in_memory": "step in memory",
    "beside": "the same, beside fio at its pace",
    "disk": "its bytes by fio",
    "fio_gb_per_s": "fio, GB/s",
    "own_bound": "bound by our own rates",
}
STEPS = 4  # measured steps of a process
# approximate seconds of one process per round
SHAPE_SECONDS = {"124m": 180, "355m": 420, "tiny": 20}
BLOCK, DEPTH = 1 << 20, 32
AIM = 1.05


def estimate(options):
    count = options.bound_rounds * len(options.bound_shapes)
    seconds = count * SHAPE_SECONDS[options.bound_model]
    return f"about {max(1, round(seconds / 60))} minutes"


def config_of(options, offloaded, case):
    name, contestant = options.bound_model, step_jobs.CONTESTANTS["artesian_bf16"]
    config = step_jobs.our_config(contestant, name, options.work)
    if not offloaded:  # at stage 3, with everything on the device
        config["zero_optimization"] = {"stage": 3}
        config["artesian"] = {"device_memory": "12GiB"}
    micro_batch, _, norm = case
    if norm == FREE:
        config |= step_jobs.FREE
    if norm == IN_BOUNDS:
        config["gradient_clipping"] = 1e9  # larger than any norm
    return config | {"train_micro_batch_size_per_gpu": micro_batch}


def train(options, model, tokens, offloaded, case):
    """Log lines of the measured steps."""
    length = case[1]
    config, log = options.work / "bound.json", options.work / "bound.jsonl"
    config.write_text(json.dumps(config_of(options, offloaded, case)))
    command = [options.programs / "artesian", "train", "--model", model, "--data", tokens]
    warm_up = max(options.warm_up, step_jobs.SETTLED)
    command += ["--config", config, "--steps", warm_up + STEPS + 1, "--seq-len", length]
    command += ["--log-jsonl", log, "--quiet", "--init"]
    step.output_of(command)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return lines[warm_up:-1]  # the last step includes a digest of all state


def median(lines, value):
    return statistics.median(value(line) for line in lines)


@contextlib.contextmanager
def fio_beside(options, file, read, written):
    """fio moves this many bytes per second in each direction, or as many as it can."""
    command = disk.fio_command(options, file, "rw", BLOCK, DEPTH, rate=f"{read:.0f},{written:.0f}",
                               time_based=1, runtime=3600)  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
        if process.poll() is not None:
            raise disk.Missing(f"fio ended beside a step, with exit code {process.returncode}")
    finally:
        process.terminate()
        process.wait()


def one_round(options, model, tokens, case, file):
    nvme = train(options, model, tokens, True, case)
    memory = train(options, model, tokens, False, case)
    read = median(nvme, lambda line: line["bytes"]["nvme_read"])
    written = median(nvme, lambda line: line["bytes"]["nvme_write"])
    step_s = median(nvme, lambda line: line["step_s"])
    with fio_beside(options, file, read / step_s, written / step_s):
        beside = train(options, model, tokens, False, case)
    rate = disk.fio_mixed(options, file, read / (read + written), BLOCK, DEPTH)
    in_memory = median(memory, lambda line: line["step_s"])
    return {
        "step": step_s,
        "own_bound": median(nvme, lambda line: line["bound_step_s"]),
        "in_memory": in_memory,
        "beside": median(beside, lambda line: line["step_s"]),
        "disk": (read + written) / rate / 1e9,
        "bound": max(in_memory, (read + written) / rate / 1e9),
        "moved": read + written,
        "fio_gb_per_s": rate,
    }


def one_case(report, options, model, tokens, case, file):
    micro_batch, length, norm = case
    words = f"{micro_batch} x {length}, {norm}"
    rounds = []
    for number in range(options.bound_rounds):
        rounds.append(one_round(options, model, tokens, case, file))
        found = rounds[-1]
        say(
            f"bound: {words}, round {number + 1}: step {found['step']:.2f} s, in memory "
            f"{found['in_memory']:.2f} s, beside fio {found['beside']:.2f} s, disk "
            f"{found['disk']:.2f} s"
        )
    of = {key: summary(each[key] for each in rounds) for key in rounds[0]}
    ratio = summary(each["step"] / each["bound"] for each in rounds)
    parameters = {"model": f"gpt2-{options.bound_model}", "micro_batch": micro_batch}
    parameters |= {"sequence": length, "norm": norm}
    report.add(
        "bound", parameters, of["step"]["all"], of["moved"]["median"], True,
        in_memory=of["in_memory"], beside=of["beside"], disk_seconds=of["disk"],
        fio_gb_per_s=of["fio_gb_per_s"], own_bound=of["own_bound"],
    )  # fmt: skip
    report.ratio(f"step / bound, {words}", ratio, AIM)
    cells = [spread(of[key]) for key in COLUMNS]
    return [words, *cells, spread(ratio)]


def run(report, options, programs):
    if options.without_fio or not shutil.which("fio"):
        report.note("not measured: fio gives the disk's rate (Debian package fio)")
        return
    model = step_jobs.model_of(options.bound_model, options.work / "bound-model")
    tokens = options.work / "bound-tokens.bin"
    step_jobs.write_tokens(options.bound_model, tokens)
    file = options.work / "bench.bin"
    try:
        with disk.huge_pages(BLOCK * DEPTH // disk.HUGE_PAGE + 16):
            disk.fill(options, file)
            cases = [(*SHAPES[name], norm) for name in options.bound_shapes for norm in NORMS]
            rows = [one_case(report, options, model, tokens, case, file) for case in cases]
    except (disk.Missing, step.Failed) as failed:
        report.note(f"not measured: {failed}")
        return
    finally:
        file.unlink(missing_ok=True)
    title = (
        f"GPT-2 {options.bound_model} in bf16, {step_jobs.MODELS[options.bound_model][4]} for each "
        f"tier, 2 threads; seconds, median (min..max) of {options.bound_rounds} rounds"
    )
    report.table(title, ["tokens a step", *COLUMNS.values(), "step / bound"], rows)
