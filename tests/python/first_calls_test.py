"""Proves that dev/first_calls.py calls every function that torch gives to oneMKL, in both
precisions, on one element, and that the programs which compute with plain PyTorch do so first."""

import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import first_calls  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPUTE = ["tests/models/reference/make_reference.py", "bench/step_worker.py"]


class Recorded(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if arguments and isinstance(arguments[0], torch.Tensor):
            value = arguments[0]
            self.calls.append((function.overloadpacket.__name__, value.dtype, value.numel()))
        return function(*arguments, **(keywords or {}))


def test_calls_are_of_every_function_that_torch_gives_to_mkl():
    header = pathlib.Path(torch.__file__).parent / "include/ATen/cpu/vml.h"
    given = re.findall(r"^IMPLEMENT_VML_MKL\((\w+), \w+\)$", header.read_text(), re.MULTILINE)
    assert len(given) >= 10
    with Recorded() as recorded:
        first_calls.make_first_calls()
    for name in given:
        for dtype in [torch.float32, torch.float64]:
            assert recorded.calls.count((name, dtype, 1)) == 1, (name, dtype)


@pytest.mark.parametrize("program", COMPUTE)
def test_programs_make_them_before_they_compute(program):
    """Runs a program with a first_calls that reports its call and ends the program."""
    stand_in = "import sys, types\n"
    stand_in += "def end(): print('first'); sys.exit(0)\n"
    stand_in += "sys.modules['first_calls'] = types.SimpleNamespace(make_first_calls=end)\n"
    stand_in += f"import runpy; sys.argv = [{program!r}]\n"
    stand_in += f"runpy.run_path({str(ROOT / program)!r}, run_name='__main__')\n"
    done = subprocess.run([sys.executable, "-c", stand_in], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "first\n", done.stderr


def test_the_reference_of_the_numbers_tests_makes_them(monkeypatch):
    transformers = pytest.importorskip("transformers")
    import reference_training

    made = []
    monkeypatch.setattr(reference_training, "make_first_calls", lambda: made.append(True))
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: torch.nn.Identity()
    )
    reference_training.load("anywhere")
    assert made
