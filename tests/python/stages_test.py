"""Proves that below stage 3 parameters are resident: training has the bits of stage 3 in each dtype
and with the optimizer's state in each tier; parameters can be read and written between passes, as
plain PyTorch's, and state_dict() and load_state_dict() work; what the caller writes becomes the
master weights, and a swap that is undone changes no bit."""

import copy
import functools

import pytest
import small_models
import torch
from small_models import artesian

from artesian import zero

DTYPES = {
    "fp32": (torch.float32, {}),
    "bf16": (torch.bfloat16, {"bf16": {"enabled": True}}),
    "fp16": (torch.float16, {"fp16": {"enabled": True, "initial_scale_power": 4}}),
}
PLACES = {"none": 0, "cpu": 1, "nvme": 2}  # of the optimizer's state, each at a stage


def config_at(stage, place="none", folder=None, dtype="fp32", **more):
    path = {"nvme_path": str(folder)} if place == "nvme" else {}
    settings = {"zero_optimization": {"stage": stage}, **DTYPES[dtype][1], **more}
    if stage > 0:
        settings["zero_optimization"]["offload_optimizer"] = {"device": place, **path}
    return small_models.config_for(**settings)


def start(*place, name="llama_tied", **more):
    model, batch = small_models.make(name)
    engine = artesian.initialize(model=model.eval(), config=config_at(*place, **more))[0]
    return engine, model, batch


def train(engine, batch, steps=3, first=0):
    losses = []
    for step in range(first, first + steps):
        losses.append(engine(**batch(step)).loss)
        engine.backward(losses[-1])
        engine.step()
    return [loss.item() for loss in losses]


@functools.cache
def at_stage_3(dtype):
    engine, _, batch = start(3, dtype=dtype)
    losses = train(engine, batch)
    result = losses, engine.digest(), engine.consolidated_state_dict()
    engine.destroy()
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_bits_and_values_are_those_of_stage_3(place, dtype, tmp_path):
    engine, model, batch = start(PLACES[place], place, tmp_path, dtype)
    losses, digest, weights = at_stage_3(dtype)
    stored = DTYPES[dtype][0]
    ours = []
    for step in range(3):
        ours += train(engine, batch, 1, step)
        for parameter in model.parameters():
            rounded = engine.full_parameter(parameter).to(stored).to(parameter.dtype)
            assert torch.equal(parameter, rounded)
    assert ours == losses
    assert engine.digest() == digest
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    saved = torch.load(tmp_path / "weights.pt")
    assert list(saved) == list(weights)
    for name, tensor in weights.items():
        assert saved[name].dtype == stored and torch.equal(saved[name], tensor), name
    kinds = {tensor.dtype for tensor in model.model.layers[0].state_dict().values()}
    assert kinds == {stored}
    state = model.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    engine.destroy()


def test_gradients_accumulate_and_evaluation_comes_at_any_time():
    more = {"gradient_accumulation_steps": 2}
    digests = set()
    for stage in (2, 3):
        engine, model, batch = start(stage, **more)
        for step in range(4):
            train(engine, batch, 1, step)
            with torch.no_grad():
                model(**batch(9))
        digests.add(engine.digest())
    assert len(digests) == 1


def averages_of(engine, model, batch, step):
    """Exponential, over steps: of plain reads of parameters."""
    averages = [p.detach().clone() for p in model.parameters()]
    for index in range(3):
        step(engine, batch(index))
        for average, parameter in zip(averages, model.parameters(), strict=True):
            average.mul_(0.9).add_(parameter.data, alpha=0.1)
    return averages


