"""Part facts: describes this machine and measures its links. Facts that are not available are left
out or null; the part only fails if a GPU exists but cannot be used."""

import ctypes
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time

from shell import cuda_tool, read_text

NVIDIA_SMI_FIELDS = (
    "name driver_version compute_cap memory.total memory.free pcie.link.gen.current"
    " pcie.link.gen.max pcie.link.width.current pcie.link.width.max clocks.max.sm clocks.max.mem"
).split()
IO_URING_SETUP = {"x86_64": 425, "aarch64": 425}
DISK_BYTES, DISK_BLOCK, DISK_DEPTH = 1 << 30, 4 << 20, 8


def first_line(*command):
    """First line of the program's output; "" if the program does not exist (cuda_tool() then
    returns None)."""
    if command[0] is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter((done.stdout or done.stderr).splitlines()), "")


def machine():
    memory = dict(re.findall(r"^(\w+): +(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE))
    cpu = re.search(r"^model name\s*: (.*)", read_text("/proc/cpuinfo"), re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)", read_text("/proc/cpuinfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', read_text("/etc/os-release"), re.MULTILINE)
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "kernel": platform.release(),
        "system": system[1] if system else "",
        "product": read_text("/sys/class/dmi/id/product_name"),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)),
        "simd": [
            f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flags and f in flags[1]
        ],
        "dram_bytes": int(memory.get("MemTotal", 0)) << 10,
        "dram_available_bytes": int(memory.get("MemAvailable", 0)) << 10,
        "huge_pages": read_text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "memlock_bytes": None if limit == resource.RLIM_INFINITY else limit,
        "numa_nodes": read_text("/sys/devices/system/node/online"),
    }


def tools():
    nvcc = cuda_tool("nvcc")
    found = (
        first_line(nvcc, "--version")
        and subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    )
    release = re.search(r"release ([\d.]+)", found or "")
    return {
        "c++": first_line(os.environ.get("CXX", "c++"), "--version"),
        "cmake": first_line("cmake", "--version"),
        "ninja": first_line("ninja", "--version"),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "nvcc": release[1] if release else None,
        "compute_sanitizer": bool(cuda_tool("compute-sanitizer")),
    }


def io_uring():
    """Whether a ring can be set up, tested with one entry."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = IO_URING_SETUP.get(platform.machine())
    if number is None:
        return {"works": None}
    parameters = ctypes.create_string_buffer(120)
    descriptor = libc.syscall(number, 1, parameters)
    if descriptor < 0:
        return {"works": False, "error": os.strerror(ctypes.get_errno())}
    os.close(descriptor)
    features = int.from_bytes(parameters.raw[20:24], sys.byteorder)
    disabled = read_text("/proc/sys/kernel/io_uring_disabled")
    return {"works": True, "features": hex(features), "sysctl_disabled": disabled or None}


def mount_of(path):
    """(device, file system type) of the mount that holds the path."""
    best = ("", "", "")
    for line in read_text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, after.split()[1], after.split()[0])
    return best[1:]


def disk(context):
    """Sequential direct I/O of a few large blocks at a time, by threads; aio_bench measures better,
    but this needs no build."""
    context.disk.mkdir(parents=True, exist_ok=True)
    device, kind = mount_of(str(context.disk))
    free = shutil.disk_usage(context.disk).free
    found = {"path": str(context.disk), "file_system": kind, "device": device, "free_bytes": free}
    size = min(DISK_BYTES, free // 4 // DISK_BLOCK * DISK_BLOCK)
    worker = context.root / "dev/gpu_check/measure.py"
    arguments = [str(context.disk / "facts.tmp"), str(size), str(DISK_BLOCK), str(DISK_DEPTH)]
    return found | measured(context, [sys.executable, worker, "disk", *arguments], 120)


def measured(context, command, seconds):
    """The JSON object on the last line of the command's output, or its error."""
    done = context.run(command, seconds=seconds)
    lines = done.output.strip().splitlines()
    if done.code == 0 and lines and lines[-1].startswith("{"):
        return json.loads(lines[-1])
    return {"error": done.cause()}


def gpus():
    smi = cuda_tool("nvidia-smi")
    if not smi:
        return []
    query = [smi, f"--query-gpu={','.join(NVIDIA_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    rows = [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [dict(zip(NVIDIA_SMI_FIELDS, row)) for row in rows]


def run(context):
    start = time.monotonic()
    worker = context.root / "dev/gpu_check/measure.py"
    found = {"machine": machine(), "tools": tools(), "io_uring": io_uring(), "disk": disk(context)}
    found["torch"] = measured(context, [sys.executable, worker, "torch"], 240)
    found["nvidia_driver"] = read_text("/proc/driver/nvidia/version").partition("\n")[0]
    found["gpus"] = gpus()
    if context.gpu_count:
        found["links"] = measured(context, [sys.executable, worker, "links"], 240)
        if "error" in found["links"]:
            found |= {"failed": True, "reason": f"torch and the GPU: {found['links']['error']}"}
    found["measured_s"] = round(time.monotonic() - start, 1)
    return found
