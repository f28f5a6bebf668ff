"""Part `disk`: `aio_bench run` compared with fio, both with direct I/O and buffers on 2 MiB pages,
and with DeepSpeed's aio handle, which uses a page-locked tensor. aio_bench and DeepSpeed use their
best settings, which may have several threads with a queue each; fio has one. aio_bench and fio
repeat the file for --disk-seconds, because a GB of large blocks takes two to five milliseconds of
CPU time, and fio counts whole milliseconds.

aio_bench gets huge pages by madvise; fio needs reserved ones (--mem=mmaphuge), which are reserved
while fio runs and always returned. Files are filled first, so that timed writes overwrite existing
blocks."""

import contextlib
import itertools
import json
import pathlib
import shutil
import subprocess
import time

import deepspeed_setup
from report import ROOT, paired_ratio, say, spread, summary

HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
HUGE_PAGE = 2 << 20
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ENGINES = ["io_uring", "threads"]
OPERATIONS = ["read", "write", "mixed"]
THREADS = [1, 2, 4]  # each thread with its own queue
# Values of DeepSpeed's single_submit, overlap_events and intra_op_parallelism.
SETTINGS = [*itertools.product([False], [False, True], THREADS), (True, True, 1)]
CONTESTANTS = {
    "io_uring": "Artesian io_uring",
    "threads": "Artesian threads",
    "fio": "fio",
    "fastest": "Artesian, fastest setting",
    "deepspeed": "DeepSpeed aio, fastest setting",
}
# and our contestant that is compared with each
RIVALS = {"fio": "io_uring", "deepspeed": "fastest"}
EITHER = ["fastest", "deepspeed"]  # contestants for which reads and writes are measured separately
# Aims: at least this share of a rival's GB/s, at most this multiple of fio's CPU time per GB.
RATE_AIMS = {"fio": 0.97, "deepspeed": 1.0}
CPU_AIM = 1.1
FIO_GRAIN = "; fio counts whole milliseconds of user and of system time"
LATENCIES = 400  # number of single-block reads


class Missing(Exception):
    """Why fio is not measured, as a sentence for the report."""


def estimate(options):
    once = 0.7 * size_of(options.size) / (1 << 30)  # seconds for one pass over the file
    timed = (options.disk_seconds or once) + once + 0.3
    each = 3 * options.disk_repeats * timed
    either = 0.0
    if not options.without_deepspeed:  # trials for the fastest settings
        theirs = len(SETTINGS) + options.disk_repeats
        either = (len(THREADS) + options.disk_repeats) * timed + theirs * once
    seconds = len(options.points) * (len(OPERATIONS) * each + 2 * either)
    return f"about {max(1, round(seconds / 60))} minutes"


def size_of(text):
    text = text.removesuffix("iB")
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def points(text):
    """(block size, queue depth) of each point of "128K/8,1M/32". Errors: ValueError."""
    pairs = [point.split("/") for point in text.split(",")]
    return [(size_of(block), int(depth)) for block, depth in pairs]


def free_huge_pages():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("HugePages_Free:"):
            return int(line.split()[1])
    return 0


@contextlib.contextmanager
def huge_pages(count, setting=HUGE_PAGES, free=free_huge_pages):
    """Reserves as many huge pages as are needed for `count` free ones; restores the setting at the
    end."""
    before = int(setting.read_text())
    missing = max(0, count - free())
    try:
        if missing:
            try:
                setting.write_text(str(before + missing))
            except OSError as error:
                raise Missing(f"{setting} cannot be written ({error.strerror})") from error
            if free() < count:
                raise Missing(f"only {free()} of {count} huge pages can be reserved")
        yield
    finally:
        if missing and int(setting.read_text()) != before:
            setting.write_text(str(before))


def aio_bench_command(options, engine, operation, block, depth, threads=1):
    command = [options.programs / "aio_bench", "run", "--path", options.work, "--json", "-"]
    command += ["--size", options.size, "--op", operation, "--engine", engine]
    command += ["--block-size", block, "--queue-depth", depth, "--threads", threads]
    if options.disk_seconds:
        command += ["--seconds", options.disk_seconds]
    return list(map(str, command))


def aio_bench(*point):
    command = aio_bench_command(*point)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def ours(*point):
    got = aio_bench(*point)
    return got["bytes"], got["seconds"], got["cpu_seconds"], got["direct"]


class Fastest:
    """A contestant that, for each point, uses the fastest of its settings, found by a trial."""

    def __init__(self, settings, contestant):
        self.settings = settings
        self.contestant = contestant
        self.best = {}

    def __call__(self, *point):
        def rate(settings):
            moved, seconds, *_ = self.contestant(settings, *point)
            return moved / seconds

        if point not in self.best:
            self.best[point] = max(self.settings, key=rate)
        return self.contestant(self.best[point], *point)


