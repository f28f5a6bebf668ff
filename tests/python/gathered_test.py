"""Proves that zero.GatheredParameters makes parameters readable, in each form in which it is
called, that nothing of it stays behind, that what is changed is written back, or dropped; and
that weights, moments and gradients of one parameter can be read, and the first two be set."""

import contextlib
import copy

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
        with zero.GatheredParameters(weight):  # nested calls
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
@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_what_is_changed_inside_is_written_back(place, threshold, tmp_path):
    """Compared with plain PyTorch, whose parameters are changed in the same way."""
    engine, model, batch, _ = start(tmp_path if place == "nvme" else None, threshold)
    plain, _ = small_models.make("llama_tied")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)

    def change(model, gather):
        layer = model.model.layers[1]
        with gather([layer.mlp.up_proj.weight, model.model.norm.weight]):
            torch.nn.init.constant_(model.model.norm.weight, 0.5)
            layer.mlp.up_proj.weight.data[3] = 0.25
        with gather(model.parameters()), torch.no_grad():
            model.model.embed_tokens.weight.mul_(1.5)  # tied: a unit of its own

    for step in range(4):
        loss, expected = small_models.step_of_both(
            engine, plain, optimizer, lambda model: model(**batch(step)).loss
        )
        assert loss == pytest.approx(expected, rel=1e-6)
        if step == 1:
            change(model, lambda p: zero.GatheredParameters(p, modifier_rank=0))
            change(plain, lambda p: contextlib.nullcontext())
    parameters = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        difference = (engine.full_parameter(parameter) - parameters[name]).abs().max()
        assert difference < 1e-5, name


def test_what_is_as_it_was_keeps_its_master_weights():
    model, batch = small_models.make("llama")
    config = small_models.config_for(bf16={"enabled": True})
    engine = artesian.initialize(model=model, config=config)[0]
    take_steps(engine, batch, 2)
    weight = model.model.layers[0].mlp.up_proj.weight
    before = engine.full_parameter(weight)
    with zero.GatheredParameters(weight, modifier_rank=0):
        weight.data[0, 0] = 2.0
    after = engine.full_parameter(weight)
    assert after[0, 0] == 2.0
    after[0, 0] = before[0, 0]
    assert torch.equal(after, before)
    assert not torch.equal(before, before.bfloat16().float())  # there was something to lose


@pytest.mark.parametrize("threshold", [0, 100_000])
def test_changes_that_nobody_writes_back_are_dropped_with_one_warning(threshold, caplog):
    zero.tell_dropped_once.cache_clear()
    engine, model, batch, expected = start(threshold=threshold)
    weight = model.model.norm.weight
    changes = (lambda: weight.data.fill_(2.0), lambda: torch.nn.init.zeros_(weight))
    for change in changes:
        with zero.GatheredParameters(weight):
            change()
        assert torch.equal(engine.full_parameter(weight), expected["model.norm.weight"])
    for rank in (None, 0):
        with pytest.raises(ZeroDivisionError):  # the exception is not hidden, and ends the block
            with zero.GatheredParameters(weight, modifier_rank=rank):
                weight.data.fill_(2.0)
                raise ZeroDivisionError
    assert torch.equal(engine.full_parameter(weight), expected["model.norm.weight"])
    take_steps(engine, batch, 1)


    assert [r.message.count("changes of parameters are dropped") for r in caplog.records] == [1]


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_inside_a_modules_call_parameters_are_gathered_for_it(place, tmp_path):
    engine, model, batch, expected = start(tmp_path if place == "nvme" else None, 0)
    weight = model.lm_head.weight
    seen = []

    def look(module, args):
        with zero.GatheredParameters([weight, model.model.norm.weight]):
            seen.append(torch.equal(weight, expected["model.embed_tokens.weight"]))

    handle = model.model.layers[0].register_forward_pre_hook(look)
    engine(**batch(0))
    with torch.no_grad():
        engine(**batch(0))
    handle.remove()
    assert seen == [True, True]
    take_steps(engine, batch, 2)
    other, _, batch, _ = start()
    take_steps(other, batch, 2)
    assert engine.digest() == other.digest()


class HeadLoss(torch.autograd.Function):
    """A loss that gathers the head's weight itself, in its backward, too."""

    @staticmethod
    def forward(ctx, hidden, weight, head):
        ctx.save_for_backward(hidden)
        ctx.head = head
        with zero.GatheredParameters([head.weight]):
            return (hidden @ head.weight.t()).square().mean()

    @staticmethod
    def backward(ctx, scale):
        with zero.GatheredParameters([ctx.head.weight]), torch.enable_grad():
            hidden = ctx.saved_tensors[0].detach().requires_grad_()
            weight = ctx.head.weight.detach().clone().requires_grad_()
            loss = (hidden @ weight.t()).square().mean()
            hidden, weight = torch.autograd.grad(loss, (hidden, weight))
        return scale * hidden, scale * weight, None


