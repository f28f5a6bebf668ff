"""Proves that the engine's optimizer does what torch.optim.AdamW does with parameter groups, with
parameters that are frozen, that a step does not reach, or that are switched off for a while; that
frozen ones are read and never written; and that a group that fits no model is an error."""

import copy

import pytest
import small_models
import torch
from small_models import artesian
from torch import nn

PLACES = ["memory", "nvme"]


def place_for(place, folder):
    return folder if place == "nvme" else None


def gpt2():
    model, batch = small_models.make("gpt2")
    return model.eval(), batch  # without dropout


def take_steps(model, optimizer, batch, steps, scheduler=None):
    """Steps with plain PyTorch; returns the losses."""
    losses = []
    for step in range(steps):
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def take_engine_steps(engine, batch, steps):
    losses = []
    for step in range(steps):
        loss = engine(**batch(step)).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def assert_parameters_agree(engine, model, plain, tolerance=2e-5):
    ours = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        difference = (engine.full_parameter(ours[name]) - parameter).abs().max()
        assert difference <= tolerance, name


def two_groups(model):
    """Parameter groups as trainers make them: biases and norms do not decay, and have constants of
    their own."""
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [
        {"params": decays, "weight_decay": 0.3},
        {"params": others, "weight_decay": 0.0, "lr": 5e-4, "betas": (0.8, 0.99), "eps": 1e-6},
    ]


def schedule_of(optimizer):
    rates = [lambda step: 1 / (1 + step), lambda step: min(1.0, 0.25 * (1 + step))]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rates)


@pytest.mark.parametrize("whose", ["client's", "ours", "config's"])
def test_groups_have_their_own_constants(whose, tmp_path):
    _, batch = gpt2()
    plain = gpt2()[0]
    reference = torch.optim.AdamW(two_groups(plain), lr=2e-3, weight_decay=0.1)
    expected = take_steps(plain, reference, batch, 6, schedule_of(reference))
    digests = set()
    for place in PLACES:
        model, _ = gpt2()
        given = {}
        config = small_models.config_for(place_for(place, tmp_path))
        config["optimizer"]["params"] = {"lr": 2e-3, "weight_decay": 0.1}
        if whose == "config's":
            given["model_parameters"] = two_groups(model)
        else:
            module = torch.optim if whose == "client's" else artesian.optim
            given["optimizer"] = module.AdamW(two_groups(model), lr=2e-3, weight_decay=0.1)
        engine, optimizer, _, scheduler = artesian.initialize(
            model=model, config=config, lr_scheduler=schedule_of, **given
        )
        assert len(optimizer.param_groups) == 2
        losses = take_engine_steps(engine, batch, 6)
        assert losses == pytest.approx(expected, rel=1e-6)
        assert engine.get_lr() == scheduler.get_last_lr() != [2e-3, 5e-4]
        assert_parameters_agree(engine, model, plain)
        digests.add(engine.digest())
        engine.destroy()
    assert len(digests) == 1


def test_a_scheduler_that_was_made_for_the_clients_optimizer_still_decides():
    model, batch = gpt2()
    client = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(client, lambda step: 0.5**step * (step > 0))
    config = small_models.config_for()
    engine = artesian.initialize(model=model, config=config, optimizer=client)[0]
    rates = []
    for step in range(3):  # the first has no warm-up at all, so nothing moves
        take_engine_steps(engine, batch, 1)
        scheduler.step()
        rates.append(engine.last_step["lr"])
    assert rates == [0.0, 5e-4, 2.5e-4]


def test_constants_may_change_between_steps():
    model, batch = gpt2()
    plain = copy.deepcopy(model)
    reference = torch.optim.Adam(plain.parameters(), lr=1e-3)
    config = small_models.config_for()
    engine, optimizer, _, _ = artesian.initialize(
        model=model, config=config, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3)
    )
    for step in range(4):
        for each in (reference, optimizer):
            each.param_groups[0].update(weight_decay=0.1 * step, betas=(0.9 - 0.1 * step, 0.95))
        loss = engine(**batch(step)).loss
        engine.backward(loss)
        engine.step()
        expected = take_steps(plain, reference, lambda _, at=step: batch(at), 1)
        assert loss.item() == pytest.approx(expected[0])
    optimizer.param_groups[0]["betas"] = (1.5, 0.9)
    engine.backward(engine(**batch(0)).loss)
    with pytest.raises(artesian.Error, match=r"groups\[0\].beta1: got 1.5"):
        engine.step()


