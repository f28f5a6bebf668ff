"""Proves that files of torch are read as torch reads them, and that hostile ones run nothing, leave
no storage, take no memory that they have not got, and end as an error in one line: pickles that
call, ask for huge sizes or nest deeply, tensors with strides and offsets of all kinds, zips that
are compressed, overlap or are cut off, and 1,500 flipped bytes."""

import io
import os
import pickle
import random
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from artesian.checkpoint.pickles import Machine, Name, Record
from artesian.checkpoint.torch_files import DTYPES, Tensor, TorchZip, load_torch_file
from artesian.checkpoint.zero_to_fp32 import Damaged


def run(data):
    return Machine({}).run(data)


class Gadget:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def short(text):
    return pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()


def test_plain_values_are_what_pickle_says():
    values = [
        {"a": [1, -2, 3 << 70, 1.5, None, True, b"x", "\u00e9"], (1, "b"): {2, 3}, "t": (1, (2,))},
        {"long": list(range(3000)), "many": {str(i): i for i in range(2000)}},
    ]
    for protocol in range(6):
        for value in values:
            assert run(pickle.dumps(value, protocol)) == value


def test_nothing_is_called(tmp_path):
    marker = tmp_path / "marker"
    command = f"touch {marker}"
    for protocol in range(5):
        for gadget in [
            Gadget(os.system, command),
            Gadget(eval, f"__import__('os').system({command!r})"),
            Gadget(exec, f"open({str(marker)!r}, 'w')"),
            Gadget(print, command),
        ]:
            read = run(pickle.dumps({"x": [gadget], "y": 1}, protocol))
            assert isinstance(read["x"][0], Record)
            assert read["y"] == 1
    written_by_hand = [
        b"(cos\nsystem\n" + pickle.UNICODE + command.encode() + b"\no.",  # OBJ
        b"(" + pickle.UNICODE + command.encode() + b"\nios\nsystem\n.",  # INST
        b"cos\nsystem\n(" + pickle.UNICODE + command.encode() + b"\ntR.",  # REDUCE
        b"cos\nsystem\n(" + pickle.UNICODE + command.encode() + b"\nt\x81.",  # NEWOBJ
        b"\x80\x04" + short("os") + short("system") + b"\x93" + short(command) + b"\x85R.",
        # A call of what a call gave, and attributes for it.
        b"cbuiltins\ngetattr\n(cos\nsystem\nVx\ntR(Va\nt\x81}Vb\nVc\nsb.",
    ]
    for data in written_by_hand:
        assert isinstance(run(data), Record)
    assert run(b"cos\nsystem\n.") == Name("os", "system")
    assert not marker.exists()


def test_known_words_with_wrong_arguments_are_damage():
    for data in [
        b"ccollections\nOrderedDict\n(K\x05tR.",
        b"ccollections\nOrderedDict\n((K\x05K\x06ltR.",
        b"ctorch\nSize\n(K\x05tR.",
        b"c_codecs\nencode\n(VA\nVutf-7\ntR.",
        b"c__builtin__\nset\n(K\x05tR.",
        b"ccopyreg\n__newobj__\n(tR.",
        b"]K\x01K\x02s.",
        b"}K\x01a.",
        b"Va\nVb\nR.",
        b"Va\nQ.",
        b"0.",
        b"t.",
        b"(.",
        b"h\x05.",
        b"",
        b".",
        b"N",
        b"\x80\x02\xffq.",
    ]:
        with pytest.raises(Damaged):
            run(data)


def test_sizes_that_are_not_there_take_no_memory():
    huge = [
        b"\x8d" + struct.pack("<Q", 1 << 60) + b"x.",  # BINUNICODE8
        b"\x8e" + struct.pack("<Q", 1 << 40) + b"x.",  # BINBYTES8
        b"\x96" + struct.pack("<Q", 1 << 40) + b"x.",  # BYTEARRAY8
        b"T" + struct.pack("<i", 1 << 30) + b"x.",  # BINSTRING
        b"\x8b" + struct.pack("<i", 1 << 30) + b"x.",  # LONG4
        b"\x95" + struct.pack("<Q", 1 << 60) + b".",  # FRAME
        b"I" + b"9" * 100_000 + b"\n.",  # INT
    ]
    tracemalloc.start()
    try:
        for data in huge:
            with pytest.raises(Damaged):
                run(data)
        # The memo has no size limit: an index is only a key.
        assert run(b"N" + b"r" + struct.pack("<I", 0xFFFFFFFF) + b".") is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_what_copies_is_counted():
    text = pickle.UNICODE + b"x" * (1 << 20) + b"\nq\x000"
    twice = b"c_codecs\nencode\n(h\x00Vlatin1\ntR0"
    with pytest.raises(Damaged, match="copies too much"):
        run(text + twice * 100 + b"N.")
    pairs = b"](" + b"K\x01K\x02\x86" * 20_000 + b"eq\x000"
    with pytest.raises(Damaged, match="copies too much"):
        run(pairs + b"ccollections\nOrderedDict\n(h\x00tR" * 4000 + b"N.")


