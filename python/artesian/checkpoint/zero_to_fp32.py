#!/usr/bin/env python3
"""Extracts fp32 weights from a checkpoint: python zero_to_fp32.py CHECKPOINT_DIR OUTPUT_DIR

Artesian stores this script beside its checkpoints. It needs only Python and numpy, and has the
command line of DeepSpeed's script of this name. It writes a folder for Hugging Face programs:
model.safetensors, in shards with an index if it is larger than --max_shard_size. If torch can be
imported, it also writes pytorch_model.bin, unless --safe_serialization is given. All bytes are
verified by checksum before use. Memory: a few MiB for any model. Exit codes: 0 done; 2 impossible
request; 1 damage, or an error of reading or writing.
"""

import argparse
import contextlib
import json
import math
import mmap
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Row = tuple[int, int, int, int]  # first element, elements, file, offset in the file

MANIFEST_BYTES_MAX, SUMS_BYTES_MAX, BLOCK_BYTES_MAX = 64 << 20, 1 << 30, 1 << 20
PIECE_BYTES, GRAIN, DIGEST_BYTES_MIN = 32 << 10, 4096, 241
COUNT_MAX, ELEMENTS_AT_ONCE = 1 << 62, 1 << 20
NO_BLOCKS = np.zeros((0, 2), np.uint64)

TYPE_BYTES = {
    **dict.fromkeys("BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ".split(), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
}
# For each array: its role, encoding, and allowed dtypes.
ARRAYS = {
    "fp32": ("master", "plain", ("F32",)),
    "fp32_high": ("master", "split-v1(high)", ("BF16",)),
    "fp32_low": ("master", "split-v1(low)", ("I16",)),
    "exp_avg": ("exp_avg", "plain", ("F32", "BF16")),
    "exp_avg_sq": ("exp_avg_sq", "plain", ("F32", "BF16")),
    "exp_avg_sq_signed": ("exp_avg_sq", "split-v1(tie)", ("F32", "BF16")),
    "weight": ("weight", "plain", ("F32", "F16", "BF16")),
    "momentum_buffer": ("momentum_buffer", "plain", ("F32", "BF16")),
    "sum": ("sum", "plain", ("F32", "BF16")),
    "sum_signed": ("sum", "split-v1(tie)", ("F32", "BF16")),
    "square_avg": ("square_avg", "plain", ("F32", "BF16")),
    "square_avg_signed": ("square_avg", "split-v1(tie)", ("F32", "BF16")),
}
# Names of optimizers' squares. Without squares, split weights have no tie bit, as they are never at
# a tie that was rounded down.
SQUARES = ("exp_avg_sq", "sum", "square_avg")
WITH_SQUARES = ("adam", "adamw", "adagrad", "rmsprop")


class Refused(Exception):
    """The request is impossible: exit code 2."""


class Damaged(Exception):
    """A file differs from what was written, or cannot be read: exit code 1."""


def shown(name: object) -> str:
    """A name from a file, quoted and shortened, for one line of a terminal."""
    text = ascii(name)
    return text if len(text) <= 100 else text[:100] + "..."


# XXH3, 64 bits with a seed and 128 bits without, as computed by the C library.

MASK32, MASK64 = (1 << 32) - 1, (1 << 64) - 1
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
PRIME_MX1, GOLDEN_RATIO = 0x165667919E3779F9, 0x9E3779B97F4A7C15
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
SECRET_WORDS: Words = np.frombuffer(SECRET, dtype="<u8").astype(np.uint64)
FIRST = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1]
FIRST_LANES: Words = np.array(FIRST, np.uint64)
LANES_SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]


