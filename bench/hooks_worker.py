"""Measures the time of the Python engine's hooks in a separate process: see hooks.py. Prints one
line, "RESULT " and JSON: measured seconds by name."""

import argparse
import copy
import json
import time

import torch
from torch import nn

import artesian

WIDTH = 1000  # gives units of 1,001,000 parameters
TINY = 8


class Net(nn.Module):
    def __init__(self, units, width):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(units))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return x.square().mean()


def start(units, width, stage=3):
    """The network in an engine with all state in memory, and the same network in plain PyTorch."""
    torch.manual_seed(1)
    net = Net(units, width)
    plain = copy.deepcopy(net)
    none = {"device": "none"}  # parameters, too, are in memory
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": stage,
            # so that each parameter is gathered at each use
            "stage3_param_persistence_threshold": 0,
            "offload_optimizer": none,
        },
        "artesian": {"device_memory": "512MiB", "host_memory": "512MiB"},
    }
    return artesian.initialize(model=net, config=config)[0], plain


def timed(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--passes", type=int, required=True, help="of small units, for each step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    given = parser.parse_args()
    seconds = {name: [] for name in ("step", "plain_step", "stage_2", "passes", "plain_passes")}
    engine, plain = start(given.units, WIDTH)
    resident, _ = start(given.units, WIDTH, stage=2)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    x = torch.randn(given.samples, WIDTH)

    def step(engine=engine):
        engine.backward(engine(x))
        engine.step()

    def plain_step():
        plain(x).backward()
        optimizer.step()
        optimizer.zero_grad()

    for index in range(given.warm_up + given.steps):
        pair = {"step": timed(step), "plain_step": timed(plain_step)}
        pair["stage_2"] = timed(lambda: step(resident))
        if index >= given.warm_up:
            for name, value in pair.items():
                seconds[name].append(value)
    engine.destroy()

    engine, plain = start(given.units, TINY)
    x = torch.randn(given.samples, TINY)

    def passes():
        engine.backward(engine(x))

    def plain_passes():
        plain(x).backward()

    for index in range(given.passes * (given.warm_up + given.steps)):
        pair = {"passes": timed(passes), "plain_passes": timed(plain_passes)}
        engine.step()
        plain.zero_grad()
        if index >= given.passes * given.warm_up:
            for name, value in pair.items():
                seconds[name].append(value)
    engine.destroy()
    print("RESULT " + json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
