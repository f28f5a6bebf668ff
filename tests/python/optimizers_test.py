"""Proves each optimizer against torch.optim, and Lion against its paper, over 20 steps in fp32;
that its bits are the same in each tier and dtype and after a resume, and its weights those that
zero_to_fp32 reads; that moments have their names; and that what is no optimizer here, or another
one's checkpoint, is refused by name."""

import json
import logging

import pytest
import small_models
import torch
from small_models import artesian
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from artesian import checkpoint, zero
from artesian.checkpoint import export_dcp, export_universal


class PaperLion(torch.optim.Optimizer):
    """Chen et al. 2023, Algorithm 2."""

    def __init__(self, params, **constants):
        super().__init__(params, constants)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                sign = (beta1 * average + (1 - beta1) * p.grad).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * sign)
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class PaperLamb(torch.optim.Optimizer):
    """You et al. 2020, with the bounds and the bias correction of DeepSpeed's FusedLamb."""

    def __init__(self, params, **constants):
        super().__init__(params, constants)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                m = state.setdefault("exp_avg", torch.zeros_like(p))
                v = state.setdefault("exp_avg_sq", torch.zeros_like(p))
                t = state["step"] = state.get("step", 0) + 1
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                u = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                norms = float(p.double().norm()), float(u.double().norm())
                ratio = norms[0] / norms[1] if all(norms) else 1.0
                ratio = max(min(ratio, group["max_coeff"]), group["min_coeff"])
                rate = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
                p.sub_(u, alpha=rate * ratio)


def orthogonal(x):
    """Five Newton-Schulz iterations (Jordan et al. 2024), in x's dtype."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = x if x.size(0) <= x.size(1) else x.T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(5):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if x.size(0) <= x.size(1) else wide.T


class PaperMuon:
    """Muon for matrices and for filters as rows of a matrix, with Nesterov's momentum, as in
    DeepSpeed; AdamW for all else."""

    def __init__(self, groups, muon_lr, adam_lr, momentum, weight_decay):
        parameters = [p for group in groups for p in group["params"]]
        self.matrices = [p for p in parameters if p.dim() in (2, 4)]
        rest = [p for p in parameters if p.dim() not in (2, 4)]
        self.adam = OPTIM.AdamW(rest, lr=adam_lr, betas=(0.9, 0.95), eps=1e-10,
                                weight_decay=weight_decay)  # fmt: skip
        self.lr, self.momentum, self.decay = muon_lr, momentum, weight_decay
        self.buffers = [torch.zeros_like(p) for p in self.matrices]

    def zero_grad(self):
        for p in self.matrices:
            p.grad = None
        self.adam.zero_grad()

    @torch.no_grad()
    def step(self):
        self.adam.step()
        for p, buffer in zip(self.matrices, self.buffers, strict=True):
            buffer.lerp_(p.grad, 1 - self.momentum)
            update = orthogonal(p.grad.lerp(buffer, self.momentum).flatten(1))
            update *= max(1.0, p.size(-2) / p.size(-1)) ** 0.5
            p.mul_(1 - self.lr * self.decay).sub_(update.view_as(p), alpha=self.lr)


OPTIM = torch.optim
# optimizer -> the trained model, its reference optimizer, and the constants of both.
CASES = {
    "sgd": ("SGD", OPTIM.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": (
        "SGD",
        OPTIM.SGD,
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.1},
    ),
    "nesterov": ("SGD", OPTIM.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adagrad": (
        "Adagrad",
        OPTIM.Adagrad,
        {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1},
    ),
    "rmsprop": ("RMSprop", OPTIM.RMSprop, {"lr": 1e-3, "alpha": 0.9, "weight_decay": 0.1}),
    "rms momentum": ("RMSprop", OPTIM.RMSprop, {"lr": 1e-3, "momentum": 0.9, "eps": 1e-6}),
    "lion": ("Lion", PaperLion, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    "lamb": (
        "Lamb",
        PaperLamb,
        {
            "lr": 1e-2,
            "betas": (0.9, 0.99),
            "eps": 1e-6,
            "weight_decay": 0.1,
            "min_coeff": 0.2,
            "max_coeff": 0.9,
        },
    ),
    "muon": (
        "Muon",
        PaperMuon,
        {"muon_lr": 0.002, "adam_lr": 1e-3, "momentum": 0.9, "weight_decay": 0.1},
    ),
    "muon filters": ("Muon", PaperMuon, {"muon_lr": 0.002, "adam_lr": 1e-3, "momentum": 0.9,
                                         "weight_decay": 0.1}),
    "adamw": ("AdamW", OPTIM.AdamW, {"lr": 1e-3, "weight_decay": 0.1}),
    "adam": ("Adam", OPTIM.Adam, {"lr": 1e-3, "weight_decay": 0.1}),
}
MOMENTS = {
    "sgd": ["momentum_buffer"],
    "adagrad": ["sum"],
    "rmsprop": ["square_avg"],
    "rms momentum": ["momentum_buffer", "square_avg"],
    "lion": ["exp_avg"],
}


def net(case=None):
    torch.manual_seed(3)
    if case == "muon filters":
        return nn.Sequential(
            nn.Unflatten(1, (1, 24)), nn.Conv1d(1, 1, 1), nn.Unflatten(2, (8, 3)),
            # larger than 1 MiB
            nn.Conv2d(1, 8, (3, 1)), nn.Flatten(), nn.Tanh(), nn.Linear(144, 2000),
            nn.Tanh(), nn.Linear(2000, 8)
        )  # fmt: skip
    return nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 8))


def loss_of(model, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 24, generator=generator)
    dtype = next(model.parameters()).dtype
    return (model(x.to(dtype)) - x[:, :8].to(dtype)).square().float().mean()


def groups_of(model, lr):
    """Returns parameter groups in which biases have constants of their own."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": weights}, {"params": biases, "lr": lr / 2, "weight_decay": 0.0}]


