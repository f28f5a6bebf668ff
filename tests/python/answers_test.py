"""Proves what small functions of the Python package return: the answers under DeepSpeed's name, how
a config is read, which errors are raised and what they say. A program may rely on each of these
lines, and no test that trains a model would notice if one were wrong."""

import argparse
import copy
import importlib
import json
import logging
import math
import os
import pathlib
import random
import sys
import types

import numpy
import pytest
import small_models
import torch
from small_models import artesian
from torch import nn

from artesian import config, described, errors, launcher, members, run, tables, zero
from artesian.deepspeed import (
    checkpointing,
    comm,
    finder,
    fragments,
    gpus,
    leaves,
    shim,
    surface,
    utilities,
)
from artesian.deepspeed import types as deepspeed_types

HERE = pathlib.Path(__file__).parent
WORDS = torch.arange(16.0).view(2, 8) / 20


def start(**more):
    return small_models.start(small_models.stack()[0], **more)


# The engine's small answers


def test_backward_returns_the_loss_and_scale_multiplies_it():
    engine = start(fp16={"enabled": True, "initial_scale_power": 3})
    loss = engine(WORDS)
    assert engine.loss_scale == engine.optimizer.loss_scale == engine.optimizer.cur_scale == 8.0
    assert engine.scale(loss).item() == pytest.approx(8 * loss.item())
    assert engine.backward(loss, retain_graph=True) is loss
    assert engine.backward(loss, scale_wrt_gas=False) is loss
    engine.step()
    assert engine.fp16_enabled() and not engine.bfloat16_enabled()


def test_what_an_engine_counts():
    engine = start(train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=3)
    assert engine.get_global_grad_norm() is None and engine.last_step is None
    assert (engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()) == (12, 4)
    for micro in range(6):
        assert engine.is_gradient_accumulation_boundary() == (micro % 3 == 2)
        engine.backward(engine(WORDS))
        engine.step()
        assert engine.was_step_applied() == (micro % 3 == 2)
    assert (engine.global_steps, engine.micro_steps, engine.global_samples) == (2, 6, 24)
    assert engine.get_global_grad_norm() == engine.optimizer._global_grad_norm > 0
    engine.set_gradient_accumulation_boundary(True)
    assert engine.is_gradient_accumulation_boundary()
    engine.set_gradient_accumulation_boundary(False)
    engine.backward(engine(WORDS))
    engine.step()
    assert not engine.was_step_applied() and engine.global_steps == 2
    with pytest.raises(artesian.errors.InvalidError, match="allowed 1 and more"):
        engine.set_train_micro_batch_size(0)
    engine.set_train_micro_batch_size(1)
    with pytest.raises(artesian.errors.InvalidError, match="got 0, allowed a multiple"):
        engine.set_train_batch_size(0)
    engine.set_train_batch_size(2)
    assert (engine.train_batch_size(), engine.gradient_accumulation_steps()) == (2, 2)


def test_what_a_config_says_is_asked_of_the_engine():
    engine = start(bf16={"enabled": True}, gradient_clipping=0.5, steps_per_print=7)
    assert engine.bfloat16_enabled() and not engine.fp16_enabled()
    assert (engine.gradient_clipping(), engine.steps_per_print()) == (0.5, 7)
    assert engine.optimizer_name() == "adamw" and engine.zero_optimization_stage() == 3
    assert engine.get_lr() == [1e-3] and engine.get_mom() == [(0.9, 0.999)]
    assert (engine.world_size, engine.dp_world_size, engine.mp_world_size) == (1, 1, 1)
    assert (engine.global_rank, engine.local_rank, engine.mpu) == (0, 0, None)
    assert not engine.wall_clock_breakdown() and not engine.dump_state()
    assert start().steps_per_print() == 10
    assert engine.device == torch.device("cpu")
    assert engine.blocks is engine.module.blocks  # names that the engine lacks are the model's


def test_a_compiled_block_is_compiled_once_and_with_what_is_given(monkeypatch, caplog):
    given = []

    def compile_(forward, **arguments):
        given.append(arguments)
        return forward

    monkeypatch.setattr(torch, "compile", compile_)
    engine = start()
    engine.compile(backend="eager", compile_kwargs={"dynamic": True}, mode="x")
    assert given == [{"backend": "eager", "dynamic": True, "mode": "x"}] * 3
    engine.compile()
    assert len(given) == 3 and engine.is_compiled and not caplog.records


def test_states_of_an_engine_go_into_what_is_given():
    engine = start()
    names = set(engine.consolidated_state_dict())
    into = {"other": 1}
    assert engine.module_state_dict(into, prefix="m.") is into
    assert set(into) == {"other"} | {f"m.{name}" for name in names}
    engine.module.scale.requires_grad_(False)
    assert "scale" not in engine._consolidated_16bit_state_dict(exclude_frozen_parameters=True)
    engine.module.scale.requires_grad_(True)
    state = {name: torch.full_like(v, 0.5) for name, v in engine.consolidated_state_dict().items()}
    engine.load_module_state_dict({"module": state})
    assert bool((engine.full_parameter(engine.module.scale) == 0.5).all())
    with pytest.raises(NotImplementedError, match="custom_load_fn"):
        engine.load_module_state_dict(state, custom_load_fn=print)


