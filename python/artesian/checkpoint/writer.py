"""Writes a checkpoint folder, format version 1, like the engine.

The data file is written sequentially, block by block, with a checksum for each. Unfinished folders
have names that begin with a dot; when everything is durable, the folder is renamed, and then
`latest` is replaced.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from artesian.checkpoint import zero_to_fp32 as format1
from artesian.checkpoint.zero_to_fp32 import GRAIN, TYPE_BYTES, Bytes, Refused, shown

IMAGE_ELEMENTS = 2048
PARAMETER_ELEMENTS = 32
SUB_GROUP_ELEMENTS = 262_144
BUFFER_BYTES = 64
WHOLE = (("fp32", "F32"), ("exp_avg", "F32"), ("exp_avg_sq", "F32"))

Pieces = Callable[[], Iterable[Bytes]]


@dataclass
class SavedParameter:
    """A parameter to be written: the bytes of each of its arrays, in pieces.

    `arrays` has fp32, with or without exp_avg and exp_avg_sq; or, for a frozen parameter, only
    weight.
    """

    name: str
    shape: tuple[int, ...]
    arrays: dict[str, Pieces]
    weight_dtype: str = "F32"

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def trainable(self) -> bool:
        return "weight" not in self.arrays


@dataclass
class SavedBuffer:
    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass
class SavedGroup:
    parameters: list[str]
    step: int
    lr: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    optimizer: str = "adamw"


@dataclass
class SavedState:
    """The content of a checkpoint."""

    parameters: list[SavedParameter]
    groups: list[SavedGroup]
    step: int
    updates: int
    scale: float = 1.0
    hysteresis_left: int = 1
    iteration: int = 0
    overflow_last: int = -1
    buffers: list[SavedBuffer] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)


def zeros(size: int) -> Iterator[Bytes]:
    """This many zero bytes, in pieces."""
    for at in range(0, size, format1.BLOCK_BYTES_MAX):
        yield np.zeros(min(format1.BLOCK_BYTES_MAX, size - at), np.uint8)


def digest(data: bytes) -> str:
    """XXH3-128 of 9 bytes or more: zero_to_fp32's function, extended to short inputs."""
    if len(data) > 240:
        return format1.digest(data)
    low, high = _short_128(data) if len(data) <= 16 else _middle_128(data)
    return f"{high:016x}{low:016x}"


MASK32, MASK64, SECRET = format1.MASK32, format1.MASK64, format1.SECRET
PRIME32_2 = format1.PRIME32_2
PRIME64_1, PRIME64_2, PRIME64_4 = format1.PRIME64_1, format1.PRIME64_2, format1.PRIME64_4
_word, _mixed, _avalanche = format1._word, format1._mixed, format1._avalanche


def _short_128(data: bytes) -> tuple[int, int]:
    """Low and high half of XXH3-128 of 9 to 16 bytes."""
    size = len(data)
    first, last = _word(data, 0), _word(data, size - 8)
    product = (first ^ last ^ _word(SECRET, 32) ^ _word(SECRET, 40)) * PRIME64_1
    low = ((product & MASK64) + ((size - 1) << 54)) & MASK64
    last ^= _word(SECRET, 48) ^ _word(SECRET, 56)
    high = ((product >> 64) + last + (last & MASK32) * (PRIME32_2 - 1)) & MASK64
    low ^= int.from_bytes(high.to_bytes(8, "little"), "big")
    product = low * PRIME64_2
    high = ((product >> 64) + high * PRIME64_2) & MASK64
    return _avalanche(product & MASK64), _avalanche(high)


