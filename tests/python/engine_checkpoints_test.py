"""Proves that a training of any PyTorch model that was saved from Python goes on to the bits of one
that never stopped, in another placement, too: weights, moments, groups, schedulers, buffers and
generators; that what a checkpoint lacks stays as it is; that zero_to_fp32 reads it; and that what
cannot be saved or loaded is an error before anything is changed."""

import argparse
import collections
import datetime
import logging
import pathlib
import shutil

import numpy as np
import pytest
import small_models
import torch
from small_models import artesian
from torch import nn

from artesian.checkpoint import get_fp32_state_dict_from_zero_checkpoint


class Classifier(nn.Module):
    """A model with BatchNorm, with buffers that are in its state_dict() and others that are not."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(8, 2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, pixel_values, labels):
        if self.training:
            self.seen += 1
        found = self.drop(torch.relu(self.norm(self.first(pixel_values)))).mean((2, 3))
        return nn.functional.cross_entropy(self.last(found), labels)


def make(name):
    if name != "classifier":
        return small_models.make(name)
    torch.manual_seed(1)
    return Classifier().train(), small_models.pictures


def groups_of(model):
    decays = [p for p in model.parameters() if p.dim() > 1 and p.requires_grad]
    others = [p for p in model.parameters() if p.dim() <= 1 and p.requires_grad]
    return [{"params": decays, "weight_decay": 0.3}, {"params": others, "betas": (0.8, 0.99)}]


def start(name, folder=None, freeze=False, **more):
    model, batch = make(name)
    if freeze:
        model.model.layers[1].requires_grad_(False)
    engine = artesian.initialize(
        model=model,
        config=small_models.config_for(folder, **more),
        optimizer=torch.optim.AdamW(groups_of(model), lr=1e-2, weight_decay=0.0),
        lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.8**step),
    )[0]
    return engine, batch


def loss_of(engine, batch, step):
    out = engine(**batch(step))
    return out if isinstance(out, torch.Tensor) else out.loss


def take_steps(engine, batch, first, last):
    losses = []
    for step in range(first, last):
        loss = loss_of(engine, batch, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def saved_at(name, folder, step, **more):
    """Returns an engine after `step` steps, saved in the folder."""
    engine, batch = start(name, **more)
    take_steps(engine, batch, 0, step)
    engine.save_checkpoint(folder)
    return engine, batch


PRECISIONS = [(name, precision) for name in ("gpt2", "llama_tied") for precision in
              ("fp32", "bf16", "fp16")]  # fmt: skip


@pytest.mark.parametrize(("name", "precision"), [*PRECISIONS, ("classifier", "fp32")])
def test_a_training_goes_on_to_the_same_bits(name, precision, tmp_path):
    more = {} if precision == "fp32" else {precision: {"enabled": True}}
    torch.manual_seed(4)
    whole, batch = start(name, **more)
    torch.manual_seed(5)
    losses = take_steps(whole, batch, 0, 7)
    first, batch = start(name, **more)
    torch.manual_seed(5)
    assert take_steps(first, batch, 0, 4) == losses[:4]
    assert first.save_checkpoint(tmp_path / "saved" / "here", client_state={"epoch": 3})
    assert take_steps(first, batch, 4, 7) == losses[4:]  # a save changes nothing
    second, batch = start(name, tmp_path, **more)
    take_steps(second, batch, 3, 5)
    torch.manual_seed(99)
    path, client = second.load_checkpoint(tmp_path / "saved" / "here")
    assert path == str(tmp_path / "saved" / "here" / "global_step4")
    assert client == {"epoch": 3}
    assert (second.global_steps, second.micro_steps) == (4, 4)
    assert second.get_lr() == [1e-2 * 0.8**4] * 2
    assert take_steps(second, batch, 4, 7) == losses[4:]
    assert second.digest() == first.digest() == whole.digest()
    buffers = dict(whole.module.named_buffers())
    for buffer, values in second.module.named_buffers():
        assert torch.equal(values, buffers[buffer]), buffer
    if name == "classifier":
        assert buffers["seen"] == 7


def test_a_graph_from_before_is_not_asked_for_gradients(tmp_path):
    engine, batch = saved_at("llama", tmp_path, 2)
    digest = engine.digest()
    forgotten = loss_of(engine, batch, 8)  # no gradients of this pass are asked for before the save
    engine.save_checkpoint(tmp_path, tag="again")
    assert engine.digest() == digest
    engine.backward(forgotten)  # the weights of the forgotten pass are still its own
    with pytest.raises(artesian.Error, match="checkpoints are of whole ones"):
        engine.save_checkpoint(tmp_path, tag="middle")
    engine.zero_grad()
    forgotten = loss_of(engine, batch, 8)
    engine.load_checkpoint(tmp_path, tag="again")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        engine.backward(forgotten)
    engine.zero_grad()
    assert engine.digest() == digest


@pytest.mark.parametrize("threshold", [0, 100_000])
def test_zero_to_fp32_reads_it(threshold, tmp_path):
    engine, batch = start("classifier")
    take_steps(engine, batch, 0, 2)
    engine.save_checkpoint(tmp_path / "classifier")
    read = get_fp32_state_dict_from_zero_checkpoint(tmp_path / "classifier")
    expected = engine.consolidated_state_dict()
    assert {"norm.running_mean", "seen", "mask"} < set(expected) == set(read)
    for name, values in expected.items():
        assert torch.equal(read[name], values), name
    tied, batch = start("llama_tied")
    tied.save_checkpoint(tmp_path / "tied")
    read = get_fp32_state_dict_from_zero_checkpoint(tmp_path / "tied")
    assert torch.equal(read["lm_head.weight"], read["model.embed_tokens.weight"])


def test_frozen_parameters_may_be_left_out(tmp_path):
    whole, batch = start("llama", freeze=True)
    losses = take_steps(whole, batch, 0, 4)
    first, batch = start("llama", freeze=True)
    take_steps(first, batch, 0, 2)
    first.save_checkpoint(tmp_path, tag="all")
    first.save_checkpoint(tmp_path, tag="without", exclude_frozen_parameters=True)
    assert (tmp_path / "all" / "frozen.safetensors").exists()
    assert not (tmp_path / "without" / "frozen.safetensors").exists()
    for tag in ("all", "without"):
        second, batch = start("llama", tmp_path / tag / "nvme", freeze=True)
        second.load_checkpoint(tmp_path, tag=tag)
        assert take_steps(second, batch, 2, 4) == losses[2:]
        assert second.digest() == whole.digest()


def test_what_only_one_of_both_has(tmp_path):
    saved, _ = saved_at("llama", tmp_path, 2)
    model, batch = small_models.make("llama")
    head = model.lm_head.weight.detach().clone()
    model.score = model.lm_head
    del model.lm_head
    config = small_models.config_for()
    model.forward = lambda ids: model.score(model.model(ids)[0]).square().mean()
    engine = artesian.initialize(model=model, config=config)[0]
    before = engine.digest()
    with pytest.raises(artesian.Error, match=r'1 parameters of the model are not in it.*"score'):
        engine.load_checkpoint(tmp_path)
    assert engine.digest() == before
    engine.load_checkpoint(tmp_path, load_module_strict=False, load_module_only=True)
    assert torch.equal(engine.full_parameter(model.score.weight), head)
    ours, theirs = model.model.norm.weight, saved.module.model.norm.weight
    assert torch.equal(engine.full_parameter(ours), saved.full_parameter(theirs))
    assert engine.global_steps == 0
    engine.backward(engine(small_models.ids(0)))
    engine.step()
    assert engine.last_step["step"] == 1


def test_weights_alone_start_a_new_training(tmp_path):
    saved, batch = saved_at("gpt2", tmp_path, 3)
    engine, _ = start("gpt2")
    engine.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert (engine.global_steps, engine.get_lr()) == (0, [1e-2, 1e-2])
    ours, theirs = engine.module.lm_head.weight, saved.module.lm_head.weight
    assert torch.equal(engine.full_parameter(ours), saved.full_parameter(theirs))
    assert engine.digest() != saved.digest()  # moments
    take_steps(engine, batch, 0, 1)


def test_a_folder_may_be_removed_before_the_engine_ends(tmp_path):
    engine, batch = saved_at("gpt2", tmp_path / "saved", 1)
    engine.save_checkpoint(tmp_path / "saved", tag="again")
    engine.save_checkpoint(tmp_path / "saved", tag="again")
    # the file of the earlier save, kept for the next
    assert list((tmp_path / "saved").glob(".spare-*"))
    shutil.rmtree(tmp_path / "saved")
    engine.save_checkpoint(tmp_path / "other")
    take_steps(engine, batch, 1, 2)
    engine.save_checkpoint(tmp_path / "other", tag="again")
    engine.save_checkpoint(tmp_path / "other", tag="again")
    for file in (tmp_path / "other").glob(".spare-*"):
        file.unlink()
    engine.save_checkpoint(tmp_path / "other", tag="again")
    digest = engine.digest()
    shutil.rmtree(tmp_path / "saved", ignore_errors=True)
    engine.destroy()
    engine, _ = start("gpt2")
    engine.load_checkpoint(tmp_path / "other", tag="again")
    assert engine.digest() == digest


def test_a_later_engine_saves_where_an_earlier_one_did(tmp_path):
    earlier, batch = saved_at("gpt2", tmp_path, 1)
    later, _ = start("gpt2")
    later.load_checkpoint(tmp_path)
    take_steps(later, batch, 1, 2)
    later.save_checkpoint(tmp_path)
    assert (tmp_path / "latest").read_text() == "global_step2"
    take_steps(earlier, batch, 1, 3)
    earlier.save_checkpoint(tmp_path)
    assert (tmp_path / "latest").read_text() == "global_step3"
    later.load_checkpoint(tmp_path)
    assert later.digest() == earlier.digest()


@pytest.mark.parametrize("folder", [None, ""])
def test_a_save_without_a_folder_is_an_error(folder):
    engine, _ = start("gpt2")
    with pytest.raises(ValueError, match="save_dir: got .*, allowed a folder"):
        engine.save_checkpoint(folder)


def test_none_is_no_error(tmp_path, caplog):
    engine, _ = start("gpt2")
    with caplog.at_level(logging.WARNING, "artesian"):
        assert engine.load_checkpoint(tmp_path) == (None, {})
    assert "no file `latest`" in caplog.text
    with pytest.raises(artesian.Error, match="no such checkpoint"):
        engine.load_checkpoint(tmp_path, tag="global_step1")


CLIENT = {
    "epoch": 2,
    "words": ["a", ("b", None, 1.5)],
    "tensor": torch.arange(3),
    "array": np.random.default_rng(0).standard_normal(4),
    "state": np.random.RandomState(3).get_state(),
    "order": collections.OrderedDict(x=1),
    "arguments": argparse.Namespace(lr=1e-3, paths=[pathlib.Path("a/b")]),
    "times": (datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc), datetime.date.max),
    "took": datetime.timedelta(seconds=5),
    "numbers": [np.float32(1.5), np.int64(3), np.bool_(True)],
    "lists": collections.defaultdict(list, {"a": [1]}),
    "last": collections.deque([1, 2], maxlen=2),
}
PLAIN = ("words", "order", "arguments", "times", "took", "numbers", "lists", "last")


def test_a_client_state_comes_back(tmp_path):
    engine, _ = start("gpt2")
    engine.save_checkpoint(tmp_path, client_state=CLIENT)
    state = engine.load_checkpoint(tmp_path)[1]
    assert list(state) == list(CLIENT)
    for name in PLAIN:
        assert state[name] == CLIENT[name] and type(state[name]) is type(CLIENT[name]), name
    assert state["lists"]["new"] == [] and state["last"].maxlen == 2
    assert torch.equal(state["tensor"], CLIENT["tensor"])
    assert np.array_equal(state["array"], CLIENT["array"])
    assert np.array_equal(state["state"][1], CLIENT["state"][1])


class Thing:
    """A class that nobody else knows."""


def test_what_cannot_be_saved_or_loaded_is_an_error(tmp_path):
    engine, batch = saved_at("gpt2", tmp_path / "saved", 1)
    with pytest.raises(artesian.Error, match="client_state: got objects of a class.*Thing"):
        engine.save_checkpoint(tmp_path / "other", client_state={"thing": Thing()})
    assert not (tmp_path / "other").exists()
    with pytest.raises(artesian.Error, match="checkpoint tag"):
        engine.save_checkpoint(tmp_path / "saved", tag="../up")
    latest = (tmp_path / "saved" / "latest").read_text()
    engine.save_checkpoint(tmp_path / "saved", tag="aside", save_latest=False)
    assert (tmp_path / "saved" / "latest").read_text() == latest != "aside"
    assert engine.load_checkpoint(tmp_path / "saved", tag="aside")[0] == str(
        tmp_path / "saved" / "aside"
    )
    assert engine.load_checkpoint(tmp_path / "saved")[0] == str(tmp_path / "saved" / latest)
    with pytest.raises(NotImplementedError, match="custom_load_fn"):
        engine.load_checkpoint(tmp_path / "saved", custom_load_fn=print)
    take_steps(engine, batch, 1, 2)
    model, _ = small_models.make("gpt2")
    other = artesian.initialize(model=model, config=small_models.config_for())[0]
    with pytest.raises(artesian.Error, match="got 2 parameter groups, allowed 1"):
        other.load_checkpoint(tmp_path / "saved")
    third, _ = start("gpt2")
    with pytest.raises(artesian.Error, match="is not a checkpoint of this run|in use"):
        third.save_checkpoint(tmp_path / "saved", tag="global_step1")


def test_a_damaged_one_leaves_the_engine_for_another(tmp_path):
    engine, batch = saved_at("gpt2", tmp_path, 1)
    digest = engine.digest()
    take_steps(engine, batch, 1, 2)
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    data = tmp_path / "global_step2" / "rank0.safetensors"
    content = bytearray(data.read_bytes())
    content[-4096] ^= 1
    data.write_bytes(content)
    second, batch = start("gpt2")
    with pytest.raises(artesian.Error, match="rank0.safetensors"):
        second.load_checkpoint(tmp_path, tag="global_step2")
    with pytest.raises(artesian.Error, match="no weights"):
        take_steps(second, batch, 0, 1)
    second.zero_grad()
    second.load_checkpoint(tmp_path, tag="global_step1")
    assert second.digest() == digest
    take_steps(second, batch, 1, 2)


@pytest.mark.parametrize("damage", ["data", "manifest", "missing data", "missing manifest",
                                    "latest"])  # fmt: skip
def test_a_whole_one_that_is_older_is_loaded_where_no_tag_is_named(tmp_path, damage):
    engine, batch = saved_at("gpt2", tmp_path, 1)
    digest = engine.digest()
    take_steps(engine, batch, 1, 2)
    engine.save_checkpoint(tmp_path)
    newest = engine.digest()
    engine.destroy()
    if damage == "latest":
        (tmp_path / "latest").write_bytes(b"global_step\xb2")
        digest = newest
    else:
        name = "manifest.json" if "manifest" in damage else "rank0.safetensors"
        path = tmp_path / "global_step2" / name
        content = bytearray(path.read_bytes())
        content[-len(content) // 2 if "manifest" in damage else -4096] ^= 1
        path.unlink() if "missing" in damage else path.write_bytes(content)
    second, batch = start("gpt2")
    folder, _ = second.load_checkpoint(tmp_path)
    assert folder.endswith("global_step2" if damage == "latest" else "global_step1")
    assert second.digest() == digest
    if damage != "latest":
        take_steps(second, batch, 1, 2)
        second.save_checkpoint(tmp_path)
        assert second.digest() == newest
        second.destroy()
        third, _ = start("gpt2")
        assert third.load_checkpoint(tmp_path)[0].endswith("global_step2")
        assert third.digest() == newest
        kept = tmp_path / "global_step2.damaged"
        assert kept.exists() == (damage in ("manifest", "missing manifest"))
