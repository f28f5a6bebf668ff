"""Proves that zero.GatheredParameters makes parameters readable, in each form in which it is
called, that nothing of it stays behind, and that what would be lost is an error."""

import pytest
import small_models
import torch
from small_models import artesian
from torch import nn

from artesian import zero


def start(folder=None, threshold=64):
    model, batch = small_models.make("llama_tied")
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = small_models.config_for(folder)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = threshold
    return artesian.initialize(model=model, config=config)[0], model, batch, expected


def take_steps(engine, batch, steps):
    for step in range(steps):
        engine.backward(engine(**batch(step)).loss)
        engine.step()


@pytest.mark.parametrize("threshold", [0, 100_000])
@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_parameters_are_readable_inside_and_not_after(place, threshold, tmp_path):
    engine, model, batch, expected = start(tmp_path if place == "nvme" else None, threshold)
    parameters = dict(model.named_parameters())
    with zero.GatheredParameters(model.parameters()):  # a generator
        for name, tensor in expected.items():
            assert torch.equal(parameters[name], tensor), name
        assert model.lm_head.weight is model.model.embed_tokens.weight
    weight = model.model.layers[1].mlp.up_proj.weight
    with zero.GatheredParameters([weight, weight, nn.Parameter(torch.ones(2))], modifier_rank=0):
        with zero.GatheredParameters(weight):  # nested
            assert weight.sum() == expected["model.layers.1.mlp.up_proj.weight"].sum()
        weight.sum()
    with zero.GatheredParameters(weight, enabled=False):
        pass
    if threshold == 0:
        with pytest.raises(RuntimeError, match="is released"):
            weight.sum()
    take_steps(engine, batch, 2)
    with zero.GatheredParameters(weight):
        assert torch.equal(weight, engine.full_parameter(weight))
        assert not torch.equal(weight, expected["model.layers.1.mlp.up_proj.weight"])
    other, _, batch, _ = start()
    take_steps(other, batch, 2)
    assert engine.digest() == other.digest()


@pytest.mark.parametrize("threshold", [0, 100_000])
def test_what_is_changed_inside_is_refused(threshold):
    engine, model, batch, expected = start(threshold=threshold)
    weight = model.model.norm.weight
    changes = (lambda: weight.data.fill_(2.0), lambda: torch.nn.init.zeros_(weight))
    for change in changes:
        with pytest.raises(NotImplementedError, match=r"changed parameters of shape \(32,\)"):
            with zero.GatheredParameters(weight, modifier_rank=0):
                change()
        assert torch.equal(engine.full_parameter(weight), expected["model.norm.weight"])
    with pytest.raises(ZeroDivisionError):  # which is not hidden
        with zero.GatheredParameters(weight):
            weight.data.fill_(2.0)
            raise ZeroDivisionError
    take_steps(engine, batch, 1)


def test_inside_a_modules_call_it_is_refused():
    engine, model, batch, _ = start()

    def look(module, args):
        with zero.GatheredParameters(model.lm_head.weight):
            raise AssertionError

    handle = model.model.layers[0].register_forward_pre_hook(look)
    with pytest.raises(artesian.Error, match="a module's call is under way"):
        engine(**batch(0))
    handle.remove()
    take_steps(engine, batch, 1)


def test_a_parameters_master_weights():
    engine, model, _, expected = start()
    weight = model.model.norm.weight
    assert torch.equal(zero.safe_get_full_fp32_param(weight), expected["model.norm.weight"])
    assert zero.safe_get_full_fp32_param(nn.Parameter(torch.ones(2))) is None
    engine.destroy()
    with pytest.raises(artesian.Error, match="the engine is closed"):
        with zero.GatheredParameters(weight):
            pass
