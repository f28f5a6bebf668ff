"""Proves that whatever a caller does to the parameters, gradients and modules of a model that an
engine trains is never lost silently: it either acts as in plain PyTorch, or is an error that names
the object and after which the training continues."""

import copy
import pickle

import pytest
import small_models
import torch
from small_models import artesian, stack, start
from torch import nn

from artesian import zero

ALL = 100_000  # a threshold below which every parameter persists


def take_steps(engine, batch, steps=1, first=0):
    for step in range(first, first + steps):
        engine.backward(engine(batch(step)))
        engine.step()


def digest_after(steps):
    model, batch = stack()
    engine = start(model)
    take_steps(engine, batch, steps)
    return engine.digest()


def change_data(model):
    model.blocks[1].weight.data = torch.zeros(8, 8)


def change_dtype(model):
    model.blocks[1].bfloat16()


def change_in_place(model):
    with torch.no_grad():
        model.blocks[1].weight.clamp_(max=0.1)


def change_in_place_behind_the_version(model):
    model.blocks[1].weight.data.clamp_(max=0.1)


@pytest.mark.parametrize("threshold", [0, ALL])
@pytest.mark.parametrize("when", ["first", "after a step", "after a forward", "before a step"])
@pytest.mark.parametrize(
    "change",
    [change_data, change_dtype, change_in_place, change_in_place_behind_the_version],
)
def test_changed_parameters_are_errors_with_their_name(change, when, threshold):
    model, batch = stack()
    engine = start(model, threshold=threshold)
    if when != "first":
        engine.backward(engine(batch(0)))
    if when in ("after a step", "after a forward"):
        engine.step()
    if when == "after a forward":
        engine(batch(1))
    with pytest.raises(RuntimeError, match='parameter "blocks.1.(weight|bias)"'):
        change(model)
        if when == "before a step":
            engine.step()
        engine(batch(2))


def test_a_persistent_parameter_can_be_read_after_a_step_and_has_its_values():
    model, batch = stack()
    model.temperature = nn.Linear(1, 1, bias=False)  # a module that nobody calls
    engine = start(model)
    for step in range(3):
        before = [model.scale.clone().detach(), model.temperature.weight.clone().detach()]
        loss = engine(batch(step)) * model.temperature.weight.sum()
        engine.backward(loss)
        engine.step()
        read = [model.scale.clone().detach(), model.temperature.weight.clone().detach()]
        for parameter, old, new in zip(
            (model.scale, model.temperature.weight), before, read, strict=True
        ):
            assert not torch.equal(old, new)
            if step != 1:  # where nothing else completes the update the next forward does
                assert torch.equal(new, engine.full_parameter(parameter))


@pytest.mark.parametrize("threshold", [0, ALL])
def test_a_model_runs_where_its_parameters_are_gathered(threshold):
    model, batch = stack()
    plain = copy.deepcopy(model)
    engine = start(model, threshold=threshold)
    with zero.GatheredParameters(model.parameters()), torch.no_grad():
        assert engine(batch(0)).item() == plain(batch(0)).item()
        assert torch.equal(model.blocks[1].weight, plain.blocks[1].weight)
    with zero.GatheredParameters(model.blocks[1].weight, modifier_rank=0), torch.no_grad():
        for each in (model, plain):
            each.blocks[1].weight.mul_(0.5)
        assert engine(batch(0)).item() == plain(batch(0)).item()
    engine.backward(engine(batch(0)))
    with zero.GatheredParameters(model.blocks[1].weight):
        with pytest.raises(artesian.errors.InvalidError, match="leave that first"):
            engine.step()
    engine.step()


def test_weights_are_not_loaded_in_silence():
    model, batch = stack()
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = start(model, threshold=ALL)
    with pytest.raises(NotImplementedError, match=r"load_state_dict\(\): .*load_checkpoint"):
        model.load_state_dict(saved)
    with pytest.raises(NotImplementedError, match=r"load_state_dict\(\)"):
        model.blocks[1].load_state_dict({"weight": torch.ones(8, 8), "bias": torch.ones(8)})
    with pytest.raises(NotImplementedError, match=r"state_dict\(\): .*consolidated_state_dict"):
        model.blocks[1].state_dict()
    with pytest.raises(NotImplementedError):
        model.load_state_dict(saved, assign=True)
    with zero.GatheredParameters(model.parameters(), modifier_rank=0):
        model.load_state_dict({name: tensor * 2 for name, tensor in saved.items()})
    for name, parameter in model.named_parameters():
        assert torch.equal(engine.full_parameter(parameter), saved[name] * 2), name
    take_steps(engine, batch)