def _middle_128(data: bytes) -> tuple[int, int]:
    """Low and high half of XXH3-128 of 17 to 240 bytes."""
    size = len(data)
    low, high = size * PRIME64_1 & MASK64, 0

    def mix(first: int, second: int, secret: int, seed: int = 0) -> None:
        nonlocal low, high
        low = (low + _mixed(data, first, secret, seed)) & MASK64
        low ^= (_word(data, second) + _word(data, second + 8)) & MASK64
        high = (high + _mixed(data, second, secret + 16, seed)) & MASK64
        high ^= (_word(data, first) + _word(data, first + 8)) & MASK64

    if size <= 128:
        for turn in reversed(range((size - 1) // 32)):
            mix(16 * (turn + 1), size - 16 * (turn + 2), 32 * (turn + 1))
        mix(0, size - 16, 0)
    else:
        for turn in range(size // 32):
            if turn == 4:
                low, high = _avalanche(low), _avalanche(high)
            mix(32 * turn, 32 * turn + 16, 32 * turn if turn < 4 else 3 + 32 * (turn - 4))
        if size // 32 == 4:
            low, high = _avalanche(low), _avalanche(high)
        mix(size - 16, size - 32, 103)
    total = low * PRIME64_1 + high * PRIME64_4 + size * PRIME64_2
    return _avalanche((low + high) & MASK64), -_avalanche(total & MASK64) & MASK64


@dataclass(frozen=True)
class _Tensor:
    """Tensors of the data file, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Pieces

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * TYPE_BYTES[self.dtype]


class _Layout:
    """Lays tensors out in a file as the engine's checkpoint_layout does: images, then buffers."""

    def __init__(self) -> None:
        self.tensors: list[_Tensor] = []
        self.parts: dict[tuple[str, str], list[list[int]]] = {}  # by array and dtype
        self.buffers: list[dict[str, Any]] = []
        self.lengths: list[int] = []  # lengths of blocks
        self.names: set[str] = set()
        self.at = 0
        self.gaps = 0

    def gap(self, end: int) -> None:
        size = end - self.at
        if size > 0:
            self._add(f"~{self.gaps}", "U8", (size,), partial(zeros, size))
            self.gaps += 1

    def _add(self, name: str, dtype: str, shape: tuple[int, ...], pieces: Pieces) -> None:
        while name in self.names:
            name += "'"
        self.names.add(name)
        self.tensors.append(_Tensor(name, dtype, shape, pieces))
        self.at += self.tensors[-1].bytes

    def image(
        self, parameters: list[tuple[int, SavedParameter]], arrays: Iterable[tuple[str, str]]
    ) -> None:
        for array, dtype in arrays:
            begin, element, size = self.at, 0, TYPE_BYTES[dtype]
            rows = self.parts.setdefault((array, dtype), [])
            for index, parameter in parameters:
                element += -element % PARAMETER_ELEMENTS
                self.gap(begin + element * size)
                if parameter.numel:
                    rows.append([index, 0, parameter.numel, 0, self.at])
                    nothing = partial(zeros, parameter.numel * size)
                    pieces = parameter.arrays.get(array, nothing)
                    self._add(f"{array}/{parameter.name}", dtype, parameter.shape, pieces)
                element += parameter.numel
            self.gap(begin + (element + -element % IMAGE_ELEMENTS) * size)
            self._blocks(begin, SUB_GROUP_ELEMENTS * size)

    def buffer(self, buffer: SavedBuffer) -> None:
        self.gap(self.at + -self.at % BUFFER_BYTES)
        self.buffers.append(
            {
                "name": buffer.name,
                "dtype": buffer.dtype,
                "shape": list(buffer.shape),
                "file": 0,
                "offset": self.at,
            }
        )
        data = buffer.data
        self._add(f"buffer/{buffer.name}", buffer.dtype, buffer.shape, lambda: [data])

    def end_of_buffers(self, begin: int) -> None:
        self.gap(self.at + -self.at % GRAIN)
        self._blocks(begin, format1.BLOCK_BYTES_MAX)

    def _blocks(self, begin: int, grain: int) -> None:
        """Adds blocks up to this offset, cut at multiples of `grain` and of the largest block."""
        while begin < self.at:
            group = min(grain, self.at - begin)
            begin += group
            while group:
                self.lengths.append(min(group, format1.BLOCK_BYTES_MAX))
                group -= self.lengths[-1]


def _lay_out(state: SavedState) -> _Layout:
    layout = _Layout()
    numbered = list(enumerate(state.parameters))
    trainable = [each for each in numbered if each[1].trainable]
    if trainable:
        layout.image(trainable, WHOLE)
    for dtype in ("F32", "F16", "BF16"):
        frozen = [e for e in numbered if not e[1].trainable and e[1].weight_dtype == dtype]
        if frozen:
            layout.image(frozen, [("weight", dtype)])
    begin = layout.at
    for buffer in state.buffers:
        layout.buffer(buffer)
    layout.end_of_buffers(begin)
    return layout


def _bytes_of(layout: _Layout) -> Iterator[Bytes]:
    for tensor in layout.tensors:
        done = 0
        for piece in tensor.pieces():
            data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
            done += data.size
            yield data
        if done != tensor.bytes:
            raise Refused(f"{shown(tensor.name)}: got {done} bytes for {tensor.bytes}")


def _in_blocks(pieces: Iterator[Bytes], lengths: list[int]) -> Iterator[Bytes]:
    """The same bytes, cut into blocks."""
    piece = np.zeros(0, np.uint8)
    for length in lengths:
        block = np.empty(length, np.uint8)
        have = 0
        while have < length:
            if piece.size == 0:
                piece = next(pieces)
            now = min(length - have, piece.size)
            block[have : have + now] = piece[:now]
            piece = piece[now:]
            have += now
        yield block


def _sync(path: Path) -> None:
    """Makes the names in a folder durable, if its file system supports that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_data(folder: Path, layout: _Layout, identity: int, step: int) -> dict[str, Any]:
    """Writes the data file and its checksums; returns the file's entry in the manifest."""
    described = [(each.name, each.dtype, each.shape, each.bytes) for each in layout.tensors]
    head = format1.safetensors_header(described, GRAIN)
    record = format1.DataFile("rank0.safetensors", 0, 0, "", "", (identity, 0, step))
    sums = bytearray(b"ARTSUMS1" + len(layout.lengths).to_bytes(8, "little"))
    path = folder / record.name
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        with contextlib.suppress(OSError):  # for file systems that cannot reserve space
            os.posix_fallocate(file.fileno(), 0, len(head) + layout.at)
        file.write(head)
        for number, block in enumerate(_in_blocks(_bytes_of(layout), layout.lengths)):
            file.write(block.data)
            total = format1.block_sum(record.seed_of(number), block)
            sums += total.to_bytes(8, "little") + block.size.to_bytes(8, "little")
        file.flush()
        os.fsync(file.fileno())
    _write_durably(folder / "rank0.sums", bytes(sums))
    return {
        "name": record.name,
        "rank": 0,
        "node": platform.node(),
        "bytes": len(head) + layout.at,
        "head_bytes": len(head),
        "head_digest": digest(head),
        "sums_digest": digest(bytes(sums)),
        "sums_of": {"id": f"{identity:016x}", "step": step, "rank": 0},
    }


def _groups_of(state: SavedState) -> list[dict[str, Any]]:
    index = {each.name: number for number, each in enumerate(state.parameters)}
    return [
        {
            "optimizer": group.optimizer,
            "betas": list(group.betas),
            "eps": group.eps,
            "weight_decay": group.weight_decay,
            "lr": group.lr,
            "step": group.step,
            "parameters": [index[name] for name in group.parameters],
        }
        for group in state.groups
    ]


def _arrays_of(layout: _Layout, head_bytes: int) -> list[dict[str, Any]]:
    return [
        {
            "array": array,
            "role": format1.ARRAYS[array][0],
            "dtype": dtype,
            "encoding": format1.ARRAYS[array][1],
            "parts": [[*row[:4], row[4] + head_bytes] for row in rows],
        }
        for (array, dtype), rows in layout.parts.items()
    ]


def _manifest(
    state: SavedState, layout: _Layout, file: dict[str, Any], identity: int, note: str
) -> bytes:
    head_bytes = file["head_bytes"]
    scaler = {
        "scale": float(state.scale),
        "hysteresis_left": state.hysteresis_left,
        "iteration": state.iteration,
        "overflow_last": state.overflow_last,
    }
    content = {
        "version": 1,
        "id": f"{identity:016x}",
        "lineage": f"{secrets.randbits(64):016x}",
        "serial": 1,
        "run_id": f"{secrets.randbits(64):016x}",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "state": {
            "step": state.step,
            "updates": state.updates,
            "skipped_in_a_row": 0,
            "loss_scaler": scaler,
            "random": {},
        },
        "groups": _groups_of(state),
        "files": [file],
        "side_files": [],
        "aliases": state.aliases,
        "excluded": state.excluded,
        "config": "{}",
        "machine": {"imported": note},
        "parameters": [
            {"name": each.name, "shape": list(each.shape)}
            | ({} if each.trainable else {"trainable": False})
            for each in state.parameters
        ],
        "buffers": [each | {"offset": each["offset"] + head_bytes} for each in layout.buffers],
        "arrays": _arrays_of(layout, head_bytes),
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    before = text[:-1].encode() + b',"checksum":"'
    return before + digest(before).encode() + b'"}'


def _check(state: SavedState) -> None:
    names = [each.name for each in state.parameters] + [each.name for each in state.buffers]
    names += state.aliases
    seen: set[str] = set()
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise Refused(f"the name {shown(name)} is not UTF-8; rename it") from None
        if name in seen:
            raise Refused(f"the name {shown(name)} comes twice")
        seen.add(name)
    if state.updates > state.step or state.overflow_last >= state.iteration > 0:
        raise Refused("its numbers of steps contradict each other")


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"{directory}: in use by another process") from None
        yield
    finally:
        os.close(descriptor)


def write_checkpoint(directory: Path, tag: str, state: SavedState, note: str) -> None:
    """Writes DIRECTORY/TAG and makes it the latest. `note` describes its origin.

    Raises Refused (an invalid or existing tag, or an inconsistent state), OSError.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", tag):
        raise Refused(f"tag: got {shown(tag)}, which is none; give another one")
    _check(state)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(directory):
        if (directory / tag).exists():
            raise Refused(f"{directory / tag}: it is there already; give another folder or tag")
        identity = secrets.randbits(64) | 1
        folder = directory / f".tmp-{tag}-{identity:016x}"
        folder.mkdir(mode=0o700)
        try:
            layout = _lay_out(state)
            file = _write_data(folder, layout, identity, state.step)
            text = _manifest(state, layout, file, identity, note)
            if len(text) > format1.MANIFEST_BYTES_MAX:
                raise Refused(f"its manifest would have {len(text)} bytes, allowed 64 MiB")
            _write_durably(folder / "manifest.json", text)
            _sync(folder)
            os.rename(folder, directory / tag)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _sync(directory)
        shutil.copyfile(format1.__file__, directory / "zero_to_fp32.py")
        latest = directory / f".latest-{identity:016x}"
        _write_durably(latest, tag.encode())
        os.replace(latest, directory / "latest")
        _sync(directory)
