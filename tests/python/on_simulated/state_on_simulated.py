"""Proves that state can be read, written, saved and gone on from where a model is on a device:
copies of parameters, moments and gradients, changes in place, buffers, and checkpoints that resume
to the same bits, dropout included."""

import pytest
import small_models
import torch
import transformers
import zoo_on_simulated
from small_models import artesian

PLACES = ["none", "cpu", "nvme"]


def trained(place, folder, name="gpt2", steps=1, **more):
    model, batch = small_models.make(name)
    engine = zoo_on_simulated.engine_for(name, model, place, folder, **more)
    for step in range(steps):
        engine.backward(zoo_on_simulated.loss_of(engine, batch, step))
        engine.step()
    return engine, batch


@pytest.mark.parametrize("place", PLACES)
def test_copies_of_state_are_those_of_the_cpu(order, place, tmp_path):
    """The engine on the device has the gradients that plain PyTorch has there."""
    model, batch = small_models.make("gpt2")
    plain = zoo_on_simulated.plain_on_device(model, "fp32")
    zoo_on_simulated.loss_of(plain, batch, 0).backward()
    engine = zoo_on_simulated.engine_for("gpt2", model, place, tmp_path)
    engine.backward(zoo_on_simulated.loss_of(engine, batch, 0))
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(engine.full_gradient(ours), theirs.grad.cpu())
    before = {n: engine.full_parameter(p) for n, p in model.named_parameters()}
    engine.step()
    for name, parameter in model.named_parameters():
        after = engine.full_parameter(parameter)
        assert not torch.equal(after, before[name]), name
        assert engine.full_state(parameter, "exp_avg").abs().sum() > 0
        with artesian.zero.GatheredParameters(parameter):
            assert parameter.device.type == "sim" and torch.equal(parameter.cpu(), after)
    expected = engine.consolidated_state_dict()
    engine.destroy()
    for name, parameter in model.named_parameters():
        assert parameter.device.type == "sim" and torch.equal(parameter.cpu(), expected[name])


@pytest.mark.parametrize("place", PLACES)
def test_parameters_are_changed_in_place(order, place, tmp_path):
    engine, batch = trained(place, tmp_path)
    parameter = engine.module.transformer.wpe.weight
    with artesian.zero.GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
        parameter.mul_(2)
        expected = parameter.cpu()
    assert torch.equal(engine.full_parameter(parameter), expected)
    with torch.no_grad():
        loss = zoo_on_simulated.loss_of(engine, batch, 0).item()
    weights = engine.consolidated_state_dict()
    engine.destroy()
    plain, _ = small_models.make("gpt2")
    plain.load_state_dict(weights)
    plain.to("sim").train()
    assert zoo_on_simulated.loss_of(plain, batch, 0).item() == loss


def test_below_stage_3_parameters_are_plain_tensors(order):
    model, batch = small_models.make("gpt2")
    config = small_models.config_for()
    config["zero_optimization"] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    engine = artesian.initialize(model=model, config=config)[0]
    for step in range(2):
        engine.backward(zoo_on_simulated.loss_of(engine, batch, step))
        engine.step()
        for parameter in model.parameters():
            assert torch.equal(parameter.cpu(), engine.full_parameter(parameter))
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(2)
    expected = model.transformer.wpe.weight.cpu()
    zoo_on_simulated.loss_of(engine, batch, 3)
    assert torch.equal(engine.full_parameter(model.transformer.wpe.weight), expected)
    engine.destroy()


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x))))).square().mean()


def steps_of(engine, count):
    losses = []
    for step in range(count):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        loss = engine(x.to("sim"))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("place", PLACES)
def test_a_checkpoint_is_gone_on_from_to_the_same_bits(order, place, tmp_path):
    """Dropout draws from the device's generator, and buffers are on the device."""
    transformers.set_seed(5)
    model = Normed()
    config = zoo_on_simulated.config_for(place, tmp_path)
    engine = artesian.initialize(model=model, config=config)[0]
    steps_of(engine, 2)
    engine.save_checkpoint(tmp_path / "saved")
    expected = steps_of(engine, 2), engine.digest(), model.norm.running_mean.cpu()
    engine.destroy()
    transformers.set_seed(6)
    again = Normed()
    engine = artesian.initialize(model=again, config=config)[0]
    assert again.norm.running_mean.device.type == "sim"
    engine.load_checkpoint(tmp_path / "saved")
    losses = steps_of(engine, 2)
    assert (losses, engine.digest()) == expected[:2]
    assert torch.equal(again.norm.running_mean.cpu(), expected[2])
    engine.destroy()


def test_tensors_of_another_device_are_refused(sim):
    engine, _ = trained("none", None)
    with pytest.raises(RuntimeError, match="device"):
        engine(torch.ones(1, 4, dtype=torch.int64))
    engine.zero_grad()
    engine.destroy()
    model, _ = small_models.make("gpt2")
    engine = artesian.initialize(model=model, config=small_models.config_for(), device="cpu")[0]
    assert engine.device == torch.device("cpu")
    with pytest.raises(artesian.Error, match="got an input on sim:0, allowed the CPU"):
        engine(torch.ones(1, 4, dtype=torch.int64, device="sim"))
    engine.destroy()
    with pytest.raises(artesian.Error, match="allowed an index of 0 to 0"):
        artesian.initialize(model=model, config=small_models.config_for(), device="sim:7")


def test_the_config_names_the_device(sim):
    model, _ = small_models.make("gpt2")
    config = small_models.config_for()
    for name, expected in (("cpu", "cpu"), ("auto", "sim:0"), ("sim", "sim:0"), ("sim:0", "sim:0")):
        config["artesian"]["device"] = name
        engine = artesian.initialize(model=model, config=config)[0]
        assert str(engine.device) == expected
        engine.destroy()
        model.to("cpu")


@pytest.mark.parametrize("place", PLACES)
def test_adapters_are_trained_and_texts_generated(order, place, tmp_path):
    """With frozen parameters, and with evaluations of the whole model between two steps."""
    import peft

    def make():
        transformers.set_seed(7)
        model, batch = small_models.make("gpt2")
        config = peft.LoraConfig(
            target_modules=["c_attn"], lora_dropout=0.1, init_lora_weights=False
        )
        return peft.get_peft_model(model, config), batch

    model, batch = make()
    plain = zoo_on_simulated.plain_on_device(model, "fp32")
    engine = zoo_on_simulated.engine_for("gpt2", model, place, tmp_path)
    prompt = torch.tensor([[5, 6, 7]], device="sim")
    more = {"max_new_tokens": 6, "do_sample": True, "pad_token_id": 0}
    texts = []
    for each in (plain, engine.module):
        transformers.set_seed(8)
        each.eval()
        texts.append(each.generate(input_ids=prompt, **more).tolist())
        each.train()
    assert texts[0] == texts[1]
    loss = zoo_on_simulated.loss_of(plain, batch, 0)
    loss.backward()
    ours = zoo_on_simulated.loss_of(engine, batch, 0)
    engine.backward(ours)
    assert ours.item() == loss.item()
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if mine.requires_grad:
            assert torch.equal(engine.full_gradient(mine), theirs.grad.cpu()), name
    engine.step()
    engine.destroy()
