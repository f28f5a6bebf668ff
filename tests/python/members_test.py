"""Proves that what training programs ask of an engine, its optimizer and its parameters beside the
calls of a loop is answered with what plain PyTorch has there: states as a whole, batch sizes that
change, compiled models, activation checkpointing under DeepSpeed's name, single ranks' parts; and
that what cannot be is an error that says what to do."""

import copy
import json
import logging

import hf
import pytest
import small_models
import torch
import trainer_test
from small_models import artesian, stack, start

from artesian.deepspeed import checkpointing, fragments, leaves, utilities


def take_steps(engine, batch, steps=1, first=0):
    for step in range(first, first + steps):
        engine.backward(engine(batch(step)))
        engine.step()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_engine_trains_as_one_that_is_not(backend):
    losses = []
    for compiled in (False, True):
        model, batch = stack()
        engine = start(model)
        if compiled:
            engine.compile(backend=backend, compile_kwargs={"dynamic": False})
            assert engine.is_compiled
            engine.compile(backend=backend)  # a second call has no effect, as in DeepSpeed
        losses.append([])
        for step in range(3):
            loss = engine(batch(step))
            engine.backward(loss)
            engine.step()
            losses[-1].append(loss.item())
        engine.destroy()
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_a_model_without_blocks_is_not_compiled(caplog):
    engine = start(torch.nn.Linear(2, 2))
    engine.compile()
    assert "engine.compile: has no effect: the model has no blocks" in caplog.text
    assert engine(torch.ones(1, 2)).shape == (1, 2)


def test_compiling_that_is_not_served_is_refused():
    engine = start(stack()[0])
    with pytest.raises(artesian.errors.UnsupportedError, match="compiled_autograd_enabled"):
        engine.compile(compiled_autograd_enabled=True)
    with pytest.raises(artesian.errors.UnsupportedError, match="schedule"):
        engine.compile(schedule=[])


def test_states_of_the_module_go_out_and_come_back():
    model, batch = stack()
    engine = start(model)
    take_steps(engine, batch, 2)
    state = copy.deepcopy(engine.module_state_dict())
    assert list(state) == [name for name, _ in model.named_parameters()]
    assert {"a." + name for name in state} == set(engine.module_state_dict(prefix="a."))
    wanted = {name: torch.zeros_like(value) for name, value in state.items()}
    for form in (wanted, {"module": wanted}):
        engine.load_module_state_dict(form)
        assert all(not value.any() for value in engine.module_state_dict().values())
        engine.load_module_state_dict(state)
        for name, value in engine.module_state_dict().items():
            assert torch.equal(value, state[name])
    assert engine._consolidated_16bit_state_dict().keys() == state.keys()


def test_an_optimizers_state_is_torchs(tmp_path):
    model, batch = stack()
    plain = copy.deepcopy(model)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    engine = start(model, tmp_path)
    for step in range(3):
        take_steps(engine, batch, 1, step)
        plain(batch(step)).backward()
        reference.step()
        reference.zero_grad()
    ours, wanted = engine.optimizer.state_dict(), reference.state_dict()
    assert [group["params"] for group in ours["param_groups"]] == [
        group["params"] for group in wanted["param_groups"]
    ]
    assert ours["state"].keys() == wanted["state"].keys()
    for number, moments in ours["state"].items():
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(moments[kind], wanted["state"][number][kind], atol=1e-6)
    with pytest.raises(artesian.errors.UnsupportedError, match="got moments"):
        engine.optimizer.load_state_dict(ours)


