"""Proves that checkpoints of DeepSpeed and of torch.distributed.checkpoint become ours bit for bit,
weights and both moments, and go back; that what cannot be imported is refused by its name, damage
told by its file; and that no code of a file runs. The ones of DeepSpeed were recorded with 0.19.8:
ZeRO-1, 2 and 3 on two ranks, sizes that two does not divide, frozen parameters, a tied table,
buffers; deepspeed_checkpoint_test.py makes them anew where DeepSpeed is installed."""

import os
import pickle
import resource
import shutil
import subprocess
import sys

import limits
import numpy as np
import pytest
from build_folder import ROOT
from made_up_checkpoint import MadeUp, digest_of_files, unpack

from artesian.checkpoint import (
    export_dcp,
    export_universal,
    exports,
    get_fp32_state_dict_from_zero_checkpoint,
    import_dcp,
    import_deepspeed,
    writer,
    zero_to_fp32,
)

RUNS = ["z1-bf16-2", "z2-fp32-2", "z3-bf16-2", "universal-z3-bf16-2"]


def tensor_of(checkpoint, index, array):
    pieces = list(exports.pieces(checkpoint, index, array))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def state_of(directory):
    """Returns the state of trained parameters, by array and name."""
    checkpoint = zero_to_fp32.Checkpoint(directory)
    return {
        f"{array}/{parameter.name}": tensor_of(checkpoint, index, array).reshape(parameter.shape)
        for index, parameter in enumerate(checkpoint.manifest.parameters)
        if parameter.trainable
        for array in exports.ARRAYS
    }


def expect_same(found, truth):
    expected = {name: truth[name] for name in truth if "/" in name}
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture
def recorded(tmp_path):
    return unpack("deepspeed", tmp_path / "recorded")


def imported(source, out):
    return import_deepspeed.main([str(source), str(out)])


@pytest.mark.parametrize("name", RUNS)
def test_deepspeed_is_imported_bit_for_bit(recorded, tmp_path, name):
    before = digest_of_files(recorded)
    assert imported(recorded / name / "checkpoint", tmp_path / "out") == 0
    assert digest_of_files(recorded) == before
    expect_same(state_of(tmp_path / "out"), np.load(recorded / name / "save.npz"))
    checkpoint = zero_to_fp32.Checkpoint(tmp_path / "out")
    manifest = checkpoint.manifest
    assert manifest.aliases == {"head.weight": "embedding.weight"}
    frozen = {p.name: p.shape for p in manifest.parameters if not p.trainable}
    assert frozen == {"frozen.weight": (6, 6), "frozen.bias": (6,)}
    scale, count = (checkpoint.buffer(each) for each in manifest.buffers)
    assert count.view("<i8").tolist() == [7]
    assert zero_to_fp32.widened(scale, manifest.buffers[0].dtype).tolist() == [1.5, 0.25]
    (group,) = manifest.raw["groups"]
    assert (group["optimizer"], group["step"], group["betas"]) == ("adamw", 3, [0.9, 0.98])
    assert group["weight_decay"] == 0.1
    assert manifest.raw["state"]["step"] == manifest.raw["state"]["updates"] == 3


def test_frozen_weights_are_those_of_the_run(recorded, tmp_path):
    torch = pytest.importorskip("torch")
    run = recorded / "z3-bf16-2/checkpoint"
    assert imported(run, tmp_path / "out") == 0
    whole = recorded / "z1-bf16-2/checkpoint/global_step3/mp_rank_00_model_states.pt"
    module = torch.load(whole, weights_only=False)["module"]  # the same frozen layer
    state = get_fp32_state_dict_from_zero_checkpoint(tmp_path / "out")
    for name in ("frozen.weight", "frozen.bias"):
        assert torch.equal(state[name], module[name].float())
    assert torch.equal(state["head.weight"], state["embedding.weight"])


