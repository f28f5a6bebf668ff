"""Proves promises of the Python package that are kept by a single line each. Every test here was
seen to fail with that line changed; dev/mutants.py looks for more such lines."""

import copy
import dataclasses
import logging
import os
import signal

import numpy as np
import pytest
import small_models
import torch
from made_up_checkpoint import MadeUp
from small_models import artesian
from torch import nn
from torch.utils.checkpoint import checkpoint

from artesian import tables, zero
from artesian.checkpoint import (
    export_universal,
    get_fp32_state_dict_from_zero_checkpoint,
    zero_to_fp32,
)
from artesian.deepspeed import shim

F = nn.functional
# Gradients of a loss that is scaled by 2^40 overflow in fp16.
OVERFLOWS = {"fp16": {"enabled": True, "initial_scale_power": 40, "hysteresis": 1}}
WIDE = {
    "bf16": {"enabled": True},
    "artesian": {"device_memory": "64MiB", "host_memory": "64MiB", "compute_dtype": "fp32"},
}


def begin(model=None, **more):
    """An engine over a small stack, with a schedule that halves the rate at each step."""
    model = small_models.stack()[0] if model is None else model
    return artesian.initialize(
        model=model,
        config=small_models.config_for(**more),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    )[0]


def words(step=0):
    return torch.arange(16.0).view(2, 8) / 20 + 0.1 * step


def take_steps(engine, count, x=words):
    for step in range(count):
        engine.backward(engine(x(step)))
        engine.step()


# Steps, counts and schedules


def test_a_step_that_overflows_is_counted_and_moves_no_schedule(tmp_path):
    engine = begin(**OVERFLOWS)
    take_steps(engine, 2)
    assert engine.last_step["overflow"] and not engine.was_step_applied()
    assert (engine.global_steps, engine.skipped_steps) == (2, 2)
    assert engine.lr_scheduler.last_epoch == 0 and engine.get_lr() == [1e-3]
    engine.save_checkpoint(tmp_path / "saved")
    engine.destroy()
    again = begin(**OVERFLOWS)
    again.load_checkpoint(tmp_path / "saved")
    assert (again.global_steps, again.skipped_steps) == (2, 2)
    assert export_universal.main([str(tmp_path / "saved"), str(tmp_path / "universal")]) == 0
    name = "mp_rank_00_model_states.pt"
    exported = torch.load(tmp_path / "universal" / "global_step2" / name, weights_only=True)
    assert (exported["global_steps"], exported["skipped_steps"]) == (2, 2)


def test_a_schedule_is_restored_unless_it_is_asked_not_to_be(tmp_path):
    engine = begin()
    take_steps(engine, 3)
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    for wanted, epoch in ((True, 3), (False, 0)):
        again = begin()
        again.load_checkpoint(tmp_path, load_lr_scheduler_states=wanted)
        assert (again.lr_scheduler.last_epoch, again.global_steps) == (epoch, 3)
        again.destroy()


def test_a_closure_computes_gradients_wherever_step_is_called():
    engine = begin()
    seen = []

    def closure():
        loss = engine(words())
        seen.append(loss.requires_grad)
        engine.backward(loss)
        return loss

    with torch.no_grad():
        loss = engine.optimizer.step(closure)
    assert seen == [True] and loss.item() == pytest.approx(engine.last_step["loss"])


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("kind", [shim.DeepSpeedCPUAdam, shim.FusedAdam])
def test_deepspeeds_adam_decays_as_its_mode_says(kind, decoupled):
    model = small_models.stack()[0]
    plain = copy.deepcopy(model)
    flag = "adamw_mode" if kind is shim.DeepSpeedCPUAdam else "adam_w_mode"
    ours = kind(model.parameters(), lr=1e-2, weight_decay=0.5, **{flag: decoupled})
    reference = (torch.optim.AdamW if decoupled else torch.optim.Adam)(
        plain.parameters(), lr=1e-2, weight_decay=0.5
    )
    engine = artesian.initialize(model=model, config=small_models.config_for(), optimizer=ours)[0]
    for step in range(2):
        small_models.step_of_both(engine, plain, reference, lambda m, at=step: m(words(at)))
    for name, parameter in model.named_parameters():
        expected = plain.get_parameter(name)
        assert torch.allclose(engine.full_parameter(parameter), expected, atol=1e-6), name


