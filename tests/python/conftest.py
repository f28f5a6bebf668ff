"""What holds for every Python test."""

import os
import signal
import sys
import tempfile

import pytest
from build_folder import BUILD

# Tests in this process train on the CPU; a machine's GPUs are hidden for that.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# The package with its compiled part, if that was built, precedes the sources alone.
sys.path.insert(0, str(BUILD / "python"))

# A script that runs pytest in the background leaves SIGINT ignored, which programs under test would
# inherit; the default is restored here.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup

# Machine profiles of the user who runs the tests would change what programs under test choose and
# print. The variable is set before tests are imported, since they copy the environment; the folder
# is removed at the end.
no_profiles = tempfile.TemporaryDirectory(prefix="artesian-cache-")
os.environ["XDG_CACHE_HOME"] = no_profiles.name


@pytest.fixture
def two_threads():
    """Makes LibTorch compute with two threads, since tests compare bits."""
    import torch  # imported here as few tests need torch, and it takes seconds

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