def test_a_checkpoint_is_made_whole_or_not_at_all(recorded, tmp_path, capsys):
    source = recorded / "z2-fp32-2/checkpoint"
    assert imported(source, tmp_path / "out") == 0
    expected = {".lock", "latest", "global_step3", "zero_to_fp32.py"}
    assert set(os.listdir(tmp_path / "out")) == expected
    assert (tmp_path / "out/latest").read_text() == "global_step3"
    assert (tmp_path / "out/global_step3").stat().st_mode & 0o777 == 0o700
    before = digest_of_files(tmp_path / "out")
    capsys.readouterr()
    assert imported(source, tmp_path / "out") == 2
    assert "global_step3: it is there already" in capsys.readouterr().err
    last = source / "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = last.read_bytes()
    last.write_bytes(data[: len(data) // 2])
    assert import_deepspeed.main([str(source), str(tmp_path / "out"), "--out-tag", "b"]) == 1
    error = capsys.readouterr().err
    assert str(last) in error
    assert error.count("\n") == 1
    assert digest_of_files(tmp_path / "out") == before
    assert set(os.listdir(tmp_path / "out")) == expected


def test_a_missing_file_is_named(recorded, tmp_path, capsys):
    for name in RUNS:
        folder = next((recorded / name / "checkpoint").glob("global_step3*"))
        for path in sorted(folder.rglob("*.pt")):
            aside = path.with_suffix(".aside")
            path.rename(aside)
            code = imported(folder, tmp_path / "out")
            error = capsys.readouterr().err
            # arrays of parameters that never had a gradient
            optional = path.name.startswith("exp_avg")
            other_rank = name.startswith("universal") and "rank_1" in path.name
            if code != 0:
                assert str(folder) in error
                assert error.count("\n") == 1
            assert (code == 0) == optional or other_rank, path
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            aside.rename(path)


def rewritten(path, change):
    """Loads a file with torch, lets `change` modify the contents, and saves the result."""
    torch = pytest.importorskip("torch")
    content = torch.load(path, weights_only=False)
    change(content)
    torch.save(content, path)


def change_model(recorded, change):
    name = "z2-fp32-2/checkpoint/global_step3/mp_rank_00_model_states.pt"
    rewritten(recorded / name, change)
    return recorded / "z2-fp32-2/checkpoint"


class Gadget:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def without_deepspeed(path):
    """Replaces classes of DeepSpeed in the recorded file by plain values."""
    import torch

    class Plain(pickle.Unpickler):
        def find_class(self, module, name):
            if module.startswith("deepspeed"):
                return type(name, (), {"__init__": lambda self, *_: None})
            return super().find_class(module, name)

    stand_in = type("pickle", (), {"Unpickler": Plain, "load": pickle.load, "loads": pickle.loads})
    return torch.load(path, weights_only=False, pickle_module=stand_in)


def test_no_code_of_a_file_runs(recorded, tmp_path):
    marker = tmp_path / "marker"
    gadget = Gadget(f"touch {marker}")
    source = change_model(recorded, lambda content: content.update(note=gadget, optimizer=gadget))
    assert imported(source, tmp_path / "out") == 0
    assert not marker.exists()
    expect_same(state_of(tmp_path / "out"), np.load(recorded / "z2-fp32-2/save.npz"))
    pickle.loads(pickle.dumps(gadget))  # proves that the gadget does run code when unpickled
    assert marker.exists()


def test_what_cannot_be_imported_is_refused_by_name(recorded, tmp_path, capsys):
    torch = pytest.importorskip("torch")

    def expect(source, what, code=2):
        capsys.readouterr()
        assert imported(source, tmp_path / "out") == code
        error = capsys.readouterr().err
        assert what in error, error
        assert error.count("\n") == 1

    run = recorded / "z2-fp32-2/checkpoint"
    folder = run / "global_step3"
    expect(tmp_path, "no file is named *_optim_states.pt")
    expect(run / "none", "none: no such folder")
    (folder / "offloaded_tensors").mkdir()
    expect(run, "its optimizer on NVMe")
    (folder / "offloaded_tensors").rmdir()
    nvme = {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}
    change_model(recorded, lambda content: content.update(ds_config=nvme))
    expect(run, "its optimizer on NVMe")
    change_model(recorded, lambda content: content.update(ds_config={}))
    for name in ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "layer_00-model_states.pt"):
        (folder / name).touch()
        expect(run, "ds_to_universal")
        (folder / name).unlink()
    change_model(recorded, lambda content: content.update(global_steps="many"))
    expect(run, "global_steps is no whole number", 1)
    change_model(recorded, lambda content: content.update(global_steps=3, skipped_steps=4))
    expect(run, "it skipped more steps", 1)
    change_model(recorded, lambda content: content.update(skipped_steps=0))
    optimizer = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    content = without_deepspeed(optimizer)
    inner = content["optimizer_state_dict"]
    inner.update(zero_stage=2, loss_scaler=None, param_slice_mappings=None)

    def save(**changes):
        torch.save(content | {"optimizer_state_dict": inner | changes}, optimizer)

    save(base_optimizer_state=[{}])
    expect(run, "elastic_checkpoint")
    save(zero_stage=0)
    expect(run, "another ZeRO stage", 1)
    save(partition_count=[3])
    expect(run, "3 partitions", 1)
    momentum = inner["base_optimizer_state"] | {"state": {0: {"momentum_buffer": torch.ones(78)}}}
    save(base_optimizer_state=momentum)
    expect(run, "only Adam and AdamW")
    save(single_partition_of_fp32_groups=[torch.ones(70)])
    expect(run, "not all elements are there", 1)
    save(single_partition_of_fp32_groups=[torch.ones(78, dtype=torch.int32)])
    expect(run, "has the type I32")
    assert not (tmp_path / "out/latest").exists()
    save()
    assert imported(run, tmp_path / "out") == 0


def test_large_parameters_take_many_blocks(tmp_path):
    source = np.random.default_rng(4)
    shapes = {"big": (1000, 700), "small": (3,), "none": (0, 4), "last": (99_999,)}
    arrays = {
        f"{array}/{name}": source.standard_normal(shape).astype("<f4")
        for name, shape in shapes.items()
        for array in exports.ARRAYS
    }

    def pieces_of(array, name):
        data = arrays[f"{array}/{name}"].reshape(-1).view(np.uint8)
        return lambda: np.array_split(data, 7)

    parameters = [
        writer.SavedParameter(name, shape, {a: pieces_of(a, name) for a in exports.ARRAYS})
        for name, shape in shapes.items()
    ]
    group = writer.SavedGroup(list(shapes), 5)
    writer.write_checkpoint(
        tmp_path, "a", writer.SavedState(parameters, [group], step=5, updates=5), "test"
    )
    expect_same(state_of(tmp_path), arrays)
    checkpoint = zero_to_fp32.Checkpoint(tmp_path)
    assert len(checkpoint.files[0].sums) > 8
    for block in range(len(checkpoint.files[0].sums)):
        checkpoint.files[0].verify(block)


# Checkpoints of torch.distributed.checkpoint

STATE = "optim.state.w."


def torch_run():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3)
    )
    weights = [model[0].weight, model[2].weight]
    rest = [p for p in model.parameters() if all(p is not weight for weight in weights)]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0, "lr": 0.5}],
        lr=1e-3,
        betas=(0.9, 0.98),
    )
    return model, optimizer