def _word(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _folded_product(left: int, right: int) -> int:
    product = left * right
    return (product ^ (product >> 64)) & MASK64


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * PRIME_MX1 & MASK64
    return value ^ (value >> 32)


def _mixed(data: bytes, at: int, secret: int, seed: int) -> int:
    low = _word(data, at) ^ ((_word(SECRET, secret) + seed) & MASK64)
    high = _word(data, at + 8) ^ ((_word(SECRET, secret + 8) - seed) & MASK64)
    return _folded_product(low, high)


def _contribution(words: Words, keys: Words) -> Words:
    mixed = words ^ keys
    product: Words = (mixed & np.uint64(MASK32)) * (mixed >> np.uint64(32))
    product += words[..., LANES_SWAPPED]
    return product


def _lanes(rows: Bytes, secrets: Words) -> Words:
    """The eight accumulators of each row of more than 240 bytes, each row with its own secret of 24
    words."""
    count, length = rows.shape
    keys = np.stack([secrets[:, n : n + 8] for n in range(16)], axis=1)
    last_keys = np.ascontiguousarray(secrets.astype("<u8").view(np.uint8)[:, 121:185]).view("<u8")
    lanes = np.tile(FIRST_LANES, (count, 1))
    blocks = (length - 1) // 1024
    at_once = max(1, (1 << 20) // (1024 * count))
    for begin in range(0, blocks, at_once):
        now = min(at_once, blocks - begin)
        part = np.ascontiguousarray(rows[:, begin * 1024 : (begin + now) * 1024]).view("<u8")
        added = _contribution(part.reshape(count, now, 16, 8), keys[:, None]).sum(axis=2)
        for block in range(now):
            lanes += added[:, block]
            lanes ^= lanes >> np.uint64(47)
            lanes ^= secrets[:, 16:24]
            lanes *= np.uint64(PRIME32_1)
    stripes = (length - 1 - blocks * 1024) // 64
    rest = rows[:, blocks * 1024 : blocks * 1024 + stripes * 64]
    words = np.ascontiguousarray(rest).view("<u8").reshape(count, stripes, 8)
    lanes += _contribution(words, keys[:, :stripes]).sum(axis=1, dtype=np.uint64)
    lanes += _contribution(np.ascontiguousarray(rows[:, length - 64 :]).view("<u8"), last_keys)
    return lanes


def _merged(lanes: list[int], secret: bytes, at: int, start: int) -> int:
    result = start
    for i in range(4):
        low = lanes[2 * i] ^ _word(secret, at + 16 * i)
        result += _folded_product(low, lanes[2 * i + 1] ^ _word(secret, at + 16 * i + 8))
    return _avalanche(result & MASK64)


def xxh3_64_of_rows(rows: Bytes, seeds: list[int]) -> list[int]:
    """XXH3-64 of each row of more than 240 bytes, each with its own seed."""
    signed = np.array([[seed & MASK64, -seed & MASK64] for seed in seeds], dtype=np.uint64)
    secrets = SECRET_WORDS[None] + np.tile(signed, (1, 12))
    lanes = _lanes(rows, secrets).tolist()
    start = rows.shape[1] * PRIME64_1 & MASK64
    texts = [row.astype("<u8").tobytes() for row in secrets]
    return [_merged(lanes[i], texts[i], 11, start) for i in range(len(seeds))]


def xxh3_64_of_place(place: bytes) -> int:
    """XXH3-64, without a seed, of 17 to 32 bytes."""
    total = len(place) * PRIME64_1 + _mixed(place, 0, 0, 0) + _mixed(place, len(place) - 16, 16, 0)
    return _avalanche(total & MASK64)


def digest(data: bytes | Bytes) -> str:
    """XXH3-128 of more than 240 bytes, as 32 hex digits, the most significant first."""
    row: Bytes = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data
    lanes = _lanes(row.reshape(1, row.size), SECRET_WORDS[None])[0].tolist()
    low = _merged(lanes, SECRET, 11, row.size * PRIME64_1 & MASK64)
    high = _merged(lanes, SECRET, 117, ~(row.size * PRIME64_2) & MASK64)
    return f"{high:016x}{low:016x}"


def block_sum(seed: int, block: Bytes) -> int:
    """The wrapping sum of the checksums of a block's pieces."""
    seeds = [seed + piece * GOLDEN_RATIO for piece in range(-(-block.size // PIECE_BYTES))]
    whole = block.size // PIECE_BYTES
    rows = block[: whole * PIECE_BYTES].reshape(whole, PIECE_BYTES)
    total = sum(xxh3_64_of_rows(rows, seeds[:whole])) if whole else 0
    if block.size % PIECE_BYTES:
        total += sum(xxh3_64_of_rows(block[whole * PIECE_BYTES :].reshape(1, -1), seeds[whole:]))
    return total & MASK64


# The manifest. It may come from a stranger, with a correct checksum, so all of it is checked.


@dataclass(frozen=True)
class Parameter:
    name: str
    shape: tuple[int, ...]
    trainable: bool

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class DataFile:
    name: str
    bytes: int
    head_bytes: int
    head_digest: str
    sums_digest: str
    seed: tuple[int, int, int]  # checkpoint, rank, step: tie checksums to their place

    def seed_of(self, block: int) -> int:
        place = (*self.seed[:2], block, self.seed[2])
        return xxh3_64_of_place(b"".join(number.to_bytes(8, "little") for number in place))


@dataclass(frozen=True)
class Buffer:
    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * TYPE_BYTES[self.dtype]


@dataclass
class Manifest:
    raw: dict[str, Any]  # as parsed: state, groups, config and other values that are not checked
    parameters: list[Parameter] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)
    # For each parameter: its arrays, each with the dtype and the rows in order of elements.
    arrays: list[dict[str, tuple[str, list[Row]]]] = field(default_factory=list)


def _number(value: Any, what: str, most: int = COUNT_MAX) -> int:
    if type(value) is int and 0 <= value <= most:
        return value
    raise Damaged(f"{what}: got something that is no whole number up to {most}")


def _is(kind: type, value: Any, what: str) -> Any:
    if type(value) is kind:
        return value
    raise Damaged(f"{what}: got something that is no {kind.__name__}")


def parse_id(value: Any) -> int:
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value):
        return int(value, 16)
    raise Damaged("id: got something that is no 16 hex digits")


def _get(entry: Any, key: str) -> Any:
    if type(entry) is dict and key in entry:
        return entry[key]
    raise Damaged(f"{key} is missing")


def _shape(entry: Any) -> tuple[int, ...]:
    shape = tuple(_number(extent, "shape") for extent in _is(list, _get(entry, "shape"), "shape"))
    if len(shape) > 64 or math.prod(max(extent, 1) for extent in shape) > COUNT_MAX // 16:
        raise Damaged("shape: its product is too large")
    return shape


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Damaged("a key comes twice")
    return made


def parse_json(text: bytes) -> dict[str, Any]:
    """A JSON object. Raises Damaged."""
    try:
        return _is(dict, json.loads(text, object_pairs_hook=_without_twins), "it")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is not JSON: {error}") from None


def _read_files(root: dict[str, Any]) -> list[DataFile]:
    files = []
    for entry in _is(list, _get(root, "files"), "files"):
        seed = _get(entry, "sums_of")
        checkpoint = parse_id(_get(seed, "id"))
        file = DataFile(
            name=_is(str, _get(entry, "name"), "files"),
            bytes=_number(_get(entry, "bytes"), "bytes"),
            head_bytes=_number(_get(entry, "head_bytes"), "head_bytes"),
            head_digest=_is(str, _get(entry, "head_digest"), "head_digest"),
            sums_digest=_is(str, _get(entry, "sums_digest"), "sums_digest"),
            seed=(checkpoint, _number(_get(seed, "rank"), "rank"), _number(_get(seed, "step"), "")),
        )
        if not re.fullmatch(r"frozen\.safetensors|rank(0|[1-9]\d{0,8})\.safetensors", file.name):
            raise Damaged(f"files: {shown(file.name)} is no name")
        if file.bytes % GRAIN or file.head_bytes % GRAIN or not 0 < file.head_bytes <= file.bytes:
            raise Damaged(f"files: {file.name}: its lengths cannot be")
        files.append(file)
    if len({file.name for file in files}) != len(files):
        raise Damaged("files: one comes twice")
    return files


def _check_place(files: list[DataFile], file: int, offset: int, size: int, what: str) -> None:
    if file >= len(files):
        raise Damaged(f"{what} is of no file")
    if offset < files[file].head_bytes or offset + size > files[file].bytes:
        raise Damaged(f"{what} lies outside of its file")


def _read_array(manifest: Manifest, entry: Any) -> None:
    name = _is(str, _get(entry, "array"), "array")
    dtype = _get(entry, "dtype")
    role, encoding, dtypes = ARRAYS.get(name, ("", "", ()))
    if role != _get(entry, "role") or encoding != _get(entry, "encoding") or dtype not in dtypes:
        raise Refused(f"array {shown(name)}: not known to this version; a newer one may read it")
    for row in _is(list, _get(entry, "parts"), "parts"):
        if type(row) is not list or len(row) != 5:
            raise Damaged("parts: a row is not five numbers")
        index, first, count, file, offset = (_number(value, "parts") for value in row)
        if index >= len(manifest.parameters):
            raise Damaged("arrays: a part is of no parameter")
        parameter = manifest.parameters[index]
        what = f"arrays: a part of {shown(parameter.name)}"
        if first + count > parameter.numel or offset % TYPE_BYTES[dtype]:
            raise Damaged(f"{what} lies outside of it")
        _check_place(manifest.files, file, offset, count * TYPE_BYTES[dtype], what)
        kept, rows = manifest.arrays[index].setdefault(name, (dtype, []))
        if kept != dtype:
            raise Damaged(f"{what} has another type than the one before")
        rows.append((first, count, file, offset))


def _read_buffer(manifest: Manifest, entry: Any) -> Buffer:
    name, dtype = _is(str, _get(entry, "name"), "buffers"), _get(entry, "dtype")
    if dtype not in TYPE_BYTES:
        raise Refused(f"buffer {shown(name)}: dtype {shown(dtype)} is not known")
    place = _number(_get(entry, "file"), "file"), _number(_get(entry, "offset"), "offset")
    buffer = Buffer(name, dtype, _shape(entry), *place)
    _check_place(manifest.files, *place, buffer.bytes, f"buffer {shown(name)}")
    return buffer


def _check_whole(manifest: Manifest, index: int) -> None:
    """Checks that each array has each element once, and that the arrays form a complete state."""
    parameter, arrays = manifest.parameters[index], manifest.arrays[index]
    what = f"parameter {shown(parameter.name)}"
    for name, (_, rows) in arrays.items():
        rows.sort()
        at = 0
        for first, count, _, _ in rows:
            if first != at:
                raise Damaged(f"{what}: of {name}, element {min(first, at)} is not there once")
            at += count
        if at != parameter.numel:
            raise Damaged(f"{what}: of {name} {at} elements are there, of {parameter.numel}")
    high, tied = "fp32_high" in arrays, any(f"{name}_signed" in arrays for name in SQUARES)
    groups = manifest.raw.get("groups", [])
    needs = any(index in g["parameters"] and g["optimizer"] in WITH_SQUARES for g in groups)
    if high != ("fp32_low" in arrays) or (tied and not high) or (high and needs and not tied):
        raise Damaged(f"{what}: its master weights are split, and not all halves are there")
    if high and any(name in arrays for name in SQUARES):
        raise Damaged(f"{what}: its master weights are split, and its squares have no sign")
    forms = sum(name in arrays for name in ("fp32", "fp32_high", "weight"))
    absent = parameter.numel == 0 or parameter.name in manifest.excluded
    if forms > 1 or (forms == 0 and not absent):
        raise Damaged(f"{what}: it has " + ("weights of two kinds" if forms else "no weights"))


def _name_outside(manifest: Manifest) -> None:
    """Gives parameters of `artesian train` transformers' names, including a tied head."""
    bodies = {"wte.weight": "transformer.", "embed_tokens.weight": "model."}
    names = {each.name for each in manifest.parameters}
    for table in bodies.keys() & names if "trainer" in manifest.raw else ():
        outside = {n: n if n == "lm_head.weight" else bodies[table] + n for n in names}
        manifest.parameters = [replace(p, name=outside[p.name]) for p in manifest.parameters]
        manifest.excluded = [outside.get(name, name) for name in manifest.excluded]
        if "lm_head.weight" not in names:
            manifest.aliases["lm_head.weight"] = outside[table]


def parse_manifest(text: bytes) -> Manifest:
    """Parses and checks a manifest. Raises Damaged, or Refused for another version; without the
    file's name."""
    closing = b'"checksum":"'
    before = text[:-34]
    if len(before) < DIGEST_BYTES_MIN or text[-2:] != b'"}' or not before.endswith(closing):
        raise Damaged("it does not end with its checksum; it may be cut off")
    if digest(before).encode() != text[-34:-2]:
        raise Damaged("its checksum does not match its bytes")
    root = parse_json(text)
    if _number(_get(root, "version"), "version") != 1:
        raise Refused("another version of the format; a newer program reads it")
    manifest = Manifest(root, files=_read_files(root))
    for entry in _is(list, _get(root, "parameters"), "parameters"):
        name = _is(str, _get(entry, "name"), "parameters")
        trainable = _is(bool, entry.get("trainable", True), "trainable")
        manifest.parameters.append(Parameter(name, _shape(entry), trainable))
    if len({each.name for each in manifest.parameters}) != len(manifest.parameters):
        raise Damaged("a parameter comes twice")
    for alias, name in _is(dict, _get(root, "aliases"), "aliases").items():
        manifest.aliases[alias] = _is(str, name, "aliases")
    for name in _is(list, _get(root, "excluded"), "excluded"):
        manifest.excluded.append(_is(str, name, "excluded"))
    for entry in _is(list, _get(root, "buffers"), "buffers"):
        manifest.buffers.append(_read_buffer(manifest, entry))
    manifest.arrays = [{} for _ in manifest.parameters]
    for entry in _is(list, _get(root, "arrays"), "arrays"):
        _read_array(manifest, entry)
    for index in range(len(manifest.parameters)):
        _check_whole(manifest, index)
    _name_outside(manifest)
    return manifest


# Reading a checkpoint with verified bytes.


def _open_below(folder: int, name: str, path: Path) -> int:
    """Opens a regular file in a folder, without following symbolic links. Raises Damaged."""
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise Damaged(f"{path / name}: {error.strerror}") from None
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise Damaged(f"{path / name}: not a plain file")


def _read_whole(folder: int, name: str, path: Path, most: int) -> bytes:
    with os.fdopen(_open_below(folder, name, path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise Damaged(f"{path / name}: got {size} bytes, allowed {most}")
        return file.read()


class VerifiedFile:
    """A data file. Each block is verified by its checksum before its bytes are used."""

    def __init__(self, folder: int, path: Path, file: DataFile) -> None:
        self.path = path / file.name
        self.file = file
        sums_name = file.name.split(".")[0] + ".sums"
        sums = _read_whole(folder, sums_name, path, SUMS_BYTES_MAX)
        # For shorter tables, a flipped bit is detected as a block that does not match.
        if len(sums) >= DIGEST_BYTES_MIN and digest(sums) != file.sums_digest:
            raise Damaged(f"{path / sums_name}: its bytes do not have the digest in the manifest")
        count = max(0, len(sums) - 16) // 16
        table = np.frombuffer(sums, "<u8", 2 * count, 16).reshape(count, 2) if count else NO_BLOCKS
        fits = np.all((table[:, 1] <= BLOCK_BYTES_MAX) & (table[:, 1] % GRAIN == 0))
        if sums[:16] != b"ARTSUMS1" + count.to_bytes(8, "little") or not fits:
            raise Damaged(f"{path / sums_name}: not the checksums of a data file")
        self.sums = table[:, 0].tolist()
        self.ends = np.cumsum(table[:, 1].astype(np.int64)) + file.head_bytes
        if file.bytes != file.head_bytes + int(table[:, 1].sum()):
            raise Damaged(f"{path / sums_name}: its blocks do not fill the data file")
        self.verified = np.zeros(count, dtype=bool)
        with os.fdopen(_open_below(folder, file.name, path), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.bytes:
                raise Damaged(f"{self.path}: got {size} bytes, the manifest says {file.bytes}")
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            self.data: Bytes = np.frombuffer(mapped, dtype=np.uint8)
        if digest(self.data[: file.head_bytes]) != file.head_digest:
            raise Damaged(f"{self.path}: its header does not have the digest in the manifest")

    def verify(self, block: int) -> None:
        if self.verified[block]:
            return
        begin = self.file.head_bytes if block == 0 else int(self.ends[block - 1])
        bytes_of_block = self.data[begin : int(self.ends[block])]
        if block_sum(self.file.seed_of(block), bytes_of_block) != self.sums[block]:
            raise Damaged(f"{self.path}: block {block} at byte {begin} does not have its checksum")
        self.verified[block] = True

    def bytes_at(self, offset: int, size: int) -> Bytes:
        """A view of the file, without a copy."""
        if size:
            first = int(np.searchsorted(self.ends, offset, side="right"))
            last = int(np.searchsorted(self.ends, offset + size - 1, side="right"))
            for block in range(first, last + 1):
                self.verify(block)
        return self.data[offset : offset + size]


def widened(values: Bytes, dtype: str) -> Floats:
    """Floating-point numbers of 16 or 32 bits, converted to fp32."""
    if dtype == "F32":
        return values.view("<f4")
    if dtype == "F16":
        return values.view("<f2").astype("<f4")
    return (values.view("<u2").astype("<u4") << np.uint32(16)).view("<f4")


def join_master(high: Bytes, low: Bytes, signed: Bytes) -> Floats:
    """fp32 weights from their bf16 upper halves, their low bits, and the squares with the tie
    bit."""
    above = low.view("<i2").astype("<i4").view("<u4")
    rounded = high.view("<u2").astype("<u4") + (signed.view("<u4") >> np.uint32(31))
    return ((rounded << np.uint32(16)) + above).view("<f4")


class Checkpoint:
    """DIR/TAG; without a tag, that of `latest`. Raises Refused, Damaged."""

    def __init__(self, directory: str | os.PathLike[str], tag: str | None = None) -> None:
        root = Path(directory)
        if tag is None:
            try:
                tag = (root / "latest").read_bytes()[:256].decode("ascii").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "not a tag"
                raise Refused(f"{root / 'latest'}: {why}; give a tag with -t") from None
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", tag):
            raise Refused(f"tag: got {shown(tag)}, which is none")
        self.tag = tag
        self.path = root / tag
        try:
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise Refused(f"{self.path}: {error.strerror}") from None
        try:
            text = _read_whole(folder, "manifest.json", self.path, MANIFEST_BYTES_MAX)
            self.manifest = self._parse(text)
            self.files = [VerifiedFile(folder, self.path, each) for each in self.manifest.files]
        finally:
            os.close(folder)

    def _parse(self, text: bytes) -> Manifest:
        try:
            return parse_manifest(text)
        except (Damaged, Refused) as error:
            raise type(error)(f"{self.path / 'manifest.json'}: {error}") from None

    def has(self, index: int, array: str) -> bool:
        return array in self.manifest.arrays[index]

    def read_array(self, index: int, array: str, first: int, count: int) -> Bytes:
        """Bytes of elements [first, first + count); a view if they are in one part."""
        dtype, rows = self.manifest.arrays[index][array]
        size = TYPE_BYTES[dtype]
        parts = []
        for begin, elements, file, offset in rows:
            low, high = max(first, begin), min(first + count, begin + elements)
            if low < high:
                at = offset + (low - begin) * size
                parts.append(self.files[file].bytes_at(at, (high - low) * size))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)

    def master(self, index: int, first: int, count: int) -> Floats:
        """Weights as fp32: master weights, or a frozen parameter's values."""
        arrays = self.manifest.arrays[index]
        if "fp32_high" in arrays:
            high = self.read_array(index, "fp32_high", first, count)
            low = self.read_array(index, "fp32_low", first, count)
            signed = next((f"{s}_signed" for s in SQUARES if f"{s}_signed" in arrays), None)
            bits = np.zeros(count, np.float32)
            if signed:
                bits = widened(self.read_array(index, signed, first, count), arrays[signed][0])
            return join_master(high, low, bits.view(np.uint8))
        name = "fp32" if "fp32" in arrays else "weight"
        if name not in arrays:
            return np.zeros(0, np.float32)
        return widened(self.read_array(index, name, first, count), arrays[name][0])

    def buffer(self, buffer: Buffer) -> Bytes:
        return self.files[buffer.file].bytes_at(buffer.offset, buffer.bytes)


@dataclass(frozen=True)
class Output:
    """A tensor to write; `pieces` yields its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[npt.NDArray[Any]]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * TYPE_BYTES[self.dtype]


def in_pieces(
    read: Callable[[int, int, int], npt.NDArray[Any]], index: int, numel: int
) -> Callable[[], Iterator[npt.NDArray[Any]]]:
    """Calls `read` for a few elements of parameter `index` at a time."""
    firsts = range(0, numel, ELEMENTS_AT_ONCE)
    return lambda: (read(index, first, min(ELEMENTS_AT_ONCE, numel - first)) for first in firsts)


def fp32_outputs(checkpoint: Checkpoint, exclude_frozen: bool) -> list[Output]:
    """All entries of a model's state dict: parameters, aliases, buffers."""
    manifest = checkpoint.manifest
    outputs: dict[str, Output] = {}
    for index, parameter in enumerate(manifest.parameters):
        left_out = parameter.name in manifest.excluded
        if left_out or (exclude_frozen and not parameter.trainable):
            continue
        pieces = in_pieces(checkpoint.master, index, parameter.numel)
        outputs[parameter.name] = Output(parameter.name, "F32", parameter.shape, pieces)
    for alias, name in manifest.aliases.items():
        if name in outputs and alias not in outputs:
            outputs[alias] = Output(alias, "F32", outputs[name].shape, outputs[name].pieces)
    for buffer in manifest.buffers:
        if buffer.name not in outputs:
            outputs[buffer.name] = _buffer_output(checkpoint, buffer)
    return list(outputs.values())


def _buffer_output(checkpoint: Checkpoint, buffer: Buffer) -> Output:
    widens = buffer.dtype in ("F16", "BF16")

    def pieces() -> Iterator[npt.NDArray[Any]]:
        data = checkpoint.buffer(buffer)
        yield widened(data, buffer.dtype) if widens else data

    return Output(buffer.name, "F32" if widens else buffer.dtype, buffer.shape, pieces)


def safetensors_header(tensors: list[tuple[str, str, tuple[int, ...], int]], grain: int) -> bytes:
    """The header for tensors (name, dtype, shape, bytes) that are stored one after the other."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, size in tensors:
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % grain)
    return len(text).to_bytes(8, "little") + text


def write_safetensors(path: Path, outputs: list[Output]) -> None:
    """Writes a file under another name, and renames it when it is complete and durable."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    described = [(each.name, each.dtype, each.shape, each.bytes) for each in outputs]
    try:
        with open(partial, "wb") as file:
            file.write(safetensors_header(described, 8))
            for output in outputs:
                for piece in output.pieces():
                    file.write(np.ascontiguousarray(piece).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def shard_bytes(text: str) -> int:
    """Parses "5GB", "500MiB" or "1000". Raises Refused."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(I?)B)?\s*", text.upper())
    power = " KMGT".index(match[2] or " ") if match else 0
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** power) if match else 0
    if size < 1:
        raise Refused(f"--max_shard_size: got {shown(text)}, allowed a size such as 5GB or 500MiB")
    return size


def in_shards(outputs: list[Output], most: int) -> list[list[Output]]:
    shards: list[list[Output]] = [[]]
    size = 0
    for output in outputs:
        if shards[-1] and size + output.bytes > most:
            shards.append([])
            size = 0
        shards[-1].append(output)
        size += output.bytes
    return shards


def _shard_names(stem: str, suffix: str, count: int) -> list[str]:
    if count == 1:
        return [f"{stem}.{suffix}"]
    return [f"{stem}-{number:05}-of-{count:05}.{suffix}" for number in range(1, count + 1)]


def other_weights(out: Path, written: set[str]) -> list[str]:
    """Files with weights in `out` that will not be overwritten and that loaders might read
    instead."""
    weights = re.compile(r"(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")
    names = os.listdir(out) if out.is_dir() else []
    return sorted({*filter(weights.fullmatch, names)} - written)


def write_index(out: Path, stem: str, suffix: str, shards: list[list[Output]]) -> None:
    names = _shard_names(stem, suffix, len(shards))
    index = {
        "metadata": {"total_size": sum(each.bytes for shard in shards for each in shard)},
        "weight_map": {e.name: names[n] for n, shard in enumerate(shards) for e in shard},
    }
    partial = out / f".{stem}.index.partial-{os.getpid()}"
    partial.write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, out / f"{stem}.{suffix}.index.json")


TORCH_TYPES = dict(
    pair.split("=")
    for pair in "F32=float32 F64=float64 I64=int64 I32=int32 I16=int16 I8=int8 U8=uint8 BOOL=bool "
    "C64=complex64 U16=uint16 U32=uint32 U64=uint64 F16=float16 BF16=bfloat16 F8_E5M2=float8_e5m2 "
    "F8_E4M3=float8_e4m3fn F8_E8M0=float8_e8m0fnu F8_E4M3FNUZ=float8_e4m3fnuz "
    "F8_E5M2FNUZ=float8_e5m2fnuz".split()
)


def torch_tensor(data: Bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    """Bytes as a torch tensor: a view if the memory is writable, else a copy."""
    import torch

    kind = getattr(torch, TORCH_TYPES[dtype])
    if data.size == 0:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(data if data.flags.writeable else data.copy()).view(kind).view(shape)


def _write_bin(path: Path, safetensors: Path, outputs: list[Output]) -> None:
    """Writes the same tensors in torch's format, from the file that was just written."""
    import torch

    mapped = np.memmap(safetensors, dtype=np.uint8, mode="c")
    at = 8 + _word(mapped[:8].tobytes(), 0)
    tensors = {}
    for output in outputs:
        data = mapped[at : at + output.bytes]
        tensors[output.name] = torch_tensor(data, output.dtype, output.shape)
        at += output.bytes
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    torch.save(tensors, partial)
    os.replace(partial, path)


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    max_shard_size: str = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """The command's work. Raises Refused, Damaged, OSError."""
    most = shard_bytes(max_shard_size)
    checkpoint = Checkpoint(checkpoint_dir, tag)
    outputs = fp32_outputs(checkpoint, exclude_frozen_parameters)
    out = Path(output_dir)
    shards = in_shards(outputs, most)
    kinds = [("model", "safetensors")]
    if not safe_serialization:
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401

            kinds.append(("pytorch_model", "bin"))
    names = _shard_names("model", "safetensors", len(shards))
    indices = [f"{s}.{x}.index.json" for s, x in kinds if len(shards) > 1]
    written = {name for s, x in kinds for name in _shard_names(s, x, len(shards))} | {*indices}
    if others := ", ".join(other_weights(out, written)):
        why = "of another model, which loaders may take; name a new folder, or remove them"
        raise Refused(f"{out}: it has {others} {why}")
    out.mkdir(parents=True, exist_ok=True)
    for name in indices:  # shards of an earlier export, which are replaced one by one
        (out / name).unlink(missing_ok=True)
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(out / name, shard)
        print(f"{out / name}: {len(shard)} tensors, {sum(e.bytes for e in shard)} bytes")
    for stem, suffix in kinds[1:]:
        for number, name in enumerate(_shard_names(stem, suffix, len(shards))):
            _write_bin(out / name, out / names[number], shards[number])
            print(f"{out / name}: the same tensors")
    for stem, suffix in kinds if indices else []:
        write_index(out, stem, suffix, shards)
    if checkpoint.manifest.excluded:
        print(f"left out when saved: {len(checkpoint.manifest.excluded)} parameters")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Makes one set of fp32 weights of a checkpoint.")
    add = parser.add_argument
    add("checkpoint_dir", help="the folder with `latest`, such as .")
    add("output_dir", help="where the weights are written")
    add("--max_shard_size", default="5GB", help="of one file: 5GB unless given, or 500MiB, ...")
    add("--safe_serialization", action="store_true", help="safetensors alone, no .bin")
    add("-t", "--tag", help="of the checkpoint; unless given, what `latest` says")
    add("--exclude_frozen_parameters", action="store_true")
    add("-d", "--debug", action="store_true", help="show where an error comes from")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = vars(parse_arguments(arguments))
    debug = options.pop("debug")
    try:
        convert_zero_checkpoint_to_fp32_state_dict(**options)
    except (Refused, Damaged, OSError) as error:
        if debug:
            raise
        print(f"zero_to_fp32: {error}", file=sys.stderr)
        return 2 if isinstance(error, Refused) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
