"""Proves that whatever trainers ask of DeepSpeed is answered, row by row: names of modules, members
of engine, optimizer, parameters, accelerator. What cannot be served is refused with a sentence when
it is used, never where it is imported. What a row does is proved by the test that it names."""

import argparse
import importlib
import pathlib
import re

import pytest
import torch
from small_models import artesian, config_for, stack

import artesian.deepspeed.surface as surface  # isort: skip
import deepspeed  # isort: skip

HERE = pathlib.Path(__file__).parent

# Names of modules that are served.
NAMES = """
deepspeed: initialize init_distributed DeepSpeedEngine add_config_arguments __version__ version
    get_accelerator OnDevice DeepSpeedConfig DeepSpeedOptimizer ZeROOptimizer log_dist
zero: Init GatheredParameters register_external_parameter TiledLinear
runtime.zero: ZeroParamStatus ZeroParamType TiledLinear unwrap_model_for_generation
runtime.zero.partition_parameters: ZeroParamStatus zero_wrapper_for_fp_tensor_constructor
    _orig_torch_arange get_accelerator
runtime.zero.offload_config: OffloadDeviceEnum OffloadStateTypeEnum
runtime.zero.tiling: TiledLinear TiledLinearReturnBias
comm: is_initialized init_distributed get_rank get_world_size get_local_rank barrier broadcast
    all_reduce all_gather ReduceOp new_group destroy_process_group get_world_group
    all_gather_into_tensor all_to_all_single reduce reduce_scatter_tensor send recv isend irecv
runtime.lr_schedules: VALID_LR_SCHEDULES WarmupLR WarmupDecayLR WarmupCosineLR OneCycle LRRangeTest
    WARMUP_MIN_LR CYCLE_MAX_LR LR_RANGE_TEST_MIN_LR TOTAL_NUM_STEPS
ops.adam: DeepSpeedCPUAdam FusedAdam
checkpoint.utils: clone_tensors_for_torch_save
launcher.runner: DEEPSPEED_ENVIRONMENT_NAME
accelerator: get_accelerator
accelerator.real_accelerator: get_accelerator
checkpointing: configure is_configured checkpoint reset detach_variable
runtime.activation_checkpointing.checkpointing: configure is_configured checkpoint reset
ops.adagrad: DeepSpeedCPUAdagrad
ops.lamb: FusedLamb
ops.lion: DeepSpeedCPULion FusedLion
runtime.zero.muon.muon_optimizer: MuonWithAuxAdam
runtime.base_optimizer: DeepSpeedOptimizer
runtime.checkpoint_engine.torch_checkpoint_engine: TorchCheckpointEngine
runtime.config: DeepSpeedConfig ADAM_OPTIMIZER ADAMW_OPTIMIZER
runtime.zero.stage_1_and_2: DeepSpeedZeroOptimizer
runtime.zero.stage3: DeepSpeedZeroOptimizer_Stage3
ops: __compatible_ops__
ops.aio: AsyncIOBuilder
ops.op_builder: AsyncIOBuilder CPUAdamBuilder FusedAdamBuilder
runtime.dataloader: RepeatingLoader
runtime.swap_tensor: MIN_AIO_BYTES MIN_SWAPPABLE_BYTES
runtime.utils: see_memory_usage move_to_device set_random_seed
utils: logger log_dist RepeatingLoader set_log_level_from_string OnDevice
    set_z3_leaf_modules unset_z3_leaf_modules get_z3_leaf_modules set_z3_leaf_module
    set_z3_leaf_modules_by_name set_z3_leaf_modules_by_suffix
    safe_get_full_fp32_param safe_get_full_grad safe_get_full_optimizer_state
    safe_set_full_fp32_param safe_set_full_grad safe_set_full_optimizer_state
    safe_get_local_fp32_param safe_get_local_grad safe_get_local_optimizer_state
    safe_set_local_fp32_param safe_set_local_grad safe_set_local_optimizer_state
    safe_update_full_grad_vectorized
utils.logging: logger log_dist
utils.torch: required_torch_version
utils.zero_to_fp32: get_optim_files get_model_state_file get_model_state_files
    convert_zero_checkpoint_to_fp32_state_dict get_fp32_state_dict_from_zero_checkpoint
    load_state_dict_from_zero_checkpoint
git_version_info: version
"""

