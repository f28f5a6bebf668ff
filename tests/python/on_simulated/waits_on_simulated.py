"""Proves that each place in the engine that records a fence or waits for one is needed and tested:
left out, one at a time, a training ends with an error, has other bits, or two operations lack an
order. The places are found by running, so a new one is tried, too."""

import collections
import json
import os
import pathlib
import signal
import subprocess

import pytest
import small_models
import torch
import transformers
import zoo_on_simulated
from artesian.native import _C

# Functions whose place may be left out without a trace, and why: the order is made twice, so either
# place is enough.
TWICE = "settle() joins the queues, and the host waits for the copies, too"
ALONE = "one rank adds nothing in the queue Bus"
AT_THE_END = "when an engine closes; the arena's memory is given back once all has passed, too"
HARMLESS = {
    "record in artesian::zero3::Optimizer::settle": TWICE,
    "finish in artesian::zero3::Optimizer::settle": TWICE,
    "record in artesian::tiering::Device::join_queues": TWICE,
    "wait in artesian::zero3::Optimizer::settle": TWICE,
    "record in artesian::zero3::Optimizer::update_on_device": TWICE,
    "wait in artesian::zero3::Optimizer::update_on_device": TWICE,
    "wait in artesian::zero3::Gradients::follow_bus": ALONE,
    "wait in artesian::zero3::Optimizer::drain": TWICE,
    "wait in artesian::zero3::SubGroupStream::begin_tasks": TWICE,
    "record in artesian::tiering::Residency::end_refresh": TWICE,
    "wait in artesian::tiering::Residency::end_refresh": TWICE,
    "record in artesian::tiering::Device::finish_all": AT_THE_END,
    "finish in artesian::tiering::Device::finish_all": AT_THE_END,
}
RUNS = {
    "none": ("none", {}),
    "cpu": ("cpu", {}),
    "nvme": ("nvme", {}),
    "bf16": ("cpu", {"bf16": {"enabled": True}}),
    "stage 2": ("stage 2", {}),
}


def engine_for(place, model, folder, **more):
    """With the state in memory or on NVMe, device memory holds hardly more than one unit, so that
    slots are reused often."""
    if place == "stage 2":
        config = zoo_on_simulated.config_for("cpu", folder, **more)
        config["zero_optimization"] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
        return small_models.artesian.initialize(model=model, config=config)[0]
    if place != "cpu":
        return zoo_on_simulated.engine_for("gpt2", model, place, folder, **more)
    device = 2 * small_models.largest_units(model)[0]
    while True:
        config = zoo_on_simulated.config_for(place, folder, device_memory=int(device), **more)
        try:
            return small_models.artesian.initialize(model=model, config=config)[0]
        except small_models.artesian.errors.ExhaustedError:
            device *= 1.1


def train(sim, place, more, folder):
    """Returns the digest and losses of two steps of two micro-batches, with an evaluation in
    between."""
    model, batch = small_models.make("gpt2")
    more = {"gradient_accumulation_steps": 2, "gradient_clipping": 1.0, **more}
    engine = engine_for(place, model, folder, **more)
    losses = []
    for step in range(4):
        loss = zoo_on_simulated.loss_of(engine, batch, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
        with torch.no_grad():
            losses.append(zoo_on_simulated.loss_of(engine, batch, step))
    result = {"digest": engine.digest(), "losses": torch.stack(losses).tolist()}
    engine.destroy()
    torch.accelerator.synchronize()
    return {**result, "races": sim.races()}


def in_child(work):
    """Returns what `work` returns in a child process; None if the child ends in another way."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.alarm(60)  # without the place, the child may wait for ever
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else None


def functions_of(sites):
    """Returns the functions that contain the places."""
    names = subprocess.run(
        ["nm", "-C", "--defined-only", _C.__file__], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    starts = sorted(
        (int(line.split()[0], 16), line.split(" ", 2)[2])
        for line in names
        if line[:1] != " " and line.split()[1] in "tTwW"
    )
    result = {}
    for site in sites:
        call, offset = site.split()
        before = [name for start, name in starts if start < int(offset)]
        result[site] = f"{call} in {before[-1].split('(')[0]}"
    return result


@pytest.mark.skipif("ARTESIAN_SOAK" not in os.environ, reason="takes minutes: make soak")
def test_each_wait_is_needed(sim, tmp_path):
    transformers.set_seed(1)
    expected, seen = {}, collections.defaultdict(list)
    for name, (place, more) in RUNS.items():

        def run(place=place, more=more, drops=()):
            sim.forget_wait_sites()
            sim.drop_waits(set(drops))
            folder = tmp_path / f"{os.getpid()}"
            folder.mkdir()
            result = train(sim, place, more, pathlib.Path(folder))
            return result if drops else {**result, "sites": sim.wait_sites()}

        expected[name] = in_child(run), run
        assert expected[name][0] is not None and expected[name][0]["races"] == []
        for site in expected[name][0].pop("sites"):
            seen[site].append(name)
    functions = functions_of(seen)
    shown, silent = {}, []
    for site, names in sorted(seen.items()):
        for name in names:
            result, run = expected[name]
            told = in_child(lambda run=run, site=site: run(drops=[site]))
            if told != result:
                ends = "ends" if told is None else "races" if told["races"] else "bits"
                shown[site] = f"{functions[site]}: {name}: {ends}"
                break
        else:
            silent.append(f"{functions[site]} ({site}): {', '.join(names)}")
    # One of the two is needed: if all of them are left out, something shows.
    twice = [site for site in seen if HARMLESS.get(functions[site]) == TWICE]
    assert in_child(lambda: expected["cpu"][1](drops=twice)) != expected["cpu"][0]
    print("\n".join(shown.values()))
    print("silent:\n" + "\n".join(silent))
    assert [each for each in silent if each.split(" (")[0] not in HARMLESS] == []