def test_a_foreign_optimizer_is_refused_and_never_replaced():
    class Own(torch.optim.AdamW):
        """An optimizer class of the user's, whose step may do anything."""

    for kind in (Own, torch.optim.LBFGS):
        model = small_models.stack()[0]
        with pytest.raises(NotImplementedError, match=f"got {kind.__name__}, allowed Adam"):
            artesian.initialize(
                model=model,
                config=small_models.config_for(),
                optimizer=kind(model.parameters(), lr=1e-3),
            )


class EndsTheChild:
    """An object that ends the process when an engine ends it: like a tracker that closes its
    run."""

    def remove(self):
        os._exit(3)


def test_a_forked_child_that_ends_leaves_its_parents_engine_alone(tmp_path):
    """A forked child, such as a DataLoader's worker: when it ends, Python runs the exit functions
    of the engine."""
    engine = begin(folder=tmp_path)
    take_steps(engine, 1)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    engine._hooks.handles.append(EndsTheChild())
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # the child might wait for a lock held by a thread that it does not have
        engine.destroy()
        if zero.engine_of(engine.module.scale) is not engine:
            os._exit(4)
        engine._close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine._hooks.handles.pop()
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    take_steps(engine, 1)


# Passes


class Stop(Exception):
    """Thrown by a model of the test's."""