def test_deep_nesting_is_read_or_refused():
    depth = 100_000
    value = run(b"]" * depth + b"a" * (depth - 1) + b".")
    assert isinstance(value, list)
    deep = b"N" + b"\x85" * depth
    assert isinstance(run(deep + b"."), tuple)
    for data in (b"}" + deep + b"Ns.", b"\x8f(" + deep + b"\x90.", b"}(" + deep + b"Nu."):
        with pytest.raises(Damaged, match="no plain value"):
            run(data)
    many = b"ccopyreg\n__newobj__\n" * depth
    with pytest.raises(Damaged):
        run(b"ccopyreg\n__newobj__\n(" + many + b"tR.")


def expect_equal(ours, theirs):
    torch = pytest.importorskip("torch")
    assert isinstance(ours, Tensor)
    assert DTYPES[str(theirs.dtype).removeprefix("torch.")] == ours.dtype
    assert ours.shape == tuple(theirs.shape)
    flat = theirs.detach().contiguous().reshape(-1)
    expected = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    assert ours.flat().tobytes() == expected
    assert b"".join(piece.tobytes() for piece in ours.pieces()) == expected


def test_reads_what_torch_saves(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    tensors = {
        "whole": base,
        "view": base[1:, 1:3, ::2],
        "transposed": base.transpose(0, 2),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 1024),
        "parameter": torch.nn.Parameter(torch.randn(2, 3)),
        "shared": base[0],
    }
    for name in ("bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"):
        tensors[name] = torch.arange(7).to(getattr(torch, name))
    for name in ("uint16", "float8_e4m3fn", "complex64"):
        tensors[name] = torch.arange(7).to(getattr(torch, name))
    torch.save({"state": tensors, "other": {"size": torch.Size([2, 3]), "n": 5}}, tmp_path / "a.pt")
    read = load_torch_file(tmp_path / "a.pt")
    assert read["other"] == {"size": (2, 3), "n": 5}
    for name, tensor in tensors.items():
        expect_equal(read["state"][name], tensor)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.save(model.state_dict(), tmp_path / "b.pt")
    state = load_torch_file(tmp_path / "b.pt")
    for name, tensor in model.state_dict().items():
        expect_equal(state[name], tensor)
    torch.save(model, tmp_path / "c.pt")  # a whole module becomes an inert record
    assert isinstance(load_torch_file(tmp_path / "c.pt"), Record)


STORAGE = b"(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nK\x0atQ"  # of 10 elements


def integer(value):
    return b"I%d\n" % value


def tensor_pickle(offset, shape, strides, storage=STORAGE):
    def of(values):
        return b"(" + b"".join(map(integer, values)) + b"t"

    head = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    return head + storage + integer(offset) + of(shape) + of(strides) + b"\x89NtR."


def archive(data_pkl, storage=bytes(40), compression=zipfile.ZIP_STORED, extra=()):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        made.writestr("a/data.pkl", data_pkl)
        made.writestr("a/byteorder", "little")
        made.writestr("a/data/0", storage)
        for name, data in extra:
            made.writestr(name, data)
    return file.getvalue()


def load(data):
    return TorchZip(np.frombuffer(bytes(data), np.uint8)).load()


