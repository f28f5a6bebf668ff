"""Proves that every schedule of the config, and each of DeepSpeed's classes, gives each parameter
group the rate that DeepSpeed 0.19.8 gives it: values worked out by hand, and whole runs against its
formulas written down once more; that a step uses them; and that they go on from a checkpoint."""

import math

import pytest
import small_models
import torch
from small_models import artesian
from torch import nn

from artesian import schedulers

RATES = (1e-2, 1e-3)


def two_parameters():
    return [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]


def optimizer_of(rates=RATES):
    groups = [{"params": [p], "lr": rate} for p, rate in zip(two_parameters(), rates)]
    return torch.optim.AdamW(groups)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fast, self.slow = two_parameters()

    def forward(self, x):
        return (self.fast * x).sum() + (self.slow * x).sum()


def start(kind, params, rates=RATES):
    net = Net()
    config = small_models.config_for(scheduler={"type": kind, "params": params})
    groups = [{"params": [net.fast], "lr": rates[0]}, {"params": [net.slow], "lr": rates[1]}]
    engine = artesian.initialize(model=net, config=config, model_parameters=groups)[0]
    return engine, net


def take_step(engine):
    """The rates of the step, by group."""
    rates = engine.get_lr()
    engine.backward(engine(torch.ones(2)))
    engine.step()
    return rates


LINEAR = {"warmup_num_steps": 4, "warmup_type": "linear"}
BY_HAND = {  # at steps 1 to 7, as shares of each group's own rate
    "WarmupLR": (LINEAR, [0, 0, 0.25, 0.5, 0.75, 1, 1]),
    "WarmupDecayLR": ({**LINEAR, "total_num_steps": 6}, [0, 0, 0.25, 0.5, 0.75, 1, 0.5]),
    "WarmupCosineLR": (
        {**LINEAR, "total_num_steps": 6, "cos_min_ratio": 0, "warmup_min_ratio": 0.2},
        [0, 0.2, 0.4, 0.6, 0.8, 0.5, 0],
    ),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_each_group_is_led_to_its_own_rate(kind):
    params, shares = BY_HAND[kind]
    engine, net = start(kind, params)
    before = [engine.full_parameter(p) for p in net.parameters()]
    for share in shares:
        expected = [share * rate for rate in RATES]
        assert take_step(engine) == pytest.approx(expected, rel=1e-14, abs=1e-18)
        # Of a constant gradient Adam's step is the rate.
        after = [engine.full_parameter(p) for p in net.parameters()]
        moved = [(old - new).mean().item() for old, new in zip(before, after)]
        assert moved == pytest.approx(expected, rel=1e-3, abs=1e-6)
        before = after


def test_a_rate_that_the_config_names_is_that_of_all_groups():
    engine, _ = start("WarmupLR", {**LINEAR, "warmup_max_lr": 4e-3})
    assert [take_step(engine) for _ in range(4)][-1] == [2e-3, 2e-3]
    engine, _ = start("WarmupLR", {**LINEAR, "warmup_max_lr": "auto"})
    assert [take_step(engine) for _ in range(4)][-1] == [5e-3, 5e-4]


def test_rates_may_be_lists_by_group():
    ends = {"warmup_min_lr": [1e-3, 0], "warmup_max_lr": [5e-3, 4e-4]}
    engine, _ = start("WarmupLR", {**LINEAR, **ends})
    rates = [take_step(engine) for _ in range(7)]
    assert rates[0] == rates[1] == [1e-3, 0]
    assert rates[3] == pytest.approx([3e-3, 2e-4], rel=1e-14)
    assert rates[6] == [5e-3, 4e-4]
    engine, _ = start("WarmupLR", {**LINEAR, "warmup_max_lr": [5e-3, 4e-4]})
    assert [take_step(engine) for _ in range(7)][6] == [5e-3, 4e-4]
    invalid = artesian.errors.InvalidError
    with pytest.raises(invalid, match=r"scheduler.params.warmup_max_lr: got 3 values, allowed 2"):
        start("WarmupLR", {"warmup_max_lr": [1, 2, 3]})
    with pytest.raises(invalid, match=r"scheduler.params.warmup_min_lr: got \[0, '1'\], allowed"):
        start("WarmupLR", {"warmup_min_lr": [0, "1"]})


def formula(kind, index, own, low=0.0, high=None, steps=1000, total=0, floor=1e-4, linear=False):
    """DeepSpeed's, at its last_batch_iteration."""
    if index < 0:
        return 0.0 if kind == "WarmupCosineLR" else low
    steps = max(2, steps)
    share = index / steps if linear else math.log(index + 1) / math.log(steps)
    if kind == "WarmupCosineLR":
        if index < steps:
            return own * (low + (1 - low) * share)
        position = min(1.0, (index - steps + 1) / max(1, total - steps))
        return own * (floor + (1 - floor) * (1 + math.cos(math.pi * position)) / 2)
    if index >= steps:
        left = max(0.0, (total - index) / max(1, total - steps))
        share = left if kind == "WarmupDecayLR" else 1.0
    return low + ((own if high is None else high) - low) * share


CALLS = [  # positional, in DeepSpeed's order, with the formula's arguments
    ("WarmupLR", (0.0, None, 4), {"steps": 4}),
    (
        "WarmupLR",
        (1e-4, 2e-3, 9, "linear"),
        {"low": 1e-4, "high": 2e-3, "steps": 9, "linear": True},
    ),
    ("WarmupDecayLR", (30, 0.0), {"high": 1e-3, "total": 30}),
    ("WarmupDecayLR", (30, 1e-5, 3e-3, 6), {"low": 1e-5, "high": 3e-3, "steps": 6, "total": 30}),
    ("WarmupCosineLR", (25, 0.1, 5), {"low": 0.1, "steps": 5, "total": 25}),
    (
        "WarmupCosineLR",
        (25, 0.0, 1, 0.2, "linear"),
        {"steps": 1, "floor": 0.2, "total": 25, "linear": True},
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "terms"), CALLS)
def test_deepspeeds_classes_have_its_arguments_and_values(kind, arguments, terms):
    optimizer = optimizer_of()
    schedule = getattr(schedulers, kind)(optimizer, *arguments)
    for index in range(-1, 40):
        expected = [formula(kind, index, own, **terms) for own in RATES]
        assert schedule.last_batch_iteration == index
        found = [group["lr"] for group in optimizer.param_groups]
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-18), index
        assert schedule.get_last_lr() == found
        optimizer.step()
        schedule.step()


