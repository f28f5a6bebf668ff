"""Proves that others read what a checkpoint is: safetensors (the PyPI package) opens its data file
and gives every parameter by name; numpy maps it, finds the weights where the header says, and joins
split ones to the bits that were saved; and json reads the manifest.

Drives build/tests/checkpoint_save_tool."""

import json
import struct
import subprocess

import pytest
from build_folder import BUILD

numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors")

TOOL = BUILD / "tests" / "checkpoint_save_tool"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"{TOOL} is not built")

NUMPY_TYPES = {"F32": "<u4", "BF16": "<u2", "I16": "<u2", "U8": "u1"}  # as bit patterns


def save(folder, form):
    done = subprocess.run([TOOL, folder, form, "7"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {
        line[0]: numpy.array([int(word, 16) for word in line[1:]], dtype=numpy.uint32)
        for line in lines
    }


def mapped(path):
    """Returns the tensors of a safetensors file as bit patterns, by a reader of ten lines."""
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    header = json.loads(path.read_bytes()[8 : 8 + length])
    header.pop("__metadata__")
    data = numpy.memmap(path, dtype=numpy.uint8, mode="r", offset=8 + length)
    return {
        name: numpy.frombuffer(
            data[tensor["data_offsets"][0] : tensor["data_offsets"][1]],
            dtype=NUMPY_TYPES[tensor["dtype"]],
        )
        for name, tensor in header.items()
    }


def joined(tensors, name):
    """kernels/split_master.h: the upper half was rounded down at a tie with the sign set."""
    tie = tensors[f"exp_avg_sq_signed/{name}"] >> 31
    high = (tensors[f"fp32_high/{name}"].astype(numpy.uint32) + tie) << 16
    low = tensors[f"fp32_low/{name}"].astype(numpy.int16).astype(numpy.int32)
    return (high.astype(numpy.int64) + low).astype(numpy.uint32)


@pytest.mark.parametrize("form", ["whole", "split"])
def test_numpy_finds_every_weight(tmp_path, form):
    weights = save(tmp_path / "checkpoints", form)
    tensors = mapped(tmp_path / "checkpoints" / "global_step7" / "rank0.safetensors")
    frozen = "h.0.w"
    assert (tensors[f"weight/{frozen}"].astype(numpy.uint32) << 16 == weights[frozen]).all()
    for name, patterns in weights.items():
        if name == frozen:
            continue
        got = tensors[f"fp32/{name}"] if form == "whole" else joined(tensors, name)
        assert (got == patterns).all(), name


@pytest.mark.parametrize("form", ["whole", "split"])
def test_safetensors_reads_it(tmp_path, form):
    weights = save(tmp_path / "checkpoints", form)
    path = tmp_path / "checkpoints" / "global_step7" / "rank0.safetensors"
    assert path.stat().st_size % 4096 == 0
    torch = pytest.importorskip("torch")
    with safetensors.safe_open(path, framework="pt") as opened:
        names = set(opened.keys())
        for name, patterns in weights.items():
            key = {True: f"weight/{name}", False: f"exp_avg/{name}"}[name == "h.0.w"]
            assert opened.get_tensor(key).shape == (len(patterns),)
        if form == "whole":
            for name in weights.keys() - {"h.0.w"}:
                tensor = opened.get_tensor(f"fp32/{name}")
                assert (tensor.view(torch.int32).numpy().view(numpy.uint32) == weights[name]).all()
        else:
            high = opened.get_tensor("fp32_high/h.1.w")
            assert high.dtype == torch.bfloat16
    # padding is stored as tensors, so the file has no holes
    assert {name for name in names if name.startswith("~")}


def test_the_manifest_is_json(tmp_path):
    save(tmp_path / "checkpoints", "split")
    folder = tmp_path / "checkpoints"
    assert (folder / "latest").read_text() == "global_step7"
    manifest = json.loads((folder / "global_step7" / "manifest.json").read_text())
    assert list(manifest)[-1] == "checksum"
    assert manifest["version"] == 1
    assert manifest["state"]["step"] == 7
    assert [parameter["name"] for parameter in manifest["parameters"]][0] == "h.0.w"
    tensors = mapped(folder / "global_step7" / "rank0.safetensors")
    for array in manifest["arrays"]:
        for parameter, _first, count, _file, _offset in array["parts"]:
            name = f"{array['array']}/{manifest['parameters'][parameter]['name']}"
            assert len(tensors[name]) == count
    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o600}
