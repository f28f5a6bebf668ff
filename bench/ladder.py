"""Part `ladder`: the gain of each rule of the schedule, from one like DeepSpeed's to ours, in
seconds and bytes of a step. Every rung uses the same engine, model, tokens and weights, and ends
with the same digest; each adds one rule to the rung before it.

Rungs run one after the other, each in a separate process, several times, every second time in
reverse order."""

import json

import step
import step_jobs
from report import median_ratio, say, spread, summary

MIB = 1 << 20
MICRO_BATCHES = 4
RUNG_SECONDS = {"124m": 45, "355m": 130, "tiny": 3}  # seconds of a rung, including its start
SUB_GROUPS = {"tiny": 1 << 11}  # in elements; other models use our largest size


def embedding_of(name):
    """Elements of the largest stage: if gradients spill, host memory must have room to add
    these."""
    _, hidden, _, vocabulary, _ = step_jobs.MODELS[name]
    return (vocabulary + 1024) * hidden


def parameters_of(name):
    layers, hidden, *_ = step_jobs.MODELS[name]
    return 12 * layers * hidden**2 + embedding_of(name)


def rungs(name):
    """For each rung: description, settings, flags of ladder_bench."""
    sub_group = SUB_GROUPS.get(name, 1 << 18)
    ring = 16 * 16 * sub_group  # a quarter for four sub-groups of 16 bytes per element
    least = ring + 2 * embedding_of(name)
    serial = ["serial-update", "forward-alone", "one-by-one", "whole-master"]
    slots = [*serial, "slots-alone"]
    found = {"sub_group_size": sub_group, "max_in_cpu": 0, "host_memory": least}
    yield "one sub-group at a time, gradients flushed", found | {"buffer_count": 1}, slots
    yield "four sub-groups in flight", found | {"buffer_count": 4}, slots
    found |= {"buffer_count": 4, "host_memory": ring + 2 * parameters_of(name)}
    yield "gradients stay in host memory", found, slots
    found = {"host_memory": step_jobs.MODELS[name][4]}
    yield "host memory keeps what saves most", found, slots
    yield "device memory keeps parameters and state", found, serial
    yield "update under the next forward", found, serial[1:]
    yield "micro-batches layer by layer", found, ["forward-alone", "whole-master"]
    yield "split master weights", found, ["forward-alone"]
    yield "update under backward, too", found, []


def config_of(name, settings, folder):
    nvme = {"device": "nvme", "nvme_path": str(folder)}
    zero = {"stage": 3, "offload_param": dict(nvme), "offload_optimizer": dict(nvme)}
    if "sub_group_size" in settings:
        zero["sub_group_size"] = settings["sub_group_size"]
    if "max_in_cpu" in settings:
        zero["offload_param"]["max_in_cpu"] = settings["max_in_cpu"]
    if "buffer_count" in settings:
        zero["offload_optimizer"]["buffer_count"] = settings["buffer_count"]
    base = step_jobs.base_config(step_jobs.CONTESTANTS["artesian_bf16"])
    return base | step_jobs.FREE | {
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": zero,
        "artesian": {
            "device_memory": step_jobs.MODELS[name][4],
            "host_memory": settings["host_memory"],
        },
    }


def warm_up_of(options):
    return max(options.warm_up, step_jobs.SETTLED)


def run_rung(options, name, settings, flags):
    """Output lines of ladder_bench."""
    config = options.work / "ladder.json"
    config.write_text(json.dumps(config_of(name, settings, options.work)))
    model = step_jobs.model_of(name, options.work / "ladder-model")
    command = [options.programs / "ladder_bench", model, config, step_jobs.LENGTH]
    command += [warm_up_of(options), options.ladder_steps, *flags]
    return [json.loads(line) for line in step.output_of(command).splitlines()]


def estimate(options):
    name, count = options.ladder_model, len(list(rungs(options.ladder_model)))
    seconds = options.ladder_rounds * count * RUNG_SECONDS[name]
    return f"about {max(1, round(seconds / 60))} minutes"


def measure(options, name):
    """For each rung: seconds of all measured steps of all rounds, and the last output line."""
    ladder = list(rungs(name))
    found = [([], {}) for _ in ladder]
    for number in range(options.ladder_rounds):
        order = range(len(ladder)) if number % 2 == 0 else reversed(range(len(ladder)))
        for index in order:
            words, settings, flags = ladder[index]
            *steps, last = run_rung(options, name, settings, flags)
            seconds = [line["seconds"] for line in steps]
            found[index][0].extend(seconds)
            found[index][1].update(last)
            say(f"ladder: round {number + 1}: {words}: {spread(summary(seconds))} s")
    return [(words, *result) for (words, _, _), result in zip(ladder, found)]


def run(report, options, programs):
    name = options.ladder_model
    try:
        measured = measure(options, name)
    except step.Failed as failed:
        report.note(f"not measured: {failed}")
        return
    rows = []
    for words, seconds, last in measured:
        parameters = {"model": f"gpt2-{name}", "micro_batches": MICRO_BATCHES, "rung": words}
        report.add(
            "ladder", parameters, seconds, last["read"] + last["written"], True,
            bytes_read=last["read"], bytes_written=last["written"], rss=last["rss"],
            digest=last["digest"],
        )  # fmt: skip
        moved = f"{last['read'] / 1e6:.0f} / {last['written'] / 1e6:.0f}"
        faster = median_ratio(measured[0][1], seconds)
        row = [words, spread(summary(seconds)), f"{faster['median']:.2f}", moved]
        rows.append([*row, f"{last['rss'] / MIB:.0f}"])
        report.ratio(f"seconds of the first rung / {words}", faster)
    if len({last["digest"] for _, _, last in measured}) != 1:
        report.note("the rungs' digests DIFFER: " + str([last["digest"] for *_, last in measured]))
    title = (
        f"GPT-2 {name} in bf16, {MICRO_BATCHES} micro-batches of 1 x {step_jobs.LENGTH}, all on "
        f"NVMe, 2 threads; median (min..max) of {options.ladder_rounds} x {options.ladder_steps} "
        f"steps after {warm_up_of(options)}; each row with all above it"
    )
    header = ["", "s a step", "as fast as the first", "MB read / written a step", "peak RSS, MiB"]
    report.table(title, header, rows)
