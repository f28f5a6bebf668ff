"""Makes one measurement in a separate process, so that a hang or a crash is a result, too:

measure.py disk FILE SIZE BLOCK DEPTH | torch | links | attention DEVICE | page_lock DEVICE |
           plan_rates DEVICE

Prints one JSON object. GB/s are 10^9 bytes per second, the best of several measurements; a copy's
bytes are counted once."""

import concurrent.futures
import json
import mmap
import os
import sys
import time

REPEATS = 5


def transfer(descriptor, operation, size, block, depth):
    """GB/s of one pass, block by block, by `depth` threads."""
    buffers = [mmap.mmap(-1, block) for _ in range(depth)]  # page-aligned, as direct I/O needs
    for buffer in buffers:
        buffer.write(os.urandom(block))

    def work(first):
        for offset in range(first * block, size, depth * block):
            moved = operation(descriptor, [buffers[first]], offset)
            if moved != block:
                raise OSError(f"moved {moved} of {block} bytes")

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(depth) as pool:
        list(pool.map(work, range(depth)))
    os.fsync(descriptor)
    return round(size / (time.perf_counter() - start) / 1e9, 3)


def disk(path, size, block, depth):
    flags, direct = os.O_RDWR | os.O_CREAT | os.O_TRUNC, True
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        descriptor, direct = os.open(path, flags, 0o600), False
    try:
        transfer(descriptor, os.pwritev, size, block, depth)  # allocates the space
        write = transfer(descriptor, os.pwritev, size, block, depth)
        read = transfer(descriptor, os.preadv, size, block, depth)
    finally:
        os.close(descriptor)
        os.unlink(path)
    return {"direct": direct, "bytes": size, "read_gb_per_s": read, "write_gb_per_s": write}


def best_seconds(work, wait=lambda: None):
    seconds = []
    for _ in range(REPEATS + 1):  # the first repeat warms up
        wait()
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def best_gb_per_s(bytes_moved, copy, wait=lambda: None):
    return round(bytes_moved / best_seconds(copy, wait) / 1e9, 2)


