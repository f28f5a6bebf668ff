"""Proves what Python does on a machine with GPUs, on which it is not measured yet, with the real
LibTorch on a CUDA runtime that does nothing: a script that runs under DeepSpeed's name trains on
the CPU, with the numbers of a machine without a GPU, and one line says that the GPUs are hidden;
natively, initialize() ends with one line that says what to set. Neither ends with PyTorch's own
error, which names nothing of ours. A GPU that is asked for is tried."""

import subprocess
import sys

import cuda_of_nothing
import hf
import pytest
import trainer_test

pytestmark = cuda_of_nothing.needs_it
TOLD = (
    "artesian: trains on the CPU: training on GPUs from Python is not measured yet, so the 2 of "
    "this machine are hidden"
)


@pytest.fixture
def run(tmp_path):
    """Runs Python on a machine with two GPUs; the output, and what the GPUs have seen."""

    def start(*words, as_deepspeed=False, fails=False, **variables):
        log = tmp_path / "calls.log"
        environment = hf.environment(tmp_path, as_deepspeed=as_deepspeed)
        environment = cuda_of_nothing.variables(environment, log, gpus=2) | variables
        words = [sys.executable, *map(str, words)]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        done.calls = log.read_text().splitlines() if log.exists() else []
        return done

    return start


BATCH = """
import torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
x = torch.arange(3).cuda()
assert x.cpu().tolist() == [0, 1, 2]
try:
    torch.nn.Embedding(4, 4)(x)
except RuntimeError as error:
    print(error)
"""


def test_torch_sees_the_gpu_and_a_batch_there_meets_no_model(run):
    done = run("-c", BATCH)
    assert "index is on cuda:0" in done.stdout
    assert any("copy" in call and "host to device" in call for call in done.calls)


@pytest.mark.parametrize("way", ["variable", "run"])
def test_a_script_of_deepspeeds_trains_on_the_cpu(run, tmp_path, way):
    (tmp_path / "hidden").mkdir()
    config = trainer_test.config_for(tmp_path)
    script = [hf.EXAMPLES / "hf_trainer.py", "--deepspeed", config]
    expected = hf.run(tmp_path / "hidden", *script)
    if way == "variable":
        done = run(*script, as_deepspeed=True)
    else:
        done = run("-m", "artesian.run", *script)
    assert trainer_test.losses_of(done) == trainer_test.losses_of(expected)
    assert done.stderr.count(TOLD) == 1 and done.calls == []
    assert "(CUDA_VISIBLE_DEVICES was all)" in done.stderr
    assert TOLD not in expected.stderr


LOOP = """
import deepspeed, torch
import torch.utils.data
deepspeed.init_distributed()
assert not torch.cuda.is_available() and deepspeed.get_accelerator().device_name() == "cpu"
net = torch.nn.Linear(4, 1)
engine = deepspeed.initialize(model=net, config={"optimizer": {"type": "AdamW"}})[0]
engine.backward(engine(torch.ones(2, 4)).sum())
engine.step()
engine.destroy()
"""


def test_what_the_user_has_hidden_is_not_told(run):
    loop = LOOP.replace("deepspeed.get_accelerator", "deepspeed.accelerator.get_accelerator")
    assert "hidden" not in run("-c", loop, as_deepspeed=True, CUDA_VISIBLE_DEVICES="").stderr
    done = run("-c", loop, as_deepspeed=True, CUDA_VISIBLE_DEVICES="1")
    assert done.stderr.count(TOLD) == 1 and "(CUDA_VISIBLE_DEVICES was 1)" in done.stderr
    assert "hidden" not in run("-c", loop, as_deepspeed=True, ARTESIAN_CUDA_OF_NOTHING="0").stderr