def cycle_share(taken, first, second, stairs):
    """DeepSpeed's _get_scale_factor."""
    total = first + second
    x = 1.0 + taken / total - math.floor(1 + taken / total)
    rises = x <= first / total
    if not stairs:
        return x / (first / total) if rises else (x - 1) / (first / total - 1)
    within = taken % total
    position = within * stairs / first
    if within > first:
        position = (total - within) * stairs / second
    return math.floor(position) / stairs


CYCLES = [  # what is given, in DeepSpeed's order: min, max, decay, halves, stairs, decay step, ...
    (1e-4, 1e-3, 0.0, 8),
    (1e-4, 1e-3, 0.5, 6, 10, 3, None, 4),
    ([1e-4, 1e-5], [1e-3, 5e-4], 0.2, 5, 0, 0, None, 2, True, [0.7, 0.8], [0.95, 0.9], 0.01),
    (1e-4, 1e-3, 0.0, 4, 6, 0, 2, 5, False),
]


@pytest.mark.parametrize("arguments", CYCLES)
def test_one_cycle_has_deepspeeds_rates_and_betas(arguments):
    optimizer = optimizer_of()
    schedule = schedulers.OneCycle(optimizer, *arguments)
    defaults = (0.0, 2000, None, 0, None, 0, True, 0.8, 0.9, 0.0)
    given = (*arguments[2:], *defaults[len(arguments) - 2 :])
    decay, first, second, stairs, later_stairs, interval, cycles, *momenta, mom_decay = given
    low_mom, high_mom = momenta
    second = first if second is None else second
    later_stairs = stairs if later_stairs is None else later_stairs

    def of(value, group):
        return value[group] if isinstance(value, list) else value

    for taken in range(45):
        for number, group in enumerate(optimizer.param_groups):
            low, high = of(arguments[0], number), of(arguments[1], number)
            low_momentum, high_momentum = of(low_mom, number), of(high_mom, number)
            lr, momentum = low, high_momentum
            over = taken - first - second
            if taken == 0:
                momentum = low_momentum
            elif over <= 0:
                rises = taken % (first + second) <= first
                share = cycle_share(taken, first, second, stairs if rises else later_stairs)
                lr = low + (high - low) * share
                momentum = high_momentum - (high_momentum - low_momentum) * share
            elif interval:
                lr = low / (1 + decay * over / interval)
                momentum = min(0.999999, high_momentum * (1 + mom_decay * over / interval))
            assert group["lr"] == pytest.approx(lr, rel=1e-12), (taken, number)
            betas = (momentum, 0.99) if cycles else (0.9, 0.999)
            assert group["betas"] == pytest.approx(betas, rel=1e-12), (taken, number)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("staircase", [False, True])