def test_batches_may_become_larger():
    model, batch = stack()
    plain = copy.deepcopy(model)
    engine = start(model, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=1)
    assert not engine.was_step_applied()
    take_steps(engine, batch)
    assert engine.was_step_applied() and engine.global_steps == 1
    engine.set_train_batch_size(6)
    assert (engine.train_batch_size(), engine.gradient_accumulation_steps()) == (6, 3)
    engine.micro_steps = 0
    for step in range(1, 4):
        take_steps(engine, batch, 1, step)
        assert engine.was_step_applied() == (step == 3)
    assert engine.global_steps == 2
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    for steps in ([0], [1, 2, 3]):
        sum(plain(batch(step)) for step in steps).div(len(steps)).backward()
        reference.step()
        reference.zero_grad()
    for ours, wanted in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(engine.full_parameter(ours), wanted, atol=1e-5)
    engine.set_train_micro_batch_size(4)
    assert engine.train_batch_size() == 12
    with pytest.raises(artesian.Error, match="allowed a multiple of the micro-batch size, 4"):
        engine.set_train_batch_size(6)


def test_with_unmanaged_accumulation_each_step_is_one():
    model, batch = stack()
    plain = copy.deepcopy(model)
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
    engine = start(model, managed_gradient_accumulation=False, **config)
    assert not engine.managed_gradient_accumulation()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    for steps in ([0], [1, 2, 3], [4, 5]):
        for step in steps:
            engine.backward(engine(batch(step)))
            (plain(batch(step)) / 2).backward()
        engine.step()
        assert engine.was_step_applied()
        reference.step()
        reference.zero_grad()
    assert (engine.global_steps, engine.global_samples) == (3, 12)
    for ours, wanted in zip(model.parameters(), plain.parameters()):
        assert torch.allclose(engine.full_parameter(ours), wanted, atol=1e-5)
    with pytest.raises(AssertionError, match="set_gradient_accumulation_boundary: not allowed"):
        engine.set_gradient_accumulation_boundary(True)
    with pytest.raises(AssertionError, match="coalesce_grad_reduction: not allowed"):
        with engine.coalesce_grad_reduction():
            pass
    assert start(stack()[0]).managed_gradient_accumulation()


def test_what_is_asked_of_an_engine():
    engine = start(stack()[0], gradient_clipping=0.5, steps_per_print=7)
    assert (engine.global_rank, engine.local_rank, engine.world_size, engine.mpu) == (0, 0, 1, None)
    assert (engine.gradient_clipping(), engine.steps_per_print()) == (0.5, 7)
    assert engine.get_mom() == [(0.9, 0.999)] and engine.optimizer_name() == "adamw"
    assert not (engine.fp16_enabled() or engine.bfloat16_enabled() or engine.monitor.enabled)
    engine.monitor.write_events([("loss", 1.0, 1)])
    engine.mpu = None
    loader = engine.deepspeed_io([torch.ones(2)] * 4, batch_size=2, route="eval")
    assert [batch.shape for batch in loader] == [torch.Size([2, 2])] * 2
    with engine.coalesce_grad_reduction():
        pass
    engine.empty_partition_cache()


def test_an_optimizer_without_an_engine_has_none_of_its_attributes():
    optimizer = artesian.optim.AdamW(torch.nn.Linear(2, 2).parameters())
    for name in ("loss_scale", "cur_scale", "_global_grad_norm", "parameter_offload"):
        assert not hasattr(optimizer, name)


def test_hooks_that_are_taken_off_to_generate_and_put_on_again():
    model, batch = stack()
    engine = start(model)
    offload = engine.optimizer.parameter_offload
    for hook in [*offload.forward_hooks, *offload.backward_hooks]:
        hook.remove()
    offload.forward_hooks = offload.backward_hooks = []
    with torch.no_grad():
        engine(batch(0))
    if not offload.param_coordinator.is_invalid_trace():
        offload.param_coordinator._invalidate_trace()
    offload._register_deepspeed_module(offload.module)
    take_steps(engine, batch, 2)
    assert engine.optimizer.loss_scale == engine.optimizer.cur_scale == 1.0
    assert engine.optimizer._global_grad_norm == engine.get_global_grad_norm()


def test_states_are_on_no_gpu_that_could_be_freed(caplog):
    model, batch = stack()
    engine = start(model)
    with caplog.at_level(logging.INFO, "artesian"):
        engine.offload_states(include=None, device="cpu")
        engine.reload_states()
        engine.offload_states()
    assert caplog.text.count("offload_states, reload_states: have no effect") == 1
    take_steps(engine, batch)