def groups_for(model, params):
    return groups_of(model, params["lr"]) if "lr" in params else [{"params": model.parameters()}]


def engine_for(case, model, folder=None, moments="fp32", **more):
    kind, _, params = CASES[case]
    values = {**params, "betas": list(params["betas"])} if "betas" in params else {**params}
    config = small_models.config_for(folder, **more)
    if case == "adam":  # otherwise it is AdamW, as in DeepSpeed
        values["adam_w_mode"] = False
    config["optimizer"] = {"type": kind, "params": values}
    config["artesian"]["moments"] = moments
    return artesian.initialize(
        model=model, config=config, model_parameters=groups_for(model, params)
    )[0]


def train(engine, steps, first=0):
    for step in range(first, first + steps):
        engine.backward(loss_of(engine, step))
        engine.step()


def masters(engine, model):
    return [engine.full_parameter(p).clone() for p in model.parameters()]


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_those_of_the_reference(case):
    _, reference, params = CASES[case]
    plain = net(case)
    groups = groups_for(plain, params)
    groups = [{**group, "params": list(group["params"])} for group in groups]
    optimizer = reference(groups, **params)
    for step in range(20):
        loss_of(plain, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = net(case)
    before = [p.clone() for p in model.parameters()]
    engine = engine_for(case, model)
    train(engine, 20)
    for ours, theirs, first in zip(masters(engine, model), plain.parameters(), before, strict=True):
        assert (theirs - first).norm() > 1e-3 * first.norm()  # the weights have moved
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm()
    engine.destroy()


DTYPES = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "loss_scale": 8}},
}


OTHERS = ("momentum", "adagrad", "rms momentum", "lion", "lamb", "muon")
RESUMED = [
    *((case, dtype, "fp32") for case in OTHERS for dtype in DTYPES),
    *((case, "fp32", "fp32") for case in ("adam", "adamw", "sgd", "nesterov", "rmsprop")),
    ("muon filters", "bf16", "fp32"),
    *((case, dtype, "bf16") for case in ("adamw", "adagrad", "lion") for dtype in ("fp32", "bf16")),
]


@pytest.mark.parametrize(("case", "dtype", "moments"), RESUMED)
def test_bits_are_those_of_each_place_and_of_a_resume(case, dtype, moments, tmp_path):
    """On the device; on NVMe with a checkpoint after two steps; and two more steps from that
    checkpoint with the state in host memory."""

    def make():
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
        return net(case).to(dtypes.get(dtype, torch.float16))

    model = make()
    engine = engine_for(case, model, None, moments, **DTYPES[dtype])
    train(engine, 4)
    expected, weights = engine.digest(), masters(engine, model)
    engine.destroy()

    engine = engine_for(case, make(), tmp_path / "nvme", moments, **DTYPES[dtype])
    train(engine, 2)
    engine.save_checkpoint(tmp_path / "saved")
    train(engine, 2, first=2)
    assert engine.digest() == expected
    engine.save_checkpoint(tmp_path / "end")
    engine.destroy()

    on_cpu = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    engine = engine_for(case, make(), None, moments, **DTYPES[dtype], zero_optimization=on_cpu)
    engine.load_checkpoint(tmp_path / "saved")
    train(engine, 2, first=2)
    assert engine.digest() == expected
    engine.destroy()

    saved = checkpoint.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "end")
    for ours, written in zip(weights, saved.values(), strict=True):
        assert torch.equal(ours, written)