class WithAHead(nn.Module):
    def __init__(self, tied, loss):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.loss = loss
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        hidden = self.block(self.embed(ids)).tanh().view(-1, 8)
        return self.loss(hidden, self.head.weight, self.head)


def by_hand(hidden, weight, head):
    with zero.GatheredParameters([weight]):
        return (hidden @ weight.t()).square().mean()


@pytest.mark.parametrize("loss", [by_hand, HeadLoss.apply])
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_its_loss_gathers(tied, loss):
    torch.manual_seed(1)
    plain = WithAHead(tied, loss)
    model = copy.deepcopy(plain)
    ids = torch.arange(10).view(2, 5)
    config = small_models.config_for()
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    engine = artesian.initialize(model=model, config=config)[0]
    for _ in range(2):  # the first pass finds out which parameters are read
        engine.zero_grad()
        engine.backward(engine(ids))
        plain.zero_grad()
        plain(ids).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(engine.full_gradient(ours), theirs.grad)
    engine.destroy()


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_a_generation_and_a_state_dict_under_gathered_parameters(place, tmp_path):
    engine, model, batch, expected = start(tmp_path if place == "nvme" else None, 0)
    ids = batch(0)["input_ids"]
    plain = model.generate(ids, max_new_tokens=3, do_sample=False)
    with zero.GatheredParameters(model.parameters()):
        assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False), plain)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    take_steps(engine, batch, 1)


@pytest.mark.parametrize("writes", [None, 0])
def test_passes_under_gathered_parameters_between_steps_bring_their_update(writes):
    """Passes that read parameters that persist and whose update is pending after step(), as in
    online training with generation."""
    digests = []
    for inside in (False, True):
        engine, model, batch, _ = start(threshold=40)
        for step in range(3):
            with zero.GatheredParameters(model.parameters(), modifier_rank=writes):
                if writes is not None:
                    model.model.norm.weight.data.mul_(0.5)
                if inside:
                    with torch.no_grad():
                        model(**batch(0))
                if writes is not None:
                    model.model.norm.weight.data.mul_(1.5)
            with torch.no_grad():
                engine(**batch(1))
            engine.backward(engine(**batch(step)).loss)
            engine.step()
        digests.append(engine.digest())
    assert digests[0] == digests[1]