# Names that can be imported and are refused when used: name -> a word of the reason.
REFUSED = {
    "moe.layer.MoE": "expert layers",
    "pipe.PipelineModule": "pipeline parallelism",
    "runtime.sequence_parallel.ulysses_sp.UlyssesSPAttentionHF": "sequence parallelism",
    "utils.groups._get_sequence_parallel_world_size": "parallelism of other kinds",
    "module_inject.layers.GatherReplacedLayerParams": "tensor parallelism",
    "elasticity.compute_elastic_config": "DeepSpeed 0.19.8 does not have any more",
    "profiling.flops_profiler.get_model_profile": "torch.profiler",
    "tp_model_init": "tensor parallelism",
    "init_inference": "artesian.init_inference",
}

ENGINE = """
forward backward step train eval zero_grad module optimizer lr_scheduler config device no_sync scale
get_lr get_global_grad_norm set_gradient_accumulation_boundary is_gradient_accumulation_boundary
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps zero_optimization_stage
loss_scale global_steps micro_steps skipped_steps global_samples save_checkpoint load_checkpoint
save_16bit_model _zero3_consolidated_16bit_state_dict zero_gather_16bit_weights_on_model_save
destroy
_consolidated_16bit_state_dict compile module_state_dict load_module_state_dict offload_states
reload_states empty_partition_cache mpu coalesce_grad_reduction was_step_applied
set_train_batch_size set_train_micro_batch_size train_batch eval_batch deepspeed_io
training_dataloader monitor global_rank world_size local_rank dp_world_size get_mom get_type
fp16_enabled bfloat16_enabled gradient_clipping steps_per_print wall_clock_breakdown optimizer_name
save_fp16_model is_compiled dump_state managed_gradient_accumulation
"""
OPTIMIZER = """
param_groups step zero_grad overflow state state_dict parameter_offload loss_scale cur_scale
loss_scaler loss_scale_config dynamic_loss_scale fp32_partitioned_groups_flat
single_partition_of_fp32_groups _global_grad_norm optimizer
offload_states reload_states empty_partition_cache
"""
OFFLOAD = "module forward_hooks backward_hooks _register_deepspeed_module param_coordinator"
PARAMETER = """
ds_id ds_numel ds_shape ds_status ds_tensor ds_persist is_external_param partition_numel
ds_active_sub_modules
"""
ACCELERATOR = """
manual_seed manual_seed_all get_rng_state set_rng_state synchronize supported_dtypes device_name
memory_allocated set_device pin_memory Event _name current_device_name communication_backend_name
"""

# name -> what is done with it, and the test that shows the effect.
BEHAVIOUR = {
    "stages 0 to 2: state_dict()": "stages_test::test_what_is_written_becomes_the_masters",
    "stages 0 to 2: reading a parameter between steps": (
        "stages_test::test_averages_of_parameters_are_those_of_plain_pytorch"
    ),
    "stage 3: state_dict() inside GatheredParameters": (
        "gathered_test::test_a_generation_and_a_state_dict_under_gathered_parameters"
    ),
    "a model that is frozen": "evaluation_engine_test::test_other_ways_to_ask_for_one",
    "initialize(model_parameters=[])": "evaluation_engine_test::test_other_ways_to_ask_for_one",
    "initialize() without any optimizer": "evaluation_engine_test::test_other_ways_to_ask_for_one",
    "a generation inside GatheredParameters": (
        "gathered_test::test_a_generation_and_a_state_dict_under_gathered_parameters"
    ),
    "GatheredParameters inside a module's forward": (
        "gathered_test::test_inside_a_modules_call_parameters_are_gathered_for_it"
    ),
    "change and change back without modifier_rank": (
        "gathered_test::test_changes_that_nobody_writes_back_are_dropped_with_one_warning"
    ),
    "ds_status while the parameter is there": (
        "gathered_test::test_ds_status_says_whether_a_parameter_is_there"
    ),
    "initialize again after destroy()": (
        "life_cycle_test::test_after_destroy_parameters_are_plain_and_another_engine_takes_them"
    ),
    "initialize again without destroy()": (
        "life_cycle_test::test_after_destroy_parameters_are_plain_and_another_engine_takes_them"
    ),
    "auto_find_batch_size": "trainer_stages_test::test_a_batch_size_is_found_by_trying",
    "two engines": "evaluation_engine_test::test_two_engines_prefer_as_plain_pytorch_does",
    "a client's optimizer and scheduler": (
        "engine_test::test_a_clients_optimizer_and_any_torch_scheduler"
    ),
    "a bare backward": "engine_test::test_a_bare_loop_has_the_bits_of_the_engines_own",
    "clip_grad_norm_": "engine_test::test_gradients_cannot_be_clipped_in_silence",
    "save_latest=False": "engine_checkpoints_test::test_none_is_no_error",
    "types of client_state": "engine_checkpoints_test::test_a_client_state_comes_back",
    "WarmupCosineLR with groups": "schedules_test::test_each_group_is_led_to_its_own_rate",
    "dtype of outputs": "evaluation_engine_test::test_logits_and_tokens_are_plain_pytorchs",
    "engine.compile": "members_test::test_a_compiled_engine_trains_as_one_that_is_not",
    "checkpointing.checkpoint": "members_test::test_checkpointing_has_torchs_gradients",
    "hooks that TRL takes off": (
        "members_test::test_hooks_that_are_taken_off_to_generate_and_put_on_again"
    ),
    "WORLD_SIZE=2": "processes_test::",
}