class Reads(nn.Module):
    """Reads a parameter of a module that it does not call; `how` says by which means."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x, how=""):
        for block in self.blocks:
            x = block(x).tanh()
        if how == "stop":
            raise Stop
        if how == "keyword":
            return F.linear(input=x, weight=self.table.weight).sum()
        return (x @ self.table.weight).sum()


def start(model, **more):
    """Starts an engine in which every parameter is gathered for its use."""
    return small_models.start(model, **more)


def test_a_first_pass_that_breaks_off_does_not_count_as_known():
    engine = start(Reads())
    for _ in range(2):
        with pytest.raises(Stop):
            engine(words(), "stop")
    engine.zero_grad()
    engine.backward(engine(words()))
    engine.step()
    assert engine(words()).isfinite()


def test_parameters_given_by_keyword_are_seen():
    model = Reads()
    plain = copy.deepcopy(model)
    engine = start(model)
    plain(words(), "keyword").backward()
    engine.backward(engine(words(), "keyword"))
    found = engine.full_gradient(model.table.weight)
    assert torch.allclose(found, plain.table.weight.grad, rtol=1e-5)


def test_a_pass_inside_of_a_reentrant_checkpoint_is_no_evaluation():
    """Gradients are those without a checkpoint; and an evaluation is not expected to read the
    parameters that a training pass was seen to read."""
    torch.manual_seed(0)
    model = Reads()
    plain = copy.deepcopy(model)
    engine = start(model)
    x = words().requires_grad_(True)
    loss = checkpoint(lambda y: engine(y), x, use_reentrant=True)
    assert {evaluates for _, evaluates in engine._hooks.seen} == {False}
    engine.backward(loss)
    plain(words()).backward()
    for name, parameter in model.named_parameters():
        expected = plain.get_parameter(name).grad
        assert torch.allclose(engine.full_gradient(parameter), expected, rtol=1e-5), name
    engine.step()
    with torch.no_grad():
        engine(words())
    assert {evaluates for _, evaluates in engine._hooks.seen} == {False, True}


def test_inputs_are_computed_with_wherever_they_are_nested():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)
            self.seen = []

        def forward(self, batch, *more, **others):
            values = [batch["x"], batch["list"][0], more[0][0], others["y"]["z"][0]]
            self.seen += [value.dtype for value in values]
            self.seen.append(batch["ids"].dtype)
            return self.layer(sum(values)).sum()

    x = words().bfloat16()
    engine = start(Net(), **WIDE)
    batch = {"x": x, "list": [x], "ids": torch.arange(2)}
    loss = engine(batch, (x,), y={"z": [x]})
    assert engine.module.seen == [torch.float32] * 4 + [torch.int64]
    engine.backward(loss)
    engine.step()


@dataclasses.dataclass
class Found:
    hidden: torch.Tensor
    words: str = ""


def test_outputs_in_plain_dataclasses_have_gradients():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return Found(self.layer(x).tanh())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            for block in self.blocks:
                x = block(x).hidden
            return x.square().sum()

    torch.manual_seed(0)
    model = Net()
    plain = copy.deepcopy(model)
    engine = start(model)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(2):
        loss, expected = small_models.step_of_both(
            engine, plain, reference, lambda m, at=step: m(words(at))
        )
        assert loss == pytest.approx(expected, rel=1e-6)
    assert engine._core.open_max == 1  # each unit is released when its own gradients exist


def test_modules_that_must_not_be_split_are_units():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    class Net(nn.Module):
        _no_split_modules = ["Block"]

        def __init__(self):
            super().__init__()
            self.lower, self.upper = Block(), Block()
            self.head = nn.Linear(8, 1)

    plan = artesian.units.make_plan(Net())
    assert list(plan.blocks) == ["lower", "upper"]
    assert [unit.name for unit in plan.units] == ["lower", "upper", "head"]


# Parameters that are lent


def test_a_parameter_that_is_lent_is_not_lent_once_more():
    engine = start(small_models.stack()[0])
    weight = engine.module.blocks[0].weight
    with zero.GatheredParameters(weight, modifier_rank=0):
        lent = weight.data_ptr()
        with zero.GatheredParameters([weight, engine.module.scale]):
            assert weight.data_ptr() == lent
            weight.data.fill_(2.0)
        assert weight.data_ptr() == lent and bool((weight == 2.0).all())
    assert bool((engine.full_parameter(weight) == 2.0).all())


# What is saved


class WithBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("narrow", torch.full((3,), 1.5, dtype=torch.bfloat16))
        self.register_buffer("small", torch.full((2,), 0.25, dtype=torch.float16))
        self.register_buffer("scratch", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.layer(x).sum()


def test_buffers_are_saved_as_a_state_dict_has_them(tmp_path):
    model = WithBuffers()
    names = set(model.state_dict())
    assert "scratch" not in names
    engine = start(model)
    assert set(engine.consolidated_state_dict()) == names
    engine.save_checkpoint(tmp_path)
    saved = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert set(saved) == names
    assert saved["narrow"].dtype == saved["small"].dtype == torch.float32
    assert saved["narrow"].tolist() == [1.5] * 3 and saved["small"].tolist() == [0.25] * 2
    model.kept.zero_()
    model.scratch.zero_()
    engine.load_checkpoint(tmp_path)
    assert model.kept.tolist() == [1.0] * 3 and model.scratch.tolist() == [0.0] * 3


@pytest.mark.parametrize("name", ["stage3_gather_16bit_weights_on_model_save",
                                  "gather_16bit_weights_on_model_save"])  # fmt: skip
def test_weights_are_gathered_for_a_save_only_where_the_config_says_so(name):
    for given in (True, False, None):
        config = small_models.config_for()
        if given is not None:
            config["zero_optimization"][name] = given
        engine = artesian.initialize(model=small_models.stack()[0], config=config)[0]
        assert engine.zero_gather_16bit_weights_on_model_save() is (given is True)
        engine.destroy()


@pytest.mark.parametrize("array", ["fp32_high", "fp32_low", "exp_avg_sq_signed"])
def test_every_block_of_an_array_is_compared_with_its_checksum(array, tmp_path, capsys):
    """The last rank's arrays have several blocks; a byte of the last element of each is flipped."""
    MadeUp(numel=4 * 2048 + 60).write(tmp_path)
    whole = zero_to_fp32.Checkpoint(tmp_path)
    dtype, rows = whole.manifest.arrays[0][array]
    _, elements, file, offset = rows[-1]
    end = offset + elements * zero_to_fp32.TYPE_BYTES[dtype] - 1
    ends = whole.files[file].ends
    assert np.searchsorted(ends, end, "right") > np.searchsorted(ends, offset, "right")
    path = whole.files[file].path
    data = bytearray(path.read_bytes())
    data[end] ^= 1
    path.write_bytes(data)
    assert zero_to_fp32.main([str(tmp_path), str(tmp_path / "out")]) == 1
    assert "does not have its checksum" in capsys.readouterr().err


# Data


def test_a_loader_for_training_shuffles_and_one_for_evaluation_does_not():
    torch.manual_seed(0)
    data = list(range(64))
    engine, _, loader, _ = artesian.initialize(
        model=small_models.stack()[0],
        training_data=data,
        config=small_models.config_for(train_micro_batch_size_per_gpu=4),
    )
    first, second = ([int(x) for batch in loader for x in batch] for _ in range(2))
    assert sorted(first) == sorted(second) == data and data != first != second
    for how in ({"route": "eval"}, {"data_sampler": torch.utils.data.SequentialSampler(data)}):
        loader = engine.deepspeed_io(data, **how)
        assert [int(x) for batch in loader for x in batch] == data


