"""Reads checkpoints of torch.distributed.checkpoint (DCP), without torch.

`.metadata` is a pickle that lists the chunks of each tensor and their places: ranges of `*.distcp`
files, each range a torch file. Memory: one copy of the largest parameter, as a tensor's chunks may
be cut along any dimension.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from artesian.checkpoint.pickles import Machine, Name, Record
from artesian.checkpoint.sources import FLOATING, group_of, item, naming, real, shape_of, whole
from artesian.checkpoint.torch_files import (
    DTYPES,
    WORD_OF_SIZE,
    MappedFile,
    Tensor,
    TorchZip,
)
from artesian.checkpoint.writer import Pieces, SavedBuffer, SavedGroup, SavedParameter, SavedState
from artesian.checkpoint.zero_to_fp32 import TYPE_BYTES, Bytes, Damaged, Refused, shown, widened

PREFIXES = (("model.", "optim."), ("model.", "optimizer."), ("app.model.", "app.optim."))
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class _Chunk:
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


@dataclass(frozen=True)
class _Stored:
    """A tensor, or another value, of a checkpoint."""

    dtype: str  # empty: not a tensor
    shape: tuple[int, ...]
    chunks: list[_Chunk]


def _places(root: Record) -> dict[tuple[str, tuple[int, ...]], list[tuple[str, int, int]]]:
    """The place of each chunk's data, by the tensor's name and the chunk's offsets."""
    places: dict[tuple[str, tuple[int, ...]], list[tuple[str, int, int]]] = {}
    for index, info in item(root.attributes, "storage_data", dict).items():
        if not isinstance(index, Record) or not isinstance(info, Record):
            raise Damaged("storage_data is not what it should be")
        name = item(index.attributes, "fqn", str)
        offset = index.get("offset")
        if info.get("transform_descriptors"):
            raise Refused(f"{shown(name)}: compressed or transformed, which is not read here")
        file = item(info.attributes, "relative_path", str)
        if "/" in file or file in ("", ".", ".."):
            raise Damaged(f"{shown(file)} is no name of a file of a checkpoint")
        place = (file, whole(info.get("offset"), "offset"), whole(info.get("length"), "length"))
        places.setdefault((name, shape_of(offset or (), name)), []).append(place)
    return places


def _stored(root: Record) -> dict[str, _Stored]:
    places = _places(root)
    stored = {}
    for name, entry in item(root.attributes, "state_dict_metadata", dict).items():
        if not isinstance(name, str) or not isinstance(entry, Record):
            raise Damaged("state_dict_metadata is not what it should be")
        if entry.of.name != "TensorStorageMetadata":
            chunks = [_Chunk((), (), *place) for place in places.get((name, ()), [])]
            stored[name] = _Stored("", (), chunks)
            continue
        chunks = []
        for chunk in item(entry.attributes, "chunks", list):
            if not isinstance(chunk, Record):
                raise Damaged(f"a chunk of {shown(name)} is not what it should be")
            offsets = shape_of(chunk.get("offsets"), name)
            sizes = shape_of(chunk.get("sizes"), name)
            found = places.get((name, offsets)) or places.get((name, ()))
            if not found:
                raise Damaged(f"the data of a chunk of {shown(name)} is missing")
            chunks.append(_Chunk(offsets, sizes, *found[0]))
        dtype = _dtype(entry.get("properties"), name)
        stored[name] = _Stored(dtype, shape_of(entry.get("size"), name), chunks)
    return stored


def _dtype(properties: Any, name: str) -> str:
    state = properties.get("") if isinstance(properties, Record) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if dtype is None and isinstance(properties, Record):
        dtype = properties.get("dtype")
    if isinstance(dtype, Name) and dtype.module == "torch" and dtype.name in DTYPES:
        return DTYPES[dtype.name]
    raise Refused(f"{shown(name)} has the type {shown(str(dtype))}, which is not known")