def test_a_tensor_stays_in_its_storage():
    storage = np.arange(10, dtype="<f4").tobytes()
    good = load(archive(tensor_pickle(1, (2, 3), (3, 1)), storage))
    assert good.flat().view("<f4").tolist() == [1, 2, 3, 4, 5, 6]
    strided = load(archive(tensor_pickle(0, (2, 3), (1, 3)), storage))
    assert strided.flat().view("<f4").tolist() == [0, 3, 6, 1, 4, 7]
    last = load(archive(tensor_pickle(0, (2, 5), (5, 1)), storage))
    assert last.flat().view("<f4").tolist() == list(range(10))
    for offset, shape, strides in [
        (0, (11,), (1,)),
        (1, (10,), (1,)),
        (0, (2,), (10,)),
        (0, (2,), (-1,)),
        (9, (2,), (-1,)),
        (-1, (1,), (1,)),
        (0, (-1,), (1,)),
        (0, (1 << 40,), (0,)),  # one element, a million times
        (0, (11,), (0,)),
        (0, (1 << 32, 1 << 32), (0, 0)),
        (0, (1 << 62, 4), (1, 1)),
        (0, (2,), (1 << 61,)),
        (0, (2, 2), (1,)),
        (1 << 63, (1,), (1,)),
        (0, (1,) * 65, (1,) * 65),
        (0, (0, 1 << 50), (1, 1)),
    ]:
        with pytest.raises(Damaged):
            load(archive(tensor_pickle(offset, shape, strides), storage))


def test_a_storage_is_there_and_long_enough():
    good = (0, (2,), (1,))
    for storage in [
        STORAGE.replace(b"K\x0a", b"K\x0b"),
        STORAGE.replace(b"V0\n", b"V1\n"),
        STORAGE.replace(b"V0\n", b"V../0\n"),
        STORAGE.replace(b"V0\n", b"K\x00"),
        STORAGE.replace(b"FloatStorage", b"QuantStorage"),
        STORAGE.replace(b"ctorch\n", b"cos\n"),
        STORAGE.replace(b"K\x0a", integer(-1)),
        STORAGE.replace(b"Vstorage", b"Vmodule"),
        b"N",
        b"NQ",
    ]:
        with pytest.raises(Damaged):
            load(archive(tensor_pickle(*good, storage)))
    nested = tensor_pickle(*good, tensor_pickle(*good)[2:-1])
    with pytest.raises(Damaged, match="no storage"):
        load(archive(nested))


def test_entries_are_stored_once_and_apart():
    good = tensor_pickle(0, (10,), (1,))
    assert load(archive(good)).numel == 10
    with pytest.raises(Damaged, match="compressed"):
        load(archive(good, compression=zipfile.ZIP_DEFLATED))
    with pytest.warns(UserWarning, match="Duplicate"):
        twice = archive(good, extra=[("a/data/0", bytes(40))])
    with pytest.raises(Damaged, match="comes twice"):
        load(twice)
    with pytest.raises(Damaged, match=r"no data\.pkl"):
        load(archive(good).replace(b"a/data.pkl", b"a/data.pkk"))
    big_endian = archive(good).replace(b"little", b"bigbig")
    with pytest.raises(Damaged, match="big endian"):
        load(big_endian)
    # The directory entry of the second storage points at the first one's bytes.
    data = bytearray(archive(good, extra=[("a/data/1", bytes(40))]))
    directory = data.rfind(b"PK\x01\x02")
    first = data.find(b"PK\x03\x04", 1)
    data[directory + 42 : directory + 46] = struct.pack("<I", first)
    with pytest.raises(Damaged, match="overlaps"):
        load(data)
    with pytest.raises(Damaged, match=r"torch 1\.6"):
        load(pickle.dumps({}))


def test_links_and_pipes_are_not_opened(tmp_path):
    (tmp_path / "a.pt").write_bytes(archive(tensor_pickle(0, (10,), (1,))))
    assert load_torch_file(tmp_path / "a.pt").numel == 10
    (tmp_path / "link.pt").symlink_to(tmp_path / "a.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "empty.pt").touch()
    for name in ("link.pt", "pipe.pt", "empty.pt", "none.pt", "."):
        with pytest.raises(Damaged, match=str(tmp_path)):
            load_torch_file(tmp_path / name)


def test_damage_is_an_error_or_harmless():
    pickled = tensor_pickle(0, (2, 5), (5, 1))[:-1] + b"q\x05}Vx\nh\x05sVy\ncos\nsystem\n)Rs0."
    whole = archive(pickled, np.arange(10, dtype="<f4").tobytes())
    source = random.Random(11)
    for cut in range(0, len(whole), 7):
        with pytest.raises(Damaged):
            load(whole[:cut])
    refused = 0
    for _ in range(1500):
        broken = bytearray(whole)
        for _ in range(source.choice((1, 1, 3))):
            broken[source.randrange(len(broken))] ^= 1 << source.randrange(8)
        try:
            read = load(broken)
            if isinstance(read, Tensor):
                assert read.flat().size <= 40 * 8
        except Damaged as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 300