def test_ds_status_says_whether_a_parameter_is_there(tmp_path):
    from artesian.described import ZeroParamStatus, describe

    nvme = {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": str(tmp_path)}}
    with zero.Init(config_dict_or_path={"zero_optimization": nvme}):
        layer = nn.Linear(3, 4)
    assert layer.weight.ds_shape == (4, 3) and layer.weight.ds_numel == 12
    assert layer.weight.ds_id != layer.bias.ds_id
    with zero.Init(config_dict_or_path={"zero_optimization": {"stage": 2}}):
        assert not hasattr(nn.Linear(3, 4).weight, "ds_id")
    engine, model, batch, _ = start(threshold=0)
    weight = model.model.layers[0].mlp.up_proj.weight
    describe(weight)
    seen = []
    handle = model.model.layers[0].mlp.register_forward_pre_hook(
        lambda module, args: seen.append(weight.ds_status == ZeroParamStatus.AVAILABLE)
    )
    assert weight.ds_status == ZeroParamStatus.NOT_AVAILABLE
    assert weight.ds_status != ZeroParamStatus.AVAILABLE
    engine(**batch(0))
    handle.remove()
    assert seen == [True] and ZeroParamStatus.NOT_AVAILABLE == weight.ds_status
    with zero.GatheredParameters(weight):
        assert weight.ds_status == ZeroParamStatus.AVAILABLE
        assert weight.ds_status.name == "AVAILABLE"


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_a_parameters_state_can_be_read_and_set(place, tmp_path):
    """Compared with torch.optim.AdamW, whose state is read and set in the same way."""
    if place == "nvme":
        model, batch = small_models.make("llama_tied")
        engine = small_models.engine_on_nvme(model, tmp_path, units_at_once=2)
    else:
        engine, model, batch, _ = start()
    plain, _ = small_models.make("llama_tied")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    ours = [model.model.norm.weight, model.model.layers[2].mlp.up_proj.weight, model.lm_head.weight]
    theirs = [plain.model.norm.weight, plain.model.layers[2].mlp.up_proj.weight,
              plain.lm_head.weight]  # fmt: skip

    def step(index, look):
        loss = engine(**batch(index)).loss
        assert zero.safe_get_full_grad(ours[0]) is None
        engine.backward(loss)
        plain(**batch(index)).loss.backward()
        look()
        engine.step()
        assert zero.safe_get_full_grad(ours[0]) is None
        optimizer.step()
        optimizer.zero_grad()

    def gradients():
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(zero.safe_get_full_grad(mine), other.grad)

    step(0, gradients)
    for mine, other in zip(ours, theirs, strict=True):
        for kind in ("exp_avg", "exp_avg_sq"):
            state = optimizer.state[other][kind]
            assert torch.allclose(
                zero.safe_get_full_optimizer_state(mine, kind), state, rtol=1e-4, atol=1e-12
            )
            state.mul_(3.0)
            zero.safe_set_full_optimizer_state(mine, state, kind)
            assert torch.equal(zero.safe_get_full_optimizer_state(mine, kind), state)
        other.data.add_(0.5)
        zero.safe_set_full_fp32_param(mine, other.data)
        assert torch.equal(zero.safe_get_full_fp32_param(mine), other)
    for index in (1, 2):
        loss, expected = small_models.step_of_both(
            engine, plain, optimizer, lambda model: model(**batch(index)).loss
        )
        assert loss == pytest.approx(expected, rel=1e-6)
    for mine, other in zip(ours, theirs, strict=True):
        assert (zero.safe_get_full_fp32_param(mine) - other).abs().max() < 1e-5
    engine.destroy()


def test_gradients_are_those_of_all_micro_batches_without_the_loss_scale():
    config = small_models.config_for(
        fp16={"enabled": True, "initial_scale_power": 4}, gradient_accumulation_steps=2
    )
    model, batch = small_models.make("llama")
    plain, _ = small_models.make("llama")
    engine = artesian.initialize(model=model, config=config)[0]
    weight, other = model.lm_head.weight, plain.lm_head.weight
    for index in range(2):
        engine.backward(engine(**batch(index)).loss)
        (plain(**batch(index)).loss / 2).backward()
        assert torch.allclose(zero.safe_get_full_grad(weight), other.grad, atol=1e-3, rtol=1e-2)
    engine.step()


def test_what_no_engine_has_and_what_does_not_fit():
    engine, model, batch, _ = start()
    free = nn.Parameter(torch.ones(2))
    assert zero.safe_get_full_grad(free) is None
    assert zero.safe_get_full_optimizer_state(free, "exp_avg") is None
    zero.safe_set_full_fp32_param(free, torch.zeros(2))
    zero.safe_set_full_optimizer_state(free, torch.zeros(2), "exp_avg")
    assert torch.equal(free, torch.ones(2))
    weight = model.model.norm.weight
    with pytest.raises(artesian.Error, match=r"got the shape \(2,\), allowed .*\(32,\)"):
        zero.safe_set_full_fp32_param(weight, torch.zeros(2))
    with pytest.raises(artesian.Error, match='state: got "momentum", allowed "fp32"'):
        zero.safe_get_full_optimizer_state(weight, "momentum")
    forgotten = engine(**batch(0)).loss
    zero.safe_set_full_fp32_param(weight, torch.full((32,), 0.5))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.backward(forgotten)
    engine.zero_grad()
    take_steps(engine, batch, 1)


def test_a_frozen_parameter_has_nothing_that_an_optimizer_keeps():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    engine = artesian.initialize(model=model, config=small_models.config_for())[0]
    engine.backward(engine(torch.ones(2, 4)).sum())
    gradients = [zero.safe_get_full_grad(each) for each in model.parameters()]
    engine.step()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        moment = zero.safe_get_full_optimizer_state(parameter, "exp_avg")
        for found in (gradient, moment, zero.safe_get_full_fp32_param(parameter)):
            assert (found is not None) == parameter.requires_grad
    engine.destroy()


def test_a_parameters_master_weights():
    engine, model, _, expected = start()
    weight = model.model.norm.weight
    assert torch.equal(zero.safe_get_full_fp32_param(weight), expected["model.norm.weight"])
    assert zero.safe_get_full_fp32_param(nn.Parameter(torch.ones(2))) is None
    engine.destroy()
    assert torch.equal(weight, expected["model.norm.weight"])
    assert zero.safe_get_full_fp32_param(weight) is None