class DcpFolder:
    """The tensors of a DCP folder by name. Raises Damaged, Refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        metadata = MappedFile(folder / ".metadata")
        root = Machine({}).run(metadata.data.tobytes())
        if not isinstance(root, Record) or root.of.name != "Metadata":
            raise Damaged(f"{folder / '.metadata'}: not what torch.distributed.checkpoint writes")
        self.stored = _stored(root)
        self.files: dict[str, MappedFile] = {}

    def load(self, chunk: _Chunk) -> Any:
        data = self._data(chunk.file)
        path = self.folder / chunk.file
        if chunk.begin + chunk.length > data.size:
            raise Damaged(f"{path}: it is cut off")
        try:
            return TorchZip(data[chunk.begin : chunk.begin + chunk.length]).load()
        except Damaged as error:
            raise Damaged(f"{path} at {chunk.begin}: {error}") from None

    def value(self, name: str) -> Any:
        """A value that is not a tensor, or a tensor with one chunk; None if absent."""
        stored = self.stored.get(name)
        return self.load(stored.chunks[0]) if stored and stored.chunks else None

    def check(self, name: str) -> None:
        """Checks that a tensor's chunks have all of its elements, and fit into their files."""
        stored = self.stored[name]
        numel = math.prod(stored.shape)
        filled = sum(math.prod(chunk.sizes) for chunk in stored.chunks)
        if filled != numel:
            raise Damaged(
                f"{self.folder}: of {shown(name)} {filled} elements are there, of {numel}"
            )
        size = numel * TYPE_BYTES[stored.dtype]
        files = dict.fromkeys(chunk.file for chunk in stored.chunks)
        present = sum(self._data(file).size for file in files)
        if size > present:
            raise Damaged(
                f"{self.folder / '.metadata'}: {shown(name)} would have {size} bytes, its files "
                f"have {present}"
            )

    def read(self, name: str) -> Bytes:
        """All elements of a tensor, in row-major order. Its chunks must fill it without overlap."""
        self.check(name)
        stored = self.stored[name]
        whole_tensor = np.zeros(stored.shape, WORD_OF_SIZE[TYPE_BYTES[stored.dtype]])
        taken: list[_Chunk] = []
        for chunk in stored.chunks:
            self._place(name, stored, chunk, whole_tensor)
            if any(_overlap(chunk, other) for other in taken):
                raise Damaged(f"{self.folder}: two chunks of {shown(name)} overlap")
            taken.append(chunk)
        return whole_tensor.reshape(-1).view(np.uint8)

    def _data(self, file: str) -> Bytes:
        if file not in self.files:
            self.files[file] = MappedFile(self.folder / file)
        return self.files[file].data

    def _place(
        self, name: str, stored: _Stored, chunk: _Chunk, target: np.ndarray[Any, Any]
    ) -> None:
        part = self.load(chunk)
        what = f"{self.folder / chunk.file}: a chunk of {shown(name)}"
        if not isinstance(part, Tensor) or part.dtype != stored.dtype:
            raise Damaged(f"{what} is not a tensor of its type")
        if part.shape != chunk.sizes or len(chunk.offsets) != len(stored.shape):
            raise Damaged(f"{what} has another shape than `.metadata` says")
        places = []
        for first, extent, all_of_it in zip(chunk.offsets, chunk.sizes, stored.shape, strict=True):
            if first + extent > all_of_it:
                raise Damaged(f"{what} lies outside of it")
            places.append(slice(first, first + extent))
        target[tuple(places)] = part.array()


def _overlap(left: _Chunk, right: _Chunk) -> bool:
    ranges = zip(left.offsets, left.sizes, right.offsets, right.sizes, strict=True)
    return all(a < c + d and c < a + b for a, b, c, d in ranges)


@dataclass(frozen=True)
class _Prefixes:
    model: str
    optimizer: str


def _prefixes_of(stored: dict[str, _Stored]) -> _Prefixes:
    """The prefixes of names as in get_state_dict, or of a bare model."""

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in stored)

    for model, optimizer in PREFIXES:
        if has(model) and has(f"{optimizer}state."):
            return _Prefixes(model, optimizer)
    for model, optimizer in PREFIXES:
        if has(model):
            return _Prefixes(model, optimizer)
    return _Prefixes("", PREFIXES[0][1])


