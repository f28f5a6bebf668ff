"""Proves that the simulated accelerator shows what a GPU would punish by chance: a missing wait
gives wrong bits when kernels run late, and is named in every order; the host cannot touch device
memory. And that models have the CPU's bits there, so that other bits than PyTorch's mean that
Artesian has erred."""

import copy
import os

import pytest
import small_models
import torch


def on_device(batch):
    return {k: v.to("sim") if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


def test_memory_is_the_devices(sim):
    x = torch.arange(4.0, device="sim")
    assert x.device == torch.device("sim:0")
    assert torch.accelerator.current_accelerator().type == "sim"
    child = os.fork()
    if child == 0:
        os.close(2)
        import ctypes

        ctypes.string_at(x.data_ptr(), 4)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert x.tolist() == [0, 1, 2, 3]


def test_kernels_run_late(sim):
    x = torch.zeros(8, device="sim")
    torch.accelerator.synchronize()
    ran = sim.counts()["ran"]
    for _ in range(100):
        x += 1
    assert sim.counts()["ran"] == ran and not sim.all_idle()
    assert x.sum().item() == 800


@pytest.mark.expects_races
@pytest.mark.parametrize("waits", [True, False])
def test_a_parameter_that_is_read_before_its_copy_has_passed(order, sim, waits):
    slot = sim.foreign_memory([16])
    values = torch.ones(16).pin_memory()
    torch.accelerator.synchronize()
    copies = torch.Stream(device="sim")
    with copies:
        slot.copy_(values, non_blocking=True)
    if waits:
        torch.accelerator.current_stream().wait_stream(copies)
    total = (slot * 7).sum()
    assert (sim.counts()["races"] == 0) == waits
    if waits:
        assert total.item() == 112
    elif order == "late":
        assert total.isnan().item()


@pytest.mark.expects_races
@pytest.mark.parametrize("waits", [True, False])
def test_a_slot_that_is_filled_again_while_late_kernels_read_it(order, sim, waits):
    slot = torch.ones(16, device="sim")
    values = torch.full((16,), 7.0).pin_memory()
    torch.accelerator.synchronize()
    total = slot.sum()
    copies = torch.Stream(device="sim")
    if waits:
        copies.wait_stream(torch.accelerator.current_stream())
    with copies:
        slot.copy_(values, non_blocking=True)
        copies.synchronize()
    assert (sim.counts()["races"] == 0) == waits
    if waits:
        assert total.item() == 16
    elif order == "late":
        assert total.item() == 112


def test_a_gradient_that_the_host_reads_before_its_copy_has_run(sim):
    host = torch.zeros(16).pin_memory()
    host.copy_(torch.ones(16, device="sim"), non_blocking=True)
    assert host.isnan().all()
    torch.accelerator.synchronize()
    assert host.eq(1).all()


@pytest.mark.expects_races
@pytest.mark.parametrize("records", [True, False])
def test_memory_that_is_freed_while_another_stream_reads_it(sim, records):
    memory = torch.ones(16, device="sim")
    other = torch.Stream(device="sim")
    other.wait_stream(torch.accelerator.current_stream())
    with other:
        total = memory.sum()
        if records:
            memory.record_stream(other)
    del memory
    torch.full((16,), 3.0, device="sim")
    torch.accelerator.synchronize()
    assert (total.item() == 16) == records
    assert (sim.counts()["races"] == 0) == records


@pytest.mark.parametrize("name", ["gpt2", "llama_tied", "t5", "bert"])
def test_models_have_the_bits_of_the_cpu(order, name):
    torch.manual_seed(3)
    model, batch = small_models.make(name)
    model.eval()  # dropout draws other numbers on the device,
    model.set_attn_implementation("eager")  # and the CPU has a fused attention
    there = copy.deepcopy(model).to("sim")
    losses = []
    for each in (model, there):
        optimizer = torch.optim.AdamW(each.parameters(), lr=1e-3, foreach=True)
        for step in range(3):
            given = batch(step) if each is model else on_device(batch(step))
            loss = each(**given).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    assert [loss.item() for loss in losses[:3]] == [loss.item() for loss in losses[3:]]
    for ours, theirs in zip(model.parameters(), there.parameters(), strict=True):
        assert torch.equal(ours, theirs.cpu())
