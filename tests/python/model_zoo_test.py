"""Proves that models of many architectures, unmodified, train with the bits of plain PyTorch: with
and without both forms of gradient checkpointing, with all state in memory, and with all of it on
NVMe in budgets that the two largest units do not fit into together. Released memory cannot be read,
so each step that succeeds had what it needed."""

import copy

import pytest
import small_models
import torch
import transformers
from small_models import artesian

pytestmark = pytest.mark.usefixtures("two_threads")
CHECKPOINTING = ["none", "reentrant", "non-reentrant"]
PLACES = ["memory", "nvme"]
STEPS = 20
# Tolerance of a loss: within 1e-6 on most processors, 1.9e-6 on one. AdamW's first steps amplify
# rounding errors of a gradient to whole steps, so another order of sums shows.
NOISE = 5e-6
# CLIP, SigLIP and wav2vec2 own a parameter above their blocks, and DeBERTa hands one to a norm, so
# that two units are in use at once. That a norm reads another's parameter is known from the first
# pass on, not when memory is planned: it gets room for three, since small units are padded.
AT_ONCE = {"clip": 2, "siglip": 2, "deberta": 2, "wav2vec2": 2}
PLANNED = {"deberta": 3}


def make(name, checkpointing):
    model, batch = small_models.make(name)
    if checkpointing != "none":
        if not model.supports_gradient_checkpointing:
            pytest.skip("the model has no gradient checkpointing")
        reentrant = {"use_reentrant": checkpointing == "reentrant"}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=reentrant)
    return model, batch


def engine_for(name, model, place, folder):
    if place == "nvme":
        return small_models.engine_on_nvme(model, folder, PLANNED.get(name, 1))
    return artesian.initialize(model=model, config=small_models.config_for())[0]


def loss_of(model, batch, step):
    transformers.set_seed(100 + step)  # for dropout, and for what wav2vec2 masks by NumPy
    return model(**batch(step)).loss


def digest_for(name, gradients, **more):
    """Returns the digest of an engine on the CPU after one step with exactly these gradients: each
    unit's function is replaced by one that is linear in its parameters."""
    model, _ = small_models.make(name)
    config = small_models.config_for(**more)
    engine = artesian.initialize(model=model, config=config, device="cpu")[0]
    plan = artesian.units.make_plan(model)
    left = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    loss = torch.zeros(())
    for unit in plan.units:
        mine = {n: left.pop(n) for n in unit.parameters if n in left}
        if not mine:
            continue

        def linear(mine=mine):
            return sum((plan.parameters[n] * gradient).sum() for n, gradient in mine.items())

        unit.module.forward = linear
        loss = loss + unit.module()
    assert not left
    engine.backward(loss)
    engine.step()
    digest = engine.digest()
    engine.destroy()
    return digest


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
@pytest.mark.parametrize("name", small_models.MODELS)
def test_one_step_has_the_bits_of_plain_pytorch(name, checkpointing, tmp_path):
    model, batch = make(name, checkpointing)
    plain = copy.deepcopy(model)
    expected = loss_of(plain, batch, 0)
    expected.backward()
    digest = digest_for(name, {n: p.grad for n, p in plain.named_parameters()})
    for place in PLACES:
        model, _ = make(name, checkpointing)
        engine = engine_for(name, model, place, tmp_path)
        loss = loss_of(engine, batch, 0)
        assert loss.item() == expected.item()
        engine.backward(loss)
        assert engine._core.closed_late == 0
        engine.step()
        assert engine.digest() == digest, place
        assert (engine.last_step["bytes_nvme_read"] > 0) == (place == "nvme")
        assert engine._core.open_max == AT_ONCE.get(name, 1)
        engine.destroy()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", small_models.MODELS)
def test_losses_of_twenty_steps_are_those_of_plain_adamw(name, tmp_path):
    model, batch = make(name, "none")
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    engine = engine_for(name, model, "nvme", tmp_path)
    for step in range(STEPS):
        loss, expected = small_models.step_of_both(
            engine, plain, optimizer, lambda model: loss_of(model, batch, step % 4)
        )
        assert loss == pytest.approx(expected, rel=NOISE, abs=NOISE), step
    engine.destroy()


@pytest.mark.parametrize("name", ["gpt2", "llama_tied", "t5"])
def test_placements_have_the_same_bits(name, tmp_path):
    digests = set()
    for place in PLACES:
        for threshold in (0, 64, 100_000):
            model, batch = make(name, "none")
            config = small_models.config_for(tmp_path if place == "nvme" else None)
            config["zero_optimization"]["stage3_param_persistence_threshold"] = threshold
            engine = artesian.initialize(model=model, config=config)[0]
            for step in range(3):
                engine.backward(loss_of(engine, batch, step))
                engine.step()
            digests.add(engine.digest())
            engine.destroy()
    assert len(digests) == 1