PARENT = """
import subprocess, sys
import torch
import artesian.deepspeed
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""


def test_a_child_process_tells_it(run):
    loop = LOOP.replace("deepspeed.get_accelerator", "deepspeed.accelerator.get_accelerator")
    assert run("-c", PARENT, loop).stderr.count(TOLD) == 1


def test_a_notebook_that_has_looked_is_told_what_to_do(run):
    program = "import torch; torch.cuda.is_available(); import artesian.deepspeed"
    last = run("-c", program, fails=True).stderr.splitlines()[-1]
    assert last == (
        "ImportError: import artesian.deepspeed: PyTorch has looked for GPUs already and seen one, "
        "and Python does not train on GPUs yet; put this line before all other imports, start the "
        "script by `deepspeed`, or set CUDA_VISIBLE_DEVICES= before Python starts"
    )


def test_an_environment_with_the_command_hides_gpus_from_who_imports_deepspeed(run):
    """Its every process begins with the first line, also those that know nothing of DeepSpeed."""
    first = "import artesian.deepspeed, torch; "
    asks = {"ARTESIAN_AS_DEEPSPEED": "installed"}
    run("-c", first + "assert torch.cuda.is_available()", **asks)
    run("-c", first + "import deepspeed; assert not torch.cuda.is_available()", **asks)
    late = first + "torch.cuda.is_available(); import deepspeed"
    assert "start the script by `deepspeed`" in run("-c", late, fails=True, **asks).stderr


NATIVE = """
import sys
import torch
import artesian
net = torch.nn.Linear(4, 1)
try:
    engine = artesian.initialize(model=net, {arguments})[0]
except artesian.Error as error:
    print(type(error).__name__, error)
    sys.exit()
try:
    engine(torch.ones(2, 4, device="cuda"))
except artesian.Error as error:
    print(type(error).__name__, error)
engine.backward(engine(torch.ones(2, 4)).sum())
engine.step()
print(engine.device, engine.global_steps)
engine.destroy()
"""


def natively(run, arguments):
    return run("-c", NATIVE.replace("{arguments}", arguments)).stdout.splitlines()


def test_natively_initialize_says_what_to_set(run):
    assert natively(run, "config={}") == [
        'UnsupportedError initialize(device=...): got none where PyTorch sees a GPU ("cuda"), '
        'allowed "cpu" and "cuda": training on GPUs from Python is not measured yet; give '
        'device="cpu" (or "artesian": {"device": "cpu"} in the config) and leave model and batches '
        'on the CPU, or device="cuda" to try it'
    ]
    trained = [
        "InvalidError engine(...): got an input on cuda:0, allowed the CPU, where the model is; "
        'move it there by .to("cpu")',
        "cpu 1",
    ]
    assert natively(run, 'config={}, device="cpu"') == trained
    assert natively(run, 'config={"artesian": {"device": "cpu"}}') == trained
    assert natively(run, 'config={"artesian.device": "cpu"}, device=torch.device("cpu")') == trained


def test_natively_other_devices_are_refused(run):
    assert natively(run, 'config={}, device="cuda:2"') == [
        'InvalidError initialize(device=...): got "cuda:2", allowed an index of 0 to 1'
    ]
    assert natively(run, 'config={"artesian": {"device": "toaster"}}') == [
        "InvalidError artesian.device: got 'toaster', allowed \"cpu\", or a device of PyTorch's, "
        '"cuda:0" for instance'
    ]


def test_a_gpu_that_is_asked_for_is_tried(run):
    """The engine's own CUDA runtime, which is linked into it, finds no driver here."""
    done = run("-c", NATIVE.replace("{arguments}", 'config={}, device="cuda:1"'))
    assert done.stdout.startswith("UnsupportedError device: got cuda, allowed cpu here: ")
    assert done.stderr.count("trains on cuda:1: the way there is tested on a simulated device") == 1


@pytest.mark.parametrize("name", ["own_loop.py", "image_classifier.py"])
def test_the_examples_train_there(run, name):
    words = ["--steps", "2"] if name == "own_loop.py" else ["--epochs", "1"]
    done = run(hf.EXAMPLES / name, *words)
    assert "loss" in done.stdout and done.calls == []