def test_bounds_that_trl_reckons_need_not_be_whole():
    bounds = {
        "zero_optimization.reduce_bucket_size": 36 * 36,
        "zero_optimization.stage3_param_persistence_threshold": 10.5,
        "zero_optimization.stage3_prefetch_bucket_size": 0.9 * 36 * 36,
    }
    config = {"zero_optimization": {"stage": 3}, **bounds}
    engine = artesian.initialize(model=torch.nn.Linear(2, 2), config=config)[0]
    assert engine.zero_optimization_stage() == 3
    # names of other groups must be given
    with pytest.raises(artesian.Error, match="sub_group_size"):
        artesian.initialize(
            model=torch.nn.Linear(2, 2), config={"zero_optimization.sub_group_size": 0.5}
        )


# Under DeepSpeed's name


def test_checkpointing_has_torchs_gradients(caplog):
    with caplog.at_level(logging.INFO, "artesian"):
        checkpointing.configure(None, {"activation_checkpointing": {"cpu_checkpointing": True}})
        checkpointing.configure(None, checkpoint_in_cpu=True, profile=True)
    assert checkpointing.is_configured()
    assert caplog.text.count("activation_checkpointing.cpu_checkpointing: is so already") == 1
    assert caplog.text.count("activation_checkpointing.profile: has no effect") == 1
    layer = torch.nn.Linear(4, 4)
    x, y = (torch.randn(2, 4, requires_grad=True) for _ in range(2))

    def function(x, scale=None):
        return (torch.nn.functional.dropout(layer(x).tanh(), 0.5) * scale,)

    results = []
    for run in (checkpointing.checkpoint, lambda function, *a, **k: function(*a, **k)[0]):
        torch.manual_seed(3)
        x.grad = y.grad = None
        result = run(function, x, scale=y)
        result.sum().backward()
        results.append([result, x.grad, y.grad])
    assert all(torch.equal(ours, wanted) for ours, wanted in zip(*results))
    checkpointing.reset()
    detached = checkpointing.detach_variable((result, 3))
    assert detached[0].is_leaf and detached[0].requires_grad and detached[1] == 3


def test_generators_of_model_parallelism_go_on_where_they_were():
    checkpointing.model_parallel_cuda_manual_seed(5)
    tracker, outside = checkpointing.get_cuda_rng_tracker(), torch.get_rng_state()
    with tracker.fork():
        first = torch.rand(3)
    with tracker.fork():
        second = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), outside) and not torch.equal(first, second)
    torch.manual_seed(5 + 2718)
    assert torch.equal(torch.rand(3), first) and torch.equal(torch.rand(3), second)


def test_the_part_of_one_rank_is_the_whole():
    model, batch = stack()
    engine = start(model)
    engine.backward(engine(batch(0)))
    weight = model.blocks[1].weight
    gradient = fragments.safe_get_local_grad(weight)
    assert torch.equal(gradient, engine.full_gradient(weight).flatten())
    engine.step()
    local = fragments.safe_get_local_fp32_param(weight)
    assert torch.equal(local, engine.full_parameter(weight).flatten())
    fragments.safe_set_local_fp32_param(weight, local * 2)
    assert torch.equal(engine.full_parameter(weight).flatten(), local * 2)
    moment = fragments.safe_get_local_optimizer_state(weight, "exp_avg")
    fragments.safe_set_local_optimizer_state(weight, moment * 2, "exp_avg")
    assert torch.equal(engine.full_state(weight, "exp_avg").flatten(), moment * 2)
    with pytest.raises(artesian.Error, match="set between backward"):
        fragments.safe_set_local_grad(weight, gradient)


