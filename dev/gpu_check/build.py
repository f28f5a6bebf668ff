"""Parts build and test: a Release build in a separate folder, and its ctest."""

import os
import re
import shutil

import torch_build
from shell import Failure, cuda_tool

# Compiling a file with LibTorch's headers needs up to 2 GB.
BYTES_A_JOB = 2 << 30
ENDED = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*\s*(.*?) +[\d.]+ sec", re.MULTILINE)
PASSED, SKIPPED = "Passed", "***Skipped"


def jobs(context):
    """Based on total memory rather than free memory, as a virtual machine's free memory may grow
    with use."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return context.options.jobs or max(1, min(os.cpu_count(), memory // BYTES_A_JOB))


def configure(context):
    for tool in ("cmake", "ninja"):
        if not shutil.which(tool):
            raise Failure(f"{tool}: not found on PATH")
    # Fresh, because cached paths may belong to another prefix. Compiled files are kept.
    command = ["cmake", "--fresh", "-S", context.root, "-B", context.work, "-G", "Ninja"]
    command += ["-DCMAKE_BUILD_TYPE=Release", "-DARTESIAN_PYTHON=python3"]
    if context.prefix:
        command += [f"-DCMAKE_PREFIX_PATH={context.prefix}"]
    done = context.run(command, log=context.work / "logs/configure.log")
    if done.code != 0:
        raise Failure(f"cmake: {done.tail()}")
    torch_build.check(context)  # checked before minutes of compiling
    return done.output


def run(context):
    configured = configure(context)
    cuda = re.search(r"CUDA kernels: (.*)", configured)
    if context.gpu_count and (not cuda or cuda[1].startswith("not built")):
        raise Failure(f"CUDA kernels: {cuda[1] if cuda else 'nothing is said of them'}")
    command = ["cmake", "--build", context.work, "-j", jobs(context), "--", "-k", "0"]
    done = context.run(command, log=context.work / "logs/build.log")
    if done.timed_out:
        raise Failure(f"{done.cause()}; run it again: the build goes on where it stopped")
    if done.code != 0:
        failed = re.findall(r"^FAILED: (.*)$", done.output, re.MULTILINE)
        raise Failure(f"{done.cause()}; failed: {' '.join(failed) or 'see logs/build.log'}")
    found = {"cuda_kernels": cuda[1] if cuda else "", "jobs": jobs(context)}
    return found | {"architectures": architectures(context)}


def architectures(context):
    """The GPU architectures for which the library contains machine code, by cuobjdump; empty
    without it or without CUDA files."""
    tool = cuda_tool("cuobjdump")
    found = set()
    for archive in context.work.rglob("libartesian_*cuda*.a") if tool else []:
        found |= set(re.findall(r"sm_\d+", context.run([tool, "--list-elf", archive]).output))
    return sorted(found)


def test(context):
    """Runs first the tests that need a GPU, then the others. tidy is left out, as it needs git."""
    context.program("CTestTestfile.cmake")
    context.program("bin/aio_bench")
    rounds = {
        "gpu": ["-L", "gpu", "-j", "1"],
        "others": ["-LE", "gpu", "-E", "^tidy$", "-j", test_jobs()],
    }
    ended, timed_out = {}, False
    for name, selection in rounds.items():
        command = ["ctest", "--test-dir", context.work, "--output-on-failure", *selection]
        done = context.run(command, log=context.work / f"logs/test-{name}.log")
        ended[name] = dict(ENDED.findall(done.output))
        timed_out = timed_out or done.timed_out
    return judge(ended, timed_out, context.gpu_count)


def judge(ended, timed_out, gpu_count):
    """ended: for the rounds `gpu` and `others`, how each test ended."""
    seen = ended["gpu"] | ended["others"]
    failed = sorted(name for name, end in seen.items() if end not in (PASSED, SKIPPED))
    skipped = sorted(name for name, end in seen.items() if end == SKIPPED)
    reasons = []
    if failed:
        reasons.append(f"failed: {', '.join(failed)}")
    if timed_out:
        reasons.append(f"stopped for lack of time, {len(seen)} had ended")
    if not seen:
        reasons.append("no test ran")
    left_out = [name for name in skipped if name in ended["gpu"]]
    if gpu_count and (left_out or not ended["gpu"]):
        reasons.append(f"there is a GPU, but not tested: {', '.join(left_out) or 'anything on it'}")
    found = {
        "passed": sum(end == PASSED for end in seen.values()),
        "skipped": skipped,
        "failed_tests": failed,
    }
    return found | ({"failed": True, "reason": "; ".join(reasons)} if reasons else {})


def test_jobs():
    """Fewer than cores, as tests use several threads each."""
    return max(1, os.cpu_count() // 4)