def replace_block(model):
    model.blocks[1] = nn.Linear(8, 8)


def add_adapter(model):
    model.blocks[1].adapter = nn.Linear(8, 8)


def replace_parameter(model):
    model.blocks[1].weight = nn.Parameter(torch.ones(8, 8))


@pytest.mark.parametrize("change", [replace_block, add_adapter, replace_parameter])
def test_parameters_that_come_late_are_errors_with_their_name(change):
    model, batch = stack()
    engine = start(model)
    take_steps(engine, batch)
    change(model)
    with pytest.raises(artesian.errors.InvalidError, match=r'"blocks.1.*came after the engine'):
        engine(batch(0))
    model.requires_grad_(False)  # a frozen model is the caller's affair
    with torch.no_grad():
        engine(batch(0))


def test_a_parametrization_that_comes_late_acts_as_in_plain_pytorch():
    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    model, batch = stack()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    engine = start(model)
    for step in range(4):
        if step == 2:
            for each in (model, plain):
                nn.utils.parametrize.register_parametrization(
                    each.blocks[1], "weight", Halved(), unsafe=True
                )
        loss, expected = small_models.step_of_both(
            engine, plain, optimizer, lambda each: each(batch(step))
        )
        assert loss == pytest.approx(expected, rel=1e-6), step


def test_ties_outlive_what_does_not_copy():
    model, batch = stack()
    model.blocks[2].weight = model.blocks[0].weight
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    engine = start(model)
    model.to(torch.float32).cpu().train().requires_grad_(True)
    for step in range(3):
        loss, expected = small_models.step_of_both(
            engine, plain, optimizer, lambda each: each(batch(step))
        )
        assert loss == pytest.approx(expected, rel=1e-6)
    assert model.blocks[2].weight is model.blocks[0].weight
    for copied in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(NotImplementedError, match="an engine cannot be copied or pickled"):
            copied(engine)


def test_gradients_that_the_caller_drops_are_dropped():
    model, batch = stack()
    engine = start(model)
    optimizer = engine.optimizer
    take_steps(engine, batch)
    for drop in (model.zero_grad, optimizer.zero_grad, engine.zero_grad):
        model(batch(7)).backward()
        drop()
    both = model(batch(8)), model(batch(1))
    both[0].backward()
    model.zero_grad()
    both[1].backward()  # no forward in between
    optimizer.step()
    model.zero_grad()
    model(batch(9)).backward()
    model.zero_grad()
    with pytest.raises(artesian.errors.InvalidError, match="no gradients since the last step"):
        optimizer.step()
    assert engine.digest() == digest_after(2)


def test_gradients_that_the_caller_sets_are_errors():
    model, batch = stack()
    engine = start(model)
    weight = model.blocks[1].weight
    for value, expected in ((None, "gradient was dropped and others"), (torch.ones(8, 8), "set")):
        engine.backward(engine(batch(5)))
        weight.grad = value
        with pytest.raises(artesian.errors.InvalidError, match=f'"blocks.1.weight".*{expected}'):
            engine.step()
        engine.zero_grad()
        weight.grad = None
    take_steps(engine, batch, 2)
    assert engine.digest() == digest_after(2)