@pytest.mark.parametrize("is_table", [False, True])
def test_the_row_of_padding_does_not_learn(is_table, monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 8, padding_idx=3)
            self.head = nn.Linear(8, 1)

        def forward(self, ids):
            return self.head(self.embed(ids)).square().sum()

    if is_table:
        monkeypatch.setattr(tables, "SMALLEST", 1)
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.embed.weight[3] = 1.0
    engine = start(model)
    before = engine.full_parameter(model.embed.weight)
    take_steps(engine, 2, lambda step: torch.tensor([[1, 3, 2, 3]]))
    after = engine.full_parameter(model.embed.weight)
    rows = torch.arange(16)
    learnt = (before != after).any(1)
    assert rows[learnt].tolist() == [1, 2]


def test_a_note_of_the_config_is_logged_once_at_its_level(caplog):
    with caplog.at_level(logging.INFO, "artesian"):
        artesian.engine.begin(
            args=None, model=small_models.stack()[0], optimizer=None, model_parameters=None,
            training_data=None, lr_scheduler=None, manner=artesian.engine.Manner.DEEPSPEED,
            config=small_models.config_for(nobody_knows=1),
        )  # fmt: skip
    (record,) = [r for r in caplog.records if "nobody_knows" in r.getMessage()]
    assert record.levelno == logging.WARNING


def test_a_backward_of_the_callers_is_a_part_of_the_step_as_in_deepspeed():
    """DeepSpeed divides by the accumulation steps; natively the caller does, as with PyTorch."""
    manners = artesian.engine.Manner
    digests = []
    for manner, announced, parts in (
        (manners.DEEPSPEED, True, 1),
        (manners.DEEPSPEED, False, 1),
        (manners.NATIVE, False, 4),
    ):
        model, batch = small_models.stack()
        config = small_models.config_for(gradient_accumulation_steps=4)
        engine = artesian.engine.begin(
            args=None, model=model, optimizer=None, model_parameters=None, training_data=None,
            lr_scheduler=None, manner=manner, config=config,
        )[0]  # fmt: skip
        for seed in range(4):
            loss = engine(batch(seed))
            if announced:
                engine.backward(loss)
            else:
                (loss / parts).backward()
            engine.step()
        assert engine.global_steps == 1
        digests.append(engine.digest())
        engine.destroy()
    assert digests[0] == digests[1] == digests[2]


def test_what_is_written_below_stage_3_is_in_every_copy_that_leaves(tmp_path):
    """Changes between two passes are noticed, though nothing else has asked for them."""
    model = small_models.stack()[0]
    config = {**small_models.config_for(**WIDE), "zero_optimization": {"stage": 2}}
    engine = artesian.initialize(model=model, config=config)[0]
    weight = model.blocks[0].weight

    def write(value):
        with torch.no_grad():
            weight.fill_(value)

    def all_are(values, expected):  # a master weight has more bits than bf16
        return bool((values.bfloat16() == expected).all())

    write(0.25)
    assert all_are(engine.full_parameter(weight), 0.25)
    write(0.5)
    assert all_are(engine.consolidated_state_dict()["blocks.0.weight"], 0.5)
    write(0.75)
    engine.save_checkpoint(tmp_path)
    saved = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert all_are(saved["blocks.0.weight"], 0.75)
    before = engine.digest()
    write(1.25)
    assert engine.digest() != before
    engine.set_full_state(weight, torch.full((8, 8), 2.0))
    assert all_are(engine.full_parameter(weight), 2.0)


@pytest.mark.parametrize("excluded", [None, True, False])
def test_frozen_parameters_are_saved_unless_it_is_asked_not_to_be(excluded, tmp_path):
    model = small_models.stack()[0]
    model.scale.requires_grad_(False)
    engine = start(model)
    given = {} if excluded is None else {"exclude_frozen_parameters": excluded}
    engine.save_checkpoint(tmp_path, **given)
    manifest = zero_to_fp32.Checkpoint(tmp_path).manifest
    assert manifest.excluded == (["scale"] if excluded else [])
    assert ("scale" in engine.consolidated_state_dict(**given)) == (not excluded)
