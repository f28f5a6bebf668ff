"""Proves what a user of `activation_checkpointing.cpu_checkpointing` gets: the same losses and
weights, activations that no longer hold a stage's input for each micro-batch, the bytes that
`artesian plan` has told, a disk that is too small refused before the first step, and one that lies
as one error that names the input."""

import json
import os
import subprocess

import pytest
from build_folder import ARTESIAN
from train_cli_test import ENVIRONMENT, errors_of, place, pytestmark  # noqa: F401

MIB = 1 << 20
LAYERS, HIDDEN, LENGTH, SAMPLES, MICRO_BATCHES = 6, 128, 256, 2, 4
# bytes of the input of one stage and one micro-batch, in fp32
INPUT = LENGTH * SAMPLES * HIDDEN * 4
STAGES = LAYERS + 2
MODEL = {
    "model_type": "gpt2", "vocab_size": 256, "n_positions": LENGTH, "n_embd": HIDDEN,
    "n_layer": LAYERS, "n_head": 4, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip


@pytest.fixture
def job(place):  # noqa: F811
    """Trains three steps with these checkpointing keys and this much host memory."""
    (place.model / "config.json").write_text(json.dumps(MODEL))
    place.data.write_text("the deep well lifts the water, and the water lifts the well\n" * 200)

    def config(checkpointing, host):
        def change(made):
            made["activation_checkpointing"] = checkpointing
            made["fp16"]["loss_scale"] = 8
            made["zero_optimization"]["offload_param"]["max_in_cpu"] = 0
            made["artesian"] = {
                "device_memory": "16MiB", "host_memory": host, "activation_memory": "1GiB",
                "compute_dtype": "fp32",
            }  # fmt: skip

        return place.write_config(change)

    def train(checkpointing, host="6MiB"):
        place.config = config(checkpointing, host)
        return place.trained(
            seq_len=LENGTH, micro_batch=SAMPLES, accumulation=MICRO_BATCHES, steps=5
        )

    train.place = place
    return train


def plan_of(place):  # noqa: F811
    rates = "--tflops 0.5 --memory-bandwidth 10 --nvme-read 2 --nvme-write 1".split()
    command = [ARTESIAN, "plan", "--model", place.model, "--config", place.config, *rates]
    command += ["--seq-len", str(LENGTH), "--micro-batch", str(SAMPLES)]
    command += ["--accumulation", str(MICRO_BATCHES), "--json", "-"]
    done = subprocess.run(command, cwd=place.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("host", ["6MiB", "12MiB", "64MiB"])  # room for few, some and all inputs
def test_activations_fall_by_the_inputs_and_nothing_else_changes(job, host):
    kept = job({"partition_activations": True}, host)
    away = job({"cpu_checkpointing": True}, host)
    assert [step["loss"] for step in away] == [step["loss"] for step in kept]
    assert away[-1]["digest"] == kept[-1]["digest"]
    inputs = MICRO_BATCHES * LAYERS * INPUT
    fall = kept[-1]["peak"]["activations"] - away[-1]["peak"]["activations"]
    assert 0.9 * inputs < fall < 1.3 * inputs
    plan = plan_of(job.place)
    homes = {tier: plan["memory"][tier]["input"] for tier in ["device", "host", "nvme"]}
    assert homes["device"] == 0 and homes["host"] + homes["nvme"] == MICRO_BATCHES * STAGES * INPUT
    assert (homes["nvme"] == 0) == (host == "64MiB")
    for link in ["nvme_read", "nvme_write"]:
        assert plan["bytes_per_step"][link]["input"] == homes["nvme"]
    assert away[-1]["peak"]["host"] == plan["memory"]["host"]["used"]
    for step in away[3:-1]:  # the last step's update is not under a forward
        for link in ["nvme_read", "nvme_write", "h2d", "d2h"]:
            assert step["bytes"][link] == plan["bytes_per_step"][link]["total"], link


def test_a_step_of_many_micro_batches_needs_no_more_activations(job):
    """Micro-batches run one at a time: with many, only the places of their inputs remain, not the
    inputs."""
    few = job({"cpu_checkpointing": True})
    job.place.config.unlink()
    place = job.place  # noqa: F811

    def narrow(made):
        made["activation_checkpointing"] = {"cpu_checkpointing": True}
        made["artesian"] = {
            "device_memory": "16MiB", "host_memory": "6MiB", "activation_memory": 1,
            "compute_dtype": "fp32",
        }  # fmt: skip

    place.config = place.write_config(narrow)
    one_by_one = place.trained(seq_len=LENGTH, micro_batch=SAMPLES, accumulation=16, steps=2)
    assert one_by_one[-1]["peak"]["activations"] < few[-1]["peak"]["activations"] + 16 * INPUT
    plan = plan_of(place)
    nvme_and_host = plan["memory"]["nvme"]["input"] + plan["memory"]["host"]["input"]
    assert nvme_and_host == STAGES * INPUT


def test_the_end_table_tells_where_the_inputs_are(job):
    job({"cpu_checkpointing": True}, "12MiB")
    plan = plan_of(job.place)
    run = job.place.run(seq_len=LENGTH, micro_batch=SAMPLES, accumulation=MICRO_BATCHES)
    (line,) = [line for line in run.stdout.splitlines() if "kept inputs" in line]
    host, nvme = (plan["memory"][tier]["input"] / MIB for tier in ["host", "nvme"])
    assert line.split(None, 2)[2] == f"{host:.2f} MiB in host memory, {nvme:.2f} MiB on nvme"


def test_more_at_once_than_memory_bears_is_refused_before_the_disk_is_asked(place):  # noqa: F811
    """16384 micro-batches at once, 100 MiB for each and stage, and as much that stays in memory."""

    def change(made):
        made["activation_checkpointing"] = {"cpu_checkpointing": True}
        made["artesian"] |= {"activation_memory": "1000TiB", "host_memory": "64MiB"}

    line = place.refused(
        config=place.write_config(change), seq_len=32, micro_batch=25_000, accumulation=20_000
    )
    assert "train_micro_batch_size_per_gpu" in line and "bytes missing" in line


def test_an_input_that_does_not_come_back_as_it_was_is_one_error_that_names_it(place):  # noqa: F811
    def change(made):
        made["activation_checkpointing"] = {"cpu_checkpointing": True}
        zero = made["zero_optimization"]
        zero["stage3_param_persistence_threshold"] = 1_000_000  # so that only inputs are on NVMe
        zero["offload_optimizer"] = {"device": "cpu"}
        made["artesian"]["host_memory"] = "1280KiB"
        # in fp32, gradients would be on NVMe, too
        made["data_types"] = {"grad_accum_dtype": "fp16"}

    run = place.start_and_wait_for_a_step(config=place.write_config(change), accumulation=64)
    (swap,) = place.nvme.glob("*.swap")
    with open(swap, "r+b") as file:  # repeated, since the run writes there, too
        while run.poll() is None:
            end = os.fstat(file.fileno()).st_size
            for offset in range(end - 64 * 4096, end, 4096):  # behind what else is there
                byte = os.pread(file.fileno(), 1, offset)
                os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), offset)
    output, errors = run.communicate(timeout=60)
    (line,) = [line for line in errors.splitlines() if ": error: " in line]
    assert run.returncode == 1 and output == ""
    assert line.startswith("artesian: error: shard ") and " input " in line
    assert "is not what was written (checksum differs at generation" in line