def test_averages_of_parameters_are_those_of_plain_pytorch():
    plain, batch = small_models.make("llama_tied")
    optimizer = torch.optim.AdamW(plain.eval().parameters(), lr=1e-3, weight_decay=0.0)

    def plain_step(model, inputs):
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def step(engine, inputs):
        engine.backward(engine(**inputs).loss)
        engine.step()

    expected = averages_of(plain, plain, batch, plain_step)
    engine, model, batch = start(1)
    for ours, theirs in zip(averages_of(engine, model, batch, step), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


WRITES = {
    "in place": lambda model, p: p.mul_(0.5),
    "data": lambda model, p: p.data.mul_(0.5),
    "data of its own": lambda model, p: setattr(p, "data", p.data * 0.5),
    "state": lambda model, p: model.load_state_dict(
        {n: v * 0.5 if n == "model.norm.weight" else v for n, v in model.state_dict().items()}
    ),
    "gathered": lambda model, p: write_gathered(p),
}


def write_gathered(parameter):
    with zero.GatheredParameters(parameter, modifier_rank=0):
        parameter.data.mul_(0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", WRITES)
def test_what_is_written_becomes_the_masters(how, dtype):
    engine, model, batch = start(2, "cpu", dtype=dtype)
    train(engine, batch, 2)
    masters = {n: engine.full_parameter(p) for n, p in model.named_parameters()}
    norm = model.model.norm.weight
    wanted = norm.detach() * 0.5
    with torch.no_grad():
        WRITES[how](model, norm)
    assert torch.equal(norm.detach(), wanted)
    with torch.no_grad():
        written = model(**batch(5)).loss.item()
    for name, parameter in model.named_parameters():
        expected = wanted.float() if name == "model.norm.weight" else masters[name]
        ours = engine.full_parameter(parameter)
        if name == "model.norm.weight" and norm.dtype == torch.bfloat16:  # upper halves of masters
            ours = ours.bfloat16().float()
        assert torch.equal(ours, expected), name
    if norm.dtype == torch.bfloat16:
        return
    other, copied, _ = start(2, "cpu", dtype=dtype)
    train(other, batch, 2)
    with zero.GatheredParameters(copied.model.norm.weight):
        zero.safe_set_full_fp32_param(copied.model.norm.weight, wanted.float())
    with torch.no_grad():
        assert copied(**batch(5)).loss.item() == written
    assert train(engine, batch, 2, 2) == train(other, batch, 2, 2)
    assert engine.digest() == other.digest()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_write_after_backward_and_before_the_step_counts(dtype):
    """A loop may decay weights by itself."""
    engines = []
    for stage in (2, 3):
        engine, model, batch = start(stage, dtype=dtype)
        train(engine, batch, 1)
        engine.backward(engine(**batch(1)).loss)
        weight = model.model.norm.weight
        values = (engine.full_parameter(weight) * 0.5).to(DTYPES[dtype][0]).float()
        if stage == 2:
            weight.data.copy_(values)
        else:
            engine.set_full_state(weight, values)
        engine.step()
        engines.append(engine)
    first, second = (engine.full_parameter(engine.module.model.norm.weight) for engine in engines)
    assert torch.allclose(first, second, rtol=2**-8 if dtype == "bf16" else 0.0, atol=0.0)


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_swap_that_is_undone_changes_no_bit(dtype, looked):
    engine, model, batch = start(1, dtype=dtype)
    train(engine, batch, 2)
    before = engine.digest()
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: value * 0.9 for name, value in own.items()})
    with torch.no_grad():
        model(**batch(7))
    assert not looked or engine.digest() != before
    model.load_state_dict(own)
    assert engine.digest() == before
    train(engine, batch, 1, 2)
    assert engine.digest() == at_stage_3(dtype)[1]


def test_a_copy_of_the_model_is_plain_pytorchs():
    engine, model, batch = start(0)
    train(engine, batch, 1)
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        assert average(**batch(3)).loss.item() == model(**batch(3)).loss.item()
    train(engine, batch, 2, 1)
    assert engine.digest() == at_stage_3("fp32")[1]
    pairs = list(zip(average.module.parameters(), model.parameters(), strict=True))
    assert not any(torch.equal(ours, theirs) for ours, theirs in pairs)
    average.update_parameters(model)  # the first takes the values as they are
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_parameters_of_another_dtype_are_an_error():
    engine, model, batch = start(2)
    model.model.norm.weight.data = model.model.norm.weight.data.half()
    with pytest.raises(artesian.Error, match='"model.norm.weight" was given other memory'):
        engine(**batch(0))


def test_a_skipped_step_leaves_parameters_as_they_are():
    engine, model, batch = start(2, dtype="fp16")
    weights = [p.detach().clone() for p in model.parameters()]
    engine.backward(engine(**batch(0)).loss * float("inf"))
    engine.step()
    assert engine.optimizer.overflow
    assert all(map(torch.equal, model.parameters(), weights))


def test_what_does_not_fit_says_that_stage_3_needs_less():
    model, _ = small_models.make("llama")
    size = sum(small_models.largest_units(model))
    config = config_at(2)
    config["artesian"]["device_memory"] = size // 2
    with pytest.raises(artesian.errors.ExhaustedError, match=r"device_memory.*stage to 3"):
        artesian.initialize(model=model, config=config)


def test_checkpoints_go_between_stages(tmp_path):
    engine, model, batch = start(2, "cpu", dtype="bf16")
    train(engine, batch, 2)
    engine.save_checkpoint(tmp_path / "saved")
    other, copied, _ = start(3, dtype="bf16")
    other.load_checkpoint(tmp_path / "saved")
    model.model.norm.weight.data.zero_()
    engine.load_checkpoint(tmp_path / "saved")
    weight = other.full_parameter(copied.model.norm.weight)
    assert torch.equal(model.model.norm.weight, weight.bfloat16().float())
    assert train(engine, batch, 1, 2) == train(other, batch, 1, 2)
    assert engine.digest() == other.digest() == at_stage_3("bf16")[1]


def test_after_destroy_parameters_are_plain_and_another_engine_takes_them(tmp_path, caplog):
    engine, model, batch = start(2, "nvme", tmp_path, "bf16")
    losses = train(engine, batch, 2)
    weights = engine.consolidated_state_dict()
    engine.destroy()
    engine.destroy()
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        plain = model(**batch(5)).loss.item()
    config = config_at(2, "nvme", tmp_path, "bf16")
    second = artesian.initialize(model=model, config=config)[0]
    with torch.no_grad():
        assert second(**batch(5)).loss.item() == pytest.approx(plain, rel=1e-2)
    again = train(second, batch, 2)
    assert again[0] < losses[0]
    third = artesian.initialize(model=model, config=config)[0]  # the later one wins
    assert second.is_closed and "has an engine already" in caplog.text
    assert train(third, batch, 1)[0] < again[0]
    third.destroy()
    assert list(tmp_path.iterdir()) == []
