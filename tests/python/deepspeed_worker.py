"""Run in an environment with DeepSpeed: trains a tiny model on the CPU and saves, or loads what was
exported and goes on. `python deepspeed_worker.py save|resume OPTIONS-AS-JSON`; one process a rank,
told by the variables RANK and WORLD_SIZE. What it saw is written as numpy arrays, beside what it
saved: the truth that tests compare with."""

import json
import os
import pathlib
import sys

import deepspeed
import numpy as np
import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

VOCABULARY, WIDTH = 13, 6


class Tiny(torch.nn.Module):
    """A model with a tied table, a frozen layer, a buffer, and sizes that no number of ranks
    divides."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.frozen = torch.nn.Linear(WIDTH, WIDTH)
        self.frozen.requires_grad_(False)
        self.inner = torch.nn.Linear(WIDTH, 5)
        self.outer = torch.nn.Linear(5, WIDTH, bias=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor([1.5, 0.25]))
        self.register_buffer("count", torch.tensor(7, dtype=torch.int64))

    def forward(self, tokens):
        hidden = self.frozen(self.embedding(tokens)) * self.scale[0].to(self.norm.weight.dtype)
        hidden = hidden + self.outer(torch.tanh(self.inner(hidden)))
        logits = self.head(self.norm(hidden))
        return torch.nn.functional.cross_entropy(
            logits[:, :-1].reshape(-1, VOCABULARY).float(), tokens[:, 1:].reshape(-1)
        )


def config_of(options):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-2, "betas": [0.9, 0.98], "weight_decay": 0.1, "torch_adam": True},
        },
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
        "bf16": {"enabled": options["dtype"] == "bf16"},
        "zero_optimization": {"stage": options["stage"]},
        "checkpoint": {"load_universal": options.get("universal", False)},
    }


def engine_of(options):
    torch.manual_seed(1)
    model = Tiny()
    torch.manual_seed(options.get("seed", 1))
    # other weights, except for those that a checkpoint does not restore
    if options.get("seed", 1) != 1:
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=config_of(options),
    )
    return engine


def losses_of(engine, first, count):
    losses = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, VOCABULARY, (2, 9), generator=generator)
        loss = engine(tokens)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def truth_of(engine):
    arrays = {}
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        arrays[f"fp32/{name}"] = safe_get_full_fp32_param(parameter).float().numpy().copy()
        for moment in ("exp_avg", "exp_avg_sq"):
            value = safe_get_full_optimizer_state(parameter, moment)
            arrays[f"{moment}/{name}"] = value.float().numpy().copy()
    return arrays


def main():
    action, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    out = pathlib.Path(options["out"])
    engine = engine_of(options)
    arrays = {}
    if action == "save":
        losses_of(engine, 0, 3)
        engine.save_checkpoint(str(out / "checkpoint"), client_state={"note": {"epoch": 3}})
    else:
        path, _ = engine.load_checkpoint(options["from"])
        assert path is not None, "nothing was loaded"
        arrays["step"] = np.array(engine.global_steps)
    arrays |= truth_of(engine)
    arrays["losses"] = np.array(losses_of(engine, 3, 3))
    if int(os.environ["RANK"]) == 0:
        np.savez(out / f"{action}.npz", **arrays)
    sys.stdout.flush()
    os._exit(0)  # threads of its communication sometimes abort when the process ends normally


if __name__ == "__main__":
    main()