def test_gradients_from_before_the_engine_are_dropped():
    model, batch = stack()
    model(batch(7)).backward()
    engine = start(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    take_steps(engine, batch, 2)
    assert engine.digest() == digest_after(2)


@pytest.mark.parametrize("when", ["before", "after", "between forward and backward"])
def test_hooks_of_the_callers_on_parameters_see_their_gradients(when):
    model, batch = stack()
    plain = copy.deepcopy(model)
    seen = {}

    def watch(model, name):
        seen[name] = []
        weight = model.blocks[1].weight
        weight.register_hook(lambda gradient: seen[name].append(gradient.clone()))
        weight.register_post_accumulate_grad_hook(lambda p: seen[name].append(p.grad.clone()))

    watch(plain, "plain")
    if when == "before":
        watch(model, "ours")
    engine = start(model)
    if when == "after":
        watch(model, "ours")
    for step in range(2):
        loss = engine(batch(step))
        if when == "between forward and backward" and step == 0:
            watch(model, "ours")
        engine.backward(loss)
        engine.step()
    plain(batch(0)).backward()
    assert len(seen["ours"]) == 4
    assert all(torch.equal(a, b) for a, b in zip(seen["plain"], seen["ours"][:2], strict=True))
    assert engine.digest() == digest_after(2)


def test_learning_rates_may_change_between_backward_and_step():
    digests = set()
    for early in (True, False):
        model, batch = stack()
        engine = start(model)
        for step in range(3):
            group = engine.optimizer.param_groups[0]
            if early:
                group["lr"] = torch.tensor(0.01 * (step + 1))  # the rate may also be a tensor
            loss = engine(batch(step))
            engine.backward(loss)
            if not early:
                group["lr"] = torch.tensor(0.01 * (step + 1)).item()
            engine.step()
        digests.add(engine.digest())
    assert len(digests) == 1


def test_fewer_micro_batches_at_the_end_of_an_epoch(tmp_path):
    model, batch = stack()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    more = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
    engine = start(model, tmp_path, **more)
    read = []
    for step, count in enumerate([3, 3, 2, 3, 1, 3]):
        for micro in range(count):
            engine.set_gradient_accumulation_boundary(micro == count - 1)
            with engine.no_sync():
                loss = engine(batch(3 * step + micro))
                engine.backward(loss)
            before = engine.global_steps
            engine.step()
            assert engine.global_steps == before + (micro == count - 1)
            expected = plain(batch(3 * step + micro))
            assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
            (expected / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        read.append(engine.last_step["bytes_nvme_read"])
    assert read[3] == read[5] == read[1]  # a short step leaves nothing behind


def test_losses_that_give_no_gradient():
    model, batch = stack()
    engine = start(model)
    with pytest.raises(artesian.errors.InvalidError, match="number that depends on parameters"):
        engine.backward(torch.ones(()))
    engine.backward(engine(batch(0)) * float("nan"))
    engine.step()  # this step is skipped
    assert (engine.skipped_steps, engine.optimizer.overflow) == (1, True)
    take_steps(engine, batch, 1)
    model, batch = stack()
    other = start(model)
    take_steps(other, batch, 1)
    assert all(
        torch.equal(engine.full_parameter(a), other.full_parameter(b))
        for a, b in zip(engine.module.parameters(), other.module.parameters(), strict=True)
    )


def test_the_optimizers_state_is_the_engines():
    model, batch = stack()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    engine = start(model)
    small_models.step_of_both(engine, plain, optimizer, lambda each: each(batch(0)))
    ours = engine.optimizer
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(ours.state[mine][kind], optimizer.state[other][kind])
    assert len(ours.state) == len(optimizer.state)
    assert model.scale in ours.state and torch.ones(2) not in ours.state
    ours.load_state_dict({"state": {}, "param_groups": optimizer.state_dict()["param_groups"]})
    assert len(ours.state) == len(optimizer.state)
    assert ours.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()


def test_what_cannot_be_trained_is_refused_before_anything_is_taken():
    for make, expected in (
        (lambda: nn.Embedding(8, 8, max_norm=1.0), "max_norm"),
        (lambda: nn.Linear(8, 8, device="meta"), "1.weight, 1.bias"),
    ):
        model = nn.Sequential(nn.Linear(8, 8), make())
        with pytest.raises(artesian.Error, match=expected):
            start(model)
        model[0](torch.ones(8))  # the model is unchanged
    model, batch = stack()
    model.codes = nn.Parameter(torch.arange(4, dtype=torch.int8), requires_grad=False)
    model.register_buffer("narrow", torch.ones(2, dtype=torch.float16))
    engine = start(model)
    take_steps(engine, batch)
    assert model.codes.tolist() == [0, 1, 2, 3] and model.narrow.dtype == torch.float16
    assert "left in memory, as not floating-point: 1 parameters" in artesian.explain(model)
