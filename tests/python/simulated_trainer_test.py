"""Proves that an unmodified script of Trainer's, with --deepspeed and a config, trains on a device,
the simulated one, with the bits of the CPU, at stages 2 and 3 and wherever its state is; and that
a run is resumed there in a new process to the same bits, dropout included."""

import json

import hf
import lora_test
import pytest
import simulated_accelerator_test
import trainer_test

pytestmark = simulated_accelerator_test.pytestmark

# Without dropout, whose draws are the device's, and with attention that both have.
QUIET = """
import runpy, sys, torch, transformers

made = torch.nn.Dropout.__init__
torch.nn.Dropout.__init__ = lambda self, p=0.5, inplace=False: made(self, 0.0, inplace)
make = transformers.GPT2LMHeadModel.__init__

def eagerly(self, config):
    config._attn_implementation = "eager"
    make(self, config)

transformers.GPT2LMHeadModel.__init__ = eagerly
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script there. Accelerate must be told of an accelerator that is not in its list."""

    def start(*words, order="late", **more):
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "sim:0")
        monkeypatch.setenv("ARTESIAN_SIMULATED_ORDER", order)
        folder = str(simulated_accelerator_test.FOLDER)
        monkeypatch.setenv("PYTHONPATH", folder)
        return hf.run(tmp_path, *words, **more)

    return start


def test_the_example_has_the_bits_of_the_cpu(run, tmp_path):
    (tmp_path / "cpu").mkdir()
    quiet = tmp_path / "quiet.py"
    quiet.write_text(QUIET)
    for stage, offload in ((3, "nvme"), (2, "cpu")):
        config = json.loads(trainer_test.config_for(tmp_path).read_text())
        if offload == "cpu":
            config["zero_optimization"] = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
            config["artesian"]["device_memory"] = "8MiB"
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        words = [quiet, trainer_test.SCRIPT, "--steps", 4, "--deepspeed", path]
        expected = hf.run(tmp_path / "cpu", *words)
        done = run(*words)
        assert trainer_test.losses_of(done) == trainer_test.losses_of(expected), (stage, offload)
        saved = [each / "trainer-out/model.safetensors" for each in (tmp_path, tmp_path / "cpu")]
        assert saved[0].read_bytes() == saved[1].read_bytes(), (stage, offload)


def test_a_run_of_adapters_is_resumed_to_the_same_bits(run, tmp_path):
    """In a new process, dropout included: the checkpoint has the device's generator."""
    script = lora_test.SCRIPT.replace("ids[:2]", 'ids[:2].to("sim")')  # what it evaluates itself
    (tmp_path / "train.py").write_text(script)
    config = trainer_test.config_for(tmp_path)
    whole, resumed = (
        json.loads(run("train.py", "fp32", "no", how, config, order=order).stdout.splitlines()[-1])
        for how, order in (("whole", "late"), ("resume", "random:3"))
    )
    assert whole[0][-4:] == resumed[0][-4:] and len(whole[0]) == 8
    assert whole[1]["digest"] == resumed[1]["digest"]