def test_values_are_copied_into_what_is_given():
    engine = start()
    weight = engine.module.blocks[0].weight
    target = torch.zeros(8, 8, dtype=torch.bfloat16)
    engine.full_parameter(weight, target)
    assert torch.equal(target, engine.full_parameter(weight).bfloat16())
    moment = torch.full((8, 8), 0.25)
    engine.set_full_state(weight, moment, "exp_avg")
    assert torch.equal(engine.full_state(weight, "exp_avg"), moment)
    assert torch.equal(engine.optimizer.state[weight]["exp_avg"], moment)
    assert weight in engine.optimizer.state and len(engine.optimizer.state) == 7
    assert WORDS not in engine.optimizer.state
    with pytest.raises(KeyError):
        engine.optimizer.state[WORDS]
    with pytest.raises(artesian.errors.InvalidError, match=r"got the shape \(2,\), allowed"):
        engine.set_full_state(weight, torch.zeros(2))
    with pytest.raises(artesian.errors.InvalidError, match="no parameter of the engine's"):
        engine.full_parameter(nn.Parameter(WORDS))
    with pytest.raises(NotImplementedError, match="cannot be copied or pickled"):
        copy.deepcopy(engine)


def test_a_model_is_saved_as_a_file(tmp_path, caplog):
    engine = start()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "model.safetensors").write_bytes(b"")
    assert engine.save_16bit_model(tmp_path / "made" / "new") is True
    assert not caplog.records
    assert engine.save_fp16_model(tmp_path / "made", "weights.bin") is True
    assert "model.safetensors" in caplog.text
    for path in (tmp_path / "made" / "new" / "pytorch_model.bin", tmp_path / "made/weights.bin"):
        saved = torch.load(path, weights_only=True)["blocks.0.weight"]
        assert torch.equal(saved, engine.consolidated_state_dict()["blocks.0.weight"])


def test_an_engine_that_evaluates_refuses_to_train():
    engine, optimizer, loader, scheduler = artesian.initialize(
        model=small_models.stack()[0], config=small_models.config_for(), model_parameters=[]
    )
    assert optimizer is loader is scheduler is None and engine.evaluates
    with pytest.raises(artesian.errors.InvalidError, match=r"backward\(loss\): this engine only"):
        engine.backward(engine(WORDS))
    for step in (engine.step, engine.optimizer.step):
        with pytest.raises(artesian.errors.InvalidError, match=r"step\(\): this engine only"):
            step()
    assert engine.optimizer.state_dict() == {"state": {}, "param_groups": []}
    model = engine.module
    engine.destroy()
    assert all(p.requires_grad for p in model.parameters())


def test_an_optimizer_without_an_engine_is_torchs():
    model = small_models.stack()[0]
    optimizer = artesian.optim.AdamW(model.parameters(), lr=0.5)
    model(WORDS).backward()
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.5
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(artesian.errors.InvalidError, match="has no engine; give it to"):
        optimizer.step()
    for flag in ("amsgrad", "maximize"):
        client = torch.optim.AdamW(model.parameters(), **{flag: True})
        with pytest.raises(NotImplementedError, match=f"{flag}=True is not supported"):
            artesian.optim.section_of(client)
    client = torch.optim.Adam(model.parameters(), decoupled_weight_decay=True)
    assert artesian.optim.section_of(client)["type"] == "AdamW"
    decay = {kind: kind([nn.Parameter(WORDS)]).defaults["weight_decay"]
             for kind in (artesian.optim.Adam, artesian.optim.AdamW)}  # fmt: skip
    assert list(decay.values()) == [0.0, 1e-2]


def test_whatever_initialize_is_not_given_is_named():
    with pytest.raises(artesian.errors.InvalidError, match=r"initialize\(model=...\): got none"):
        artesian.initialize(config={})
    with pytest.raises(artesian.errors.InvalidError, match=r"initialize\(config=...\): got none"):
        artesian.initialize(model=small_models.stack()[0])
    given = argparse.Namespace(deepspeed_config=small_models.config_for())
    assert artesian.initialize(given, small_models.stack()[0])[0].zero_optimization_stage() == 3
    made = []

    def make(parameters):
        made.extend(parameters)
        return torch.optim.AdamW(made, lr=0.25)

    model = small_models.stack()[0]
    model.scale.requires_grad_(False)
    engine = artesian.initialize(model=model, config=small_models.config_for(), optimizer=make)[0]
    assert len(made) == 6 and engine.get_lr() == [0.25]
    for option in ("is_loaded_in_8bit", "is_loaded_in_4bit", "is_quantized"):
        model = small_models.stack()[0]
        setattr(model, option, True)
        with pytest.raises(NotImplementedError, match=option):
            artesian.initialize(model=model, config=small_models.config_for())


# The config