def test_leaf_modules_by_name_and_suffix():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert leaves.set_z3_leaf_modules_by_name(model, ["1.0", "x"], raise_if_not_found=False) == (
        [model[1][0]],
        ["x"],
    )
    assert leaves.get_z3_leaf_modules(model) == [model[1][0]]
    assert leaves.set_z3_leaf_modules_by_suffix(model, ["0"]) == ([model[0], model[1][0]], [])
    assert leaves.unset_z3_leaf_modules(model, ["torch.nn.modules.linear.Linear"])
    assert leaves.get_z3_leaf_modules(model) == []
    assert leaves.set_z3_leaf_modules(model, [torch.nn.Conv1d], raise_if_not_found=False) == []
    with pytest.raises(artesian.Error, match="allowed names of modules"):
        leaves.set_z3_leaf_modules_by_name(model, ["x"])


def test_small_helpers(capsys, caplog):
    loader = utilities.RepeatingLoader([1, 2])
    assert [next(loader) for _ in range(5)] == [1, 2, 1, 2, 1]
    with utilities.OnDevice(dtype=torch.bfloat16, device="meta"):
        layer = torch.nn.Linear(2, 2)
    assert layer.weight.is_meta and layer.weight.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32 and not torch.nn.Linear(2, 2).weight.is_meta
    utilities.see_memory_usage("here", force=True)
    assert "here\nmemory of the process: " in capsys.readouterr().out
    moved = utilities.move_to_device({"x": [torch.ones(2)], "n": 3}, "meta")
    assert moved["x"][0].is_meta and moved["n"] == 3
    utilities.set_random_seed(4)
    assert torch.initial_seed() == 4
    with caplog.at_level(logging.INFO, "artesian.deepspeed"):
        utilities.log_dist("a line", ranks=[0])
        utilities.log_dist("another", ranks=[1])
    assert "a line" in caplog.text
    with pytest.raises(artesian.Error, match="allowed debug, info"):
        utilities.set_log_level_from_string("loud")


TRAINER = """
import sys, json, torch, transformers
config = next((word for word in sys.argv[1:] if not word.startswith("--")), None)
arguments = transformers.TrainingArguments(
    "out", deepspeed=config, max_steps=3, per_device_train_batch_size=2, learning_rate=1e-3,
    torch_compile=True, torch_compile_backend="aot_eager", report_to=[], logging_steps=1,
    save_strategy="no", seed=1, use_cpu=config is None)
transformers.set_seed(1)
shape = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=64,
    attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = transformers.GPT2LMHeadModel(shape)
data = [{"input_ids": row, "labels": row} for row in torch.arange(128).view(8, 16) % 60]
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
if "--evaluate" in sys.argv:
    trainer.eval_dataset = data
    print(json.dumps(trainer.evaluate(data)["eval_loss"]))
else:
    trainer.train()
    print(json.dumps([s["loss"] for s in trainer.state.log_history if "loss" in s]))
"""


def run_trainer(folder, *words, **config):
    """Runs a script under DeepSpeed's name and with plain Trainer; returns what it prints."""
    (folder / "script.py").write_text(TRAINER)
    path = trainer_test.config_for(folder, **config)
    ours = hf.run(folder, "script.py", *words, path)
    plain = hf.run(folder, "script.py", *words, as_deepspeed=False)
    return [json.loads(done.stdout.splitlines()[-1]) for done in (ours, plain)]


def test_trainers_torch_compile(tmp_path):
    ours, plain = run_trainer(tmp_path)
    assert len(ours) == 3 and ours == pytest.approx(plain, rel=1e-5)


def test_a_trainer_evaluates_before_it_trains(tmp_path):
    """The length of the config's schedule, which is "auto", is 0."""
    config = {"optimizer": trainer_test.OPTIMIZER, "scheduler": trainer_test.SCHEDULER}
    ours, plain = run_trainer(tmp_path, "--evaluate", **config)
    assert ours == pytest.approx(plain, rel=1e-5)


def test_a_schedule_without_an_end_is_refused_natively():
    for kind in ("WarmupDecayLR", "WarmupCosineLR"):
        with pytest.raises(artesian.errors.InvalidError, match="total_num_steps: got none"):
            schedule = {"type": kind, "params": {"warmup_num_steps": 2}}
            artesian.initialize(
                model=torch.nn.Linear(2, 2), config=small_models.config_for(scheduler=schedule)
            )
