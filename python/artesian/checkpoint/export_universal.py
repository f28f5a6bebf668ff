"""Converts an Artesian checkpoint to a universal checkpoint of DeepSpeed.

    python -m artesian.checkpoint.export_universal CHECKPOINT_DIR OUT

DeepSpeed loads OUT with "checkpoint": {"load_universal": true} in its configuration, with ZeRO-1, 2
or 3 and any number of ranks. Needs torch. DeepSpeed's own Adam stores its step count as a number,
torch's as a tensor: pass --torch-adam if the configuration has "torch_adam": true. For an fp16 run,
DeepSpeed restarts its loss scale. Memory: the largest parameter. Exit codes: 0 done; 2 cannot be
exported; 1 damage, or a disk error.
"""

import argparse
import os
import shutil
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

from artesian.checkpoint.exports import (
    buffers,
    groups,
    in_memory,
    moments_of,
    step_of,
)
from artesian.checkpoint.import_deepspeed import run
from artesian.checkpoint.zero_to_fp32 import Checkpoint, Refused, shown

DEEPSPEED_VERSION = "0.19.8"  # the version whose format is written
NAMES = {"sum": "exp_avg_sq"}  # the name in DeepSpeedCPUAdagrad


def _step(step: int, torch_adam: bool) -> Any:
    import torch

    return torch.tensor(float(step), dtype=torch.float32) if torch_adam else step


def _param_groups(checkpoint: Checkpoint, torch_adam: bool) -> list[dict[str, Any]]:
    made = []
    for number, group in enumerate(groups(checkpoint)):
        settings = {key: group[key] for key in ("lr", "eps", "weight_decay")}
        settings |= {"betas": tuple(group["betas"]), "params": [number]}
        if not torch_adam:
            settings["step"] = group["step"]
        made.append(settings)
    return made


def _optimizer_state(checkpoint: Checkpoint, torch_adam: bool) -> dict[str, Any]:
    """The entries that ZeRO-1 and 2 look for, and those that ZeRO-3 looks for."""
    param_groups = _param_groups(checkpoint, torch_adam)
    step = groups(checkpoint)[0]["step"]
    return {
        "ds_version": DEEPSPEED_VERSION,
        "overflow": False,
        "param_groups": param_groups,
        "optimizer_state_dict": {
            "state": {0: {"step": _step(step, torch_adam)}},
            "param_groups": param_groups,
        },
    }


def _model_states(checkpoint: Checkpoint) -> dict[str, Any]:
    import torch

    manifest = checkpoint.manifest
    state = manifest.raw["state"]
    shapes = []
    for group in groups(checkpoint):
        members = (manifest.parameters[index] for index in group["parameters"])
        shapes.append(OrderedDict((each.name, torch.Size(each.shape)) for each in members))
    frozen = {
        parameter.name: in_memory(checkpoint, index, "fp32")
        for index, parameter in enumerate(manifest.parameters)
        if not parameter.trainable and parameter.name not in manifest.excluded
    }
    kept = buffers(checkpoint)
    return {
        "module": OrderedDict(frozen | kept),
        "buffer_names": list(kept),
        "optimizer": None,
        "param_shapes": shapes,
        "frozen_param_shapes": {name: tensor.shape for name, tensor in frozen.items()} or None,
        "frozen_param_fragments": frozen or None,
        "shared_params": dict(manifest.aliases),
        "lr_scheduler": {"last_batch_iteration": state["updates"] - 1},
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": state["step"] - state["updates"],
        "global_steps": state["step"],
        "dp_world_size": 1,
        "mp_world_size": 1,
        "ds_config": {},
        "ds_version": DEEPSPEED_VERSION,
        "universal_checkpoint_info": {"universal_checkpoint_version": 0.2},
    }


def _write_parameters(checkpoint: Checkpoint, zero: Path, torch_adam: bool) -> None:
    import torch

    for group in groups(checkpoint):
        for index, name in zip(group["parameters"], group["names"], strict=True):
            folder = zero / name
            folder.mkdir()
            for array in ("fp32", *moments_of(checkpoint, index, group["optimizer"])):
                tensor = in_memory(checkpoint, index, array)
                file = folder / f"{NAMES.get(array, array)}.pt"
                torch.save({"param": tensor, "cat_dim": 0}, file)
            torch.save(_step(step_of(checkpoint, index, group), torch_adam), folder / "step.pt")


def _check(checkpoint: Checkpoint) -> None:
    for parameter in checkpoint.manifest.parameters:
        if "/" in parameter.name or parameter.name in ("", ".", ".."):
            raise Refused(f"{shown(parameter.name)}: DeepSpeed has a folder of each name")
    steps = {group["step"] for group in groups(checkpoint)}
    if not steps:
        raise Refused(f"{checkpoint.path}: it has no trained parameters")
    if len(steps) > 1:
        raise Refused(
            f"{checkpoint.path}: its groups have had {sorted(steps)} updates; in a "
            "universal checkpoint all have the same"
        )


def export_universal(source: Path, out: Path, tag: str | None, torch_adam: bool) -> str:
    """Raises Refused, Damaged, OSError. Returns a line that describes the output."""
    import torch

    checkpoint = Checkpoint(source, tag)
    _check(checkpoint)
    target = out / checkpoint.tag
    if target.exists():
        raise Refused(f"{target}: it is there already")
    partial = out / f".tmp-{checkpoint.tag}-{os.getpid()}"
    (partial / "zero").mkdir(parents=True)
    _write_parameters(checkpoint, partial / "zero", torch_adam)
    torch.save(_optimizer_state(checkpoint, torch_adam), partial / "zero/optimizer_state.pt")
    states = partial / "mp_rank_00_model_states.pt"
    torch.save(_model_states(checkpoint), states)
    # ZeRO-3's name for the same file
    of_zero_3 = partial / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    try:
        os.link(states, of_zero_3)
    except OSError:  # the file system has no hard links
        shutil.copyfile(states, of_zero_3)
    os.rename(partial, target)
    (out / "latest_universal").write_text(checkpoint.tag)
    if (checkpoint.manifest.raw["state"]["loss_scaler"]["scale"]) != 1.0:
        print("note: DeepSpeed starts its loss scale anew", file=sys.stderr)
    return f"{target}: {len(checkpoint.manifest.parameters)} parameters"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="export_universal", description="Makes a universal checkpoint of one of ours."
    )
    parser.add_argument("source", type=Path, help="the folder with `latest`")
    parser.add_argument("out", type=Path, help="the folder to write into")
    parser.add_argument("-t", "--tag", help="of the checkpoint; unless given, what `latest` says")
    parser.add_argument(
        "--torch-adam", action="store_true", help="for an optimizer of torch, not DeepSpeed's own"
    )
    options = parser.parse_args(arguments)
    return run(
        "export_universal",
        lambda: export_universal(options.source, options.out, options.tag, options.torch_adam),
    )


if __name__ == "__main__":
    sys.exit(main())
