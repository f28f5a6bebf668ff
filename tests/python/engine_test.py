"""Proves that an own loop may do what it does with plain PyTorch: steps of several micro-batches,
any torch scheduler, a bare backward, evaluation and generation at any time, parts of the model by
themselves, frozen weights, errors and Ctrl-C in the middle, several engines, worker processes; and
that what cannot be is an error that says what to do."""

import copy
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys

import pytest
import small_models
import torch
from small_models import artesian
from torch import nn


def model_of(name="gpt2"):
    """Returns a model without dropout, so that a loop may run it any number of times."""
    model, batch = small_models.make(name)
    return model.eval(), batch


def start(model, folder=None, **more):
    return artesian.initialize(model=model, config=small_models.config_for(folder, **more))[0]


def train(engine, batch, steps=2, first=0):
    for step in range(first, first + steps):
        engine.backward(engine(**batch(step)).loss)
        engine.step()


def digest_after(steps=2, name="gpt2", **more):
    model, batch = model_of(name)
    engine = start(model, **more)
    train(engine, batch, steps)
    return engine.digest()


def test_importing_the_package_loads_neither_torch_nor_the_engine():
    program = (
        "import sys, artesian\n"
        "assert 'initialize' in dir(artesian) and artesian.__version__\n"
        "assert not {'torch', 'numpy', 'artesian._C'} & set(sys.modules)\n"
        "artesian.errors, artesian.optim, artesian.Engine\n"
        "assert {'torch', 'artesian._C'} <= set(sys.modules)\n"
    )
    path = os.pathsep.join([str(small_models.BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    with pytest.raises(AttributeError, match="has no attribute 'initialise'"):
        artesian.initialise  # noqa: B018


def test_explain_names_units_and_what_they_share():
    text = artesian.explain(model_of()[0])
    lines = text.splitlines()
    assert lines[0] == (
        "transformer.wte: Embedding, 1 parameters, 3,072 elements; shared with other units: "
        "transformer.wte.weight"
    )
    assert "transformer.h.2: GPT2Block, 12 parameters, 12,704 elements" in lines
    assert len(lines) == 7


def test_units_of_odd_trees():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
            self.mixed = nn.ModuleList([nn.Linear(3, 3), nn.LayerNorm(3)])
            self.queries = nn.ParameterList([nn.Parameter(torch.ones(3))])
            self.attention = nn.MultiheadAttention(4, 2)

    plan = artesian.units.make_plan(Odd())
    names = {unit.name: unit.parameters for unit in plan.units}
    assert names[""] == ["scale", "queries.0"]
    # A unit that is gathered for a module counts with each module that it covers.
    assert names["blocks.1"] == ["blocks.1.weight", "blocks.1.bias", "scale", "queries.0"]
    assert names["mixed.1"][:2] == ["mixed.1.weight", "mixed.1.bias"]
    # the parameter is read without calling its module
    assert "attention.out_proj.weight" in names["attention"]
    assert "attention.out_proj" not in names


def test_micro_batches_are_averaged(tmp_path):
    model, batch = model_of()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    engine = start(
        model, tmp_path, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=3
    )
    for step in range(4):
        for micro in range(3):
            assert engine.is_gradient_accumulation_boundary() == (micro == 2)
            engine.backward(engine(**batch(3 * step + micro)).loss)
            engine.step()
            (plain(**batch(3 * step + micro)).loss / 3).backward()
        norm = torch.linalg.vector_norm(
            torch.stack([p.grad.norm() for p in plain.parameters()])
        ).item()
        assert engine.get_global_grad_norm() == pytest.approx(norm, rel=1e-5)
        optimizer.step()
        optimizer.zero_grad()
    assert engine.global_steps == 4
    for name, parameter in plain.named_parameters():
        ours = engine.full_parameter(dict(model.named_parameters())[name])
        assert torch.allclose(ours, parameter, atol=2e-5), name


def test_a_bare_loop_has_the_bits_of_the_engines_own():
    model, batch = model_of()
    engine, optimizer, _, _ = artesian.initialize(model=model, config=small_models.config_for())
    for step in range(2):
        optimizer.zero_grad()
        loss = model(**batch(step)).loss
        optimizer.zero_grad()  # the place where many loops have it
        loss.backward()
        optimizer.step()
    assert engine.digest() == digest_after(2)


def test_a_bare_loop_of_scaled_losses_has_the_bits_of_the_engines_own():
    fp16 = {"fp16": {"enabled": True, "initial_scale_power": 4}}
    digests = {}
    for bare in (False, True):
        model, batch = model_of()
        engine = artesian.initialize(model=model, config=small_models.config_for(**fp16))[0]
        for step in range(2):
            for micro in range(2):
                loss = model(**batch(2 * step + micro)).loss
                if bare:
                    engine.scale(loss).backward()
                else:
                    engine.backward(loss)
            engine.optimizer.step()
            digests[bare, step] = (engine.digest(), engine.last_step["loss"])
        with pytest.raises(RuntimeError, match="Loss scaling is required"):
            model(**batch(0)).loss.backward()
        engine.destroy()
    assert all(digests[True, step] == digests[False, step] for step in range(2))


def test_a_clients_optimizer_and_any_torch_scheduler(recwarn):
    model, batch = model_of()
    plain = copy.deepcopy(model)

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    config = small_models.config_for()
    del config["optimizer"]
    engine, optimizer, _, scheduler = artesian.initialize(
        model=model,
        config=config,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    )
    assert isinstance(optimizer, torch.optim.Optimizer)
    plain_optimizer, plain_scheduler = make(plain)
    for step in range(3):
        loss, expected = small_models.step_of_both(
            engine, plain, plain_optimizer, lambda model: model(**batch(step)).loss
        )
        plain_scheduler.step()
        assert loss == pytest.approx(expected, rel=1e-6)
        assert engine.last_step["lr"] == 2e-3 * 0.5**step
        assert engine.get_lr() == plain_scheduler.get_last_lr()
    assert not [warning for warning in recwarn if "lr_scheduler.step()" in str(warning.message)]


def test_the_configs_schedule():
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}
    model, batch = model_of()
    engine = start(model, scheduler=schedule)
    rates = []
    for step in range(6):
        train(engine, batch, 1, step)
        rates.append(engine.last_step["lr"])
    assert rates == pytest.approx([0, 0, 2.5e-4, 5e-4, 7.5e-4, 1e-3], rel=1e-15)


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_evaluation_and_generation_at_any_time_change_no_bit(place, tmp_path):
    model, batch = model_of("llama")
    plain = copy.deepcopy(model)
    engine = start(model, tmp_path if place == "nvme" else None)

    def look():
        with torch.no_grad():
            evaluated = engine(**batch(50)).loss
        tokens = model.generate(small_models.ids(7)[:1], max_new_tokens=5, do_sample=False)
        return evaluated.item(), tokens

    loss, tokens = look()
    assert loss == plain(**batch(50)).loss.item()
    expected = plain.generate(small_models.ids(7)[:1], max_new_tokens=5, do_sample=False)
    assert torch.equal(tokens, expected)
    for step in range(2):
        loss = engine(**batch(step)).loss
        look()
        engine.backward(loss)
        look()
        engine.step()
        look()
    assert engine.digest() == digest_after(2, "llama")


def test_several_forwards_and_backwards_in_a_step():
    model, batch = model_of()
    plain = copy.deepcopy(model)
    engine = start(model)
    first, second = engine(**batch(0)).loss, engine(**batch(1)).loss
    engine.backward(first)
    engine.backward(second)
    engine(**batch(2))  # a forward whose result is not used
    engine.step()
    (plain(**batch(0)).loss).backward()
    (plain(**batch(1)).loss).backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in plain.parameters()]))
    assert engine.get_global_grad_norm() == pytest.approx(norm.item(), rel=1e-5)
    assert engine._core.uses_alive > 0
    del first, second  # the graph keeps its uses alive
    assert engine._core.uses_alive == 0


