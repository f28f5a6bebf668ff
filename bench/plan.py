"""Part `plan`: compares the step predicted by `artesian plan` with a measured run: the training of
`make demo`, and variants with one change each. A plan is made before and after each run, so that
drift affects both alike, with the rates of an `aio_bench tune` at the beginning; fio runs before
and after them and shows how far the disk has drifted. The rates are kept in a separate cache:
existing profiles of the disk are neither used nor changed. Also compares each measured step with
the run's own prediction from earlier steps."""

import contextlib
import json
import os
import shutil
import statistics
import sys

import disk
import step
import step_jobs
from report import ROOT, say, spread, summary

LENGTH = 256  # tokens per sample, as in dev/demo.sh
STEPS = 6  # steps per run; the first ones settle, and the last includes a digest of all state
BLOCK, DEPTH = 1 << 20, 32  # of fio
LINKS = ["nvme_read", "nvme_write", "h2d", "d2h"]
ROUND_SECONDS = {"124m": 240, "355m": 600, "tiny": 30}
# The demo's budget of each tier, and a larger one.
BUDGETS = {"124m": ("512MiB", "2GiB"), "355m": ("1GiB", "4GiB"), "tiny": ("1MiB", "4MiB")}
ON_ONE_DISK = "two ranks on one disk"
HOST_OF_TWO = {"124m": "256MiB", "355m": "512MiB", "tiny": "4MiB"}
RANKS = {ON_ONE_DISK: 2}  # of cases that have several, each with a thread


def asked(options):
    return [words.strip() for words in options.plan_cases.split(",") if words.strip()]


def estimate(options):
    all_cases = len(list(cases(options.plan_model, "")))
    share = len(asked(options)) / all_cases if asked(options) else 1
    seconds = options.plan_rounds * share * ROUND_SECONDS[options.plan_model]
    seconds += options.tune_seconds
    return f"about {max(1, round(seconds / 60))} minutes"


def tiers(budget):
    """Budgets without the update under backward, whose share, and with it the bytes, depend on
    time."""
    memory = {"device_memory": budget, "host_memory": budget}
    return {"artesian": memory | {"speculative_update": False}}


def cases(name, folder):
    """For each case: description, its config."""
    demo = json.loads((ROOT / "examples/demo.json").read_text())
    zero = demo["zero_optimization"]
    for offload in ["offload_param", "offload_optimizer"]:
        zero[offload]["nvme_path"] = str(folder)
    least, more = BUDGETS[name]
    demo |= tiers(least)
    whole = {key: value for key, value in demo.items() if key != "fp16"}
    yield "the demo", demo
    yield "fp32", whole
    yield "bf16", whole | {"bf16": {"enabled": True}}
    in_host = zero | {"offload_param": {"device": "cpu"}}
    yield "parameters in host memory", demo | {"zero_optimization": in_host}
    four = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
    yield f"four micro-batches of 1 x {LENGTH}", demo | four
    yield f"{more} for each tier", demo | tiers(more)
    # The update may be made under backward, speculatively.
    tried = demo | {"artesian": {"device_memory": least, "host_memory": least}}
    yield "default clipping", tried
    yield "clipped in every step", tried | {"gradient_clipping": 1e-6}
    yield "nothing clipped", tried | {"gradient_clipping": 0.0}
    half = {"device_memory": least, "host_memory": HOST_OF_TWO[name], "speculative_update": False}
    yield ON_ONE_DISK, whole | {"bf16": {"enabled": True}, "artesian": half}
    in_memory = {"device_memory": "12GiB", "speculative_update": False}
    yield "everything in memory", demo | {"zero_optimization": {"stage": 3}, "artesian": in_memory}


def chosen(options, todo):
    """The cases named by --plan-cases, or all."""
    known = [words for words, _ in todo]
    for words in asked(options):
        if words not in known:
            raise step.Failed(f'--plan-cases: got "{words}", allowed {", ".join(known)}')
    return [case for case in todo if not asked(options) or case[0] in asked(options)]


class Job:
    """A case to plan and run; its files are in the work folder, and removed at the end."""

    def __init__(self, options):
        self.options = options
        self.folder = options.work / "plan"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.swap = self.folder / "nvme"
        self.swap.mkdir(parents=True)
        self.model = step_jobs.model_of(options.plan_model, self.folder / "model")
        self.tokens, self.log = self.folder / "tokens.bin", self.folder / "steps.jsonl"
        self.config = self.folder / "config.json"
        step_jobs.write_tokens(options.plan_model, self.tokens)

    def output_of(self, program, *arguments, ranks=1):
        variables = os.environ | {"XDG_CACHE_HOME": str((self.folder / "cache").resolve())}
        command = [self.options.programs / program, *arguments]
        if ranks > 1:
            variables["OMP_NUM_THREADS"] = "1"
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command = [*torchrun, "--nproc-per-node", ranks, "--no-python", *command]
        return step.output_of(command, env=variables)

    def tune(self):
        flags = ["--size", self.options.size, "--budget-seconds", self.options.tune_seconds]
        return json.loads(self.output_of("aio_bench", "tune", "--path", self.swap, *flags,
                                         "--json", "-"))  # fmt: skip

    def take(self, config, ranks=1):
        self.config.write_text(json.dumps(config))
        self.ranks = ranks

    def words(self):
        return ["--model", self.model, "--config", self.config, "--seq-len", LENGTH]

    def plan(self):
        flags = ["--ranks", self.ranks] if self.ranks > 1 else []
        return json.loads(self.output_of("artesian", "plan", *self.words(), *flags, "--json", "-"))

    def train(self):
        """Log lines of the measured steps."""
        flags = ["--data", self.tokens, "--init", "--seed", 1, "--steps", STEPS, "--quiet"]
        self.output_of("artesian", "train", *self.words(), *flags, "--log-jsonl", self.log,
                       ranks=self.ranks)  # fmt: skip
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        if any(line["overflow"] for line in lines):
            raise step.Failed("a step was skipped: its bytes are not a step's")
        return [line for line in lines[step_jobs.SETTLED :] if line.get("digest") is None]

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def seconds_of(planned, lines, clipping):
    """Predicted seconds of these steps, some of which are clipped and roll back their speculative
    update."""
    clipped = statistics.mean(0.0 < clipping < line.get("grad_norm", 0.0) for line in lines)
    seconds = planned["step"]["seconds"]
    return seconds + clipped * (planned["step"].get("clipped_seconds", seconds) - seconds)


