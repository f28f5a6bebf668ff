"""Trains a GPT-2 in PyTorch with FSDP2 and CPU offload on one rank; run by bench.py.

    fsdp2_worker.py JOB.json

Prints "RESULT {...}". Parameters, gradients and optimizer state live in host memory (pinned);
blocks are copied to the GPU, and computed in bf16, when they are needed; AdamW runs fused on the
CPU. On a CPU (to try this script) nothing is pinned."""

import array
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.joined, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        samples, length, hidden = x.shape
        parts = self.joined(self.norm1(x)).split(hidden, 2)
        query, key, value = (p.view(samples, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, hidden))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2, whose head shares the embedding's table."""

    def __init__(self, job):
        super().__init__()
        hidden = job["hidden"]
        self.tokens = nn.Embedding(job["vocabulary"], hidden)
        self.positions = nn.Embedding(job["positions"], hidden)
        self.blocks = nn.ModuleList(Block(hidden, job["heads"]) for _ in range(job["layers"]))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, ids, targets):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def initialize(model):
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.constant_(parameter, 0 if name.endswith("bias") else 1)


def make_sharded(job):
    torch.manual_seed(1)
    with torch.device("meta"):  # otherwise each parameter is initialized twice
        model = Gpt2(job)
    model.to_empty(device="cpu")
    initialize(model)
    mesh = init_device_mesh(job["device"], (1,))
    settings = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        "offload_policy": CPUOffloadPolicy(pin_memory=job["device"] == "cuda"),
    }
    for block in model.blocks:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def batches(job):
    tokens = array.array("H", pathlib.Path(job["tokens"]).read_bytes())
    length, batch = job["positions"], job["batch"]
    for step in range(job["steps"]):
        starts = [(step * batch + sample) * length for sample in range(batch)]
        windows = torch.tensor([tokens[s : s + length + 1].tolist() for s in starts])
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def peak_resident():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def train(job):
    model = make_sharded(job)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True, **job["optimizer"])
    on_gpu = job["device"] == "cuda"
    seconds, losses = [], []
    for ids, targets in batches(job):
        start = time.perf_counter()
        loss = model(ids.to(job["device"]), targets.to(job["device"]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, job["clipping"], foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": seconds,
        "losses": losses,
        "device_peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "host_peak_bytes": peak_resident(),
    }


def main():
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    backend = "gloo"
    if job["device"] == "cuda":
        torch.cuda.set_device(0)
        backend = "cpu:gloo,cuda:nccl"  # clipping reduces over shards in host memory
    dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    result = train(job)
    print("\nRESULT " + json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
