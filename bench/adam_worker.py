"""Measures optimizer steps side by side in one process, on the same arrays, and prints JSON.

    adam_worker.py LIBRARY ELEMENTS REPEATS THREADS

LIBRARY is libartesian_adam.so. adam.py runs it with a Python that has DeepSpeed, or else with the
build's Python. Every repeat measures all contestants, starting with a different one each time;
wall-clock seconds. Each measurement is one step on ELEMENTS parameters with fp32 moments:

    stream      reads and writes what `artesian` does, without the arithmetic (28 bytes a parameter)
    artesian    fp32 parameter, bf16 gradient; writes the bf16 parameter in the same pass (28)
    torch       torch.optim.AdamW(fused=True) with fp32 gradient, then bf16.copy_(fp32) (28 + 6)
    deepspeed   DeepSpeedCPUAdam with fp32 gradient, then bf16.copy_(fp32) (28 + 6)
    deepspeed_fp32, deepspeed_copy    the two parts of `deepspeed`
    deepspeed_bf16, deepspeed_fp16    DeepSpeedCPUAdam on a 16-bit parameter and gradient without an
                fp32 parameter: fewer bytes (22), less exact"""

import ctypes
import json
import mmap
import pathlib
import sys
import time

import torch

try:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError:
    DeepSpeedCPUAdam = None

PAUSE = 0.02  # time for the previous contestant's threads to go to sleep
OPTIONS = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def on_huge_pages(count, dtype):
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


def on_plain_pages(count, dtype):
    return torch.empty(count, dtype=dtype)


def anonymous_huge_bytes():
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    return 0


class Arrays:
    def __init__(self, make, count):
        self.count = count
        self.param = make(count, torch.float32).fill_(0.02)
        self.exp_avg = make(count, torch.float32).fill_(1e-4)
        self.exp_avg_sq = make(count, torch.float32).fill_(1e-6)
        self.grad = make(count, torch.float32).fill_(1e-3)
        self.grad_bf16 = make(count, torch.bfloat16).fill_(1e-3)
        self.out_bf16 = make(count, torch.bfloat16).fill_(0)


def ours(function, arrays, threads):
    pointers = [
        ctypes.c_void_p(tensor.data_ptr())
        for tensor in [
            arrays.param, arrays.exp_avg, arrays.exp_avg_sq, arrays.grad_bf16, arrays.out_bf16,
        ]
    ]  # fmt: skip
    rest = [ctypes.c_uint64(arrays.count), ctypes.c_uint(threads)]
    return [lambda: function(*pointers, *rest)]


def theirs(make_optimizer, param, grad, arrays, first_step):
    """Returns the step of an optimizer whose moments are our arrays."""
    parameter = torch.nn.Parameter(param, requires_grad=param.is_floating_point())
    parameter.grad = grad
    optimizer = make_optimizer([parameter])
    state = {"step": first_step, "exp_avg": arrays.exp_avg, "exp_avg_sq": arrays.exp_avg_sq}
    optimizer.state[parameter] = state
    return optimizer.step


def contestants(library, arrays, make, threads):
    """Name -> functions, each of which is timed separately."""

    def copy():
        arrays.out_bf16.copy_(arrays.param)

    def fused(parameters):
        return torch.optim.AdamW(parameters, fused=True, **OPTIONS)

    found = {
        "stream": ours(library.artesian_bench_stream, arrays, threads),
        "artesian": ours(library.artesian_bench_adam, arrays, threads),
        "torch": [theirs(fused, arrays.param, arrays.grad, arrays, torch.tensor(9.0)), copy],
    }
    if DeepSpeedCPUAdam is None:
        return found

    def cpu_adam(parameters):
        return DeepSpeedCPUAdam(parameters, **OPTIONS)

    found["deepspeed"] = [theirs(cpu_adam, arrays.param, arrays.grad, arrays, 9), copy]
    for name, dtype in [("deepspeed_bf16", torch.bfloat16), ("deepspeed_fp16", torch.float16)]:
        param, grad = make(arrays.count, dtype).fill_(0.02), make(arrays.count, dtype).fill_(1e-3)
        found[name] = [theirs(cpu_adam, param, grad, arrays, 9)]
    return found


def timed(functions):
    times = [time.perf_counter()]
    for function in functions:
        function()
        times.append(time.perf_counter())
    return [after - before for before, after in zip(times, times[1:])]


@torch.no_grad()
def measure(library, make, count, repeats, threads):
    arrays = Arrays(make, count)
    found = contestants(library, arrays, make, threads)
    names = list(found)
    seconds = {name: [] for name in names}
    parts = {"deepspeed_fp32": [], "deepspeed_copy": []}
    for repeat in range(repeats + 1):
        for position in range(len(names)):
            name = names[(repeat + position) % len(names)]
            time.sleep(PAUSE)
            times = timed(found[name])
            if repeat == 0:
                continue  # first touch
            seconds[name].append(sum(times))
            if name == "deepspeed":
                parts["deepspeed_fp32"].append(times[0])
                parts["deepspeed_copy"].append(times[1])
    seconds |= {name: values for name, values in parts.items() if values}
    return {"seconds": seconds, "huge_bytes": anonymous_huge_bytes()}


def main():
    path, count, repeats, threads = sys.argv[1], *map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    library = ctypes.CDLL(path)
    library.artesian_bench_target.restype = ctypes.c_char_p
    result = {
        "target": library.artesian_bench_target().decode(),
        "torch": torch.__version__,
        "pages": {
            name: measure(library, make, count, repeats, threads)
            for name, make in [("4 KiB", on_plain_pages), ("2 MiB", on_huge_pages)]
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