class DeepSpeed:
    """disk_worker.py as a contestant."""

    def __init__(self, options, environment, file):
        self.job = {"file": str(file), "size": size_of(options.size)}
        self.memory = 0  # peak, in bytes
        self.process = subprocess.Popen(
            [str(environment.python), str(ROOT / "bench/disk_worker.py")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment.variables(),
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, block, depth, settings, **job):
        job = self.job | {"block": block, "depth": depth, "settings": settings} | job
        print(json.dumps(job), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise Missing("DeepSpeed's aio handle ended without an answer")
        answer = json.loads(answer)
        self.memory = answer["memory"]
        return answer

    def __call__(self, settings, operation, block, depth):
        got = self.ask(block, depth, settings, operation=operation)
        return self.job["size"], got["seconds"], got["cpu"], True

    def latencies(self, block):
        return self.ask(block, 1, SETTINGS[0], count=LATENCIES)["latencies"]


def fio_command(options, file, operation, block, depth, **more):
    settings = {
        "name": "bench",
        "filename": file,
        "rw": operation,
        "size": size_of(options.size),
        "bs": block,
        "iodepth": depth,
        "ioengine": "io_uring",
        "fixedbufs": 1,
        "registerfiles": 1,
        "direct": 1,
        "mem": "mmaphuge",
        "overwrite": 1,
        "scramble_buffers": 0,
        "fallocate": "none",
        "output-format": "json",
    }
    return ["fio", *(f"--{key}={value}" for key, value in (settings | more).items())]


def fio_job(options, file, operation, block, depth, **more):
    """fio's own report of one job."""
    command = fio_command(options, file, operation, block, depth, **more)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Missing(f"fio failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]


def moved_by(job):
    """(bytes, seconds), over both directions."""
    both = job["read"], job["write"]
    return sum(way["io_bytes"] for way in both), max(way["runtime"] for way in both) / 1e3


def fio(options, file, operation, block, depth):
    more = {"time_based": 1, "runtime": options.disk_seconds} if options.disk_seconds else {}
    how = "rw" if operation == "mixed" else operation  # half reads, half writes
    job = fio_job(options, file, how, block, depth, **more)
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    return *moved_by(job), cpu, True


def fio_mixed(options, file, read, block, depth):
    """GB/s of reads and writes together, with `read` as the share of reads."""
    job = fio_job(options, file, "rw", block, depth, rwmixread=round(100 * read))
    moved, seconds = moved_by(job)
    return moved / seconds / 1e9


def measure(options, contestants, operation, block, depth):
    """Contestant -> bytes, seconds and CPU seconds of each repeat; empty if it cannot run."""
    found = {name: [] for name in contestants}
    names = [name for name in contestants if operation != "mixed" or name not in EITHER]
    for repeat in range(options.disk_repeats):
        for position in range(len(names)):
            name = names[(repeat + position) % len(names)]
            found[name].append(contestants[name](operation, block, depth))
    return found


def block_name(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def evaluate(report, found, operation, block, depth):
    """Adds the results of one point; returns its row of rates and its row of CPU seconds per GB."""
    rates, cpu, place = {}, {}, [operation, f"{block_name(block)} x {depth}"]
    cells = []  # (rates, CPU time) for each column
    for name, repeats in found.items():
        if not repeats:
            cells.append(("", ""))
            continue
        rates[name] = [moved / seconds / 1e9 for moved, seconds, _, _ in repeats]
        # The clock's resolution is a microsecond.
        cpu[name] = [max(cpu, 1e-6) / (moved / 1e9) for moved, _, cpu, _ in repeats]
        report.add(
            f"{operation}_{name}",
            {"block_size": block, "queue_depth": depth},
            [seconds for _, seconds, _, _ in repeats],
            repeats[0][0],
            repeats[0][3],
            gb_per_s=summary(rates[name]),
            cpu_seconds_per_gb=summary(cpu[name]),
        )
        cells.append((spread(summary(rates[name])), spread(summary(cpu[name]), 4)))
    for rival in RIVALS:
        if rival not in found:
            continue
        if not found[rival]:
            cells.append(("", ""))
            continue
        mine = RIVALS[rival]
        point, pair = " ".join(place), f"{CONTESTANTS[mine]} / {CONTESTANTS[rival]}"
        rate = paired_ratio(rates[mine], rates[rival])
        report.ratio(f"{point}: GB/s, {pair}", rate, RATE_AIMS[rival])
        burnt = paired_ratio(cpu[mine], cpu[rival])
        aim = CPU_AIM if rival == "fio" else None
        report.ratio(f"{point}: CPU seconds per GB, {pair}", burnt, aim)
        cells.append((spread(rate), spread(burnt)))
    return [*place, *(rate for rate, _ in cells)], [*place, *(burnt for _, burnt in cells)]


def contestants_of(options, file, with_fio, deepspeed):
    def engine(name):
        return lambda *point: ours(options, name, *point)

    found = {name: engine(name) for name in ENGINES}
    if with_fio:
        found["fio"] = lambda *point: fio(options, file, *point)
    if deepspeed:
        found["fastest"] = Fastest(
            THREADS, lambda threads, *point: ours(options, "io_uring", *point, threads)
        )
        found["deepspeed"] = Fastest(SETTINGS, deepspeed)
    return found


def fill(options, file):
    with file.open("wb") as out:
        for _ in range(size_of(options.size) >> 20):
            out.write(bytes(1 << 20))


def all_points(report, options, with_fio, deepspeed, file):
    rows, cpu_rows = [], []
    contestants = contestants_of(options, file, with_fio, deepspeed)
    for operation in OPERATIONS:
        for block, depth in options.points:
            found = measure(options, contestants, operation, block, depth)
            row, cpu_row = evaluate(report, found, operation, block, depth)
            rows.append(row)
            cpu_rows.append(cpu_row)
            say("disk: " + ", ".join(row))
    names = [CONTESTANTS[name] for name in contestants]
    quotients = [f"{mine} / {name}" for name, mine in RIVALS.items() if name in contestants]
    title = f"GB/s, file of {options.size}, direct, 2 MiB pages, median (min..max)"
    report.table(title, ["", "block x depth", *names, *quotients], rows)
    title = "CPU seconds per GB" + (FIO_GRAIN if with_fio else "")
    report.table(title, ["", "block x depth", *names, *quotients], cpu_rows)
    if deepspeed:
        latency_table(report, options, deepspeed)


def latency_table(report, options, deepspeed):
    """Latency of one request at a time, as for a demand read."""
    rows = []
    for block in dict.fromkeys(block for block, _ in options.points):
        got = aio_bench(options, "io_uring", "read", block, 1)
        theirs = deepspeed.latencies(block)
        at = {key: theirs[int(len(theirs) * share)] for key, share in [("p50", 0.5), ("p99", 0.99)]}
        cells = [f"{got['lat_us'][key]:.0f} / {at[key]:.0f}" for key in at]
        rows.append([block_name(block), *cells])
        report.add(
            "latency", {"block_size": block}, [us / 1e6 for us in theirs], block, True,
            ours_us=got["lat_us"], deepspeed_us=at,
        )  # fmt: skip
    title = "Microseconds of a read that is alone, Artesian io_uring / DeepSpeed aio"
    report.table(title, ["block", "p50", "p99"], rows)
    block, depth = max(options.points, key=lambda point: point[0] * point[1])
    report.note(
        f"peak memory: all of aio_bench, with {block * depth >> 20} MiB of buffers, "
        f"{memory_of_ours(options, block, depth)} MiB; DeepSpeed's handles, without Python and the "
        f"tensor of {options.size} that each call moves, {deepspeed.memory >> 20} MiB"
    )


def memory_of_ours(options, block, depth):
    """Peak memory in MiB, sampled while the process runs: wait4's value includes Python's own."""
    command = aio_bench_command(options, "io_uring", "read", block, depth)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = pathlib.Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):  # absent for a process that has ended
                peak = max(peak, int(line.split()[1]) >> 10)
        time.sleep(0.005)
    return peak


def with_deepspeed(report, options, with_fio):
    """Adds the comparison with DeepSpeed if it is available."""
    file = options.work / "bench.bin"
    environment = deepspeed_setup.prepare_if_wanted(report, options)
    try:
        fill(options, file)
        if not environment:
            return all_points(report, options, with_fio, None, file)
        with DeepSpeed(options, environment, file) as deepspeed:
            return all_points(report, options, with_fio, deepspeed, file)
    finally:
        file.unlink(missing_ok=True)


def run(report, options, programs):
    needed = max(-(-block * depth // HUGE_PAGE) for block, depth in options.points) + 16
    try:
        if options.without_fio:
            raise Missing("asked to leave it out")
        if not shutil.which("fio"):
            raise Missing("fio is not installed (Debian package fio)")
        with huge_pages(needed):
            with_deepspeed(report, options, True)
    except Missing as missing:
        report.note(f"not compared with fio: {missing}")
        with_deepspeed(report, options, False)
