"""Part `inference`: generates tokens with a Llama model in bf16 from NVMe, at batch 1 and 8, in a
memory control group that is too small for the model or a page cache of it. Compared with fio's
rate, with accelerate's disk_offload in the same group, and with plain PyTorch and everything in
memory, which shows the time of the cores alone."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import disk
from report import ROOT, median_ratio, say, spread
from step import result_in, two_cores

sys.path.insert(0, str(ROOT / "dev"))
from memory_group import memory_group  # noqa: E402

WORKER = ROOT / "bench/inference_worker.py"
HOW = {
    "nvme": "Artesian, parameters on NVMe",
    "disk": "accelerate's disk_offload",
    "memory": "PyTorch, all in RAM, in no group",
}
ROWS = [1, 8]
# size of the group, and of each of our budgets
GROUP = {"3b": (3 << 30, "1GiB"), "tiny": (3 << 30, "3MiB")}
TOKENS = {"nvme": 16, "disk": 2, "memory": 4}
BLOCK, DEPTH, FIO_SECONDS = 1 << 20, 32, 5
RATE_AIM, DISK_OFFLOAD_AIM = 0.9, 3.0


def estimate(options):
    minutes = 8 * options.inference_rounds if options.inference_model == "3b" else 1
    return f"about {minutes} minutes"


def started(options, words, enter=None):
    extras = subprocess.run([ROOT / "dev/extras.sh", ROOT / "dev/requirements-hf.lock"],
                            check=True, capture_output=True, text=True).stdout.strip()  # fmt: skip
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(options.programs.parent / "python"), extras]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",  # as `artesian` sets it
        "CUDA_VISIBLE_DEVICES": "",
    }

    def prepare():
        two_cores()
        if enter is not None:
            enter()

    done = subprocess.run([sys.executable, WORKER, *map(str, words)], env=variables, text=True,
                          capture_output=True, preexec_fn=prepare)  # fmt: skip
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(f"exit code {done.returncode}: {' / '.join(lines[-3:])}")
    return result_in(done.stdout)


def fio_rate(options):
    """Bytes per second."""
    file = options.work / "inference.fio"
    more = {"time_based": 1, "runtime": FIO_SECONDS}
    try:
        with disk.huge_pages(BLOCK * DEPTH // disk.HUGE_PAGE + 16):
            job = disk.fio_job(options, file, "read", BLOCK, DEPTH, **more)
    finally:
        file.unlink(missing_ok=True)
    moved, seconds = disk.moved_by(job)
    return moved / seconds


def forget(folder):
    """Drops the folder's files from the page cache: pages that a process outside of the group has
    read stay there, beyond the group's limit."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def generated(options, how, model, enter):
    """By batch size: seconds per token and, for artesian, bytes and planned bytes."""
    _, budget = GROUP[options.inference_model]
    nvme = options.work / "inference-nvme"
    nvme.mkdir()
    words = ["--how", how, "--folder", model, "--nvme", nvme, "--budget", budget]
    words += ["--queue-depth", DEPTH]  # as fio's
    words += ["--tokens", TOKENS[how], "--rows", *ROWS, "--warm-up", 2 if how == "nvme" else 0]
    forget(model)
    try:
        return started(options, words, None if how == "memory" else enter)
    finally:
        shutil.rmtree(nvme)


def run(report, options, programs):
    model = options.work / f"inference-{options.inference_model}"
    if not (model / "model.safetensors.index.json").exists():
        model.mkdir(exist_ok=True)
        started(options, ["--make", options.inference_model, "--folder", model])
    seconds = {(how, rows): [] for how in HOW for rows in ROWS}
    rates, moved, planned = [], {rows: [] for rows in ROWS}, {}
    with memory_group(GROUP[options.inference_model][0]) as enter:
        if enter is None:
            report.note("no memory control group here: the page cache may hold the model")
        for _ in range(options.inference_rounds):
            for how in HOW:
                if how == "nvme" and not options.without_fio:
                    rates.append(fio_rate(options))
                for rows, result in generated(options, how, model, enter).items():
                    seconds[how, int(rows)].append(result["seconds"])
                    if how == "nvme":
                        moved[int(rows)].append(result["bytes"])
                        planned[int(rows)] = result["planned"]
                say(f"inference: {how}: " + json.dumps({r: seconds[how, r][-1] for r in ROWS}))
            if not options.without_fio:
                rates.append(fio_rate(options))
    tell(report, options, seconds, moved, planned, rates)


def tell(report, options, seconds, moved, planned, rates):
    rows_of_table = []
    for (how, rows), each in seconds.items():
        more = {"planned": planned[rows]} if how == "nvme" else {}
        result = report.add(
            "token", {"model": options.inference_model, "how": how, "rows": rows}, each,
            moved=moved[rows][-1] if how == "nvme" else None, **more,
        )  # fmt: skip
        gb = f"{moved[rows][-1] / 1e9:.2f}" if how == "nvme" else ""
        rows_of_table.append([HOW[how], rows, spread(result["seconds"], 3), gb])
    for rows in ROWS:
        ours = seconds["nvme", rows]
        report.ratio(f"bytes over planned, batch {rows}",
                     median_ratio(moved[rows], [planned[rows]]))  # fmt: skip
        if rates:
            own = [b / s for b, s in zip(moved[rows], ours, strict=True)]
            report.ratio(f"our rate over fio's, batch {rows}", median_ratio(own, rates), RATE_AIM)
        report.ratio(f"disk_offload over ours, seconds, batch {rows}",
                     median_ratio(seconds["disk", rows], ours), DISK_OFFLOAD_AIM)  # fmt: skip
    if rates:
        report.note("fio reads " + ", ".join(f"{rate / 1e9:.2f}" for rate in rates) + " GB/s")
    header = ["with", "batch", "seconds a token", "GB read a token"]
    report.table(f"Llama {options.inference_model}, bf16", header, rows_of_table)
