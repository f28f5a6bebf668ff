"""Runs DeepSpeed's aio handle for disk.py, which starts it with a Python that has DeepSpeed.

Reads one job per line from stdin and answers with one line, both JSON. A job moves the whole file
to or from one page-locked tensor, or reads single blocks one by one to measure latency."""

import json
import os
import resource
import sys
import time

import torch
from deepspeed.ops.op_builder import AsyncIOBuilder


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Worker:
    def __init__(self):
        self.library = AsyncIOBuilder().load()
        self.handles = {}
        self.buffer = None
        self.before = peak_bytes()

    def handle(self, job):
        key = (job["block"], job["depth"], *job["settings"])
        if key not in self.handles:
            self.handles[key] = self.library.aio_handle(*key)
        return self.handles[key]

    def whole_file(self, job):
        if self.buffer is None:
            handle = self.handle(job)
            example = torch.empty(0, dtype=torch.uint8)
            self.buffer = handle.new_cpu_locked_tensor(job["size"], example)
            self.buffer.fill_(7)
        handle = self.handle(job)
        call = handle.sync_pread if job["operation"] == "read" else handle.sync_pwrite
        begin, cpu = time.monotonic(), cpu_seconds()
        call(self.buffer, job["file"], 0)
        return {"seconds": time.monotonic() - begin, "cpu": cpu_seconds() - cpu}

    def latencies(self, job):
        """Microseconds of reads of a single block."""
        handle = self.handle(job)
        part = self.buffer[: job["block"]]
        found = []
        for index in range(job["count"]):
            offset = index * job["block"] % job["size"]
            begin = time.monotonic_ns()
            handle.sync_pread(part, job["file"], offset)
            found.append((time.monotonic_ns() - begin) / 1e3)
        return {"latencies": sorted(found)}

    def answer(self, job):
        """Reported memory excludes the tensor and everything that Python has imported."""
        found = self.latencies(job) if "count" in job else self.whole_file(job)
        return found | {"memory": max(0, peak_bytes() - self.before - job["size"])}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps DeepSpeed's own output, also from C++, out of the answers
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
