"""What holds for every Python test."""

import os
import signal
import sys
import tempfile

import pytest
from build_folder import BUILD

# What is tested in this process trains on the CPU, which must be said where there are GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# The package with its compiled part, where that was built, before the sources alone.
sys.path.insert(0, str(BUILD / "python"))

# A runner in the background of a script leaves SIGINT ignored, which programs under test would
# inherit; one with a handler of its own hands on the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as nohup leaves that

# Machine profiles of whoever runs the tests would change what programs under test choose and say.
# It is set before tests are imported, which copy the environment, and removed at the end.
no_profiles = tempfile.TemporaryDirectory(prefix="artesian-cache-")
os.environ["XDG_CACHE_HOME"] = no_profiles.name


@pytest.fixture
def two_threads():
    """LibTorch computes with two threads: bits are compared."""
    import torch  # few tests need it, and it takes seconds

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
