"""Trains Hugging Face's GPT-2 with plain PyTorch, DeepSpeed or Artesian's Python package, and
prints one JSON object; run by step.py.

    step_worker.py JOB.json

The job contains: kind (torch, deepspeed or python), model (Hugging Face directory), tokens (uint16
file), length, steps, dtype (fp32 or bf16), optimizer (arguments of AdamW), muon (of the blocks'
matrices, if Muon updates those), clipping and, for an engine, its configuration; samples of a
micro-batch and threads, if not 1 and 2. All use the same GELU operator as our own models. Each step
has one micro-batch, in the order of the file; with several ranks started by torchrun, one per rank.
Bytes are those of /proc/self/io, which counts direct I/O of all threads. Peak memory is reported
for the steps alone (the mark is reset after set-up) and for the whole process."""

import json
import os
import pathlib
import sys
import time

import numpy
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "dev"))
from first_calls import make_first_calls  # noqa: E402

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def batches(tokens, length, samples, rank, ranks):
    """The batches of one rank: each batch is a run of samples, and every ranks-th belongs to this
    rank."""
    number = rank * samples
    while True:
        starts = [(number + i) % ((len(tokens) - 1) // length) * length for i in range(samples)]
        rows = [tokens[start : start + length + 1] for start in starts]
        window = torch.from_numpy(numpy.stack(rows).astype(numpy.int64))
        yield window[:, :-1], window[:, 1:]
        number += ranks * samples


def io_bytes():
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    counters = dict(line.split(": ") for line in lines)
    return int(counters["read_bytes"]), int(counters["write_bytes"])


def peak_memory():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def reset_peak_memory():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def loss_of(model, ids, targets):
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Trainer:
    def figures(self):
        """Further figures of the step that was just made."""
        return {}


class Plain(Trainer):
    """Everything in RAM. In bf16 the optimizer uses an fp32 copy of the weights."""

    def __init__(self, model, job):
        self.model, self.clipping = model, job["clipping"]
        self.parameters = list(model.parameters())
        self.master = self.parameters
        if job["dtype"] != "fp32":
            self.master = [p.detach().float().requires_grad_() for p in self.parameters]
        self.optimizers = self.optimizers_for(model, job)

    def optimizers_for(self, model, job):
        rest, muon = self.master, job.get("muon")
        if muon is None:
            return [torch.optim.AdamW(rest, fused=True, **job["optimizer"])]
        blocks = {id(p) for p in model.transformer.h.parameters() if p.dim() == 2}
        pairs = list(zip(self.master, self.parameters))
        matrices = [master for master, parameter in pairs if id(parameter) in blocks]
        rest = [master for master, parameter in pairs if id(parameter) not in blocks]
        constants = {
            "lr": muon["muon_lr"],
            "momentum": muon["momentum"],
            "weight_decay": job["optimizer"]["weight_decay"],
        }
        return [
            torch.optim.Muon(matrices, **constants),
            torch.optim.AdamW(rest, fused=True, **job["optimizer"]),
        ]

    def step(self, ids, targets):
        loss = loss_of(self.model, ids, targets)
        loss.backward()
        if self.master is not self.parameters:
            for master, parameter in zip(self.master, self.parameters):
                master.grad = parameter.grad.float()
                parameter.grad = None
        torch.nn.utils.clip_grad_norm_(self.master, self.clipping, foreach=True)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.master is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.master)
        return loss.item()


class WithEngine(Trainer):
    def step(self, ids, targets):
        loss = loss_of(self.engine, ids, targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()


class DeepSpeed(WithEngine):
    def __init__(self, model, job):
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        self.engine = deepspeed.initialize(model=model, config=job["config"])[0]


class Artesian(WithEngine):
    def __init__(self, model, job):
        import artesian

        if RANKS > 1:
            torch.distributed.init_process_group("gloo")
        self.engine = artesian.initialize(model=model, config=job["config"], device="cpu")[0]

    def figures(self):
        return {"updated_under_backward": self.engine.last_step["updated_under_backward"]}


def train(job):
    tokens = numpy.fromfile(job["tokens"], dtype=numpy.uint16)
    model = transformers.GPT2LMHeadModel.from_pretrained(
        job["model"], dtype=DTYPES[job["dtype"]], activation_function="gelu_pytorch_tanh"
    ).train()
    kinds = {"torch": Plain, "deepspeed": DeepSpeed, "python": Artesian}
    trainer = kinds[job["kind"]](model, job)
    peak = peak_memory()
    reset_peak_memory()
    steps = []
    own = batches(tokens, job["length"], job.get("samples", 1), RANK, RANKS)
    for _, (ids, targets) in zip(range(job["steps"]), own):
        before, start = io_bytes(), time.perf_counter()
        loss = trainer.step(ids, targets)
        seconds = time.perf_counter() - start
        moved = [after - then for after, then in zip(io_bytes(), before)]
        made = {"seconds": seconds, "loss": loss, "read": moved[0], "written": moved[1]}
        steps.append(made | trainer.figures())
    in_steps = peak_memory()
    if RANKS > 1:  # over the whole batch
        losses = torch.tensor([step["loss"] for step in steps], dtype=torch.float64)
        torch.distributed.all_reduce(losses)
        for step, loss in zip(steps, (losses / RANKS).tolist()):
            step["loss"] = loss
    return {"steps": steps, "rss_steps": in_steps, "rss_process": max(peak, in_steps)}


def main():
    make_first_calls()
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    torch.set_num_threads(job.get("threads", 2))
    result = train(job)
    if RANK != 0:
        return
    # On a separate line, because DeepSpeed also writes to stdout.
    print("\nRESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
