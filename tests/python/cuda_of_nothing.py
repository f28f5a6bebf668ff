"""A machine with a GPU for processes that a test starts, on one without: the real LibTorch's CUDA
part on a runtime that does nothing (tests/support/cuda_of_nothing/nothing.h)."""

import os

import pytest
import torch
from build_folder import BUILD

FOLDER = BUILD / "tests" / "cuda_of_nothing"
RUNTIME = FOLDER / "libcuda_of_nothing.so"
needs_it = pytest.mark.skipif(
    torch.version.cuda is None or not RUNTIME.exists(),
    reason=f"torch is built without CUDA, or {RUNTIME} is not built",
)


def variables(environment, log, gpus=1):
    """The environment of a process there. `log`: a file that gets a line for each call that a GPU
    would see."""
    libraries = [str(FOLDER), environment.get("LD_LIBRARY_PATH", "")]
    result = {
        **environment,
        "LD_PRELOAD": str(RUNTIME),
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in libraries if path),
        "ARTESIAN_CUDA_OF_NOTHING": str(gpus),
        "ARTESIAN_CUDA_OF_NOTHING_LOG": str(log),
    }
    result.pop("CUDA_VISIBLE_DEVICES", None)
    return result
