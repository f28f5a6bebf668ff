"""Proves that master weights outlive a swap: where weights are copied out of a 16-bit model,
averages are written in and evaluated, and the copies are written back, the training has the bits of
one without the swap; that a step, a checkpoint and fp32 values from the caller end what is kept;
and that nothing is written where the disk has no room."""

import copy
import os

import limits
import pytest
import small_models
import torch
from small_models import artesian

from artesian import zero

PLACES = ["memory", "nvme"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def start(folder=None, dtype="bf16", **changes):
    model, batch = small_models.make("llama")
    model = model.eval().to(DTYPES[dtype])
    section = {"enabled": True, **({"initial_scale_power": 4} if dtype == "fp16" else {})}
    config = small_models.config_for(folder, **{dtype: section}, **changes)
    return artesian.initialize(model=model, config=config)[0], model, batch


def take_steps(engine, batch, steps, first=0):
    for step in range(first, first + steps):
        engine.backward(engine(**batch(step)).loss)
        engine.step()


def evaluate(engine, batch):
    with torch.no_grad():
        return engine(**batch(99)).loss.item()


def gather(model):
    return zero.GatheredParameters(model.parameters(), modifier_rank=0)


def copies_of(model):
    with gather(model):
        return [p.detach().clone() for p in model.parameters()]


def write(model, values):
    with gather(model), torch.no_grad():
        for parameter, value in zip(model.parameters(), values):
            parameter.copy_(value)


def never_swapped(dtype="bf16", **changes):
    engine, _, batch = start(dtype=dtype, **changes)
    take_steps(engine, batch, 6)
    return engine.digest()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_a_swap_that_is_undone_changes_no_bit(place, dtype, tmp_path):
    engine, model, batch = start(tmp_path if place == "nvme" else None, dtype)
    for step in range(6):
        take_steps(engine, batch, 1, step)
        before, loss = engine.digest(), evaluate(engine, batch)
        own = copies_of(model)
        averages = [(value.float() * 0.9).to(value.dtype) for value in own]
        write(model, averages)
        assert engine.digest() != before and evaluate(engine, batch) != loss
        if step % 2:
            # written once more before it is undone
            write(model, [value.float() * 1.1 for value in own])
        write(model, own)
        assert engine.digest() == before and evaluate(engine, batch) == loss
    assert engine.digest() == never_swapped(dtype)


def test_copies_of_the_whole_model_in_16_bits_restore_an_fp32_one():
    model, batch = small_models.make("llama")
    config = small_models.config_for(bf16={"enabled": True})
    engine = artesian.initialize(model=model, config=config)[0]
    take_steps(engine, batch, 2)
    before = engine.digest()
    own = copy.deepcopy(list(engine.consolidated_state_dict().values()))
    assert {value.dtype for value in own} == {torch.bfloat16}
    write(model, [value * 0.5 for value in own])
    assert engine.digest() != before
    write(model, own)
    assert engine.digest() == before


def test_elements_are_restored_one_by_one():
    engine, model, batch = start()
    take_steps(engine, batch, 3)
    weight = model.model.layers[0].mlp.up_proj.weight
    masters = engine.full_parameter(weight)
    own = masters.bfloat16()
    with zero.GatheredParameters(weight, modifier_rank=0):
        weight.data.fill_(2.0)
    with zero.GatheredParameters(weight, modifier_rank=0):
        weight.data[1:] = own[1:]
    after = engine.full_parameter(weight)
    assert torch.equal(after[1:], masters[1:]) and (after[0] == 2.0).all()
    assert not torch.equal(masters, own.float())  # there was something to lose


def test_a_step_begins_anew(tmp_path):
    engine, model, batch = start(tmp_path)
    take_steps(engine, batch, 2)
    own = copies_of(model)
    write(model, [value * 0.5 for value in own])
    assert engine.saved_masters.tensors
    take_steps(engine, batch, 1, 2)
    assert not engine.saved_masters.tensors
    masters = [engine.full_parameter(parameter) for parameter in model.parameters()]
    write(model, own)
    for parameter, value, master in zip(model.parameters(), own, masters):
        # some values are equal
        expected = torch.where(master.bfloat16() == value, master, value.float())
        assert torch.equal(engine.full_parameter(parameter), expected)


def test_masters_that_the_caller_sets_are_not_replaced():
    engine, model, batch = start()
    take_steps(engine, batch, 2)
    weight = model.model.norm.weight
    own = engine.full_parameter(weight).bfloat16()
    with zero.GatheredParameters(weight, modifier_rank=0):
        weight.data.fill_(2.0)
    finer = own.float() + 1e-5
    zero.safe_set_full_fp32_param(weight, finer)
    with zero.GatheredParameters(weight, modifier_rank=0):
        weight.data.copy_(own)
    expected = torch.where(finer.bfloat16() == own, finer, own.float())
    assert torch.equal(engine.full_parameter(weight), expected)


def test_a_checkpoint_that_is_loaded_begins_anew(tmp_path):
    engine, model, batch = start()
    take_steps(engine, batch, 2)
    engine.save_checkpoint(tmp_path)
    own = copies_of(model)
    write(model, [value * 0.5 for value in own])
    engine.load_checkpoint(tmp_path)
    assert not engine.saved_masters.tensors
    take_steps(engine, batch, 4, 2)
    assert engine.digest() == never_swapped()


def test_nothing_is_kept_of_what_has_no_finer_masters():
    model, batch = small_models.make("llama")
    engine = artesian.initialize(model=model, config=small_models.config_for())[0]
    write(model, [value * 0.5 for value in copies_of(model)])
    assert not engine.saved_masters.tensors


def test_a_disk_without_room_for_masters_is_an_error_before_anything_is_written(
    tmp_path, monkeypatch
):
    (tmp_path / "small").mkdir()
    with limits.small_disk(tmp_path / "small", "8M") as small:
        engine, model, batch = start(small)
        monkeypatch.setattr("artesian.masters.SMALL", 1)  # small parameters go there, too
        take_steps(engine, batch, 1)
        own, before = copies_of(model), engine.digest()
        limits.fill(small / "other")
        with pytest.raises(artesian.errors.NoSpaceError, match="nothing has been written"):
            write(model, [value * 0.5 for value in own])
        assert engine.digest() == before
        (small / "other").unlink()
        write(model, [value * 0.5 for value in own])
        write(model, own)
        assert engine.digest() == before
        engine.destroy()
        assert os.listdir(small) == []
