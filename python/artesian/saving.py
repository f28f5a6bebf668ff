"""Checkpoints of an engine, in the format of docs/checkpoints.md. State that only Python has
(counts, constants of groups, the scheduler, the caller's own) is stored in two files beside the
engine's."""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import json
import logging
import os
import pathlib
import pickle
import types
import uuid
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from artesian.errors import AssertedError, InvalidError, UnsupportedError
from artesian.state import persistent_buffers

if TYPE_CHECKING:
    from artesian.engine import Engine

ENGINE_FILE = "engine"  # counts, constants of groups, and the scheduler
CLIENT_FILE = "client_state"

# Names that a checkpoint's file may contain besides those that torch.load(weights_only=True)
# allows: classes that hold values and run no code.
ARRAYS: list[Any] = [
    *(np.ndarray, np.dtype, np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0]),
    *(type(np.dtype(kind)) for kind in "?bBhHiIlLefd"),
]
VALUES: list[Any] = [
    *(argparse.Namespace, types.SimpleNamespace, collections.defaultdict, collections.deque),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(pathlib.Path, pathlib.PosixPath, pathlib.PurePosixPath, uuid.UUID),
    *(bool, bytes, dict, float, int, list, set, str, tuple),  # for a defaultdict's factory
]


class Pickler(pickle.Pickler):
    """Writes containers together with what they hold, because a reader that runs no code cannot
    fill them afterwards."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is collections.defaultdict:
            return collections.defaultdict, (value.default_factory, dict(value))
        if type(value) is collections.deque:
            return collections.deque, (list(value), value.maxlen)
        return NotImplemented


PICKLING = types.SimpleNamespace(__name__="pickle", Pickler=Pickler)


def pack(value: Any, what: str) -> bytes:
    """The value as the bytes of a file. Reading runs no code that a file names, so a value that
    could not be read back is refused here."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=PICKLING)
    data = buffer.getvalue()
    try:
        unpack(data)
    except pickle.UnpicklingError as error:
        raise InvalidError(
            f"save_checkpoint: {what}: got objects of a class ({first_line(error)}), allowed "
            "numbers, texts, tensors, numpy arrays, times, paths, namespaces, and lists, tuples "
            "and dicts of them"
        ) from None
    return data


def unpack(data: bytes) -> Any:
    with torch.serialization.safe_globals(ARRAYS + VALUES):
        return torch.load(io.BytesIO(data), weights_only=True)


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if "GLOBAL" in line or "class" in line]
    return (lines or str(error).splitlines() or [""])[0].strip()


def other_names(engine: Engine) -> list[tuple[str, str]]:
    """Pairs: another name of a tied parameter, and the engine's name for it."""
    names: dict[int, str] = {}
    result = []
    for name, parameter in engine.module.named_parameters(remove_duplicate=False):
        if names.setdefault(id(parameter), name) != name:
            result.append((name, names[id(parameter)]))
    return result


def model_files(engine: Engine) -> dict[str, bytes]:
    """config.json of a Hugging Face model, which an export of the checkpoint needs."""
    write = getattr(getattr(engine.module, "config", None), "to_json_string", None)
    return {} if write is None else {"config.json": write().encode()}


# The folder that each engine saved in last.
HELD: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()


def check_tags(engine: Engine, tag: str | None) -> None:
    """Compares the tags of all ranks, as set in `checkpoint.tag_validation`. Rank 0's tag is
    used."""
    section = engine.config.get("checkpoint")
    mode = str((section or {}).get("tag_validation", "Warn")).lower()
    group = engine.ranks.group
    if group is None or mode == "ignore":
        return
    texts = group.exchange_texts(json.dumps(tag), "the checkpoint's tag")
    tags = [json.loads(text) for text in texts]
    if tags.count(tags[0]) == len(tags):
        return
    text = f"save_checkpoint: tag: ranks have different ones: {', '.join(map(repr, tags))}"
    if mode == "fail":
        raise AssertedError(f"{text}; give all of them the same")
    logging.getLogger("artesian").warning("%s; rank 0's is used", text)


def take_folder(engine: Engine, folder: str) -> None:
    """An engine locks the folder in which it saved last. Within this process a later engine takes
    it over."""
    for other, held in list(HELD.items()):
        if other is not engine and held == folder and not other.is_closed:
            other._core.leave_checkpoints()
            del HELD[other]
    HELD[engine] = folder


