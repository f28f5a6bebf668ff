"""Runs the tests of on_simulated/ on an accelerator that is simulated (tests/support/
simulated_accelerator/accelerator.h): PyTorch's streams, whose kernels run late, and the engine's
copies in one order, which is checked. ARTESIAN_SOAK=1: in 20 random orders in place of two, and
with each wait left out in turn. Nothing here has run on a GPU."""

import os
import pathlib
import subprocess
import sys

import hf
import pytest
from build_folder import BUILD

FOLDER = BUILD / "tests" / "simulated_accelerator"
TESTS = pathlib.Path(__file__).parent / "on_simulated"
pytestmark = pytest.mark.skipif(
    not list(FOLDER.glob("_simulated*.so")), reason=f"{FOLDER} is not built"
)


def environment(folder):
    """Of a process that sees the accelerator: it comes with `import torch`."""
    variables = hf.environment(folder, as_deepspeed=False)
    variables["PYTHONPATH"] = os.pathsep.join([str(FOLDER), variables["PYTHONPATH"]])
    return variables


@pytest.mark.parametrize("name", sorted(path.stem for path in TESTS.glob("*_on_simulated.py")))
def test_on_the_simulated_accelerator(name, tmp_path):
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS / f"{name}.py"]
    done = subprocess.run(
        [*map(str, words), "-c", str(TESTS.parent / "pytest.ini")],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
