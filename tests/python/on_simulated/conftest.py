"""The simulated accelerator for these tests, which simulated_accelerator_test.py runs in processes
of their own: PyTorch must know an accelerator before its first backward, and other tests must not
see one. After each test nothing is pending, and no two operations lacked an order."""

import gc
import os
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from build_folder import BUILD  # noqa: E402

sys.path.insert(0, str(BUILD / "python"))

native = sys.modules["_simulated"]


@pytest.fixture
def sim():
    """The accelerator; the test sees what happens from here on."""
    native.set_order("late")
    torch.accelerator.synchronize()
    native.forget_counts()
    return native


# Longer by ARTESIAN_SOAK: 20 seeds.
SEEDS = 20 if os.environ.get("ARTESIAN_SOAK") == "1" else 2
native.ORDERS = ["late", "early", *(f"random:{seed}" for seed in range(1, SEEDS + 1))]


@pytest.fixture(params=native.ORDERS if SEEDS > 2 else native.ORDERS[:3])
def order(request, sim):
    sim.set_order(request.param)
    yield request.param
    sim.set_order("late")


@pytest.fixture(autouse=True)
def all_in_order(request):
    yield
    gc.collect()
    torch.accelerator.synchronize()
    assert native.all_idle()
    if "expects_races" not in request.keywords:
        assert native.races() == []
    native.forget_counts()


def pytest_configure(config):
    config.addinivalue_line("markers", "expects_races: plants some")
