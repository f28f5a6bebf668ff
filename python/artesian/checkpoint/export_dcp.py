"""Converts an Artesian checkpoint to torch.distributed.checkpoint (DCP).

    python -m artesian.checkpoint.export_dcp CHECKPOINT_DIR OUT

Names are those of torch's get_state_dict: `model.NAME` and `optim.state.NAME.exp_avg`, so that
dcp.load and set_state_dict accept it for a model with a torch optimizer: AdamW, Adam, SGD, Adagrad
or RMSprop. Moments of Lion, LAMB and Muon keep their own names. Needs torch. The exported tensors
are spooled in an unnamed file beside OUT, at most 12 bytes per parameter, so that little memory is
needed. Exit codes: 0 done; 2 cannot be exported; 1 damage, or a disk error.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from artesian.checkpoint.exports import Spool, buffers, groups, moments_of, step_of
from artesian.checkpoint.import_deepspeed import run
from artesian.checkpoint.zero_to_fp32 import Checkpoint, Refused

# Class names in torch.optim, by the names in manifests.
KINDS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "adagrad": "Adagrad",
         "rmsprop": "RMSprop"}  # fmt: skip


def _state_dict(checkpoint: Checkpoint, spool: Spool) -> dict[str, Any]:
    import torch

    manifest = checkpoint.manifest
    model = {
        parameter.name: spool.tensor(checkpoint, index, "fp32")
        for index, parameter in enumerate(manifest.parameters)
        if parameter.name not in manifest.excluded
    }
    model |= {alias: model[name] for alias, name in manifest.aliases.items() if name in model}
    model |= buffers(checkpoint)
    state = {}
    for group in groups(checkpoint):
        for index, name in zip(group["parameters"], group["names"], strict=True):
            moments = moments_of(checkpoint, index, group["optimizer"])
            state[name] = {each: spool.tensor(checkpoint, index, each) for each in moments}
            if group["optimizer"] != "sgd":  # torch's SGD does not count steps
                state[name]["step"] = torch.tensor(float(step_of(checkpoint, index, group)))
    param_groups = [_settings(group) | {"params": group["names"]} for group in groups(checkpoint)]
    return {"model": model, "optim": {"state": state, "param_groups": param_groups}}


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """All keys of a torch optimizer's group, as loading asks for each of them."""
    import torch

    average, squares = group["betas"]
    saved = {key: group[key] for key in ("lr", "eps", "weight_decay")}
    saved |= {"betas": (average, squares), "momentum": average, "alpha": squares}
    kind = KINDS.get(group["optimizer"])
    if kind is None:  # not an optimizer of torch
        return {key: saved[key] for key in ("lr", "eps", "weight_decay", "betas")}
    made = getattr(torch.optim, kind)([torch.zeros(1)], lr=1e-3)
    defaults: dict[str, Any] = made.state_dict()["param_groups"][0]
    return defaults | {key: value for key, value in saved.items() if key in defaults}


def export_dcp(source: Path, out: Path, tag: str | None) -> str:
    """Raises Refused, Damaged, OSError. Returns a line that describes the output."""
    import torch.distributed.checkpoint as dcp

    checkpoint = Checkpoint(source, tag)
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out}: it is not empty")
    out.mkdir(parents=True, exist_ok=True)
    dcp.save(  # type: ignore[attr-defined]
        _state_dict(checkpoint, Spool(out.parent)), checkpoint_id=out, no_dist=True
    )
    return f"{out}: {len(checkpoint.manifest.parameters)} parameters"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="export_dcp", description="Makes a checkpoint of DCP of one of ours."
    )
    parser.add_argument("source", type=Path, help="the folder with `latest`")
    parser.add_argument("out", type=Path, help="the folder to write, new or empty")
    parser.add_argument("-t", "--tag", help="of the checkpoint; unless given, what `latest` says")
    options = parser.parse_args(arguments)
    return run("export_dcp", lambda: export_dcp(options.source, options.out, options.tag))


if __name__ == "__main__":
    sys.exit(main())
