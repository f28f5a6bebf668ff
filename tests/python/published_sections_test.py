"""Proves that every optimizer and scheduler section that DeepSpeed's documentation and the configs
that people publish have, as they stand there, trains and resumes to the same bits; or that it is
refused by name."""

import pytest
import small_models
import torch
from small_models import artesian
from torch import nn

ADAM_OF_DOCS = {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}
OPTIMIZERS = [
    ("Adam", {"lr": 0.0004, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.0001, "weight_decay": 0.01}),
    ("Adam", ADAM_OF_DOCS),
    ("Adam", {**ADAM_OF_DOCS, "torch_adam": True, "adam_w_mode": False}),
    ("AdamW", {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}),
    ("AdamW", {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}),
    ("Lamb", {"lr": 11e-3, "weight_decay": 0.01, "bias_correction": False, "max_coeff": 0.3,
              "min_coeff": 0.01}),
    ("Lion", {"lr": 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}),
    ("RMSprop", {"lr": 0.001}),
    ("Muon", {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.01}),
    ("Muon", {"muon_lr": 0.02, "adam_lr": 3e-4, "momentum": 0.95, "ns_method": "standard"}),
]  # fmt: skip
REFUSED = [
    ("OneBitAdam", {"lr": 0.001, "freeze_step": 400, "cuda_aware": False}),
    ("OneBitLamb", {"lr": 11e-3, "max_coeff": 0.3, "freeze_step": 1000, "coeff_beta": 0.9}),
    ("ZeroOneAdam", {"lr": 1e-3, "var_freeze_step": 1000}),
    ("MuAdam", {"lr": 1e-3}),
]
SCHEDULERS = [
    ("WarmupLR", {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500}),
    ("WarmupLR", {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}),
    ("WarmupLR", {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}),
    ("WarmupDecayLR", {"total_num_steps": 200000, "warmup_min_lr": 0, "warmup_max_lr": 0.001,
                       "warmup_num_steps": 1000}),
    ("WarmupCosineLR", {"total_num_steps": 10000, "warmup_num_steps": 100, "cos_min_ratio": 0.1}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.0001, "lr_range_test_step_size": 200,
                     "lr_range_test_step_rate": 5, "lr_range_test_staircase": False}),
    ("OneCycle", {"cycle_first_step_size": 1000, "cycle_first_stair_count": 500,
                  "cycle_second_step_size": 1000, "cycle_second_stair_count": 500,
                  "decay_step_size": 1000, "cycle_min_lr": 0.0001, "cycle_max_lr": 0.0010,
                  "decay_lr_rate": 0.001, "cycle_min_mom": 0.85, "cycle_max_mom": 0.99,
                  "decay_mom_rate": 0.0}),
]  # fmt: skip
SECTIONS = [
    *(({"type": kind, "params": params}, None) for kind, params in OPTIMIZERS),
    *(({"type": "AdamW", "params": {"lr": 1e-3}}, {"type": kind, "params": params})
      for kind, params in SCHEDULERS),
]  # fmt: skip


def engine_for(optimizer, scheduler):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 8))
    config = small_models.config_for(optimizer=optimizer)
    if scheduler is not None:
        config["scheduler"] = scheduler
    return artesian.initialize(model=model, config=config)[0]


def train(engine, first):
    for step in range(first, first + 2):
        x = torch.randn(16, 24, generator=torch.Generator().manual_seed(step))
        engine.backward((engine(x) - x[:, :8]).square().mean())
        engine.step()


@pytest.mark.parametrize(("optimizer", "scheduler"), SECTIONS)
def test_a_published_section_trains_and_resumes_to_the_same_bits(optimizer, scheduler, tmp_path):
    engine = engine_for(optimizer, scheduler)
    begin = engine.digest()
    train(engine, 0)
    engine.save_checkpoint(tmp_path)
    train(engine, 2)
    end, rate = engine.digest(), engine.get_lr()
    assert end != begin
    assert engine.optimizer_name().removesuffix("w") == optimizer["type"].lower().removesuffix("w")
    engine.destroy()
    engine = engine_for(optimizer, scheduler)
    engine.load_checkpoint(tmp_path)
    train(engine, 2)
    assert (engine.digest(), engine.get_lr()) == (end, rate)
    engine.destroy()


@pytest.mark.parametrize(("kind", "params"), REFUSED)
def test_what_is_not_there_is_refused_by_name(kind, params):
    with pytest.raises(artesian.Error, match=f'optimizer.type: got "{kind}"'):
        engine_for({"type": kind, "params": params}, None)