def rows():
    for module, names in re.findall(r"^([\w.]+): ((?:.*\n)(?:    .*\n)*)", NAMES, re.MULTILINE):
        full = module if module == "deepspeed" else f"deepspeed.{module}"
        yield from ((full, name) for name in names.split())


@pytest.fixture(scope="module")
def parts():
    """An engine at stage 3 that has taken a step, under DeepSpeed's name."""
    model, batch = stack()
    config = config_for(gradient_accumulation_steps=2)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    with deepspeed.zero.Init(config_dict_or_path=config):
        pass
    engine, optimizer, _, _ = deepspeed.initialize(model=model, config=config)
    mean = engine.train_batch(iter([batch(0), batch(1)]))
    yield engine, optimizer, batch, mean
    engine.destroy()


@pytest.mark.parametrize("module, name", list(rows()))
def test_a_name_is_served(module, name):
    value = getattr(importlib.import_module(module), name)
    assert value is not None
    refused = isinstance(value, type) and value.__doc__ in surface.REFUSED_MODULES.values()
    assert not refused, f"{module}.{name} is a stand-in"


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_is_imported_and_refused_where_it_is_used(name):
    module, _, attribute = f"deepspeed.{name}".rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    with pytest.raises(NotImplementedError) as refusal:
        kind()
    assert str(refusal.value).startswith(f"deepspeed.{name}: not supported by Artesian")
    assert REFUSED[name] in str(refusal.value)


def test_members_are_answered(parts):
    engine, optimizer, _, _ = parts
    weight = engine.module.blocks[0].weight
    for owner, names in (
        (engine, ENGINE),
        (optimizer, OPTIMIZER),
        (optimizer.parameter_offload, OFFLOAD),
        (weight, PARAMETER),
        (deepspeed.get_accelerator(), ACCELERATOR),
    ):
        lacking = [name for name in names.split() if not hasattr(owner, name)]
        assert not lacking, f"{type(owner).__name__}: {lacking}"


def test_a_batch_is_a_step(parts):
    engine, optimizer, batch, mean = parts
    assert engine.global_steps == 1 and engine.was_step_applied()
    model, _ = stack()
    assert torch.allclose(mean, (model(batch(0)) + model(batch(1))) / 2)
    before = engine.eval_batch(iter([batch(0)]))
    assert engine.training and not before.requires_grad
    assert torch.equal(engine.eval_batch(iter([(batch(0),)]), compute_loss=False), before)
    with pytest.raises(artesian.Error, match=r"train_batch\(data_iter\): got none"):
        engine.train_batch()
    engine.training_dataloader = [{"x": batch(0)}, {"x": batch(1)}, {"x": batch(2)}]
    engine.train_batch()
    assert torch.isfinite(engine.train_batch()) and engine.global_steps == 3


