"""Trains small models as one of several ranks, or as one rank with all their micro-batches, and
says what came of it. As a program, started by torchrun: `ranks_worker.py CASES RESULTS`, two JSON
files; rank 0 writes the second."""

import json
import os
import pathlib
import sys

import artesian
import small_models
import torch

from artesian import shares, zero

STEPS = 3
shares.WHOLE_AT_ONCE = 1 << 10  # bytes: zero.Init divides while a model is made


def config_of(case, accumulation, folder):
    config = small_models.config_for()
    config["train_micro_batch_size_per_gpu"] = 1
    config["gradient_accumulation_steps"] = accumulation
    config["gradient_clipping"] = 0.5
    zero = config["zero_optimization"] = {"stage": case.get("stage", 3)}
    zero["stage3_param_persistence_threshold"] = case.get("persistent", 64)
    if "type" in case:
        config["optimizer"] = {"type": case["type"], "params": {"lr": 1e-2}}
    for section in ("optimizer", "param"):
        if section in case:
            place = {"device": case[section], "nvme_path": str(folder)}
            zero[f"offload_{section}"] = place
    if "reduction" in case:
        config.setdefault("artesian", {})["reduction"] = case["reduction"]
    dtype = case.get("dtype", "fp32")
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    if dtype == "fp16":  # so large a scale that the first steps are skipped
        config["fp16"].update(initial_scale_power=18, loss_scale_window=2, hysteresis=1)
    return config


class Branches(torch.nn.Module):
    """Another part of it is used for each batch: a graph that differs from rank to rank."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.unused = torch.nn.Linear(8, 8)

    def forward(self, hidden, seed):
        generator = torch.Generator().manual_seed(seed)
        for index in torch.randperm(4, generator=generator)[: 1 + seed % 4]:
            hidden = torch.tanh(self.blocks[index](hidden))
        return small_models.transformers.utils.ModelOutput(loss=hidden.square().mean())


def made(case):
    if case["model"] != "branches":
        return small_models.make(case["model"])
    torch.manual_seed(1)
    return Branches(), lambda seed: {"hidden": small_models.noise(seed, 3, 8), "seed": seed}


def make(case, rank, config):
    """Without dropout, which has a generator of its own on each rank. `init`: inside of zero.Init,
    where all but a few parameters are divided already while the model is made."""
    if "init" in case:
        with zero.Init(config_dict_or_path=config):
            model, batch = made(case)
    else:
        model, batch = made(case)
        for parameter in model.parameters() if rank > 0 else ():
            parameter.data.normal_()  # what rank 0 has, counts
    model.eval()
    if "checkpointing" in case:
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.gradient_checkpointing_enable({"use_reentrant": case["checkpointing"] == "reentrant"})
    if "freeze" in case:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(case["freeze"] not in name)
    return model, batch


def groups():
    """How many of PyTorch's process groups there are."""
    return len(torch.distributed.distributed_c10d._world.pg_map)


def run(case, rank, ranks, folder):
    """Of each step loss, norm, overflow and loss scale; a gradient; and the digest in the end."""
    all_of_them = case.get("micro_batches", 2 * ranks if ranks > 1 else 4)
    own = all_of_them // ranks
    config = config_of(case, own, folder)
    model, batch = make(case, rank, config)
    before = groups()
    engine = artesian.initialize(model=model, config=config)[0]
    if "load" in case:
        engine.load_checkpoint(folder / "saved")
    lines = []
    again = case.get("again", 0)
    for step in range(engine.global_steps, case.get("steps", STEPS)):
        for micro in range(own):
            engine.backward(loss_of(engine, batch(step * all_of_them + micro * ranks + rank)))
            if micro + 1 == own:
                lines.append(gradient_of(engine, model))
                for number in range(again // ranks):  # the last ones once more
                    past = batch((step + 1) * all_of_them - again + number * ranks + rank)
                    engine.backward(loss_of(engine, past))
                    gradient_of(engine, model)  # between two backwards of a micro-batch
            engine.step()
        last = engine.last_step
        lines.append([last[key] for key in ("loss", "grad_norm", "overflow", "loss_scale")])
    if "save" in case:
        engine.save_checkpoint(folder / "saved")
    result = [lines, engine.digest()]
    engine.destroy()
    assert groups() == before, "the engine leaves its process group behind"
    return result


def loss_of(engine, inputs):
    def there(value):
        return value.to(engine.device) if isinstance(value, torch.Tensor) else value

    return engine(**{name: there(value) for name, value in inputs.items()}).loss


def gradient_of(engine, model):
    """The first parameter's, whole, as a sum."""
    first = next(p for p in model.parameters() if p.requires_grad)
    return engine.full_gradient(first).double().nan_to_num().sum().item()


def join():
    """Joins the other ranks, with one thread. Returns this rank and their number."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


class Said(dict):
    """What a rank says at its end, by name, in a JSON file of its own."""

    def refused(self, name, call):
        """Says the error of a call; None if it has none."""
        try:
            call()
            self[name] = None
        except (artesian.errors.Error, ValueError, RuntimeError) as error:
            self[name] = str(error)

    def write(self, folder):
        path = pathlib.Path(folder) / f"said{torch.distributed.get_rank()}.json"
        path.write_text(json.dumps(self))


def main(cases, results):
    rank, ranks = join()
    shares.ranks_for_init()  # makes the group of divided parameters, which stays
    folder = pathlib.Path(results).parent
    found = [run(case, rank, ranks, folder) for case in json.loads(pathlib.Path(cases).read_text())]
    if "_simulated" in sys.modules:  # where the accelerator is
        native = sys.modules["_simulated"]
        assert native.races() == []
        assert bool(native.operations_between_devices()) == ("SIMULATED_JOINED" in os.environ)
    if rank == 0:
        pathlib.Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