def test_groups_that_fit_no_model():
    model, _ = gpt2()
    some = [p for p in model.parameters() if p.dim() > 1]
    config = small_models.config_for()
    with pytest.raises(artesian.Error, match='no group with the parameter "transformer.h.0.ln_1'):
        artesian.initialize(model=model, config=config, optimizer=torch.optim.AdamW(some))
    with pytest.raises(artesian.Error, match="1 parameters that are none of the model's"):
        strange = [*model.parameters(), nn.Parameter(torch.ones(2))]
        artesian.initialize(model=model, config=config, optimizer=torch.optim.AdamW(strange))
    artesian.initialize(model=model, config=config)[0].destroy()  # the model is unchanged


def freeze(model):
    model.transformer.h[:2].requires_grad_(False)
    model.transformer.wpe.requires_grad_(False)
    return model


@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "non-reentrant"])
def test_frozen_parameters_are_read_and_never_written(checkpointing, tmp_path):
    def make():
        model = freeze(gpt2()[0])
        if checkpointing != "none":
            model.train()
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
            model.enable_input_require_grads()
        return model

    batch = gpt2()[1]
    plain = make()
    trained = [p for p in plain.parameters() if p.requires_grad]
    reference = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    expected = take_steps(plain, reference, batch, 4)
    digests = set()
    for place in PLACES:
        model = make()
        engine = artesian.initialize(
            model=model, config=small_models.config_for(place_for(place, tmp_path))
        )[0]
        assert take_engine_steps(engine, batch, 4) == pytest.approx(expected, rel=1e-6)
        assert_parameters_agree(engine, model, plain)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                assert torch.equal(engine.full_parameter(parameter), plain.get_parameter(name))
        digests.add(engine.digest())
        if place == "nvme":
            # Three arrays of fp32, and the parameters, of what is trained; padded.
            assert engine.last_step["bytes_nvme_write"] < 1.5 * 16 * sum(p.numel() for p in trained)
        engine.destroy()
    assert len(digests) == 1
    assert "frozen, which are read and never written: 25 parameters" in artesian.explain(plain)


def test_a_frozen_parameter_stays_frozen():
    model, batch = gpt2()
    freeze(model)
    engine = artesian.initialize(model=model, config=small_models.config_for())[0]
    take_engine_steps(engine, batch, 1)
    model.requires_grad_(True)
    with pytest.raises(artesian.Error, match='"transformer.wpe.weight" was frozen when') as error:
        engine(**batch(1))
    assert error.value.fix.startswith("make another engine, or start with it trainable")
    freeze(model)
    take_engine_steps(engine, batch, 1)


def test_what_is_switched_off_or_not_reached_is_left_out_of_the_step():
    class Routed(nn.Module):
        """Calls one of its experts."""

        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.head = nn.Linear(8, 1)

        def forward(self, x, which):
            return self.head(self.experts[which](x).tanh()).square().mean()

    torch.manual_seed(0)
    model = Routed()
    plain = copy.deepcopy(model)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.5)
    client = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    config = small_models.config_for(gradient_clipping=0.0)
    engine = artesian.initialize(model=model, config=config, optimizer=client)[0]
    for step, which in enumerate([0, 1, 0, 2, 1, 0]):
        x = torch.arange(16.0).view(2, 8) / 20 + step
        for each in (plain, model):  # as adapters are switched off in one step and on again
            each.head.requires_grad_(step % 3 != 1)
        loss = engine(x, which)
        engine.backward(loss)
        engine.step()
        expected = plain(x, which)
        expected.backward()
        reference.step()
        reference.zero_grad()
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert_parameters_agree(engine, model, plain, 1e-6)