def test_moments_of_two_bytes_are_rounded_to_nearest():
    """After one step moments are the fp32 ones, rounded; a longer training is almost the same."""
    ends = []
    for moments in ("fp32", "bf16"):
        model = net()
        engine = engine_for("adamw", model, None, moments)
        train(engine, 1)
        weight = model[0].weight
        first = [engine.full_state(weight, kind) for kind in engine.moment_names]
        train(engine, 30, first=1)
        ends.append((first, engine.full_parameter(weight).clone()))
        engine.destroy()
    for exact, rounded in zip(ends[0][0], ends[1][0], strict=True):
        assert torch.equal(exact.bfloat16().float(), rounded)
    difference = (ends[0][1] - ends[1][1]).norm() / (ends[0][1] - net()[0].weight).norm()
    assert 0 < difference < 0.05


@pytest.mark.parametrize("case", MOMENTS)
def test_moments_have_the_names_of_torch(case):
    model = net()
    engine = engine_for(case, model)
    train(engine, 1)
    weight = model[0].weight
    state = engine.optimizer.state_dict()["state"][0]
    assert sorted(state) == sorted(engine.optimizer.state[weight]) == MOMENTS[case]
    for name in MOMENTS[case]:
        value = zero.safe_get_full_optimizer_state(weight, name)
        assert torch.equal(value, state[name]) and value.any()
        zero.safe_set_full_optimizer_state(weight, value * 2, name)
        assert torch.equal(zero.safe_get_full_optimizer_state(weight, name), value * 2)
    allowed = f'got "exp_avg_sq", allowed "fp32", "{MOMENTS[case][0]}'
    with pytest.raises(artesian.Error, match=allowed):
        zero.safe_get_full_optimizer_state(weight, "exp_avg_sq")
    engine.destroy()


@pytest.mark.parametrize("case", ["momentum", "nesterov", "adagrad", "rms momentum"])
def test_an_optimizer_of_torch_is_taken_over(case):
    _, made, params = CASES[case]
    digests = []
    for whose in ("torch's", "ours", "config's"):
        model = net()
        if whose == "config's":
            engine = engine_for(case, model)
        else:
            kind = made if whose == "torch's" else getattr(artesian.optim, made.__name__)
            client = kind(groups_of(model, params["lr"]), **params)
            engine = artesian.initialize(
                model=model, config=small_models.config_for(), optimizer=client
            )[0]
        assert engine.optimizer_name() == made.__name__.lower()
        train(engine, 3)
        digests.append(engine.digest())
        engine.destroy()
    assert digests == digests[:1] * 3


def test_a_checkpoint_of_another_optimizer_gives_weights_alone(tmp_path):
    engine = engine_for("momentum", net())
    train(engine, 2)
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    model = net()
    engine = engine_for("lion", model)
    with pytest.raises(artesian.Error, match="got the optimizer sgd, allowed lion"):
        engine.load_checkpoint(tmp_path)
    engine.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert not engine.full_state(model[0].weight, "exp_avg").any()
    engine.destroy()


EXPORTED = {"momentum": OPTIM.SGD, "adagrad": OPTIM.Adagrad, "rms momentum": OPTIM.RMSprop}


@pytest.mark.parametrize("case", [*EXPORTED, "lion", "lamb"])
def test_exports_have_the_moments_of_each_optimizer(case, tmp_path):
    """torch's own optimizer loads those of DCP."""
    model = net()
    engine = engine_for(case, model)
    train(engine, 2)
    engine.save_checkpoint(tmp_path / "saved")
    expected = {
        name: {kind: engine.full_state(p, kind) for kind in engine.moment_names_of(p)}
        for name, p in model.named_parameters()
    }
    engine.destroy()
    export_universal.export_universal(tmp_path / "saved", tmp_path / "universal", None, False)
    export_dcp.export_dcp(tmp_path / "saved", tmp_path / "dcp", None)
    tag = (tmp_path / "universal/latest_universal").read_text()
    for name, moments in expected.items():
        folder = tmp_path / "universal" / tag / "zero" / name
        assert {p.stem for p in folder.iterdir()} - {"fp32", "step"} == {
            "exp_avg_sq" if kind == "sum" else kind for kind in moments
        }
        for kind, value in moments.items():
            file = folder / f"{'exp_avg_sq' if kind == 'sum' else kind}.pt"
            assert torch.equal(torch.load(file)["param"], value)
    if case not in EXPORTED:
        return
    plain = net()
    optimizer = EXPORTED[case](groups_for(plain, CASES[case][2]), **CASES[case][2])
    loss_of(plain, 9).backward()
    optimizer.step()
    optimizer.zero_grad()
    both = dict(zip(("model", "optim"), get_state_dict(plain, optimizer), strict=True))
    torch.distributed.checkpoint.load(both, checkpoint_id=tmp_path / "dcp", no_dist=True)
    set_state_dict(
        plain, optimizer, model_state_dict=both["model"], optim_state_dict=both["optim"]
    )
    for name, p in plain.named_parameters():
        for kind, value in expected[name].items():
            assert torch.equal(optimizer.state[p][kind], value)