def test_what_programs_ask_of_an_optimizer(parts):
    engine, optimizer, _, _ = parts
    assert optimizer.optimizer is optimizer
    scaler = optimizer.loss_scaler
    assert (scaler.cur_scale, scaler.loss_scale, scaler.dynamic) == (1.0, 1.0, False)
    flat = optimizer.fp32_partitioned_groups_flat
    masters = [engine.full_parameter(p).flatten() for p in engine.module.parameters()]
    assert len(flat) == 1 and torch.equal(flat[0], torch.cat(masters))
    enum = deepspeed.runtime.zero.offload_config.OffloadStateTypeEnum
    optimizer.offload_states(include=[enum.optim_states], device="cpu", non_blocking=True)
    optimizer.reload_states(non_blocking=True)
    optimizer.empty_partition_cache()


@pytest.mark.parametrize("precision, place", [("fp32", 2), ("fp16", 3), ("bf16", "nvme")])
def test_gradients_are_replaced_between_backward_and_step(precision, place, tmp_path):
    """As in loops that clip or filter each parameter's gradient themselves."""
    utils = deepspeed.utils
    model, batch = stack()
    config = config_for(tmp_path if place == "nvme" else None)
    if place == 2:
        config["zero_optimization"] = {"stage": 2}
    if precision != "fp32":
        config[precision] = {"enabled": True} | ({"loss_scale": 64} if precision == "fp16" else {})
        config["artesian"]["compute_dtype"] = "fp32"
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    for step in range(3):  # updates of the last units begin under backward
        masters = [engine.full_parameter(p) for p in model.parameters()]
        with pytest.raises(artesian.Error, match="set between backward"):
            utils.safe_set_full_grad(model.scale, torch.zeros_like(masters[0]))
        engine.backward(engine(batch(step)))
        before = [utils.safe_get_full_grad(p) for p in model.parameters()]
        assert any(bool(gradient.any()) for gradient in before)
        with pytest.raises(artesian.Error, match=r"set_full_gradient: got the shape \(3,\)"):
            utils.safe_set_full_grad(model.scale, torch.zeros(3))
        utils.safe_update_full_grad_vectorized(model.parameters(), lambda grad, p: grad * -2)
        first = next(iter(model.parameters()))
        utils.safe_set_local_grad(first, torch.zeros(first.numel()))
        now = [utils.safe_get_full_grad(p) for p in model.parameters()]
        assert not now[0].any()
        assert all(torch.equal(a, -2 * b) for a, b in zip(now[1:], before[1:]))
        engine.step()
        if step == 0:  # Adam's first step is as large as the rate, against the gradient
            for old, p, gradient in zip(masters, model.parameters(), now):
                moved = (engine.full_parameter(p) - old).sign()
                clear = gradient.abs() > 1e-4
                assert torch.equal(moved[clear], -gradient.sign()[clear])
    engine.destroy()


def test_a_state_dict_has_names_and_shapes_where_nothing_is_gathered(parts, tmp_path):
    """PEFT asks modules for their names; a save without values must not pass for a complete one."""
    engine = parts[0]
    state = engine.module.state_dict()
    expected = stack()[0].state_dict()
    assert {name: t.shape for name, t in state.items()} == {n: t.shape for n, t in expected.items()}
    with pytest.raises(RuntimeError, match='parameter ".*" is released'):
        torch.save(state, tmp_path / "saved.pt")
    with pytest.raises(RuntimeError, match="is released"):
        state["blocks.0.weight"].sum()


def test_what_programs_ask_of_parameters_and_modules(parts):
    engine = parts[0]
    for module in engine.module.modules():
        assert list(module.ds_external_parameters()) == []
        module.ds_grads_remaining = 0
    weight = engine.module.blocks[0].weight
    weight.ds_grad_is_ready = True
    weight.ds_active_sub_modules.clear()
    assert weight.ds_tensor.numel() == weight.partition_numel() == weight.ds_numel == 64
    with pytest.raises(NotImplementedError, match="ds_tensor.cpu: .* GatheredParameters has"):
        weight.ds_tensor.cpu()