def save(
    engine: Engine,
    save_dir: str | os.PathLike[str],
    tag: str | None,
    client_state: dict[str, Any] | None,
    exclude_frozen_parameters: bool,
    replace_any: bool,
    becomes_latest: bool,
) -> str:
    """Saves a checkpoint; returns its tag once it is durable."""
    if save_dir is None or not os.fspath(save_dir):
        raise InvalidError(f"save_checkpoint: save_dir: got {save_dir!r}, allowed a folder")
    folder = os.fspath(save_dir)
    check_tags(engine, tag)
    take_folder(engine, os.path.realpath(folder))
    scheduler = engine.lr_scheduler
    ours = {
        "global_steps": engine.global_steps,
        "micro_steps": engine.micro_steps,
        "world_size": engine.world_size,
        "skipped_steps": engine.skipped_steps,
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in engine.optimizer.param_groups
        ],
        "lr_scheduler": None if scheduler is None else scheduler.state_dict(),
    }
    client = {ENGINE_FILE: pack(ours, "lr_scheduler.state_dict()")}
    if client_state:
        client[CLIENT_FILE] = pack(client_state, "client_state")
    buffers = [
        (name, buffer.detach().cpu().contiguous())
        for name, buffer in persistent_buffers(engine.module)
    ]
    if engine.ranks.first:
        os.makedirs(folder, exist_ok=True)
    return engine._core.save_checkpoint(
        folder,
        tag=tag or "",
        client=client,
        model=model_files(engine),
        buffers=buffers,
        aliases=other_names(engine),
        config=json.dumps(engine.config, default=str),
        exclude_frozen=exclude_frozen_parameters,
        replace_any=replace_any,
        becomes_latest=becomes_latest,
    )


def restore_buffers(engine: Engine, saved: dict[str, torch.Tensor]) -> None:
    missing = []
    for name, buffer in persistent_buffers(engine.module):
        values = saved.get(name)
        if values is None:
            missing.append(name)
        elif values.shape != buffer.shape:
            raise InvalidError(
                f'load_checkpoint: buffer "{name}": got the shape {tuple(values.shape)}, allowed '
                f"{tuple(buffer.shape)}"
            )
        else:
            buffer.detach().copy_(values)
    if missing:
        logging.getLogger("artesian").warning(
            "load_checkpoint: %d buffers are not in the checkpoint and stay as they are, the first "
            "is %s",
            len(missing),
            missing[0],
        )


def restore_training(engine: Engine, loaded: dict[str, Any], with_scheduler: bool) -> None:
    """Restores counts, constants of groups and the scheduler; from a checkpoint not saved from
    Python, only the counts."""
    data = loaded["client"].get(ENGINE_FILE)
    engine.global_steps = loaded["step"]
    if data is None:
        engine.micro_steps = loaded["step"] * engine.gradient_accumulation_steps()
        return
    ours = unpack(data)
    engine.micro_steps = ours["micro_steps"]
    if ours.get("world_size", 1) != engine.world_size:  # each rank makes another part of a step
        engine.micro_steps = loaded["step"] * engine.gradient_accumulation_steps()
    engine.skipped_steps = ours["skipped_steps"]
    groups = engine.optimizer.param_groups
    if len(ours["groups"]) != len(groups):
        raise InvalidError(
            f"load_checkpoint: got {len(ours['groups'])} parameter groups, allowed {len(groups)}, "
            "as many as the optimizer has"
        )
    for group, saved in zip(groups, ours["groups"], strict=True):
        group.update(saved)
    if with_scheduler and engine.lr_scheduler is not None and ours["lr_scheduler"] is not None:
        engine.lr_scheduler.load_state_dict(ours["lr_scheduler"])


def load(
    engine: Engine,
    load_dir: str | os.PathLike[str],
    tag: str | None,
    strict: bool,
    optimizer_states: bool,
    scheduler_states: bool,
    custom_load_fn: Any,
) -> tuple[str | None, dict[str, Any]]:
    """Returns the checkpoint's folder and the client state; None and nothing if there is no
    checkpoint and no tag was given."""
    if custom_load_fn is not None:
        raise UnsupportedError("load_checkpoint: custom_load_fn is not supported")
    folder = os.fspath(load_dir)
    if tag is None and not os.path.exists(os.path.join(folder, "latest")):
        logging.getLogger("artesian").warning(
            "load_checkpoint: %s: no file `latest` says which checkpoint; nothing is loaded", folder
        )
        return None, {}
    loaded = engine._core.load_checkpoint(
        folder, tag=tag or "", strict=strict, optimizer_states=optimizer_states
    )
    engine.saved_masters.clear()
    restore_buffers(engine, loaded["buffers"])
    if optimizer_states:
        restore_training(engine, loaded, scheduler_states)
    client = loaded["client"].get(CLIENT_FILE)
    return os.path.join(folder, loaded["tag"]), {} if client is None else unpack(client)
