"""Part sanitize: runs compute-sanitizer's tools on every test with the label gpu. For the test that
trains with LibTorch: only one training, only our kernels, and no leak check, as LibTorch keeps its
memory."""

import json
import re

from shell import Failure, cuda_tool

TOOLS = {
    "memcheck": ["--leak-check", "full"],
    "racecheck": [],
    "synccheck": [],
    "initcheck": [],
}
WITH_LIBTORCH = "zero3/torch/cuda_test"
LIMITED = {"memcheck": ["--kernel-regex", "kns=artesian"]}
ONE_TRAINING = "--gtest_filter=*LearnsAsTheCpuDoes*"
# LibTorch's allocator first asks for memory that can be shared between machines, and handles the
# refusal; memcheck would count that as an error.
ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
FOUND_SOMETHING = 86  # an exit code that no test of ours uses


def gpu_tests(context):
    """(name, command) of each GPU test, from ctest."""
    context.program("CTestTestfile.cmake")
    done = context.run(["ctest", "--test-dir", context.work, "-L", "gpu", "--show-only=json-v1"])
    listing = json.loads(done.output[done.output.index("{") :])
    return [(test["name"], test["command"]) for test in listing["tests"] if "command" in test]


def runs(tests):
    """(tool, its flags, test, command) for each run."""
    made = []
    for tool, flags in TOOLS.items():
        for name, command in tests:
            if name != WITH_LIBTORCH:
                made.append((tool, flags, name, command))
            elif tool in LIMITED:
                made.append((tool, LIMITED[tool], name, [*command, ONE_TRAINING]))
    return made


def outcome(done):
    if done.timed_out:
        return "failed", done.cause()
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", done.output)
    if done.code == 0 and summary:
        return "ok", summary[-1]
    if done.code == 77:
        return "failed", "the test skipped itself under the sanitizer"
    return "failed", summary[-1] if done.code == FOUND_SOMETHING and summary else done.cause()


def run(context):
    context.need_gpu()
    sanitizer = cuda_tool("compute-sanitizer")
    if not sanitizer:
        raise Failure("compute-sanitizer: not found on PATH or in the CUDA toolkit")
    tests = gpu_tests(context)
    if not tests:
        raise Failure("no test of the label gpu was built")
    rows, planned = [], runs(tests)
    for number, (tool, flags, name, command) in enumerate(planned):
        share = max(context.seconds_left() / (len(planned) - number), 30)
        line = [sanitizer, "--tool", tool, "--error-exitcode", FOUND_SOMETHING, *flags, *command]
        log = context.work / "logs" / f"sanitize-{tool}-{name.replace('/', '-')}.log"
        done = context.run(line, seconds=share, log=log, environment=ENVIRONMENT)
        status, text = outcome(done)
        rows.append({"tool": tool, "test": name, "status": status, "found": text})
    failed = [f"{row['tool']} {row['test']}" for row in rows if row["status"] != "ok"]
    found = {"rows": rows, "failed": bool(failed)}
    return found | ({"reason": f"failed: {', '.join(failed)}"} if failed else {})
