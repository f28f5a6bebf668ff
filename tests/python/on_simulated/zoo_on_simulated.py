"""Proves that hooked models train on a device with the bits of plain PyTorch there, in fp32 and
bf16, wherever their state is, in whichever order streams run, with and without both forms of
gradient checkpointing."""

import copy

import model_zoo_test
import pytest
import small_models
import torch
import transformers
from small_models import artesian

PLACES = ["none", "cpu", "nvme"]
DTYPES = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}}
# Two models with every placement, the others on NVMe.
CASES = [
    *(
        (name, dtype, place)
        for name in ("gpt2", "llama_tied")
        for dtype in DTYPES
        for place in PLACES
    ),
    *((name, "fp32", "nvme") for name in ("t5", "bert", "deberta", "albert", "gpt_neox", "bart")),
    ("gemma2", "bf16", "nvme"),
]


def on_device(batch):
    return {k: v.to("sim") if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def loss_of(model, batch, step):
    transformers.set_seed(100 + step)
    return model(**on_device(batch(step))).loss


def config_for(place, folder, **more):
    config = small_models.config_for(folder if place == "nvme" else None, **more)
    if place == "cpu":
        config["zero_optimization"]["offload_param"] = {"device": "cpu"}
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    return config


def engine_for(name, model, place, folder, **more):
    if place == "nvme":
        units = model_zoo_test.PLANNED.get(name, 1)
        return small_models.engine_on_nvme(model, folder, units, **more)
    return artesian.initialize(model=model, config=config_for(place, folder, **more))[0]


def plain_on_device(model, dtype):
    plain = copy.deepcopy(model)
    if dtype == "bf16":
        for parameter in plain.parameters():  # the dtype of buffers stays
            parameter.data = parameter.data.bfloat16()
    return plain.to("sim")


def digest_of_plain(name, dtype, plain):
    gradients = {n: None if p.grad is None else p.grad.cpu() for n, p in plain.named_parameters()}
    return model_zoo_test.digest_for(name, gradients, **DTYPES[dtype])


@pytest.mark.parametrize("name, dtype, place", CASES)
def test_one_step_has_the_bits_of_plain_pytorch(sim, name, dtype, place, tmp_path):
    model, batch = small_models.make(name)
    plain = plain_on_device(model, dtype)
    expected = loss_of(plain, batch, 0)
    expected.backward()
    digest = digest_of_plain(name, dtype, plain)
    for order in sim.ORDERS:
        sim.set_order(order)
        model, _ = small_models.make(name)
        engine = engine_for(name, model, place, tmp_path, **DTYPES[dtype])
        assert engine.device == torch.device("sim:0")
        assert {p.device.type for p in model.parameters()} == {"sim"}
        loss = loss_of(engine, batch, 0)
        engine.backward(loss)
        assert loss.item() == expected.item()
        assert engine._core.closed_late == 0
        engine.step()
        assert engine.digest() == digest, order
        assert sim.races() == [], order
        engine.destroy()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("checkpointing", ["reentrant", "non-reentrant"])
def test_checkpoints_compute_again_on_the_devices_thread(order, checkpointing, place, tmp_path):
    model, batch = model_zoo_test.make("gpt2", checkpointing)
    plain = plain_on_device(model, "fp32")
    expected = loss_of(plain, batch, 0)
    expected.backward()
    digest = digest_of_plain("gpt2", "fp32", plain)
    engine = engine_for("gpt2", model, place, tmp_path)
    engine.backward(loss_of(engine, batch, 0))
    engine.step()
    assert engine.digest() == digest
    engine.destroy()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steps", [3])
def test_several_steps_of_micro_batches_have_one_digest(order, place, steps, tmp_path, digests):
    model, batch = small_models.make("llama_tied")
    more = {"gradient_accumulation_steps": 2, "gradient_clipping": 1.0}
    engine = engine_for("llama_tied", model, place, tmp_path, **more)
    losses = []
    for step in range(2 * steps):
        loss = loss_of(engine, batch, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(loss_of(engine, batch, 0).item())
    digests.add((engine.digest(), *losses))
    assert len(digests) == 1
    engine.destroy()


@pytest.fixture(scope="module")
def digests():
    return set()