def _parameter(dcp: DcpFolder, name: str, key: str, moments: dict[str, str]) -> SavedParameter:
    def pieces(of: str) -> Iterator[Bytes]:
        yield widened(dcp.read(of), dcp.stored[of].dtype).view(np.uint8)

    keys = {"fp32": key} | moments
    for array, of in keys.items():
        if dcp.stored[of].dtype not in FLOATING:
            raise Refused(f"{shown(of)} has the type {dcp.stored[of].dtype}, which {array} has not")
        if dcp.stored[of].shape != dcp.stored[key].shape:
            raise Refused(f"{shown(of)} has another shape than {shown(key)}")
    for of in keys.values():  # checked before a file of the claimed size is laid out
        dcp.check(of)
    arrays: dict[str, Pieces] = {array: partial(pieces, of) for array, of in keys.items()}
    return SavedParameter(name, dcp.stored[key].shape, arrays)


SETTINGS = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay")


def _settings(dcp: DcpFolder, prefix: str) -> dict[str, Any]:
    return {key: dcp.value(prefix + key) for key in SETTINGS if prefix + key in dcp.stored}


def _listed_groups(dcp: DcpFolder, prefix: str) -> list[tuple[set[str], dict[str, Any]]]:
    """Names and settings of each group, if groups are numbered. Flattened optimizer states have
    settings by parameter instead."""
    groups: list[tuple[set[str], dict[str, Any]]] = []
    while (key := f"{prefix}param_groups.{len(groups)}.params") in dcp.stored:
        names = dcp.value(key)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Damaged(f"{key} is no list of names")
        groups.append((set(names), _settings(dcp, key[: -len("params")])))
    return groups


def _step(dcp: DcpFolder, key: str) -> int | None:
    value = dcp.value(key)
    return None if value is None else whole(value, key)


def read_dcp(folder: Path) -> SavedState:
    """The state in a DCP folder. Raises Refused, Damaged, each naming a file."""
    return naming(folder, "torch.distributed.checkpoint", _read)


def _read(folder: Path) -> SavedState:
    dcp = DcpFolder(folder)
    prefixes = _prefixes_of(dcp.stored)
    saved = SavedState([], [], 0, 0)
    begin = f"{prefixes.optimizer}state."
    # From "optim.state.NAME.exp_avg": NAME.
    with_state = {
        key[len(begin) :].rpartition(".")[0] for key in dcp.stored if key.startswith(begin)
    }
    steps: dict[str, int] = {}
    for key, stored in dcp.stored.items():
        if not key.startswith(prefixes.model) or not stored.dtype:
            continue
        if key.startswith(prefixes.optimizer):
            continue
        name = key[len(prefixes.model) :]
        state = f"{begin}{name}."
        moments = {m: state + m for m in MOMENTS if state + m in dcp.stored}
        floating = stored.dtype in FLOATING
        if moments or (floating and not with_state):
            if len(moments) == 1:
                raise Refused(f"{shown(key)}: only Adam and AdamW can be imported")
            saved.parameters.append(_parameter(dcp, name, key, moments))
            steps[name] = _step(dcp, f"{state}step") or 0
        elif name in with_state:
            raise Refused(f"{shown(key)}: only Adam and AdamW can be imported")
        else:  # not trained: a buffer or a frozen parameter, which DCP does not distinguish
            saved.buffers.append(SavedBuffer(name, stored.dtype, stored.shape, dcp.read(key)))
    if not saved.parameters:
        raise Refused("no parameters are in it: names of tensors begin with `model.` or nothing")
    saved.step = saved.updates = max(steps.values())
    saved.groups = _groups(dcp, prefixes.optimizer, steps)
    return saved


def _groups(dcp: DcpFolder, prefix: str, steps: dict[str, int]) -> list[SavedGroup]:
    """Groups parameters with equal settings and equal numbers of updates."""
    listed = _listed_groups(dcp, prefix)
    members: dict[tuple[Any, ...], list[str]] = {}
    settings_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, step in steps.items():
        by_name = _settings(dcp, f"{prefix}param_groups.{name}.")
        settings = next((each for names, each in listed if name in names), by_name)
        betas = settings.get("betas")
        numbers = [real(settings.get(key), -1.0) for key in ("lr", "eps", "weight_decay")]
        known = tuple(betas) if isinstance(betas, (list, tuple)) else ()
        key = (step, *numbers, *(real(each, 0.0) for each in known))
        members.setdefault(key, []).append(name)
        settings_of[key] = settings
    return [group_of(settings_of[key], names, key[0], "adamw") for key, names in members.items()]