def test_a_config_is_read_in_every_form(tmp_path):
    expand = config.expand_dotted
    assert expand({"a.b": 1, "a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert expand({"a": {"b.c": 1}}) == {"a": {"b": {"c": 1}}}
    with pytest.raises(errors.InvalidError, match="a.b: a is no section"):
        expand({"a": 1, "a.b": 2})
    assert config.whole_numbers([1e9, (2e6,), 0.5, 3.0]) == [10**9, [2 * 10**6], 0.5, 3.0]
    assert type(config.whole_numbers(1e6)) is int
    bounds = {"reduce_bucket_size": 11.7, "other": 11.7, "allgather_bucket_size": math.inf}
    assert config.whole_numbers(bounds) == {**bounds, "reduce_bucket_size": 11}
    path = tmp_path / "ds.json"
    path.write_text('{"bf16": {"enabled": true}}')
    assert config.values_of(path) == ({"bf16": {"enabled": True}}, str(path))
    assert config.values_of(' {"x": 1}') == ({"x": 1}, "config")
    path.write_text("[1]")
    with pytest.raises(errors.InvalidError, match=r"ds.json: got \[1\], allowed an object"):
        config.values_of(path)
    read = config.read_config({"steps_per_print": math.inf}, "config")
    assert (read.micro_batch_size, read.accumulation_steps) == (1, 1)
    read = config.read_config({"train_batch_size": 6, "gradient_accumulation_steps": 3}, "config")
    assert read.micro_batch_size == 2
    read = config.read_config({"train_micro_batch_size_per_gpu": 4}, "config")
    assert (read.micro_batch_size, read.accumulation_steps) == (4, 1)


def test_folders_on_nvme_are_an_engines_own(tmp_path):
    values = small_models.config_for(f"{tmp_path}/a, {tmp_path}/b")
    assert config.folders_of(values) == {f"{tmp_path}/a", f"{tmp_path}/b"}
    assert config.folders_of(small_models.config_for()) == set()
    assert config.with_own_folders(values, set()) == values
    own = config.with_own_folders(values, {f"{tmp_path}/b"})
    assert config.folders_of(own) == {f"{tmp_path}/a/engine-2", f"{tmp_path}/b/engine-2"}
    taken = config.folders_of(values) | config.folders_of(own)
    third = config.with_own_folders(values, taken)
    assert config.folders_of(third) == {f"{tmp_path}/a/engine-3", f"{tmp_path}/b/engine-3"}
    # the config is unchanged
    assert config.folders_of(values) == {f"{tmp_path}/a", f"{tmp_path}/b"}


def test_where_models_are_made_on_nvme(tmp_path):
    there = small_models.config_for(tmp_path)
    assert zero.spool_folder(there) == str(tmp_path)
    below = small_models.config_for(tmp_path / "not yet")
    assert zero.spool_folder(below) == str(tmp_path)
    assert zero.spool_folder(None) is None and zero.spool_folder(small_models.config_for()) is None
    stages = [None, {}, {"zero_optimization": True}, {"zero_optimization": {"stage": 2}}]
    assert [zero.stage_of(each) for each in stages] == [3, 0, 1, 2]
    large = nn.Parameter(torch.ones(1 << 18))
    small = nn.Parameter(torch.ones(8))
    for parameter in (large, small):
        zero.spool(parameter, str(tmp_path))
    assert artesian.zero.is_mapped(large) and not artesian.zero.is_mapped(small)
    assert bool((large == 1).all()) and list(tmp_path.iterdir()) == []
    assert zero.engine_of(large) is None and not zero.is_released(large)
    for read in (zero.safe_get_full_fp32_param, zero.safe_get_full_grad):
        assert read(large) is None
    assert zero.safe_get_full_optimizer_state(large, "exp_avg") is None
    zero.safe_set_full_fp32_param(large, torch.zeros(1))  # no optimizer owns it
    zero.safe_set_full_optimizer_state(large, torch.zeros(1), "exp_avg")


# Errors


def test_an_error_says_what_where_and_what_to_do():
    error = errors.make("NoSpace", "got 1, allowed 2; free some", "whole text", "/a", 7)
    assert type(error) is errors.NoSpaceError and str(error) == "whole text"
    assert (error.what, error.path, error.offset) == ("got 1, allowed 2; free some", "/a", 7)
    assert error.fix == "free some"
    error = errors.make("Io", "got 1", "text", "", 7)
    assert (error.path, error.offset, error.fix) == (None, None, None)
    assert errors.Error("a; b\nc").fix == "b" and errors.Error("; b").fix is None
    bases = {"Invalid": ValueError, "Timeout": TimeoutError, "Unsupported": NotImplementedError}
    for code, kind in errors.CLASSES.items():
        assert issubclass(kind, bases.get(code, RuntimeError)), code
        assert kind.__name__ == {"Timeout": "TimeoutExpired"}.get(code, code) + "Error"


# DeepSpeed's names


def test_the_accelerator_is_the_cpu():
    accelerator = shim.get_accelerator()
    answers = {
        "device_name": "cpu", "current_device_name": "cpu", "current_device": "cpu",
        "device": torch.device("cpu"), "device_count": 1, "is_available": True,
        "is_synchronized_device": True, "communication_backend_name": "gloo",
        "get_compile_backend": "inductor", "is_bf16_supported": True, "is_fp16_supported": True,
        "is_triton_supported": False, "random": torch.random, "set_device": None,
        "supported_dtypes": [torch.float32, torch.float16, torch.bfloat16], "synchronize": None,
        "empty_cache": None, "reset_peak_memory_stats": None,
    }  # fmt: skip
    for name, value in answers.items():
        arguments = [0] if name == "set_device" else []
        assert getattr(accelerator, name)(*arguments) == value, name
    assert (accelerator._name, accelerator._communication_backend_name) == ("cpu", "gloo")
    assert accelerator.pin_memory(WORDS) is WORDS and not accelerator.is_pinned(WORDS)
    assert accelerator.on_accelerator(WORDS) and not accelerator.on_accelerator(WORDS.to("meta"))
    accelerator.manual_seed(5)
    assert accelerator.initial_seed() == 5
    state = accelerator.get_rng_state()
    first = torch.rand(2)
    accelerator.set_rng_state(state)
    assert torch.equal(torch.rand(2), first)
    now, peak = accelerator.memory_allocated(), accelerator.max_memory_allocated()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert abs(now - resident) < 64 << 20 and now <= peak < accelerator.total_memory()
    assert accelerator.memory_reserved() > 0 and accelerator.max_memory_reserved() >= peak - 1
    assert 0 < accelerator.available_memory() < accelerator.total_memory()
    assert accelerator.total_memory() > 1 << 30


def test_arguments_and_helpers_of_deepspeeds():
    parser = shim.add_config_arguments(argparse.ArgumentParser())
    given = parser.parse_args([])
    assert (given.deepspeed, given.deepspeed_config) == (False, None)
    assert (given.deepscale, given.deepscale_config) == (False, None)
    given = parser.parse_args(["--deepspeed", "--deepspeed_config", "x.json"])
    assert (given.deepspeed, given.deepspeed_config) == (True, "x.json")
    for flag in ({"amsgrad": True}, {"bias_correction": False}, {"fp32_optimizer_states": False}):
        with pytest.raises(NotImplementedError, match="are not supported"):
            shim.DeepSpeedCPUAdam([nn.Parameter(WORDS)], **flag)
    made = shim.DeepSpeedCPUAdam([nn.Parameter(WORDS)])
    assert made.defaults["weight_decay"] == 0.0 and made.decoupled_decay
    assert shim.FusedAdam([nn.Parameter(WORDS)]).defaults["weight_decay"] == 0.0
    for refused, why in (({"mpu": 1}, "get_data_parallel_group"), ({"mesh_param": (1, 2)}, "mesh")):
        with pytest.raises(NotImplementedError, match=why):
            shim.initialize(model=small_models.stack()[0], config={}, **refused)
    shared = torch.ones(4)
    cloned = shim.clone_tensors_for_torch_save({"a": [shared, shared[:2]], "n": (3, "x")})
    assert cloned["n"] == (3, "x") and torch.equal(cloned["a"][1], shared[:2])
    assert cloned["a"][1].untyped_storage().nbytes() == 8
    assert shim.clone_tensors_for_torch_save(shared, "meta").is_meta
    assert shim.zero_wrapper_for_fp_tensor_constructor(torch.ones, torch.half) is torch.ones


def test_files_of_deepspeeds_are_found(tmp_path):
    with pytest.raises(FileNotFoundError, match="allowed a folder of DeepSpeed's"):
        shim.get_optim_files(str(tmp_path))
    model = "mp_rank_00_model_states.pt"
    for name in ("b_optim_states.pt", "a_optim_states.pt", model, f"zero_pp_rank_0_{model}"):
        (tmp_path / name).write_bytes(b"")
    folder = str(tmp_path)
    found = [os.path.basename(path) for path in shim.get_optim_files(folder)]
    assert found == ["a_optim_states.pt", "b_optim_states.pt"]
    assert len(shim.get_model_state_files(folder)) == 2
    assert shim.get_model_state_file(folder, 2) == f"{folder}/{model}"
    assert shim.get_model_state_file(folder, 3) == f"{folder}/zero_pp_rank_0_{model}"


def test_a_checkpoint_becomes_a_plain_model(tmp_path):
    engine = start()
    engine.save_checkpoint(tmp_path)
    model = small_models.Stack()
    assert shim.load_state_dict_from_zero_checkpoint(model, str(tmp_path)) is model
    values = engine.full_parameter(engine.module.blocks[1].weight)
    assert torch.equal(model.blocks[1].weight, values)


def test_one_process_is_rank_0(monkeypatch):
    monkeypatch.setattr(comm, "is_initialized", lambda: False)
    assert (comm.get_rank(), comm.get_world_size(), comm.get_local_rank()) == (0, 1, 0)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.undo()
    comm.init_distributed()
    comm.init_distributed()  # a second call does nothing
    assert comm.is_initialized() and (comm.get_rank(), comm.get_world_size()) == (0, 1)
    assert comm.get_world_group() is torch.distributed.group.WORLD
    with pytest.raises(NotImplementedError, match="there is a group of 1 already"):
        comm.init_distributed(world_size=2)


def test_parts_of_parameters_that_no_engine_has():
    plain = nn.Parameter(WORDS.clone())
    for read in (fragments.safe_get_local_fp32_param, fragments.safe_get_local_grad):
        assert read(plain) is None
    assert fragments.safe_get_local_optimizer_state(plain, "exp_avg") is None
    for write in (fragments.safe_set_full_grad, fragments.safe_set_local_grad):
        write(plain, WORDS)
    fragments.safe_update_full_grad_vectorized([plain], print)
    engine = start()
    weight = engine.module.blocks[0].weight
    fragments.safe_set_local_fp32_param(weight, torch.full((64,), 2.0))
    fragments.safe_set_local_optimizer_state(weight, torch.full((64,), 3.0), "exp_avg_sq")
    assert bool((fragments.safe_get_local_fp32_param(weight) == 2.0).all())
    assert fragments.safe_get_local_optimizer_state(weight, "exp_avg_sq").tolist() == [3.0] * 64


def test_leaves_are_named_or_refused():
    model = small_models.stack()[0]
    assert not leaves.z3_leaf_module(model) and not leaves.z3_leaf_parameter(model.scale)
    leaves.set_z3_leaf_module(model, True)
    assert leaves.z3_leaf_module(model) and leaves.get_z3_leaf_modules(model) == [model]
    for kind in (nn.Linear, "Linear", "torch.nn.modules.linear.Linear"):
        assert leaves.set_z3_leaf_modules(model, [kind]) == list(model.blocks)
    with pytest.raises(errors.InvalidError, match="set_z3_leaf_modules: got .*Conv"):
        leaves.set_z3_leaf_modules(model, [nn.Conv1d])
    with pytest.raises(errors.InvalidError, match="unset_z3_leaf_modules: got"):
        leaves.unset_z3_leaf_modules(model, ["None"])
    found = leaves.set_z3_leaf_modules_by_name(model, ["blocks.1", "x"], raise_if_not_found=False)
    assert found == ([model.blocks[1]], ["x"])
    found = leaves.set_z3_leaf_modules_by_suffix(model, ["1", "s.1"], flag=False)
    assert found == ([model.blocks[1]], []) and not leaves.z3_leaf_module(model.blocks[1])
    with pytest.raises(errors.InvalidError, match=r"by_suffix: got \['x'\]"):
        leaves.set_z3_leaf_modules_by_suffix(model, ["x"])


def test_deepspeeds_utilities(capsys, caplog):
    utilities.see_memory_usage("never")
    assert capsys.readouterr().out == ""
    with utilities.OnDevice(torch.float16) as scope:
        assert nn.Linear(1, 1).weight.is_meta and isinstance(scope, utilities.OnDevice)
    with utilities.OnDevice(torch.float16, enabled=False):
        layer = nn.Linear(1, 1)
    assert not layer.weight.is_meta and layer.weight.dtype == torch.float32
    for seed in (3, 2**32 + 3):
        utilities.set_random_seed(seed)
        drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
        random.seed(seed), numpy.random.seed(3), torch.manual_seed(seed)
        assert drawn == (random.random(), numpy.random.rand(), torch.rand(1).item())
    moved = [torch.ones(1), torch.ones(2)]
    chosen = utilities.move_to_device(moved, "cpu", lambda item: getattr(item, "shape", 0) == (2,))
    assert chosen[1] is moved[1]
    assert utilities.move_to_device((WORDS,), "meta")[0].is_meta
    comm.init_distributed()
    with caplog.at_level(logging.INFO, "artesian.deepspeed"):
        utilities.log_dist("all", ranks=[-1], level=logging.WARNING)
        utilities.log_dist("nobody")
    assert [(r.getMessage(), r.levelno) for r in caplog.records] == [("[Rank 0] all", 30)]
    for name, level in utilities.LEVELS.items():
        utilities.set_log_level_from_string(name.upper())
        assert utilities.logger.level == level == getattr(logging, name.upper())
    utilities.logger.setLevel(logging.NOTSET)
    other = logging.getLogger("artesian.deepspeed.other")
    utilities.set_log_level_from_string("error", other)
    assert (other.level, utilities.logger.level) == (logging.ERROR, logging.NOTSET)


def test_deepspeeds_words_and_classes(tmp_path):
    kinds = deepspeed_types
    for kind in (kinds.OffloadDeviceEnum, kinds.OffloadStateTypeEnum):
        assert all(member == member.name == member.value for member in kind)
    assert [m.name for m in kinds.OffloadDeviceEnum] == ["none", "cpu", "nvme"]
    values = [m.value for m in kinds.ZeroParamType], [m.value for m in described.ZeroParamStatus]
    assert values == ([1, 2, 3], [1, 2, 3])
    assert kinds.torch_info["version"] == torch.__version__ and kinds.version == surface.VERSION
    saver = kinds.TorchCheckpointEngine()
    saver.create("x")
    saver.save({"a": 1}, str(tmp_path / "a"))
    assert saver.load(str(tmp_path / "a")) == {"a": 1} and saver.commit("x") is True
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
    given = small_models.config_for(bf16={"enabled": True}, gradient_clipping=0.5, **sizes)
    read = kinds.DeepSpeedConfig(given)
    assert (read.train_batch_size, read.train_micro_batch_size_per_gpu) == (6, 2)
    assert (read.gradient_accumulation_steps, read.zero_optimization_stage) == (3, 3)
    assert (read.fp16_enabled, read.bfloat16_enabled, read.gradient_clipping) == (False, True, 0.5)
    assert not kinds.DeepSpeedConfig({}).zero_enabled
    assert kinds.DeepSpeedConfig({"fp16": {"enabled": True}}).fp16_enabled
    engine = start()
    with kinds.unwrap_model_for_generation(engine.module) as model:
        assert model is engine.module and model.blocks[0].weight.sum().isfinite()


def test_activation_checkpointing_says_what_has_no_effect(caplog, monkeypatch):
    monkeypatch.setattr(checkpointing, "told", set())
    monkeypatch.setattr(checkpointing, "configured", False)
    assert not checkpointing.is_configured()
    with caplog.at_level(logging.INFO, "artesian"):
        section = {"activation_checkpointing": {"cpu_checkpointing": True, "profile": True}}
        checkpointing.configure(None, section, partition_activations=True, profile=False)
        checkpointing.configure(None, section, num_checkpoints=2)
        checkpointing.partition_activations_in_checkpoint(True)
    assert checkpointing.is_configured()
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(":")[0].split(".")[1] for line in told] == [
        "partition_activations", "cpu_checkpointing", "number_checkpoints", "profile",
    ]  # fmt: skip
    assert all(name in checkpointing.EFFECTS for name in
               ("contiguous_memory_optimization", "synchronize_checkpoint_boundary"))  # fmt: skip
    x = WORDS.clone().requires_grad_(True)
    for call in (checkpointing.checkpoint, checkpointing.non_reentrant_checkpoint):
        assert torch.equal(call(lambda y: (y * 2,), x), x * 2)
        assert len(call(lambda y: (y, y), x)) == 2
    tensors = checkpointing.detach_variable((x, 3, WORDS), "cpu")
    assert tensors[0].requires_grad and tensors[0].is_leaf and tensors[1] == 3
    assert not tensors[2].requires_grad
    assert checkpointing.detach_variable((WORDS,), torch.device("meta"))[0].is_meta
    with pytest.raises(RuntimeError, match="got list, allowed a tuple"):
        checkpointing.detach_variable([x])


def test_random_states_are_named_and_go_on():
    tracker = checkpointing.RNGStatesTracker()
    before = torch.get_rng_state()
    tracker.add("a", 7)
    for name, seed in (("a", 8), ("b", 7)):
        with pytest.raises(Exception, match="got one that is there already"):
            tracker.add(name, seed)
    assert torch.equal(torch.get_rng_state(), before)
    with tracker.fork("a"):
        first = torch.rand(1)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(1), first)
    kept = tracker.get_states()
    with tracker.fork("a"):
        second = torch.rand(1)
    assert not torch.equal(first, second)
    tracker.set_states(kept)
    with tracker.fork("a"):
        assert torch.equal(torch.rand(1), second)
    tracker.reset()
    assert tracker.get_states() == {} and tracker.seeds_ == set()
    with pytest.raises(Exception, match="got no such state"), tracker.fork("a"):
        pass
    assert checkpointing.get_cuda_rng_tracker() is checkpointing.TRACKER
    checkpointing.model_parallel_cuda_manual_seed(1)
    assert torch.initial_seed() == 1
    checkpointing.model_parallel_reconfigure_tp_seed(2)
    with checkpointing.TRACKER.fork():
        drawn = torch.rand(1)
    torch.manual_seed(2 + 2718)
    assert torch.equal(torch.rand(1), drawn)