def test_what_is_no_optimizer_here_is_refused_by_name():
    model = net()

    def start(client):
        artesian.initialize(model=model, config=small_models.config_for(), optimizer=client)

    unsupported = artesian.errors.UnsupportedError
    with pytest.raises(unsupported, match="got NAdam, allowed AdamW, Adam, SGD"):
        start(OPTIM.NAdam(model.parameters()))
    for client, flag in (
        (OPTIM.SGD(model.parameters(), lr=1, maximize=True), "maximize=True"),
        (OPTIM.RMSprop(model.parameters(), centered=True), "centered=True"),
    ):
        with pytest.raises(unsupported, match=f"{flag} is not supported"):
            start(client)


def test_deepspeeds_names_and_what_accelerate_replaces(caplog):
    from artesian.deepspeed import shim

    for kind, ours in (
        (shim.DeepSpeedCPUAdagrad, "adagrad"),
        (shim.DeepSpeedCPULion, "lion"),
        (shim.FusedLion, "lion"),
        (shim.FusedLamb, "lamb"),
    ):
        model = net()
        engine = artesian.initialize(
            model=model, config=small_models.config_for(), optimizer=kind(model.parameters())
        )[0]
        train(engine, 1)
        assert engine.optimizer_name() == ours
        engine.destroy()
    digests = []
    for client in (True, False):
        model = net()
        matrices, rest = [[p for p in model.parameters() if (p.dim() == 2) is use]
                          for use in (True, False)]  # fmt: skip
        groups = [{"params": matrices, "use_muon": True, "lr": 0.01, "ns_method": "standard"},
                  {"params": rest, "use_muon": False, "lr": 1e-3}]  # fmt: skip
        params = {"muon_lr": 0.01, "adam_lr": 1e-3, "ns_method": "standard"}
        section = {} if client else {"optimizer": {"type": "Muon", "params": params}}
        engine = artesian.initialize(
            model=model,
            config=small_models.config_for(**section),
            optimizer=shim.MuonWithAuxAdam(groups) if client else None,
        )[0]
        assert engine.optimizer_name() == "muon"
        train(engine, 2)
        digests.append(engine.digest())
        engine.destroy()
    assert digests[0] == digests[1]
    with pytest.raises(artesian.Error, match="adam_w_mode=False"):
        shim.MuonWithAuxAdam([], adam_w_mode=False)
    groups = OPTIM.SGD(net().parameters(), lr=0.1).param_groups
    with caplog.at_level(logging.WARNING, logger="artesian"):
        for _ in range(2):
            shim.DeepSpeedCPUAdam(groups, lr=0.1, adamw_mode=False)
        shim.DeepSpeedCPUAdam(OPTIM.AdamW(net().parameters()).param_groups)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "parameter groups of torch.optim.SGD" in line and "zero_force_ds_cpu_optimizer" in line


def test_one_cycle_leaves_what_has_no_betas():
    cycle = {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1}
    model = net()
    scheduler = {"type": "OneCycle", "params": cycle}
    engine = engine_for("momentum", model, scheduler=scheduler)
    train(engine, 2)
    assert engine.get_mom() == [0.9, 0.9]
    assert json.dumps(engine.optimizer.param_groups[0]["momentum"]) == "0.9"
    engine.destroy()


def test_what_deepspeeds_muon_updates_and_ours_does_not_is_one_warning(caplog):
    """A parameter that must be a matrix and is none is refused."""
    model = net("muon filters")
    with caplog.at_level(logging.WARNING, logger="artesian"):
        engine = engine_for("muon filters", model)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith('Muon: AdamW updates "1.weight" of (1, 1, 1), where DeepSpeed\'s Muon')
    assert model[3].weight.use_muon and not model[1].weight.use_muon
    engine.destroy()
    model[1].weight.use_muon = True
    with pytest.raises(artesian.Error, match=r'got "1.weight" of \(1, 1, 1\)'):
        engine_for("muon filters", model)