def test_a_layer_of_tiles_is_the_layer():
    whole = torch.nn.Linear(10, 7)
    x = torch.randn(3, 10)
    tiled = deepspeed.zero.TiledLinear(10, 7, in_splits=3, out_splits=2, init_linear=whole)
    assert [row[0].weight.shape for row in tiled.linears] == [(4, 4), (3, 4)]
    assert torch.allclose(tiled(x), whole(x), atol=1e-6)
    parts = deepspeed.zero.TiledLinear(
        10, 7, in_splits=2, out_splits=2, init_linear=whole, input_is_already_split=True,
        combine_out_splits=False,
    )  # fmt: skip
    assert torch.allclose(torch.cat(parts(x.split(5, -1)), -1), whole(x), atol=1e-6)
    with pytest.raises(artesian.Error, match="in_splits: got 11, allowed 1 to 10"):
        deepspeed.zero.TiledLinear(10, 7, in_splits=11)

    class ReturnsBias(torch.nn.Linear):
        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight), self.bias

    kind = deepspeed.runtime.zero.tiling.TiledLinearReturnBias
    tiled = kind(10, 7, in_splits=2, out_splits=2, linear_cls=ReturnsBias, init_linear=whole)
    values, bias = tiled(x)
    assert torch.allclose(values + bias, whole(x), atol=1e-6) and torch.equal(bias, whole.bias)


def test_every_row_of_behaviour_has_its_test():
    for row, place in BEHAVIOUR.items():
        file, _, name = place.partition("::")
        assert f"def {name or 'test_'}" in (HERE / f"{file}.py").read_text(), row


def test_a_config_with_deepspeeds_spelling_is_read():
    config = deepspeed.DeepSpeedConfig(config_for(train_micro_batch_size_per_gpu=3))
    assert (config.train_batch_size, config.zero_enabled) == (3, True)


def begin(model, **more):
    return deepspeed.initialize(model=model, config=config_for(**more), model_parameters=None)


def test_initialize_logs_deepspeeds_first_line_and_scale_takes_a_scalar(caplog):
    engine, *_ = begin(stack()[0])
    with pytest.raises(AssertionError, match="scalar tensor"):
        engine.scale(torch.ones(2))
    engine.destroy()
    line = f"DeepSpeed info: version={surface.VERSION}, git-hash=artesian, git-branch=artesian"
    assert [line in record.getMessage() for record in caplog.records].count(True) == 1


ADAMS = [
    ("Adam", {}, "none", deepspeed.ops.adam.FusedAdam, True),
    ("Adam", {"adam_w_mode": False}, "cpu", deepspeed.ops.adam.DeepSpeedCPUAdam, False),
    ("Adam", {"torch_adam": True, "adam_w_mode": False}, "none", torch.optim.Adam, None),
    ("AdamW", {"torch_adam": True}, "cpu", torch.optim.AdamW, None),
]


@pytest.mark.parametrize("kind, params, device, wanted, decoupled", ADAMS)
def test_a_configs_optimizer_is_of_deepspeeds_class(kind, params, device, wanted, decoupled):
    config = {
        "optimizer": {"type": kind, "params": {"lr": 1e-3, **params}},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": device}},
    }
    engine, optimizer, _, _ = deepspeed.initialize(model=stack()[0], config=config)
    assert isinstance(optimizer.optimizer, wanted)
    assert decoupled is None or optimizer.adam_w_mode is decoupled
    stages = deepspeed.runtime.zero.stage_1_and_2, deepspeed.runtime.zero.stage3
    assert isinstance(optimizer, stages[0].DeepSpeedZeroOptimizer)
    assert not isinstance(optimizer, stages[1].DeepSpeedZeroOptimizer_Stage3)
    engine.destroy()


@pytest.mark.parametrize("kind", [ADAMS[0][3], ADAMS[1][3]])
def test_an_optimizer_without_an_engine_steps_as_torchs(kind):
    results = []
    for make in (kind, torch.optim.AdamW):
        model, batch = stack()
        optimizer = make(model.parameters(), lr=1e-2, weight_decay=0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step)).backward()
            optimizer.step()
        results.append([*model.parameters(), *(s["exp_avg"] for s in optimizer.state.values())])
    assert len(results[0]) == 14
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results))


def test_a_configs_schedule_is_of_deepspeeds_class(caplog):
    params = {"warmup_num_steps": 4, "warmup_max_lr": 0.5, "warmup_type": "steep"}
    engine, optimizer, _, schedule = begin(
        stack()[0], scheduler={"type": "WarmupLR", "params": params}
    )
    assert type(schedule) is deepspeed.runtime.lr_schedules.WarmupLR
    assert 'warmup_type: got "steep", allowed log or linear: it is log' in caplog.text
    assert (schedule.min_lrs, schedule.max_lrs, schedule.warmup_type) == ([0.0], [0.5], "log")
    with pytest.raises(AttributeError, match="'WarmupLR' object has no attribute 'nonsense'"):
        schedule.nonsense
    schedule.step(1)  # called after the step of this number, as DeepSpeed counts
    assert schedule.last_batch_iteration == 1
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25)  # log 2 of log 4
    assert "warmup_type" not in schedule.state_dict()
    engine.destroy()