def test_gpus_are_hidden_and_told_once(monkeypatch, caplog):
    for name in (gpus.HIDDEN, gpus.VISIBLE):
        monkeypatch.setenv(name, "")  # so that both are restored at the end of the test
    cases = [("0,1", "0,1", ""), (None, "all", ""), ("", None, ""), ("-1", None, "-1"),
             ("NoDevFiles", None, "NoDevFiles")]  # fmt: skip
    for before, hidden, visible in cases:
        monkeypatch.delenv(gpus.HIDDEN, raising=False)
        if before is None:
            monkeypatch.delenv(gpus.VISIBLE, raising=False)
        else:
            monkeypatch.setenv(gpus.VISIBLE, before)
        gpus.hide()
        assert (os.environ.get(gpus.HIDDEN), os.environ.get(gpus.VISIBLE)) == (hidden, visible)
    for before in ("0", None):
        monkeypatch.delenv(gpus.VISIBLE, raising=False)
        if before is not None:
            monkeypatch.setenv(gpus.VISIBLE, before)
        seen = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: True))
        with monkeypatch.context() as context:
            context.setitem(sys.modules, "torch", seen)
            with pytest.raises(ImportError, match="has looked for GPUs already"):
                gpus.hide()
        assert os.environ.get(gpus.VISIBLE) == before
    monkeypatch.setattr(gpus, "told", False)
    monkeypatch.setattr(gpus, "installed", lambda: 3)
    monkeypatch.delenv(gpus.HIDDEN, raising=False)
    gpus.tell()
    assert not caplog.records
    monkeypatch.setenv(gpus.HIDDEN, "all")
    gpus.tell()
    gpus.tell()
    (record,) = caplog.records
    assert "the 3 of this machine" in record.getMessage() and "was all)" in record.getMessage()
    monkeypatch.setattr(gpus, "told", False)
    monkeypatch.setattr(gpus, "installed", lambda: 0)
    gpus.tell()
    assert len(caplog.records) == 1


