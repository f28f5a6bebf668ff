"""Proves that `import deepspeed` gives Artesian if that is asked for, and only then; that Artesian
precedes an installed DeepSpeed, also in child processes; that asking whether DeepSpeed is installed
loads nothing; and that a name that cannot be served is an error with a sentence."""

import hf
import pytest

FAKE = """
raise AssertionError("an installed DeepSpeed was imported")
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with an installed DeepSpeed."""
    installed = tmp_path / "start" / "deepspeed"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text(FAKE)
    return tmp_path


QUESTION = """
import importlib.metadata, importlib.util, sys
assert importlib.util.find_spec("deepspeed").origin == "artesian"
assert importlib.metadata.version("deepspeed") == "0.19.8"
assert importlib.metadata.metadata("deepspeed")["Name"] == "deepspeed"
assert importlib.metadata.packages_distributions()["deepspeed"] == ["deepspeed"]
import deepspeed, deepspeed.comm
from deepspeed.runtime.zero import partition_parameters
assert deepspeed.__version__ == "0.19.8"
assert not {"torch", "artesian._C"} & set(sys.modules)
"""


def test_asking_loads_nothing(folder):
    hf.run(folder, "-c", QUESTION)


def test_child_processes_are_answered_too(folder):
    (folder / "child.py").write_text(QUESTION)
    parent = "import subprocess, sys; subprocess.run([sys.executable, 'child.py'], check=True)"
    hf.run(folder, "-c", parent)
    first_line = "import artesian.deepspeed\n" + parent
    hf.run(folder, "-c", first_line, as_deepspeed=False)


def test_it_is_not_answered_unless_asked_for(folder):
    said = hf.run(folder, "-c", "import deepspeed", as_deepspeed=False, fails=True).stderr
    assert "an installed DeepSpeed was imported" in said


def test_too_late_is_an_error(folder):
    (folder / "start" / "deepspeed" / "__init__.py").write_text("")
    program = "import deepspeed; import artesian.deepspeed"
    said = hf.run(folder, "-c", program, as_deepspeed=False, fails=True).stderr
    assert "put this line before all other imports" in said


def test_run_is_a_way_to_ask(folder):
    (folder / "script.py").write_text(
        QUESTION + "import __main__; assert sys.argv == ['script.py', '--more'], sys.argv\n"
        "assert __main__.__file__ == 'script.py'\n"
    )
    hf.run(folder, "-m", "artesian.run", "script.py", "--more", as_deepspeed=False)
    said = hf.run(folder, "-m", "artesian.run", "--num_nodes", "2", "script.py", fails=True).stderr
    assert "got --num_nodes 2, allowed 1; start torchrun on each machine" in said


NAMES = """
import deepspeed
from artesian.deepspeed import surface
import importlib
for name, names in surface.MODULES.items():
    module = importlib.import_module(name)
    for attribute in names:
        assert getattr(module, attribute) is not None, (name, attribute)
refused = [*surface.REFUSED, *(f"{name}.Anything" for name in surface.REFUSED_MODULES)]
for name in refused:
    module, _, attribute = name.rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    assert not isinstance(deepspeed, kind)
    try:
        kind(1, of="it")
    except NotImplementedError as error:
        assert str(error).startswith(name + ": not supported by Artesian"), error
    else:
        raise AssertionError(name)
assert issubclass(deepspeed.DeepSpeedEngine, __import__("torch").nn.Module)
assert not hasattr(deepspeed, "nonsense") and not hasattr(deepspeed.comm, "nonsense")
try:
    import deepspeed.nonsense
except ModuleNotFoundError:
    pass
"""

# The first lines of DeepSpeed's tests/unit/simple_model.py, which scripts that never use DeepSpeed
# have as well.
TOP_OF_A_FILE = """
from deepspeed.moe.layer import MoE
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
import deepspeed.moe.utils, deepspeed.sequence.layer
import deepspeed
from deepspeed import PipelineModule as Same, init_inference
import torch

class Stages(PipelineModule):
    def __init__(self, layers):
        super().__init__(layers=layers)

assert not isinstance(torch.nn.Linear(2, 2), (MoE, PipelineModule, Same))
for use in (lambda: Stages([]), lambda: MoE(8), lambda: init_inference(torch.nn.Linear(2, 2))):
    try:
        use()
    except NotImplementedError as error:
        print(error)
"""


def test_what_cannot_be_served_is_an_error_where_it_is_used(folder):
    refusal = "not supported by Artesian, which answers for DeepSpeed here: "
    assert hf.run(folder, "-c", TOP_OF_A_FILE).stdout.splitlines() == [
        f"deepspeed.pipe.PipelineModule: {refusal}pipeline parallelism",
        f"deepspeed.moe.layer.MoE: {refusal}DeepSpeed's own expert layers; models with experts of "
        "their own train",
        f"deepspeed.init_inference: {refusal}the inference engine; artesian.init_inference() "
        "makes an engine that only evaluates, from the same config",
    ]


def test_every_name_is_there_or_says_why_not(folder):
    hf.run(folder, "-c", NAMES)


OWN_LOOP = """
import argparse, json, logging, sys
import torch, deepspeed
from deepspeed.ops.adam import DeepSpeedCPUAdam

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(8, 1)
        self.unused = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.used(x).square().mean()

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args(["--deepspeed", "--deepspeed_config", "config.json"])
deepspeed.init_distributed("gloo")
assert deepspeed.comm.get_world_size() == 1
with deepspeed.zero.Init():
    net = Net()
before = net.unused.weight.clone()
client = DeepSpeedCPUAdam(net.parameters(), lr=0.1, weight_decay=0.5)
data = [torch.full((8,), float(i)) for i in range(6)]
engine, optimizer, loader, _ = deepspeed.initialize(
    args=args, model=net, optimizer=client, training_data=data)
assert optimizer is client and isinstance(engine, deepspeed.DeepSpeedEngine)
losses = []
for x in loader:
    loss = engine(x)
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
assert engine.global_steps == 1 and len(losses) == 3, (engine.global_steps, losses)
# As in DeepSpeed, what no gradient has reached decays.
assert torch.allclose(engine.full_parameter(net.unused.weight), before * 0.95)
engine.destroy()
"""

CONFIG = """{
  // as people paste it
  "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
  "optimizer": {"type": "Lion", "params": {}},
  "zero_optimization": {"stage": 3}, "colour": "blue",
}"""


def test_an_own_loop_of_deepspeeds(folder):
    (folder / "config.json").write_text(CONFIG)
    (folder / "loop.py").write_text(OWN_LOOP)
    done = hf.run(folder, "loop.py")
    assert "colour: ignored; unknown key" in done.stderr
    assert "colour" not in done.stdout