def train(model, optimizer, first, count):
    import torch

    for step in range(first, first + count):
        torch.manual_seed(step)
        model(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def dcp_folder(tmp_path):
    pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = torch_run()
    train(model, optimizer, 0, 3)
    states = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=tmp_path / "dcp", no_dist=True)
    return tmp_path / "dcp", model, optimizer


@pytest.mark.filterwarnings("ignore")
def test_dcp_goes_in_and_out_bit_for_bit(dcp_folder, tmp_path):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder, model, optimizer = dcp_folder
    assert import_dcp.main([str(folder), str(tmp_path / "ours")]) == 0
    _, moments = get_state_dict(model, optimizer)
    truth = {}
    for name, parameter in model.named_parameters():
        truth[f"fp32/{name}"] = parameter.detach().numpy()
        for moment in ("exp_avg", "exp_avg_sq"):
            truth[f"{moment}/{name}"] = moments["state"][name][moment].numpy()
    expect_same(state_of(tmp_path / "ours"), truth)
    settings = [
        (group["lr"], group["weight_decay"], group["step"], len(group["parameters"]))
        for group in zero_to_fp32.Checkpoint(tmp_path / "ours").manifest.raw["groups"]
    ]
    assert settings == [(1e-3, 0.2, 3, 2), (0.5, 0.0, 3, 4)]
    assert export_dcp.main([str(tmp_path / "ours"), str(tmp_path / "back")]) == 0
    other, other_optimizer = torch_run()
    names = ("model", "optim")
    states = dict(zip(names, get_state_dict(other, other_optimizer), strict=True))
    dcp.load(states, checkpoint_id=tmp_path / "back", no_dist=True)
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=states["model"],
        optim_state_dict=states["optim"],
    )
    train(model, optimizer, 3, 3)
    train(other, other_optimizer, 3, 3)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.filterwarnings("ignore")
