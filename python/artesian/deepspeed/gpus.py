"""Hides GPUs, on which training from Python is not measured yet, from scripts that run under
DeepSpeed's name: Trainer and Accelerate would put batches on any GPU that PyTorch sees. The CUDA
driver reads the visible devices only once, so GPUs must be hidden before PyTorch queries it.
ARTESIAN_DEVICE=cuda keeps them visible."""

from __future__ import annotations

import ctypes
import glob
import logging
import os
import sys

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = "ARTESIAN_HIDDEN_GPUS"  # the previous list of visible GPUs; also for child processes
NONE = ("", "-1", "NoDevFiles")

told = False


def hide() -> None:
    """From now on PyTorch sees no GPU, in this process and its children."""
    before = os.environ.get(VISIBLE)
    if before in NONE or os.environ.get("ARTESIAN_DEVICE", "cpu") != "cpu":
        return
    os.environ.setdefault(HIDDEN, before or "all")
    os.environ[VISIBLE] = ""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while torch is being imported
    if cuda is not None and cuda.is_available():
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before
        raise ImportError(
            "import artesian.deepspeed: PyTorch has looked for GPUs already and seen one, and "
            "Python does not train on GPUs yet; put this line before all other imports, start the "
            f"script by `deepspeed`, or set {VISIBLE}= before Python starts"
        )


def installed() -> int:
    """How many GPUs the machine has, visible or not."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            return count.value
    except (OSError, AttributeError):
        pass
    return len(glob.glob("/dev/nvidia[0-9]*"))


def tell() -> None:
    """Logs once, when training begins, that there are unused GPUs."""
    global told
    if told or HIDDEN not in os.environ:
        return
    told = True
    count = installed()
    if count > 0:
        logging.getLogger("artesian").warning(
            "artesian: trains on the CPU: training on GPUs from Python is not measured yet, so the "
            "%d of this machine are hidden from the script (%s was %s); ARTESIAN_DEVICE=cuda tries "
            "one",
            count,
            VISIBLE,
            os.environ[HIDDEN],
        )