def torch_facts():
    """Versions, and the bandwidth of a copy in host memory by torch's threads."""
    import torch

    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(1 << 30, available // 8)
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    found = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cuda_usable": torch.cuda.is_available(),
        "threads": torch.get_num_threads(),
        "dram_copy_gb_per_s": best_gb_per_s(size, lambda: target.copy_(source)),
    }
    if torch.cuda.is_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def links(size=512 << 20):
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("error: torch.cuda.is_available() is false")
    found = {"bytes": size}
    on_gpu = torch.ones(size, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(on_gpu)
    wait = torch.cuda.synchronize
    for name, pinned in (("pinned", True), ("pageable", False)):
        host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
        up, down = up_and_down(torch, host, on_gpu)
        found |= {f"h2d_{name}_gb_per_s": up, f"d2h_{name}_gb_per_s": down}
        if pinned:
            found["both_ways_pinned_gb_per_s"] = both_ways(torch, host, on_gpu, other)
    found["device_copy_gb_per_s"] = best_gb_per_s(size, lambda: other.copy_(on_gpu), wait)
    return found


def up_and_down(torch, host, on_gpu):
    copies = (on_gpu, host), (host, on_gpu)
    return [
        best_gb_per_s(
            host.numel(),
            lambda to=to, source=source: to.copy_(source, non_blocking=True),
            torch.cuda.synchronize,
        )
        for to, source in copies
    ]


def both_ways(torch, host, on_gpu, other):
    """The sum of both directions at the same time, which shows whether the link is duplex."""
    second = torch.ones_like(host, pin_memory=True)
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def copy():
        with torch.cuda.stream(streams[0]):
            on_gpu.copy_(host, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            second.copy_(other, non_blocking=True)

    return best_gb_per_s(2 * host.numel(), copy, torch.cuda.synchronize)


def attention(device, runs=20):
    """Attention's backward for a length of many key blocks: flash attention's deterministic kernel,
    which the engine uses; its kernel with atomic additions; and cuDNN's, which LibTorch would
    choose on an H100 without the engine's determinism."""
    import torch
    from torch.nn import functional

    on_gpu = device == "cuda"
    shape = (4, 32, 1024, 128) if on_gpu else (1, 2, 128, 32)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(1)
    inputs = [
        torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]

    def gradients():
        output = functional.scaled_dot_product_attention(*inputs, is_causal=True)
        return torch.autograd.grad(output, inputs, torch.ones_like(output))

    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    found = {"shape": list(shape), "runs": runs}
    kernels = {"deterministic": (True, False), "with_atomics": (False, False)}
    if on_gpu:
        kernels["cudnn"] = (False, True)
    for name, (deterministic, cudnn) in kernels.items():
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        first = gradients()
        wait()
        start = time.perf_counter()
        again = [gradients() for _ in range(runs)]
        wait()
        seconds = (time.perf_counter() - start) / runs
        same = all(torch.equal(a, b) for run in again for a, b in zip(run, first))
        found[name] = {"same_bits": same, "ms": round(seconds * 1e3, 3)}
    return found


def plan_rates(device):
    """A GPU's rates for the flags of `artesian plan`."""
    import torch
    from torch.nn import functional

    on_gpu = device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    kind = {"device": device, "dtype": torch.bfloat16}
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)  # as in the engine
    torch.utils.deterministic.fill_uninitialized_memory = False

    def per_second(work, call):
        return work / best_seconds(call, wait)

    rows, width, inner = (8192, 4096, 14336) if on_gpu else (64, 64, 128)
    left, right = torch.randn(rows, width, **kind), torch.randn(width, inner, **kind)
    found = {"--tflops": per_second(2e-12 * rows * width * inner, lambda: left @ right)}

    shape = heads, length, head = (256, 2048, 128) if on_gpu else (2, 64, 32)
    inputs = [torch.randn(1, *shape, **kind, requires_grad=True) for _ in range(3)]
    # for the half of all pairs that causal attention computes
    scores = 2e-12 * heads * length * length * head

    def attend():
        return functional.scaled_dot_product_attention(*inputs, is_causal=True)

    output = attend()
    ones = torch.ones_like(output)

    def back():
        return torch.autograd.grad(output, inputs, ones, retain_graph=True)

    found["--attention-tflops"] = per_second(scores, attend)
    found["attention's backward"] = per_second(2.5 * scores, back)

    one, other = (torch.ones(256 << 20 if on_gpu else 1 << 20, **kind) for _ in range(2))
    found["--device-bandwidth"] = per_second(6e-9 * one.numel(), lambda: one.add_(other))

    small, launches = torch.ones(1, device=device), 2000

    def launch():
        for _ in range(launches):
            small.add_(1)

    found["--launch"] = best_seconds(launch, wait) / launches * 1e6
    if on_gpu:
        host = torch.ones(512 << 20, dtype=torch.uint8, pin_memory=True)
        found["--link"] = min(up_and_down(torch, host, host.cuda()))
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def page_lock(device, size=8 << 30):
    """Seconds to page-lock fresh host memory of this size for the GPU, in one call and in
    pieces."""
    if device != "cuda":
        return {"bytes": 0}
    import torch

    size = min(size, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    torch.cuda.init()
    runtime = torch.cuda.cudart()
    found = {"bytes": size}
    for name, pieces in (("one_call", 1), ("four_calls", 4)):
        memory = torch.empty(size, dtype=torch.uint8)
        start = time.perf_counter()
        memory.fill_(1)
        touched = time.perf_counter()
        part = size // pieces
        for first in range(0, part * pieces, part):
            status = int(runtime.cudaHostRegister(memory.data_ptr() + first, part, 1))
            if status != 0:
                raise SystemExit(f"error: cudaHostRegister of {part} bytes: {status}")
        done = time.perf_counter()
        for first in range(0, part * pieces, part):
            runtime.cudaHostUnregister(memory.data_ptr() + first)
        found[name] = {"touch_s": round(touched - start, 3), "register_s": round(done - touched, 3)}
    return found


def main(what, arguments):
    if what == "disk":
        result = disk(arguments[0], *map(int, arguments[1:]))
    else:
        work = {
            "torch": torch_facts,
            "links": links,
            "attention": attention,
            "page_lock": page_lock,
            "plan_rates": plan_rates,
        }[what]
        result = work(*arguments)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