def test_parts_of_the_model_by_themselves():
    model, batch = model_of("llama")
    engine = start(model)
    for step in range(2):
        data = batch(step)
        hidden = model.model(data["input_ids"]).last_hidden_state
        logits = model.lm_head(hidden)
        engine.backward(model.loss_function(logits, data["labels"], vocab_size=96))
        engine.step()
    assert engine.digest() == digest_after(2, "llama")


def test_a_users_reentrant_checkpoint_is_a_training_pass():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    digests = set()
    for reentrant in (None, True, False):
        torch.manual_seed(0)
        net = Net()
        engine = start(net)
        for step in range(2):
            x = torch.arange(16.0).view(2, 8) / 20 + step
            x.requires_grad_(True)
            for layer in net.layers:  # calls layers without calling a module above them
                if reentrant is None:
                    x = layer(x).tanh()
                else:
                    x = checkpoint(lambda y, f=layer: f(y).tanh(), x, use_reentrant=reentrant)
            engine.backward(x.sum())
            engine.step()
        assert engine._core.open_max == 1
        digests.add(engine.digest())
    assert len(digests) == 1


class Stop(Exception):
    """Thrown by a hook of the test's."""


@pytest.mark.parametrize("how", ["engine", "model"])
@pytest.mark.parametrize("thrown", [Stop, KeyboardInterrupt])
def test_an_exception_in_forward_leaves_no_trace(how, thrown):
    model, batch = model_of()
    engine = start(model)
    train(engine, batch, 1)

    def throw(module, args):
        raise thrown

    handle = model.transformer.h[1].mlp.register_forward_pre_hook(throw)
    with pytest.raises(thrown):
        (engine if how == "engine" else model)(**batch(9))
    handle.remove()
    if thrown is KeyboardInterrupt:  # torch then runs no hooks, as the pass broke off
        with pytest.raises(artesian.Error, match="the step is damaged"):
            (engine if how == "engine" else model)(**batch(9))
        engine.zero_grad()
    assert engine._core.depth == 0
    train(engine, batch, 1, first=1)
    assert engine.digest() == digest_after(2)