def test_shares_and_momenta_of_schedules():
    schedules = deepspeed.runtime.lr_schedules
    parameter = torch.nn.Parameter(torch.zeros(1))
    cosine = schedules.WarmupCosineLR(torch.optim.Adam([parameter], lr=0.1), 100, 0.0, 10)
    cosine.step(9)
    assert cosine.get_lr_ratio() == pytest.approx(1.0)
    cycle = schedules.OneCycle(torch.optim.Adam([parameter]), 0.1, 0.2, cycle_min_mom=0.8)
    assert cycle.get_mom()[0][0] == 0.9 and cycle.optimizer.param_groups[0]["betas"][0] == 0.8


def test_parameters_in_no_group_are_not_trained(caplog):
    model, batch = stack()
    before = model.scale.detach().clone()
    groups = [{"params": [block.weight for block in model.blocks]}, {"params": []}]
    engine, *_ = deepspeed.initialize(model=model, config=config_for(), model_parameters=groups)
    assert "initialize(): 4 parameters are in no group of the optimizer" in caplog.text
    engine.train_batch(iter([batch(0)]))
    state = engine.optimizer.state[model.blocks[0].weight]
    assert state["step"] == 1.0 and state["exp_avg"].any()
    engine.destroy()
    assert torch.equal(model.scale, before) and model.scale.requires_grad


def test_offload_of_parameters_has_no_effect_below_stage_3(caplog):
    zero = {"stage": 1, "offload_param": {"device": "cpu"}}
    engine, *_ = begin(stack()[0], zero_optimization=zero)
    assert "offload_param: has no effect at zero_optimization.stage 1" in caplog.text
    engine.destroy()
    with pytest.raises(artesian.Error, match="offload_param.device"):
        artesian.initialize(model=stack()[0], config=config_for(zero_optimization=zero))


def test_a_dynamic_loss_scale_is_told():
    fp16 = {"enabled": True, "initial_scale_power": 4, "loss_scale_window": 7}
    engine, optimizer, _, _ = begin(stack()[0], fp16=fp16)
    scale = optimizer.loss_scale_config
    assert (scale.cur_scale, scale.scale_window, scale.cur_iter) == (16.0, 7, 0)
    assert optimizer.dynamic_loss_scale
    engine.destroy()


def test_what_is_not_given_is_an_assertion_too(tmp_path):
    with pytest.raises(AssertionError, match=r"initialize\(model=...\): got none"):
        deepspeed.initialize(config={})
    with pytest.raises(AssertionError, match="number_checkpoints: got none"):
        deepspeed.checkpointing.configure(None, contiguous_checkpointing=True)
    (tmp_path / "ds.json").write_text("{}")
    given = argparse.Namespace(deepscale_config=str(tmp_path / "ds.json"))
    engine, *_ = deepspeed.initialize(args=given, model=stack()[0], model_parameters=None)
    with pytest.raises(AttributeError, match="Engine has no attribute 'x', and neither"):
        engine.x
    engine.destroy()


def test_facts_that_scripts_ask_before_they_train(tmp_path):
    ops = deepspeed.ops
    assert ops.__compatible_ops__["async_io"] and not ops.__compatible_ops__["nobodys"]
    assert ops.op_builder.CPUAdamBuilder().is_compatible()
    assert not ops.op_builder.FusedLambBuilder().is_compatible()
    with pytest.raises(NotImplementedError, match="AsyncIOBuilder.load"):
        ops.aio.AsyncIOBuilder().load()
    required = deepspeed.utils.torch.required_torch_version
    assert required(min_version=2.1) and not required(max_version="2.1")
    assert deepspeed.__version_major__ == 0 and deepspeed.__version_minor__ == 19
    for rank in range(12):
        (tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    files = deepspeed.utils.zero_to_fp32.get_optim_files(str(tmp_path))
    assert [int(re.search(r"rank_(\d+)_", file)[1]) for file in files] == list(range(12))
