"""Proves of the CUDA kernels, as nvcc has made them for each GPU that we build for: in the hot path
they read and write vectors and spill nothing to local memory; and nothing contracts, flushes or
approximates, since a GPU is to have the CPU's bits. No GPU is needed."""

import importlib.util
import pathlib
import re
import subprocess

import pytest
from build_folder import BUILD, ROOT

OBJECTS = sorted((BUILD / "kernels").glob("CMakeFiles/*_cuda.dir/*.cu.o"))
# Sums of squares write one number for each leaf.
WRITES_SCALARS = {"sum_squares_kernel"}
READS_SCALARS = {"sum_squares_kernel"}
INEXACT = re.compile(r"\S*\.approx\S*|div\.full\S*|fma\.rn\.f32|\S*\.ftz\S*")


def cuobjdump():
    """Triton's wheel, which PyTorch's wants, carries one."""
    found = importlib.util.find_spec("triton")
    if found is not None and found.origin is not None:
        path = pathlib.Path(found.origin).parent / "backends/nvidia/bin/cuobjdump"
        return path if path.exists() else None
    return None


pytestmark = [
    pytest.mark.skipif(not OBJECTS, reason="the CUDA kernels are not built"),
    pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump here"),
]


def dump(path, form):
    done = subprocess.run([cuobjdump(), form, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def name_of(symbol):
    (name,) = re.findall(r"\d+([a-z_]+_kernel)(?=[IE])", symbol)
    return name


def kernels_in(text, start):
    """(name, code) of each kernel, for each GPU."""
    parts = re.split(start, text)
    return [(name_of(symbol), code) for symbol, code in zip(parts[1::2], parts[2::2])]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_ptx_reads_and_writes_vectors_and_is_exact(path):
    kernels = kernels_in(dump(path, "-ptx"), r"\.entry (\w+)\(")
    assert kernels
    for name, code in kernels:
        assert not INEXACT.findall(code), name
        assert name in READS_SCALARS or re.search(r"ld\.global\S*\.v[24]\.", code), name
        assert name in WRITES_SCALARS or re.search(r"st\.global\S*\.v[24]\.", code), name
        assert not re.search(r"\b(ld|st)\.local", code), name


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_sass_stores_vectors_and_spills_nothing(path):
    kernels = kernels_in(dump(path, "-sass"), r"Function : (\w+)")
    assert kernels
    for name, code in kernels:
        assert not re.search(r"\b(STL|LDL)\b", code), name
        assert name in WRITES_SCALARS or re.search(r"\bSTG\.E\S*\.(64|128)\b", code), name


def test_swiglu_divides_no_index():
    """A division of 64 bits is a call, at the cost of four elements."""
    (path,) = (each for each in OBJECTS if each.name == "swiglu.cu.o")
    for name, code in kernels_in(dump(path, "-ptx"), r"\.entry (\w+)\("):
        assert not re.search(r"\b(div|rem)\.[us]64\b", code), name


def test_all_kernels_are_looked_at():
    sources = {path.name for path in (ROOT / "kernels").glob("*.cu")}
    assert {path.name.removesuffix(".o") for path in OBJECTS} == sources