def test_what_another_module_reads_comes_with_it_from_then_on(tmp_path):
    class Reader(nn.Module):
        """Reads a parameter of a child module that it does not call."""

        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 8)
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = block(x).tanh()
            return torch.cat([x @ self.table.weight, self.table.weight]).sum()

    torch.manual_seed(0)
    model = Reader()
    plain = copy.deepcopy(model)
    engine = start(model, tmp_path)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(3):
        x = torch.arange(16.0).view(2, 8) / 20 + step
        loss, expected = small_models.step_of_both(engine, plain, optimizer, lambda model: model(x))
        assert loss == pytest.approx(expected, rel=1e-6)
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("how", ["engine", "model", "destroyed"])
def test_ctrl_c_in_the_first_pass_leaves_no_mode_behind(how):
    model, batch = model_of()
    engine = start(model)

    def throw(module, args):
        raise KeyboardInterrupt

    handle = model.transformer.h[1].mlp.register_forward_pre_hook(throw)
    with pytest.raises(KeyboardInterrupt):
        (engine if how == "engine" else model)(**batch(0))
    handle.remove()
    modes = torch.overrides._get_current_function_mode_stack
    assert how != "engine" or not modes()
    if how == "destroyed":
        engine.destroy()
    else:
        engine.zero_grad()
        train(engine, batch, 2)
        assert engine.digest() == digest_after(2)
    assert not modes()


