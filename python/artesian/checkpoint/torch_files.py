"""Reads files written by torch.save, without torch, and without running code.

Such a file is a zip with a pickle and one stored entry for each storage; tensors are views of
storages. Storages are mapped, not read; a tensor becomes a Tensor of this module, whose bytes are
read on demand. Compressed, encrypted and overlapping entries are refused, as are tensors that
exceed their storage or have more elements than it.
"""

import math
import mmap
import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from artesian.checkpoint.pickles import Known, Machine, Name
from artesian.checkpoint.zero_to_fp32 import (
    ELEMENTS_AT_ONCE,
    TORCH_TYPES,
    TYPE_BYTES,
    Bytes,
    Damaged,
    shown,
)

ENTRIES_MAX = 4_000_000
DIMENSIONS_MAX = 64

STORAGE_TYPES = {
    **{"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16"},
    **{"DoubleStorage": "F64", "LongStorage": "I64", "IntStorage": "I32"},
    **{"ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL"},
    **{"ComplexFloatStorage": "C64", "UntypedStorage": "U8"},
}
# Second names of dtypes in torch.
ALIASES = dict(float="F32", half="F16", double="F64", long="I64", int="I32", short="I16")
DTYPES = {name: dtype for dtype, name in TORCH_TYPES.items()} | ALIASES
WORD_OF_SIZE = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


@dataclass(frozen=True)
class Storage:
    data: Bytes  # bytes of the mapped file
    dtype: str


@dataclass(frozen=True)
class Tensor:
    """A view of a storage, which contains all of its elements and has at least as many."""

    storage: Storage
    dtype: str
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    def array(self) -> np.ndarray[Any, Any]:
        """The elements as words of their size: bits, not numbers. A view, in the tensor's shape."""
        size = TYPE_BYTES[self.dtype]
        if self.numel == 0:
            return np.zeros(self.shape, WORD_OF_SIZE[size])
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        words = self.storage.data[self.offset * size : (last + 1) * size].view(WORD_OF_SIZE[size])
        return np.lib.stride_tricks.as_strided(
            words, self.shape, [stride * size for stride in self.strides], writeable=False
        )

    def flat(self, first: int = 0, count: int | None = None) -> Bytes:
        """Bytes of elements [first, first + count) in row-major order; a view if they are
        contiguous."""
        count = self.numel - first if count is None else count
        if not self.is_contiguous():
            whole = np.ascontiguousarray(self.array()).reshape(-1)
            return whole[first : first + count].view(np.uint8)
        size = TYPE_BYTES[self.dtype]
        begin = (self.offset + first) * size
        return self.storage.data[begin : begin + count * size]

    def pieces(self, first: int = 0, count: int | None = None) -> Iterator[Bytes]:
        """The same bytes, a few MiB at a time."""
        end = self.numel if count is None else first + count
        if not self.is_contiguous():
            yield self.flat(first, end - first)
            return
        for at in range(first, end, ELEMENTS_AT_ONCE):
            yield self.flat(at, min(ELEMENTS_AT_ONCE, end - at))

    def number(self) -> int | float:
        """The value of a tensor with one element."""
        kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4"}
        if self.numel != 1 or self.dtype not in kinds:
            raise Damaged("a tensor is there where a number is expected")
        return self.flat().copy().view(kinds[self.dtype])[0].item()


def _whole(value: Any, what: str) -> int:
    if type(value) is int and 0 <= value < 1 << 62:
        return value
    raise Damaged(f"a tensor has {what} that is no whole number")


def _rebuilt(storage: Any, offset: Any, shape: Any, strides: Any, dtype: str | None) -> Tensor:
    if not isinstance(storage, Storage):
        raise Damaged("a tensor is made of what is no storage")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise Damaged("a tensor's shape and strides do not fit")
    if len(shape) > DIMENSIONS_MAX:
        raise Damaged(f"a tensor has {len(shape)} dimensions, allowed {DIMENSIONS_MAX}")
    offset = _whole(offset, "an offset")
    shape = tuple(_whole(extent, "an extent") for extent in shape)
    strides = tuple(_whole(stride, "a stride") for stride in strides)
    kind = dtype or storage.dtype
    room = storage.data.size // TYPE_BYTES[kind]
    numel = math.prod(shape)
    if numel:
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if last >= room:
            raise Damaged(f"a tensor reaches to element {last} of a storage of {room}")
        if numel > room:
            raise Damaged(f"a tensor has {numel} elements of a storage of {room}")
    elif math.prod(extent for extent in shape if extent) > 1 << 40:
        raise Damaged("an empty tensor has extents that no tensor has")
    return Tensor(storage, kind, offset, shape, strides)


def _tensor_v2(_: Machine, storage: Any, offset: Any, shape: Any, strides: Any, *__: Any) -> Tensor:
    return _rebuilt(storage, offset, shape, strides, None)


def _tensor_v3(
    _: Machine, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any
) -> Tensor:
    dtype = rest[2] if len(rest) > 2 else None
    name = dtype.name if isinstance(dtype, Name) and dtype.module == "torch" else ""
    if name not in DTYPES:
        raise Damaged(f"a tensor has the type {shown(name)}, which is not known")
    return _rebuilt(storage, offset, shape, strides, DTYPES[name])


def _parameter(_: Machine, data: Any, *__: Any) -> Any:
    return data


def _of_type(machine: Machine, make: Any, _: Any, arguments: Any, *__: Any) -> Any:
    """A tensor with attributes, or a parameter: attributes are dropped."""
    return machine.make(make, arguments)