def test_dcp_of_a_model_alone_has_no_moments(tmp_path):
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    weights = {"a": torch.randn(3, 4).bfloat16(), "b": torch.randn(5)}
    dcp.save(weights, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert import_dcp.main([str(tmp_path / "dcp"), str(tmp_path / "ours")]) == 0
    state = state_of(tmp_path / "ours")
    for name, value in weights.items():
        assert state[f"fp32/{name}"].tobytes() == value.float().numpy().tobytes()
        assert not state[f"exp_avg/{name}"].any()


@pytest.mark.filterwarnings("ignore")
def test_dcp_is_not_believed(dcp_folder, tmp_path, capsys):
    folder, *_ = dcp_folder
    marker = tmp_path / "marker"
    metadata = (folder / ".metadata").read_bytes()
    (data,) = folder.glob("*.distcp")

    def expect(code, what):
        capsys.readouterr()
        assert import_dcp.main([str(folder), str(tmp_path / "out")]) == code
        error = capsys.readouterr().err
        assert what in error, error
        assert error.count("\n") == 1
        assert not (tmp_path / "out/latest").exists()

    def write(change):
        content = pickle.loads(metadata)
        change(content)
        (folder / ".metadata").write_bytes(pickle.dumps(content))

    (folder / ".metadata").write_bytes(pickle.dumps(Gadget(f"touch {marker}")))
    expect(1, "not what torch.distributed.checkpoint writes")
    assert not marker.exists()
    (folder / ".metadata").write_bytes(metadata[: len(metadata) // 2])
    expect(1, str(folder))
    key = "model.0.weight"

    def of_key(content):
        return next(info for index, info in content.storage_data.items() if index.fqn == key)

    write(lambda content: setattr(of_key(content), "relative_path", f"../{folder.name}/x"))
    expect(1, "is no name of a file")
    write(lambda content: setattr(of_key(content), "length", 1 << 40))
    expect(1, "it is cut off")
    write(lambda content: setattr(of_key(content), "offset", of_key(content).offset + 8))
    expect(1, str(data))

    def grow(content):
        entry = content.state_dict_metadata[key]
        entry.size = type(entry.size)((1 << 20, 1 << 20))

    write(grow)
    expect(2, "another shape")
    write(lambda content: content.state_dict_metadata[key].chunks.clear())
    expect(1, "0 elements are there")
    (folder / ".metadata").write_bytes(metadata)
    data.rename(folder / "aside")
    expect(1, str(data))
    (folder / "aside").rename(data)
    assert import_dcp.main([str(folder), str(tmp_path / "out")]) == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", [("bare",), ("model.w", f"{STATE}exp_avg", f"{STATE}exp_avg_sq")])
def test_dcp_claims_no_more_than_its_files_have(tmp_path, names):
    """Chunks and a shape that claim 2^60 elements: refused without using much memory."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "dcp"
    dcp.save({name: torch.ones(4, 4) for name in names}, checkpoint_id=folder, no_dist=True)
    content = pickle.loads((folder / ".metadata").read_bytes())
    for name in names:
        entry = content.state_dict_metadata[name]
        entry.size = entry.chunks[0].sizes = torch.Size((1 << 30, 1 << 30))
    (folder / ".metadata").write_bytes(pickle.dumps(content))
    done = subprocess.run(
        [sys.executable, "-m", "artesian.checkpoint.import_dcp", folder, tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "python"), "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=limits.limited(resource.RLIMIT_DATA, 256 << 20),
        capture_output=True,
        text=True,
        timeout=120,
    )
    (data,) = folder.glob("*.distcp")
    expected = (
        f"import_dcp: {folder / '.metadata'}: '{names[0]}' would have {1 << 62} bytes, its files "
        f"have {data.stat().st_size}\n"
    )
    assert (done.returncode, done.stderr) == (1, expected)
    assert not (tmp_path / "out").exists()


# Universal checkpoints, as far as they can be tested without DeepSpeed


def test_the_universal_export_has_what_deepspeed_opens(tmp_path):
    torch = pytest.importorskip("torch")
    made_up = MadeUp()
    made_up.write(tmp_path / "ours")
    assert export_universal.main([str(tmp_path / "ours"), str(tmp_path / "out")]) == 0
    folder = tmp_path / "out/global_step7"
    assert (tmp_path / "out/latest_universal").read_text() == "global_step7"
    for array in ("master", "exp_avg", "exp_avg_sq"):
        name = {"master": "fp32"}.get(array, array)
        saved = torch.load(folder / f"zero/w/{name}.pt", weights_only=True)["param"]
        assert saved.shape == (4, made_up.numel // 4)
        assert saved.numpy().tobytes() == getattr(made_up, array).tobytes()
    assert torch.load(folder / "zero/w/step.pt", weights_only=True) == 7
    state = torch.load(folder / "zero/optimizer_state.pt", weights_only=True)
    assert state["param_groups"][0]["step"] == 7
    assert state["optimizer_state_dict"]["state"][0]["step"] == 7
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        model = torch.load(folder / name, weights_only=True)
        assert model["global_steps"] == 7
        assert model["shared_params"] == {"head": "w"}
    arguments = [str(tmp_path / "ours"), str(tmp_path / "torch"), "--torch-adam"]
    assert export_universal.main(arguments) == 0
    step = torch.load(tmp_path / "torch/global_step7/zero/w/step.pt", weights_only=True)
    assert torch.equal(step, torch.tensor(7.0))
    # an exported checkpoint is imported like any universal one
    assert imported(tmp_path / "out", tmp_path / "again") == 0
    truth = {"fp32/w": made_up.master, "exp_avg/w": made_up.exp_avg}
    truth = truth | {"exp_avg_sq/w": made_up.exp_avg_sq}
    shape = (4, made_up.numel // 4)
    found = state_of(tmp_path / "again")
    expect_same(found, {name: array.reshape(shape) for name, array in truth.items()})
