"""Part `checkpoint`: the time that a checkpoint costs a training, and the time of a load, compared
with the disk's time for the same bytes. One process alternates windows of three steps: without a
checkpoint, with a checkpoint read by a separate pass, and with one copied during the update. Each
is measured from its first step's beginning until everything is durable."""

import json
import statistics

import ladder
import step
import step_jobs
from report import say, spread, summary

MIB = 1 << 20
WINDOW = 3  # steps, as in checkpoint_bench.cpp
EVERY = 20  # steps between checkpoints, for the relative cost
SECONDS = {"124m": 25, "355m": 90, "tiny": 1}  # seconds of one round
WORDS = {"read": "read by a pass", "copied": "copied on the way"}


def placements(name):
    """For each placement: description, settings for ladder.config_of."""
    yield "as much in memory as fits", {"host_memory": step_jobs.MODELS[name][4]}
    sub_group = ladder.SUB_GROUPS.get(name, 1 << 18)
    ring = 16 * 16 * sub_group
    least = {"sub_group_size": sub_group, "buffer_count": 4, "max_in_cpu": 0}
    least["host_memory"] = ring + 2 * ladder.parameters_of(name)
    yield "all state on NVMe", least


def estimate(options):
    rounds = options.checkpoint_rounds
    seconds = sum(2 * (rounds + 1) * SECONDS[name] for name in options.checkpoint_models)
    return f"about {max(1, round(seconds / 60))} minutes"


def run_one(options, name, settings):
    """Output lines of checkpoint_bench."""
    config = options.work / "checkpoint.json"
    config.write_text(json.dumps(ladder.config_of(name, settings, options.work)))
    model = step_jobs.model_of(name, options.work / "checkpoint-model")
    command = [options.programs / "checkpoint_bench", model, config, step_jobs.LENGTH]
    command += [options.work / "checkpoints", ladder.warm_up_of(options), options.checkpoint_rounds]
    lines = [json.loads(line) for line in step.output_of(command).splitlines()]
    for left in sorted((options.work / "checkpoints").rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    return lines


def of_placement(report, name, words, lines):
    """Returns rows of the two tables."""
    windows = [line for line in lines if "variant" in line]
    plain = [line["seconds"] for line in windows if line["variant"] == "none"]
    last = next(line for line in lines if "planned" in line)
    seconds_a_step = statistics.median(plain) / WINDOW
    parameters = {"model": f"gpt2-{name}", "placement": words}
    if last["bytes"] != last["planned"]:
        report.note(f"{name}: {last['bytes']} bytes were written, {last['planned']} are PLANNED")
    rows = []
    for variant, shown in WORDS.items():
        found = [line for line in windows if line["variant"] == variant]
        # Relative to the window without a checkpoint in the same round, and to the rate measured
        # before it.
        extra = [line["seconds"] - before for line, before in zip(found, plain)]
        disk = [last["bytes"] / line["write_rate"] for line in found]
        report.add(
            "checkpoint", parameters | {"variant": variant}, [line["seconds"] for line in found],
            last["bytes"], True, extra=summary(extra), disk=summary(disk),
            rss_more=last["rss"] - last["rss_before"],
        )  # fmt: skip
        middle = statistics.median(extra)
        report.ratio(
            f"extra seconds, {name}, {words}, {shown} / the disk's",
            summary(a / b for a, b in zip(extra, disk)), 1.1,
        )  # fmt: skip
        row = [name, words, shown, f"{seconds_a_step:.2f}", spread(summary(extra))]
        row += [spread(summary(disk)), f"{middle / statistics.median(disk):.2f}"]
        share = middle / seconds_a_step
        row += [f"{share:.2f}", f"{100 * share / EVERY:.1f} %"]
        rows.append([*row, f"{(last['rss'] - last['rss_before']) / MIB:.0f}"])
    return rows, of_loads(report, name, words, last["bytes"], lines)


def of_loads(report, name, words, size, lines):
    loads = [line for line in lines if "load" in line]
    seconds = [line["load"] for line in loads]
    disk = [size / line["read_rate"] + line["swap"] / line["write_rate"] for line in loads]
    parameters = {"model": f"gpt2-{name}", "placement": words}
    report.add("load", parameters, seconds, size, True, disk=summary(disk))
    ratio = summary(a / b for a, b in zip(seconds, disk))
    report.ratio(f"seconds of a load, {name}, {words} / the disk's", ratio, 1.2)
    return [name, words, spread(summary(seconds)), spread(summary(disk)), spread(ratio)]


def run(report, options, programs):
    saves, loads = [], []
    for name in options.checkpoint_models:
        for words, settings in placements(name):
            try:
                lines = run_one(options, name, settings)
            except step.Failed as failed:
                report.note(f"not measured: {name}, {words}: {failed}")
                continue
            rows, load = of_placement(report, name, words, lines)
            saves += rows
            loads.append(load)
            say(f"checkpoint: {name}, {words}: done")
    many = f"median (min..max) of {options.checkpoint_rounds} rounds"
    title = (
        f"Checkpoints of GPT-2 in bf16, {ladder.MICRO_BATCHES} micro-batches of 1 x "
        f"{step_jobs.LENGTH}, 2 threads: seconds beside a window of {WINDOW} steps without; {many}"
    )
    header = ["", "placement", "checkpoint", "s a step", "s more", "s the disk needs"]
    header += ["of these", "steps", f"every {EVERY} steps", "RSS, MiB more"]
    report.table(title, header, saves)
    title = f"Loads: seconds, and what the disk needs to read and to write the same bytes; {many}"
    report.table(title, ["", "placement", "s", "s the disk needs", "of these"], loads)