TENSORS: Known = {
    ("torch._tensor", "_rebuild_from_type_v2"): _of_type,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_tensor"): _tensor_v2,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
}


@dataclass(frozen=True)
class _Entry:
    begin: int
    end: int


class MappedFile:
    """A regular file, mapped; symbolic links are refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise Damaged(f"{path}: {error.strerror}") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(f"{path}: not a plain file")
            if status.st_size == 0:
                raise Damaged(f"{path}: it is empty")
            self.map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            self.data: Bytes = np.frombuffer(self.map, dtype=np.uint8)
        finally:
            os.close(descriptor)


class _Window:
    """A part of a mapped file, as a file object from which zipfile reads its directory."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.at = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.data.size}[whence]
        if base + offset < 0:
            raise OSError("a place before the file's begin")
        self.at = base + offset
        return self.at

    def read(self, size: int = -1) -> bytes:
        end = self.data.size if size < 0 else min(self.at + size, self.data.size)
        taken = self.data[self.at : end].tobytes() if self.at < end else b""
        self.at += len(taken)
        return taken


class TorchZip:
    """The entries of a torch file in `data`. Raises Damaged, without the file's name."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        if data[:4].tobytes() != b"PK\x03\x04":
            raise Damaged("not a zip as torch.save writes since torch 1.6; save it anew there")
        try:
            with zipfile.ZipFile(_Window(data)) as archive:
                entries = archive.infolist()
                directory = archive.start_dir
        except (zipfile.BadZipFile, ValueError, struct.error, OSError, LookupError) as error:
            raise Damaged(f"its directory is damaged: {shown(str(error))}") from None
        except NotImplementedError as error:
            raise Damaged(f"its directory is not read here: {shown(str(error))}") from None
        if len(entries) > ENTRIES_MAX:
            raise Damaged(f"it has {len(entries)} entries, allowed {ENTRIES_MAX}")
        self.entries: dict[str, _Entry] = {}
        self.prefix: str | None = None
        self._ranges: list[tuple[int, int, str]] = []
        for entry in entries:
            self._add(entry)
        self._check_overlaps(directory)
        if self.prefix is None:
            raise Damaged("it has no data.pkl")
        order = self.entries.get(f"{self.prefix}byteorder")
        if order and self.data[order.begin : order.end].tobytes() != b"little":
            raise Damaged("its numbers are big endian, which is not read here")

    def _add(self, info: zipfile.ZipInfo) -> None:
        name = shown(info.filename)
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise Damaged(f"its entry {name} is compressed, which torch never does")
        if info.flag_bits & 1:
            raise Damaged(f"its entry {name} is encrypted")
        head = self.data[info.header_offset : info.header_offset + 30].tobytes()
        if len(head) != 30 or head[:4] != b"PK\x03\x04":
            raise Damaged(f"its entry {name} does not begin where the directory says")
        name_size, extra_size = struct.unpack("<HH", head[26:30])
        begin = info.header_offset + 30 + name_size + extra_size
        if begin + info.file_size > self.data.size:
            raise Damaged(f"its entry {name} reaches beyond its end; it may be cut off")
        if info.filename in self.entries:
            raise Damaged(f"its entry {name} comes twice")
        self.entries[info.filename] = _Entry(begin, begin + info.file_size)
        self._ranges.append((info.header_offset, begin + info.file_size, name))
        if info.filename.rpartition("/")[2] == "data.pkl" and self.prefix is None:
            self.prefix = info.filename[: -len("data.pkl")]

    def _check_overlaps(self, directory: int) -> None:
        ranges = sorted(self._ranges)
        ends = [0, *(end for _, end, _ in ranges)]
        for (begin, end, name), before in zip(ranges, ends, strict=False):
            if begin < before or end > directory:
                raise Damaged(f"its entry {name} overlaps another one")

    def load(self) -> Any:
        """Returns the saved object; tensors are views of `data`."""
        pickle = self.entries[f"{self.prefix}data.pkl"]
        storages: dict[str, Storage] = {}

        def storage_of(identity: Any) -> Storage:
            if type(identity) is not tuple or len(identity) < 5 or identity[0] != "storage":
                raise Damaged("its pickle speaks of data that is no storage")
            kind, key, numel = identity[1], identity[2], _whole(identity[4], "a length")
            name = kind.name if isinstance(kind, Name) and kind.module.startswith("torch") else ""
            if name not in STORAGE_TYPES:
                raise Damaged(f"a storage has the type {shown(name)}, which is not known")
            entry = self.entries.get(f"{self.prefix}data/{key}") if type(key) is str else None
            if entry is None:
                raise Damaged(f"the data of its storage {shown(key)} is missing")
            dtype = STORAGE_TYPES[name]
            size = numel * TYPE_BYTES[dtype]
            if size > entry.end - entry.begin:
                raise Damaged(f"its storage {shown(key)} is cut off")
            known = storages.get(key)
            if known is None or known.dtype != dtype or known.data.size != size:
                storages[key] = Storage(self.data[entry.begin : entry.begin + size], dtype)
            return storages[key]

        return Machine(TENSORS, storage_of).run(self.data[pickle.begin : pickle.end].tobytes())


def load_torch_file(path: Path) -> Any:
    """Returns the object saved by torch.save. Raises Damaged, with the file's name."""
    file = MappedFile(path)
    try:
        return TorchZip(file.data).load()
    except Damaged as error:
        raise Damaged(f"{path}: {error}") from None
