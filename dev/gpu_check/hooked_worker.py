"""Trains a small GPT-2 of plain modules with Artesian and with plain PyTorch on one device; run by
hooked.py.

    hooked_worker.py DEVICE FOLDER [ranks]

Prints "RESULT {...}": the number of cases compared, and those whose bits differ. A case is a dtype,
a home of the state and a form of gradient checkpointing. Its first loss and gradients are compared
with plain PyTorch's, and its state after three steps with that of the other homes. With `ranks`, as
one of a launcher's processes or as all of them: the digest of the state of each home."""

import json
import os
import pathlib
import shutil
import sys

import torch
from fsdp2_worker import Gpt2, initialize
from torch.utils.checkpoint import checkpoint

import artesian

JOB = {"hidden": 256, "vocabulary": 1000, "positions": 128, "layers": 4, "heads": 4, "batch": 4}
DTYPES = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}}
HOMES = ("none", "cpu", "nvme")
CHECKPOINTING = {"no": None, "reentrant": True, "non-reentrant": False}
STEPS, MICRO_BATCHES = 3, 2


def make(checkpointing):
    torch.manual_seed(1)
    model = Gpt2(JOB)
    initialize(model)
    if checkpointing is not None:
        for block in model.blocks:
            forward = block.forward

            def again(x, forward=forward):
                return checkpoint(forward, x, use_reentrant=checkpointing)

            block.forward = again
    return model


def batch(number, device):
    draw = torch.Generator().manual_seed(number)
    shape = (JOB["batch"], JOB["positions"])
    ids = torch.randint(JOB["vocabulary"], shape, generator=draw)
    return ids.to(device), ids.roll(-1, 1).to(device)


def config_for(home, dtype, folder):
    place = {"device": home, "nvme_path": str(folder)}
    return {
        "train_micro_batch_size_per_gpu": JOB["batch"],
        "gradient_accumulation_steps": MICRO_BATCHES,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
        "artesian": {"device_memory": "48MiB", "host_memory": "96MiB"},
        **DTYPES[dtype],
    }


def plain(dtype, checkpointing, device):
    """Returns the first loss and gradients."""
    model = make(checkpointing).to(device)
    if dtype == "bf16":
        model = model.bfloat16()
    loss = model(*batch(0, device))
    loss.backward()
    return loss.detach().float(), {n: p.grad.float().cpu() for n, p in model.named_parameters()}


def train(home, dtype, checkpointing, device, folder, expected):
    """Returns which of loss and gradients differ from plain PyTorch's, and the final digest."""
    model = make(checkpointing)
    config = config_for(home, dtype, folder)
    engine = artesian.initialize(model=model, config=config, device=device)[0]
    wrong = []
    for number in range(STEPS * MICRO_BATCHES):
        loss = engine(*batch(number, device))
        engine.backward(loss)
        if number == 0:
            scaled, gradients = expected
            if not torch.equal(loss.detach().float(), scaled):
                wrong.append("loss")
            for name, parameter in model.named_parameters():
                # the loss is divided by a power of two, which is exact
                ours = engine.full_gradient(parameter).cpu() * MICRO_BATCHES
                if not torch.equal(ours, gradients[name]):
                    wrong.append(name)
        engine.step()
    digest = engine.digest()
    engine.destroy()
    return wrong, digest


def train_as_rank(device, folder):
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)
    digests = {}
    for home in HOMES:
        config = config_for(home, "bf16", folder)
        config["gradient_accumulation_steps"] = MICRO_BATCHES // ranks
        engine = artesian.initialize(model=make(None), config=config, device=device)[0]
        for step in range(STEPS):
            for number in range(rank, MICRO_BATCHES, ranks):
                engine.backward(engine(*batch(step * MICRO_BATCHES + number, engine.device)))
                engine.step()
        digests[home] = engine.digest()
        engine.destroy()
    if rank == 0:
        print("RESULT", json.dumps(digests))


def main(device, folder):
    torch.use_deterministic_algorithms(True)
    other_bits, count = [], 0
    for dtype in DTYPES:
        for form, checkpointing in CHECKPOINTING.items():
            expected = plain(dtype, checkpointing, device)
            digests = set()
            for home in HOMES:
                wrong, digest = train(home, dtype, checkpointing, device, folder, expected)
                digests.add(digest)
                count += 1
                case = f"{dtype} {home} checkpointing={form}"
                print(case, wrong or "as plain PyTorch", flush=True)
                if wrong:
                    other_bits.append(f"{case} ({', '.join(wrong[:3])})")
            if len(digests) != 1:
                other_bits.append(f"{dtype} checkpointing={form}: states of the homes")
    shutil.rmtree(folder, ignore_errors=True)
    print("RESULT", json.dumps({"device": device, "cases": count, "other_bits": other_bits}))


if __name__ == "__main__":
    work = train_as_rank if sys.argv[3:] == ["ranks"] else main
    work(sys.argv[1], pathlib.Path(sys.argv[2]))
