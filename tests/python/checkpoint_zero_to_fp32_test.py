"""Proves that zero_to_fp32.py, alone with numpy, gives a checkpoint's fp32 weights bit for bit: of
what the C++ code wrote (recorded), and of a made-up one with ties, cut parameters, frozen ones
and buffers; that its XXH3 is that of the C library; that each damaged or missing file is named in
one line; and that memory stays small."""

import ctypes
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from made_up_checkpoint import MadeUp, digest_of_files, seal, unpack

from artesian.checkpoint import exports, writer, zero_to_fp32

SCRIPT = zero_to_fp32.__file__


def run(*arguments, **options):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, **options
    )
    return done.returncode, done.stdout, done.stderr


def run_here(*arguments):
    """Runs the program in this process, which is much quicker than starting a new one."""
    return zero_to_fp32.main([str(argument) for argument in arguments])


def tensors_of(path):
    """Returns the tensors of a safetensors file by name, without using any code of Artesian."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    kinds = {"F32": "<f4", "I64": "<i8"}
    return {
        name: np.frombuffer(
            data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]],
            kinds[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def expect(tensors, made_up):
    assert set(tensors) == {"w", "head", "frozen", "scale"}
    assert tensors["w"].shape == (4, made_up.numel // 4)
    for name in ("w", "head"):
        assert tensors[name].tobytes() == made_up.master.tobytes()
    widened = (made_up.frozen.astype("<u4") << 16).tobytes()
    assert tensors["frozen"].tobytes() == widened
    assert tensors["scale"].tobytes() == made_up.scale.tobytes()


class Halves(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def test_checksums_are_those_of_xxh3():
    # Recorded from the C library, of bytes 0, 1, 2, ...
    counting = bytes(range(256)) * 20
    known = {
        16: "72950631827607e2842812cc870dcae2",
        100: "da95ef16fd9566f329b20ba5f03ec01e",
        200: "cb0395310643ba0edd97e9af3609d9f5",
        300: "a699035354fc0bebd44052f5a3485425",
        5120: "87cf83cc9a055cf4f875f2fa2e99df80",
    }
    for size, expected in known.items():
        assert writer.digest(counting[:size]) == expected
    try:
        library = ctypes.CDLL("libxxhash.so.0")
    except OSError:
        library = None
    if library is None:
        return
    library.XXH3_128bits.restype = Halves
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    seeded = library.XXH3_64bits_withSeed
    seeded.restype = ctypes.c_uint64
    seeded.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    source = random.Random(3)
    for size in [*range(9, 260), 1023, 1024, 1025, 2048, 4096, 5000, 32768, 33000, 1 << 20]:
        data = source.randbytes(size)
        found = library.XXH3_128bits(data, size)
        assert writer.digest(data) == f"{found.high:016x}{found.low:016x}", size
        if size > 240:
            row = np.frombuffer(data, np.uint8).reshape(1, -1)
            seed = source.getrandbits(64)
            assert zero_to_fp32.xxh3_64_of_rows(row, [seed]) == [seeded(data, size, seed)]
        elif 17 <= size <= 32:
            assert zero_to_fp32.xxh3_64_of_place(data) == seeded(data, size, 0)


@pytest.mark.parametrize("form", ["whole", "split"])
def test_reads_what_the_engine_writes(tmp_path, form):
    unpack("artesian", tmp_path)
    checkpoint = zero_to_fp32.Checkpoint(tmp_path / form)
    if form == "split":  # one parameter is stored in both ranks' files
        rows = [rows for arrays in checkpoint.manifest.arrays for _, rows in arrays.values()]
        assert any(len(each) == 2 for each in rows)
    read = [
        piece.tobytes()
        for index in range(len(checkpoint.manifest.parameters))
        for array in exports.ARRAYS
        for piece in exports.pieces(checkpoint, index, array)
    ]
    expected = (tmp_path / f"{form}.sha256").read_text().strip()
    assert hashlib.sha256(b"".join(read)).hexdigest() == expected


def test_stands_alone_with_numpy(tmp_path):
    made_up = MadeUp()
    made_up.write(tmp_path)
    shutil.copy(SCRIPT, tmp_path)
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "torch.py").write_text("raise ImportError('no torch here')\n")
    before = digest_of_files(tmp_path / "global_step7")
    environment = os.environ | {"PYTHONPATH": str(blocked)}
    code, _, errors = run("zero_to_fp32.py", ".", "out", cwd=tmp_path, env=environment)
    assert (code, errors) == (0, "")
    assert sorted(os.listdir(tmp_path / "out")) == ["model.safetensors"]
    expect(tensors_of(tmp_path / "out/model.safetensors"), made_up)
    assert digest_of_files(tmp_path / "global_step7") == before


def test_writes_what_safetensors_and_torch_read(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    made_up = MadeUp()
    made_up.write(tmp_path)
    assert run_here(tmp_path, tmp_path / "out") == 0
    state = safetensors.load_file(tmp_path / "out/model.safetensors")
    expect({name: tensor.numpy() for name, tensor in state.items()}, made_up)
    loaded = torch.load(tmp_path / "out/pytorch_model.bin", weights_only=True)
    expect({name: tensor.numpy() for name, tensor in loaded.items()}, made_up)
    assert run_here(tmp_path, tmp_path / "safe", "--safe_serialization") == 0
    assert os.listdir(tmp_path / "safe") == ["model.safetensors"]


def test_shards_have_an_index(tmp_path):
    made_up = MadeUp()
    made_up.write(tmp_path)
    arguments = ("--max_shard_size", "17KB", "--safe_serialization", "-t", "global_step7")
    assert run_here(tmp_path, tmp_path / "out", *arguments) == 0
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    tensors = {}
    for name in files:
        tensors |= tensors_of(tmp_path / "out" / name)
    expect(tensors, made_up)
    for name, file in index["weight_map"].items():
        assert name in tensors_of(tmp_path / "out" / file)


def test_a_folder_with_another_models_weights_is_refused(tmp_path, capsys):
    """Loaders prefer model.safetensors to an index, and follow the names of older shards."""
    MadeUp().write(tmp_path)
    whole, shards = ("--safe_serialization",), ("--safe_serialization", "--max_shard_size", "17KB")
    for number, (first, then) in enumerate([(whole, shards), (shards, whole), ((), whole)]):
        out = tmp_path / f"out{number}"
        assert run_here(tmp_path, out, *first) == 0
        before = digest_of_files(out)
        capsys.readouterr()
        assert run_here(tmp_path, out, *then) == 2
        error = capsys.readouterr().err
        assert "of another model, which loaders may take; name a new folder" in error
        assert error.count("\n") == 1
        assert digest_of_files(out) == before
        assert run_here(tmp_path, out, *first) == 0  # the same files are replaced
        assert digest_of_files(out) == before


def test_frozen_parameters_can_be_left_out(tmp_path):
    MadeUp().write(tmp_path)
    arguments = ("--exclude_frozen_parameters", "--safe_serialization")
    assert run_here(tmp_path, tmp_path / "out", *arguments) == 0
    assert set(tensors_of(tmp_path / "out/model.safetensors")) == {"w", "head", "scale"}


def test_what_cannot_be_is_exit_code_2(tmp_path, capsys):
    MadeUp().write(tmp_path)
    for arguments, what in [
        ((tmp_path / "none",), "none/latest: No such file or directory"),
        ((tmp_path, "-t", "global_step8"), "global_step8: No such file or directory"),
        ((tmp_path, "-t", "../global_step7"), "tag: got"),
        ((tmp_path, "--max_shard_size", "much"), "--max_shard_size: got 'much'"),
    ]:
        assert run_here(arguments[0], tmp_path / "out", *arguments[1:]) == 2
        error = capsys.readouterr().err
        assert what in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_each_damaged_byte_is_told_by_file(tmp_path, capsys):
    made_up = MadeUp()
    folder = made_up.write(tmp_path / "good") / "global_step7"
    source = random.Random(5)
    for name in sorted(os.listdir(folder)):
        data = (folder / name).read_bytes()
        blamed = name if not name.endswith(".sums") else name[: -len(".sums")]
        refused = 0
        for _ in range(12):
            broken = bytearray(data)
            broken[source.randrange(len(data))] ^= 1 << source.randrange(8)
            (folder / name).write_bytes(broken)
            code = run_here(tmp_path / "good", tmp_path / "out", "--safe_serialization")
            error = capsys.readouterr().err
            if code == 0:  # first moments are not used, so the damage is not noticed
                assert name != "manifest.json"
                expect(tensors_of(tmp_path / "out/model.safetensors"), made_up)
                continue
            refused += 1
            assert code == 1
            assert f"{folder}/{blamed}" in error
            assert error.count("\n") == 1
        assert refused >= 6, name
        for cut in (0, 15, len(data) // 2, len(data) - 1):
            (folder / name).write_bytes(data[:cut])
            assert run_here(tmp_path / "good", tmp_path / "out") == 1, (name, cut)
            assert f"{folder}/{blamed}" in capsys.readouterr().err
        (folder / name).unlink()
        assert run_here(tmp_path / "good", tmp_path / "out") == 1, name
        assert f"{folder / name}: No such file" in capsys.readouterr().err
        (tmp_path / "elsewhere").write_bytes(data)
        (folder / name).symlink_to(tmp_path / "elsewhere")
        assert run_here(tmp_path / "good", tmp_path / "out") == 1, name
        assert f"{folder / name}: Too many levels of symbolic links" in capsys.readouterr().err
        (folder / name).unlink()
        (folder / name).write_bytes(data)
    assert run_here(tmp_path / "good", tmp_path / "out", "--safe_serialization") == 0
    expect(tensors_of(tmp_path / "out/model.safetensors"), made_up)


def test_a_block_of_another_step_is_refused(tmp_path, capsys):
    MadeUp().write(tmp_path, "a", step=7)
    MadeUp().write(tmp_path, "b", step=8)
    shutil.copy(tmp_path / "a/rank0.safetensors", tmp_path / "b/rank0.safetensors")
    shutil.copy(tmp_path / "a/rank0.sums", tmp_path / "b/rank0.sums")
    assert run_here(tmp_path, tmp_path / "out", "-t", "b") == 1
    assert "rank0.safetensors: block 0" in capsys.readouterr().err


def set_in(content, path, value):
    *inner, last = path
    for key in inner:
        content = content[key]
    content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (("version",), 2, 2),
        (("files", 0, "name"), "../rank0.safetensors", 1),
        (("files", 0, "bytes"), -4096, 1),
        (("files", 0, "head_bytes"), 0, 1),
        (("arrays", 0, "array"), "bf16_moment", 2),
        (("arrays", 0, "encoding"), "plain", 2),
        (("arrays", 0, "parts", 0, 1), 1, 1),
        (("arrays", 0, "parts", 0, 2), 1 << 61, 1),
        (("arrays", 0, "parts", 0, 3), 9, 1),
        (("arrays", 0, "parts", 0, 4), 1 << 40, 1),
        (("arrays", 0, "parts", 0), [0, 0, True, 0, 4096], 1),
        (("arrays", 1), {"array": "fp32_low"}, 1),
        (("parameters", 0, "shape"), [1 << 40, 1 << 40], 1),
        (("parameters", 1, "name"), "w", 1),
        (("buffers", 0, "offset"), 0, 1),
        (("buffers", 0, "dtype"), "F12", 2),
        (("aliases",), [], 1),
        (("arrays",), [], 1),
    ],
)
def test_a_manifest_with_a_right_checksum_is_not_believed(tmp_path, capsys, path, value, code):
    folder = MadeUp().write(tmp_path) / "global_step7"
    content = json.loads((folder / "manifest.json").read_text())
    del content["checksum"]
    set_in(content, path, value)
    seal(folder / "manifest.json", content)
    assert run_here(tmp_path, tmp_path / "out") == code
    error = capsys.readouterr().err
    assert "manifest.json" in error
    assert error.count("\n") == 1


def test_memory_does_not_grow_with_the_model(tmp_path):
    numel = 6_000_000
    made = np.arange(numel, dtype="<f4")

    def pieces():
        yield made.view(np.uint8)

    state = writer.SavedState(
        [writer.SavedParameter("w", (numel,), {"fp32": pieces})],
        [writer.SavedGroup(["w"], 1)],
        step=1,
        updates=1,
    )
    tracemalloc.start()
    try:
        writer.write_checkpoint(tmp_path / "in", "a", state, "test")
        written = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        assert run_here(tmp_path / "in", tmp_path / "out", "--safe_serialization") == 0
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(written, read) < 16 << 20 < made.nbytes
    assert tensors_of(tmp_path / "out/model.safetensors")["w"].tobytes() == made.tobytes()