def test_the_example_runs(tmp_path):
    program = small_models.ROOT / "examples" / "python" / "own_loop.py"
    path = os.pathsep.join([str(small_models.BUILD / "python"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, program, "--nvme", tmp_path / "nvme", "--steps", "3"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    last = run.stdout.splitlines()[-1].split()
    assert last[:2] == ["step", "3:"]
    assert 2.0 < float(last[3].strip(",")) < 5.6
    assert float(last[4]) > 0  # megabytes read


@pytest.mark.parametrize("bare", [False, True])
def test_an_exception_in_backward_damages_the_step(bare):
    model, batch = model_of()
    engine = start(model)
    train(engine, batch, 1)

    def throw(module, args, output):
        output.register_hook(lambda gradient: (_ for _ in ()).throw(Stop()))

    handle = model.transformer.h[1].mlp.register_forward_hook(throw)
    loss = engine(**batch(9)).loss
    with pytest.raises(Stop):
        loss.backward() if bare else engine.backward(loss)
    handle.remove()
    with pytest.raises(artesian.errors.InvalidError) as refused:
        engine.step()
    assert refused.value.fix == "call zero_grad(), which drops them, and go on"
    engine.zero_grad()
    del loss
    train(engine, batch, 1, first=1)
    assert engine.digest() == digest_after(2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_ctrl_c_while_backward_computes_anew(reentrant):
    model, batch = small_models.make("llama")  # which has no dropout
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    engine = start(model)
    train(engine, batch, 1)
    loss = engine(**batch(9)).loss
    handle = model.model.layers[1].mlp.register_forward_pre_hook(
        lambda module, args: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        engine.backward(loss)
    handle.remove()
    with pytest.raises(artesian.Error, match="the step is damaged"):
        engine.step()
    engine.zero_grad()
    assert engine._core.depth == 0
    del loss
    train(engine, batch, 1, first=1)
    assert engine.digest() == digest_after(2, "llama")


def test_exceptions_anywhere_change_no_bit():
    seed = 7
    print("seed", seed)
    draw = random.Random(seed)
    model, batch = model_of()
    engine = start(model)

    def throw(*_):
        raise Stop

    def throw_in_backward(module, args, output):
        output.register_hook(throw)

    places = [module for name, module in model.named_modules() if name.endswith((".mlp", ".attn"))]
    kinds = ("register_forward_pre_hook", "register_forward_hook", "in backward")
    for step in range(6):
        module, kind = draw.choice(places), kinds[step % 3]
        if kind == "in backward":
            module = draw.choice([module.mlp for module in model.transformer.h])
            handle = module.register_forward_hook(throw_in_backward)
        else:
            handle = getattr(module, kind)(throw)
        with pytest.raises(Stop):
            engine.backward(engine(**batch(50 + step)).loss)
        handle.remove()
        engine.zero_grad()
        train(engine, batch, 1, first=step)
    assert engine.digest() == digest_after(6)


def test_a_released_parameter_is_an_error_with_its_name():
    model, batch = model_of()
    engine = start(model)
    name = "transformer.h.0.mlp.c_fc.weight"
    weight = model.get_parameter(name)
    for read in (weight.sum, lambda: weight.detach().numpy(), lambda: copy.deepcopy(weight)):
        with pytest.raises(RuntimeError, match=f'parameter "{name}" is released'):
            read()
    assert weight.numel() == 32 * 128
    train(engine, batch, 1)  # and training goes on
    expected = engine.full_parameter(weight)
    engine.destroy()
    assert torch.equal(weight, expected)  # the weight is a plain tensor again
    with pytest.raises(artesian.Error, match="the engine is closed; create another one"):
        engine.digest()


@pytest.mark.parametrize("place", ["memory", "nvme"])
def test_weights_are_taken_out_as_a_whole(place, tmp_path):
    model = nn.Sequential(nn.Linear(600, 600), nn.BatchNorm1d(600), nn.Linear(600, 600))
    model[2].weight = model[0].weight  # tied
    model[1].requires_grad_(False)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = start(model, tmp_path if place == "nvme" else None)
    for refused in (model.state_dict, engine.state_dict):
        with pytest.raises(artesian.Error, match=r"call engine.consolidated_state_dict\(\)"):
            refused()
    state = engine.consolidated_state_dict()
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
    assert state["0.weight"] is state["2.weight"]
    names = [path.name for path in tmp_path.iterdir()]
    # swap files have no name
    assert not [name for name in names if name.startswith("artesian-export")]
    fewer = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    assert set(expected) - set(fewer) == {"1.weight", "1.bias"}
    engine.save_16bit_model(tmp_path / "saved")
    engine.destroy()
    saved = torch.load(tmp_path / "saved" / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())
    with pytest.raises(artesian.Error, match="the engine is closed"):
        engine.save_checkpoint(tmp_path)


def test_gradients_cannot_be_clipped_in_silence():
    model, batch = model_of()
    engine = start(model, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=2)
    for micro in range(2):
        engine.backward(engine(**batch(micro)).loss)
        with pytest.raises(RuntimeError, match="clip by gradient_clipping in the config"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match='gradient of parameter "transformer.wte.weight"'):
            model.lm_head.weight.grad.norm()
        assert model.lm_head.weight.grad.shape == (96, 32)
        engine.step()
    assert all(p.grad is None for p in model.parameters())
    engine.backward(engine(**batch(2)).loss)
    engine.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    loss = engine(**batch(0)).loss
    engine.backward(loss, retain_graph=True)
    loss.backward()  # once more


def test_a_parameter_that_is_changed_in_place_is_an_error():
    model, batch = model_of()
    engine = start(model)
    scale = model.transformer.ln_f.weight  # this parameter persists, so nothing refuses the access
    with torch.no_grad():
        scale.clamp_(max=0.5)
    with pytest.raises(artesian.errors.InvalidError, match='"transformer.ln_f.weight" was changed'):
        engine(**batch(0))


def test_engines_of_one_process_have_folders_of_their_own(tmp_path):
    model, batch = model_of()
    engine = start(model, tmp_path / "one")
    other_model, _ = model_of()
    other = start(other_model, tmp_path / "two")
    for step in range(2):
        train(engine, batch, 1, step)
        train(other, batch, 1, step)
    assert engine.digest() == other.digest() == digest_after(2)
    below = [start(model_of()[0], tmp_path / "one") for _ in range(2)]
    for each in below:
        train(each, batch, 2)
        assert each.digest() == engine.digest()
    assert {"engine-2", "engine-3"} <= {path.name for path in (tmp_path / "one").iterdir()}
    for each in (*below, other, engine):
        each.destroy()
    assert list(tmp_path.iterdir()) == []
    last = start(model_of()[0], tmp_path / "one")
    assert {path.name for path in tmp_path.iterdir()} == {"one"}
    last.destroy()


def test_an_engine_that_is_collected_leaves_nothing(tmp_path):
    model, batch = model_of()
    engine = start(model, tmp_path)
    train(engine, batch, 1)
    assert list(tmp_path.iterdir()) != []
    del engine
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    del model


def test_a_program_that_ends_leaves_nothing(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import small_models as s\n"
        "model, batch = s.make('gpt2')\n"
        "engine = s.artesian.initialize(model=model, config=s.config_for(sys.argv[2]))[0]\n"
        "engine.backward(engine(**batch(0)).loss); engine.step(); print('done')\n"
    )
    folder = os.path.dirname(os.path.abspath(__file__))
    words = [sys.executable, "-c", program, folder, str(tmp_path)]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr
    assert list(tmp_path.iterdir()) == []


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return small_models.ids(index)[0]


def test_data_loader_workers_beside_the_engine(tmp_path):
    model, batch = model_of()
    engine = start(model, tmp_path)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
    for epoch in range(2):
        for ids in loader:
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
    assert engine.global_steps == 8


@pytest.mark.parametrize("section", ["bf16", "fp16"])
def test_sixteen_bit_training_has_one_result_everywhere(section, tmp_path):
    results = set()
    for folder in (None, tmp_path):
        model, batch = model_of()
        engine = start(model, folder, **{section: {"enabled": True}})
        losses = []
        for step in range(4):
            loss = engine(**batch(0)).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        results.add((engine.digest(), tuple(losses), engine.skipped_steps))
        assert engine.skipped_steps == 4 or losses[-1] < losses[0]
        engine.destroy()
    assert len(results) == 1


def test_fp16_needs_the_loss_scale():
    model, batch = model_of()
    engine = start(model, fp16={"enabled": True, "loss_scale": 128.0})
    with pytest.raises(RuntimeError, match="Loss scaling is required; use engine.backward"):
        engine(**batch(0)).loss.backward()
    engine.zero_grad()
    engine.backward(engine(**batch(0)).loss)
    engine.step()
    assert engine.loss_scale == 128.0


def test_configs_as_dict_path_and_text(tmp_path):
    config = small_models.config_for()
    config["steps_per_print"] = float("inf")
    config["zero_optimization.sub_group_size"] = 1e9
    config["zero_optimization"]["reduce_bucket_size"] = 0.9e8
    plain = {key: value for key, value in config.items() if "." not in key}
    plain["zero_optimization"] = {**plain["zero_optimization"], "sub_group_size": 1e9}
    del plain["steps_per_print"]
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(plain))
    digests = set()
    for given in (config, str(path), path, json.dumps(plain)):
        model, batch = model_of()
        engine = artesian.initialize(model=model, config=given)[0]
        train(engine, batch, 1)
        digests.add(engine.digest())
    assert len(digests) == 1


def test_what_cannot_be_is_refused_with_what_to_do():
    model, _ = model_of()
    with pytest.raises(artesian.errors.InvalidError, match="zero_optimisation"):
        start(model, zero_optimisation={"stage": 3})
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = nn.Parameter(tied[0].weight.data)
    with pytest.raises(artesian.errors.InvalidError, match='"0.weight": shares its memory with'):
        start(tied)
    view = nn.Linear(4, 4)
    view.kept = [view.weight.detach().t()]
    with pytest.raises(artesian.errors.InvalidError, match=r'shares its memory with "kept\[0\]"'):
        start(view)
    engine = start(model)
    with pytest.raises(artesian.errors.InvalidError, match="no gradients since the last step"):
        engine.step()
    with pytest.raises(artesian.errors.InvalidError, match="allowed one number that depends"):
        engine.backward(torch.ones(2, requires_grad=True))
    with pytest.raises(artesian.errors.UnsupportedError, match="add_param_group"):
        engine.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


def test_the_log_goes_to_logging(caplog):
    with caplog.at_level(logging.INFO, logger="artesian"):
        start(model_of()[0], bf16={"enabled": True})
    assert any("compute_dtype" in record.message for record in caplog.records)


# A thread is logging while the log's output is replaced, as happens when the interpreter ends.
TURNED_AWAY = """
import logging, threading, time
from small_models import stack, start

from artesian.native import _C

logs, came_back = threading.Event(), []

class Slow(logging.Handler):
    def emit(self, record):
        logs.set()
        time.sleep(0.3)
        came_back.append(True)

logging.getLogger("artesian").addHandler(Slow())
logging.getLogger("artesian").setLevel(logging.INFO)
thread = threading.Thread(target=lambda: start(stack()[0], bf16={"enabled": True}).destroy())
thread.start()
logs.wait()
_C.set_log(None)
print("in it when set_log returned:", not came_back)
thread.join()
"""


def test_the_log_is_turned_away_while_a_thread_is_in_it(tmp_path):
    (tmp_path / "script.py").write_text(TURNED_AWAY)
    tests = small_models.ROOT / "tests" / "python"
    paths = [small_models.BUILD / "python", tests, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "in it when set_log returned: False\n"


@pytest.mark.parametrize(("accumulation", "clipping"), [(1, 1e6), (2, 0.0)])
def test_updates_under_backward_leave_the_bits(tmp_path, accumulation, clipping):
    """Covers whatever a loop may do between the backward that seems to be the last and step()."""

    def run(tries):
        model, batch = model_of("llama")
        engine = small_models.engine_on_nvme(
            model,
            tmp_path,
            gradient_accumulation_steps=accumulation,
            train_micro_batch_size_per_gpu=1,
            gradient_clipping=clipping,
        )
        told = []
        for step in range(7):
            for part in range(accumulation):
                loss = engine(**batch(step * accumulation + part)).loss
                if step % 2 == 0:
                    engine.backward(loss)
                else:  # a bare backward, as in plain PyTorch
                    (loss / accumulation).backward()
                if part + 1 < accumulation:
                    engine.step()
            if not tries or step == 4:
                engine.full_gradient(next(model.parameters()))  # no update is left begun
            if step == 5:
                engine.optimizer.param_groups[0]["lr"] *= 0.5
            engine.step()
            told.append(engine.last_step["updated_under_backward"])
        digest = engine.digest()
        engine.destroy()
        return digest, told

    early, _ = run(tries=True)
    waited, told = run(tries=False)
    assert early == waited
    assert told == [0] * 7


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_gradient_may_be_read_between_any_backwards_of_a_step(tmp_path, accumulation):
    """There are more backwards than the config has micro-batches, as in DeepSpeed's no_sync()."""

    def run(reads, own_boundary=False):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        plain = copy.deepcopy(model)
        config = small_models.config_for(tmp_path, gradient_accumulation_steps=accumulation)
        engine = artesian.initialize(model=model, config=config)[0]
        told = []
        for step in range(4):
            for part in range(1 if own_boundary and step < 2 else 3):
                inputs = small_models.noise(10 * step + part, 2, 4)
                engine.backward(engine(inputs).square().mean())
                (plain(inputs).square().mean() / accumulation).backward()
                if reads:
                    found = engine.full_gradient(model.weight)
                    assert torch.allclose(found, plain.weight.grad, rtol=1e-5)
            engine.optimizer.step()
            plain.load_state_dict(engine.consolidated_state_dict())
            plain.zero_grad()
            told.append([engine.last_step[name] for name in ("loss", "grad_norm")])
        told.append(engine.digest())
        engine.destroy()
        return told

    assert run(reads=True) == run(reads=False)
    if accumulation == 2:  # two steps of one micro-batch, and a third that has more
        assert run(reads=True, own_boundary=True)[-1] == run(False, own_boundary=True)[-1]


def test_the_loss_of_a_step_is_whole_whoever_divides_it():
    """Trainer itself divides the loss by the accumulation steps."""
    told = []
    for divides in (False, True):
        model = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.zeros_(model.bias)
        config = small_models.config_for(gradient_accumulation_steps=2)
        engine = artesian.initialize(model=model, config=config)[0]
        for _ in range(2):
            loss = engine(torch.ones(1, 4)).mean()
            engine.backward(loss / 2 if divides else loss, scale_wrt_gas=not divides)
            engine.step()
        told.append((engine.last_step["loss"], engine.digest()))
        engine.destroy()
    assert told[0] == told[1] and told[0][0] == 2.0