def test_a_range_test_has_deepspeeds_rates(staircase):
    optimizer = optimizer_of()
    schedule = schedulers.LRRangeTest(optimizer, [1e-4, 1e-6], 3, 2.0, staircase)
    for taken in range(12):
        intervals = taken // 3 if staircase else taken / 3
        expected = [low * (1 + 2.0 * intervals) for low in (1e-4, 1e-6)]
        found = [group["lr"] for group in optimizer.param_groups]
        assert found == pytest.approx(expected, rel=1e-12), taken
        optimizer.step()
        schedule.step()


CYCLE = {"cycle_min_lr": 1e-3, "cycle_max_lr": 9e-3, "cycle_first_step_size": 4,
         "cycle_second_step_size": 2, "decay_lr_rate": 1.0, "decay_step_size": 1}  # fmt: skip


def test_the_configs_cycle_sets_the_momentum_of_the_engines_steps():
    """Against torch's AdamW with the same betas, and from a checkpoint."""
    engine, net = start("OneCycle", CYCLE)
    mine = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    twin = torch.optim.AdamW(mine, weight_decay=engine.optimizer.param_groups[0]["weight_decay"])
    schedule = schedulers.OneCycle(twin, *[CYCLE[name] for name in (
        "cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size",
        "cycle_second_step_size")], decay_step_size=1)  # fmt: skip
    for number in range(9):
        take_step(engine)
        for parameter in mine:
            parameter.grad = torch.ones(2)
        torch.nn.utils.clip_grad_norm_(mine, 1.0)
        twin.step()
        schedule.step()
        for parameter, expected in zip(net.parameters(), mine):
            found = engine.full_parameter(parameter)
            torch.testing.assert_close(found, expected.detach(), rtol=2e-6, atol=0), number


def test_parameters_of_another_schedule_are_refused():
    invalid = artesian.errors.InvalidError
    with pytest.raises(invalid, match="cycle_max_lr: no parameter of WarmupLR"):
        start("WarmupLR", {"cycle_max_lr": 1e-3})
    with pytest.raises(invalid, match="cycle_max_lr: missing for OneCycle"):
        start("OneCycle", {"cycle_min_lr": 1e-3})
    with pytest.raises(invalid, match=r"cycle_min_mom: got \[1.0\], allowed"):
        start("OneCycle", {**CYCLE, "cycle_min_mom": [1.0]})


def test_a_schedule_that_starts_later_goes_on_from_there():
    optimizer = optimizer_of()
    schedule = schedulers.WarmupLR(optimizer, 0.0, None, 10, "linear", 5)
    optimizer.step()
    schedule.step()
    expected = [formula("WarmupLR", 6, own, steps=10, linear=True) for own in RATES]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected, rel=1e-14)


def test_deepspeeds_state_of_a_schedule_is_read():
    schedule = schedulers.WarmupLR(optimizer_of(), 0.0, None, 10, "linear")
    schedule.load_state_dict({"last_batch_iteration": 3})
    schedule.optimizer.step()
    schedule.step()
    expected = [formula("WarmupLR", 4, own, steps=10, linear=True) for own in RATES]
    assert schedule.get_last_lr() == pytest.approx(expected, rel=1e-14)


RESUMED = {
    **{kind: params for kind, (params, _) in BY_HAND.items()},
    "OneCycle": CYCLE,
    "LRRangeTest": {"lr_range_test_step_size": 2},
}


@pytest.mark.parametrize("kind", RESUMED)
def test_rates_go_on_from_a_checkpoint(kind, tmp_path):
    params = RESUMED[kind]
    whole, _ = start(kind, params)
    expected = [take_step(whole) for _ in range(7)]
    first, _ = start(kind, params)
    assert [take_step(first) for _ in range(3)] == expected[:3]
    first.save_checkpoint(tmp_path)
    first.destroy()
    second, _ = start(kind, params)
    second.load_checkpoint(tmp_path)
    assert [take_step(second) for _ in range(4)] == expected[3:]
    assert second.digest() == whole.digest()