def test_gpus_are_counted_by_the_driver_or_its_files(monkeypatch):
    class Library:
        started = 0

        def nvmlInit_v2(self):  # noqa: N802
            return self.started

        def nvmlDeviceGetCount_v2(self, count):  # noqa: N802
            count._obj.value = 5
            return 0

    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(gpus.glob, "glob", lambda pattern: ["/dev/nvidia0"])
    assert gpus.installed() == 5
    Library.started = 1
    assert gpus.installed() == 1

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(gpus.ctypes, "CDLL", missing)
    assert gpus.installed() == 1


def test_the_installed_distribution_is_answered():
    distribution = finder.Distribution()
    assert distribution.version == surface.VERSION and distribution.metadata["Name"] == "deepspeed"
    assert distribution.read_text("top_level.txt") == "deepspeed\n"
    assert distribution.read_text("RECORD") is None and distribution.locate_file("x") == "x"
    find = finder.Finder().find_distributions
    context = finder.DistributionFinder.Context
    assert [len(find(context(name=name))) for name in ("deepspeed", "torch")] == [1, 0]
    assert len(find()) == 1
    assert finder.Finder().find_spec("torch") is None
    assert finder.Finder().find_spec("deepspeed.zero").origin == "artesian"


def test_a_script_is_run_with_its_words(tmp_path, monkeypatch, capsys):
    given = run.parse(["--num_gpus", "1", "script.py", "--a", "b"])
    assert (given.module, given.script, given.arguments) == (False, "script.py", ["--a", "b"])
    assert run.parse(["-m", "package"]).module
    with pytest.raises(NotImplementedError, match="got --num_nodes 2, allowed 1"):
        run.main(["--num_nodes", "2", "x"])
    started = []
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(os, "execve", lambda *arguments: started.append(arguments) or 1 // 0)
        run.main(["--num_gpus", "2", "-m", "x", "y"])
    assert started[0][1][-7:-3] == [sys.executable, "-u", "-m", "artesian.run"]
    assert started[0][1][-3:] == ["-m", "x", "y"] and "--nproc-per-node=2" in started[0][1]
    monkeypatch.setattr(run.site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(run.site, "getusersitepackages", lambda: str(tmp_path / "user"))
    monkeypatch.setattr(gpus, "hide", lambda: None)
    assert not run.children_see_us()
    script = tmp_path / "script.py"
    script.write_text("import sys, json; print(json.dumps([sys.argv, sys.path[0], __name__]))")
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr(sys, "path", ["y", *sys.path])
    run.main([str(script), "1"])
    told = capsys.readouterr()
    assert json.loads(told.out) == [[str(script), "1"], str(tmp_path), "__main__"]
    assert "artesian is not installed in a site folder" in told.err
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "artesian.pth").write_text("")
    assert run.children_see_us()
    run.main([str(script)])
    assert capsys.readouterr().err == ""


def test_no_name_that_is_answered_is_lost():
    """answered_names.txt lists the names of all versions: each one still exists where the list
    says."""
    lines = (HERE / "answered_names.txt").read_text().splitlines()
    kept = {module: names.split() for module, _, names in (line.partition(":") for line in lines)}
    assert len(kept) >= 30 and sum(map(len, kept.values())) >= 220
    for module, names in kept.items():
        found = importlib.import_module(module)
        assert set(names) <= set(found.__all__), module
        for name in names:
            assert hasattr(importlib.import_module(surface.MODULES[module][name]), name), name
            assert getattr(found, name) is not None
    for module in surface.REFUSED_MODULES:
        assert surface.has_module(f"{module}.any") and not surface.has_module("deepspeed.any")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        importlib.import_module("deepspeed").nothing  # noqa: B018


def test_a_batch_that_is_evaluated_is_not_trained_with():
    seen = []
    engine = start()
    engine.module.register_forward_pre_hook(
        lambda module, args: seen.append((engine.training, torch.is_grad_enabled()))
    )
    for training in (True, False):
        engine.train(training)
        engine.eval_batch(iter([WORDS]))
        assert engine.training == training
    assert seen == [(False, False)] * 2
    given = []
    members.call_with(lambda *args, **named: given.append((args, named)), {"x": 1})
    for batch in ((1, 2), [1, 2], 3):
        members.call_with(lambda *args, **named: given.append((args, named)), batch)
    assert given == [((), {"x": 1}), ((1, 2), {}), ((1, 2), {}), ((3,), {})]
    for result in (WORDS, (WORDS, 2), [WORDS], types.SimpleNamespace(loss=WORDS)):
        assert members.loss_of(lambda x, result=result: result, 1) is WORDS
    with pytest.raises(errors.InvalidError, match="the model returned int, allowed a loss"):
        members.loss_of(lambda x: 3, 1)


def test_one_section_alone_may_name_a_folder(tmp_path):
    for name in ("offload_param", "offload_optimizer"):
        section = {"device": "nvme", "nvme_path": str(tmp_path)}
        values = {"zero_optimization": {"stage": 3, name: section}}
        assert config.folders_of(values) == {str(tmp_path)}
        values["zero_optimization"][name]["device"] = "cpu"
        assert config.folders_of(values) == set()
    assert config.folders_of({"zero_optimization": True}) == set()


def test_what_a_described_parameter_says():
    parameter = nn.Parameter(WORDS.clone())
    described.describe(parameter)
    number = parameter.ds_id
    described.describe(parameter)
    assert parameter.ds_id == number and (parameter.ds_numel, parameter.ds_shape) == (16, (2, 8))
    part = parameter.ds_tensor
    assert (part.shape, part.dtype, part.device) == ((16,), torch.float32, torch.device("cpu"))
    assert part.status is described.ZeroParamStatus.NOT_AVAILABLE and part.numel() == 16
    assert not hasattr(part, "__len__") and parameter.partition_numel() == 16
    status = parameter.ds_status
    assert status == described.ZeroParamStatus.AVAILABLE == status.now() and status == status
    assert (status.name, status.value) == ("AVAILABLE", 1) and "AVAILABLE" in repr(status)
    assert {status: 1}[status] == 1 and copy.deepcopy(status) is described.ZeroParamStatus.AVAILABLE
    described.forget(parameter)
    assert not [name for name in vars(parameter) if name.startswith(("ds_", "partition"))]
    model = small_models.stack()[0]
    described.describe_modules(model)
    assert list(model.blocks[0].ds_external_parameters()) == []


def test_one_setting_of_checkpointing_is_told_by_itself(monkeypatch, caplog):
    monkeypatch.setattr(checkpointing, "told", set())
    with caplog.at_level(logging.INFO, "artesian"):
        checkpointing.partition_activations_in_checkpoint(False)
        assert not caplog.records
        checkpointing.partition_activations_in_checkpoint(True)
    (record,) = caplog.records
    assert "activation_checkpointing.partition_activations: has no effect" in record.getMessage()


def test_flags_of_deepspeeds_launcher():
    """Flags with a value take the next word, the others do not."""
    alone = {"--no_ssh_check", "--save_pid", "--bind_cores_to_rank"}
    valued = {"--min_elastic_nodes", "--max_elastic_nodes", "--enable_each_rank_log",
              "--bind_core_list", "--venv_script"}  # fmt: skip
    assert set(launcher.WITHOUT_EFFECT) == alone | valued
    parse = launcher.parser_of_arguments().parse_args
    for flag in (*valued, "--launcher", "--launcher_args"):
        given = parse([flag, "value", "script.py", "word"])
        assert (getattr(given, flag[2:]), given.script, given.arguments) == (
            "value", "script.py", ["word"],
        ), flag  # fmt: skip
    for flag in (*alone, "--no_ssh", "--module", "--no_python", "--no_local_rank", "--force_multi",
                 "--elastic_training", "--quiet"):  # fmt: skip
        given = parse([flag, "script.py", "word"])
        assert (getattr(given, flag[2:]), given.script) == (True, "script.py"), flag
    given = parse(["script.py", "--module"])
    assert given.arguments == ["--module"] and not given.module
    assert (given.num_nodes, given.num_gpus, given.master_port) == (-1, -1, 29500)
    assert (given.master_addr, given.log_level, given.include) == ("", "info", "")
    assert (given.node_rank, given.ssh_port) == (-1, None)
    assert parse(["--num_accelerators", "1", "x"]).num_gpus == 1


def test_functions_that_write_get_the_table_itself():
    tensor = torch.Tensor
    writing = [tensor.add_, tensor.__iadd__, tensor.__setitem__, tensor.data.__get__,
               tensor.data.__set__, nn.init.normal_]  # fmt: skip
    reading = [tensor.add, tensor.__add__, tensor.__getitem__, torch.matmul, tensor.__len__]
    assert [tables.writes(each) for each in writing] == [True] * len(writing)
    assert [tables.writes(each) for each in reading] == [False] * len(reading)