def compare(before, lines, after, config):
    """Compares one round: seconds of both, and bytes of all ranks that differ from the plan; no
    bytes if they depend on time."""
    ranks = before.get("target", {}).get("ranks", 1)
    planned = {link: before["bytes_per_step"][link]["total"] * ranks for link in LINKS}
    timely = config.get("artesian", {}).get("speculative_update", True)
    differ = [
        f"step {line['step']}: {link}: planned {planned[link]}, moved {line['bytes'][link]}"
        for line in lines for link in LINKS if line["bytes"][link] != planned[link]
    ]  # fmt: skip
    clipping = config.get("gradient_clipping", 0.0)
    seconds = [seconds_of(each, lines, clipping) for each in (before, after)]
    return {
        "predicted": statistics.mean(seconds),
        "before": seconds[0],
        "after": seconds[1],
        "measured": statistics.median(line["step_s"] for line in lines),
        "own": statistics.median(line["predicted_step_s"] / line["step_s"] for line in lines),
        "planned_bytes": planned,
        "differ": None if timely else differ,
    }


def add_case(report, options, words, rounds):
    """Returns the table's row."""
    name = f"gpt2-{options.plan_model}"
    measured = [each["measured"] for each in rounds]
    predicted = summary(each["predicted"] for each in rounds)
    planned = rounds[0]["planned_bytes"]
    timely = any(each["differ"] is None for each in rounds)
    differ = [line for each in rounds for line in each["differ"] or []]
    report.add(
        "plan", {"model": name, "sequence": LENGTH, "case": words}, measured,
        planned["nvme_read"] + planned["nvme_write"], True,
        predicted=predicted, before=[each["before"] for each in rounds],
        after=[each["after"] for each in rounds], planned_bytes=planned,
        fio_after_by_before=[each.get("fio") for each in rounds],
        bytes_as_planned=None if timely else not differ,
    )  # fmt: skip
    for line in differ:
        report.note(f"{words}: bytes are NOT as planned: {line}")
    ratio = summary(each["predicted"] / each["measured"] for each in rounds)
    report.ratio(f"predicted / measured, {words}", ratio)
    own = summary(each["own"] for each in rounds)
    report.ratio(f"the run's own prediction / measured, {words}", own)
    drifts = [each["fio"] for each in rounds if each.get("fio")]
    cells = [spread(predicted), spread(summary(measured)), spread(ratio), spread(own)]
    cells += [spread(summary(drifts)) if drifts else "-"]
    return [words, *cells, "-" if timely else "no" if differ else "yes"]


@contextlib.contextmanager
def fio(report, options):
    """Yields a function that returns fio's GB/s, half of it reads; None if fio cannot run."""
    file = options.work / "bench.bin"
    with contextlib.ExitStack() as stack:
        rate = None
        try:
            if not options.without_fio and shutil.which("fio"):
                stack.enter_context(disk.huge_pages(BLOCK * DEPTH // disk.HUGE_PAGE + 16))
                stack.callback(file.unlink, missing_ok=True)
                disk.fill(options, file)
                rate = disk.fio_mixed(options, file, 0.5, BLOCK, DEPTH)
        except disk.Missing as missing:
            report.note(f"how far the disk drifts is not measured: {missing}")
        yield lambda: rate and disk.fio_mixed(options, file, 0.5, BLOCK, DEPTH)


def measure(options, job, todo, rate):
    """Runs the rounds of all cases, every second round in reverse order."""
    found = {words: [] for words, _ in todo}
    for number in range(options.plan_rounds):
        for words, config in todo if number % 2 == 0 else reversed(todo):
            job.take(config, RANKS.get(words, 1))
            before = rate()
            round_of = compare(job.plan(), job.train(), job.plan(), config)
            round_of["fio"] = rate() / before if before else None
            found[words].append(round_of)
            say(
                f"plan: round {number + 1}: {words}: predicted {round_of['predicted']:.2f} s, "
                f"measured {round_of['measured']:.2f} s"
                + (f", fio after / before {round_of['fio']:.2f}" if before else "")
            )
    return found


def run(report, options, programs):
    job = Job(options)
    try:
        todo = chosen(options, list(cases(options.plan_model, job.swap)))
        rates = job.tune()
        with fio(report, options) as rate:
            found = measure(options, job, todo, rate)
    except (step.Failed, disk.Missing) as failed:
        report.note(f"not measured: {failed}")
        return
    finally:
        job.close()
    rows = [add_case(report, options, words, rounds) for words, rounds in found.items()]
    kinds = ["read", "write", "mixed"]
    by_tune = ", ".join(f"{kind} {rates[kind]['gb_per_s']:.2f}" for kind in kinds)
    title = (
        f"The demo's training with GPT-2 {options.plan_model}, 2 threads; seconds of a step, "
        f"median (min..max) of {options.plan_rounds} rounds; by aio_bench tune, GB/s: {by_tune}"
    )
    header = ["", "predicted", "measured", "predicted / measured", "by the run itself / measured"]
    header += ["fio after / before", "bytes as planned"]
    report.table(title, header, rows)
