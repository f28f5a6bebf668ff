"""Proves the small values on which importing, exporting and reading checkpoints rests: which types
there are, what a number, a group, a loss scale of another program become, and what each refusal
says. Files are made in memory; whole checkpoints are in checkpoint_import_test.py."""

import collections
import fcntl
import io
import json
import os
import pathlib
import pickle

import numpy as np
import pytest
import torch
from made_up_checkpoint import MadeUp, unpack

from artesian.checkpoint import (
    deepspeed_files,
    export_universal,
    exports,
    import_deepspeed,
    sources,
    torch_files,
    writer,
    zero_to_fp32,
)
from artesian.checkpoint.pickles import Machine, Name, Record
from artesian.checkpoint.torch_files import Storage, Tensor, TorchZip
from artesian.checkpoint.zero_to_fp32 import Damaged, Refused


def tensor(values, dtype="F32", **more):
    data = np.asarray(values)
    shape = more.pop("shape", data.shape)
    strides = more.pop("strides", tuple(s // data.itemsize for s in data.strides))
    return Tensor(Storage(data.reshape(-1).view(np.uint8), dtype), dtype, 0, shape, strides)


def saved(value, **more):
    file = io.BytesIO()
    torch.save(value, file, **more)
    return TorchZip(np.frombuffer(file.getvalue(), np.uint8)).load()


def test_every_type_is_torchs_and_has_its_size():
    for ours, name in zero_to_fp32.TORCH_TYPES.items():
        kind = getattr(torch, name)
        assert zero_to_fp32.TYPE_BYTES[ours] == kind.itemsize, ours
        assert torch_files.DTYPES[name] == ours
        data = np.arange(1, 2 * kind.itemsize + 1, dtype=np.uint8) % 2
        made = zero_to_fp32.torch_tensor(data, ours, (2,))
        assert made.dtype == kind and made.shape == (2,)
        assert bytes(made.view(torch.uint8).numpy()) == data.tobytes()
    assert set(zero_to_fp32.TYPE_BYTES) == set(zero_to_fp32.TORCH_TYPES)
    for alias, ours in torch_files.ALIASES.items():
        assert getattr(torch, alias) == getattr(torch, zero_to_fp32.TORCH_TYPES[ours]), alias
    for storage, ours in torch_files.STORAGE_TYPES.items():
        kind = torch.uint8 if storage == "UntypedStorage" else getattr(torch, storage).dtype
        assert kind == getattr(torch, zero_to_fp32.TORCH_TYPES[ours]), storage
    empty = zero_to_fp32.torch_tensor(np.zeros(0, np.uint8), "BF16", (0, 3))
    assert empty.shape == (0, 3) and empty.dtype == torch.bfloat16
    for role, encoding, dtypes in zero_to_fp32.ARRAYS.values():
        averages = ("exp_avg", "momentum_buffer")
        known = ("master", "weight", *averages, *zero_to_fp32.SQUARES)
        assert role in known and encoding and dtypes


def test_what_torch_saves_is_what_is_read():
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64,
             torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]  # fmt: skip
    values = {str(kind): torch.tensor([[1, 0], [1, 1]]).to(kind) for kind in kinds}
    read = saved(values)
    for kind in kinds:
        found = read[str(kind)]
        assert zero_to_fp32.TORCH_TYPES[found.dtype] == str(kind).removeprefix("torch.")
        assert found.shape == (2, 2) and found.is_contiguous() and found.numel == 4
        assert found.flat().tobytes() == bytes(values[str(kind)].view(torch.uint8).numpy())
    turned = saved(torch.arange(6.0).view(2, 3).t())
    assert turned.shape == (3, 2) and not turned.is_contiguous()
    assert turned.flat().view("<f4").tolist() == [0, 3, 1, 4, 2, 5]
    assert turned.flat(1, 3).view("<f4").tolist() == [3, 1, 4]
    assert np.concatenate(list(turned.pieces(4))).view("<f4").tolist() == [2, 5]
    part = saved(torch.arange(6.0)[2:5])
    assert part.offset == 2 and part.flat(1).view("<f4").tolist() == [3, 4]
    assert part.flat(1, 1).view("<f4").tolist() == [3]
    assert saved(torch.zeros(0, 3)).array().shape == (0, 3)
    one = saved(torch.ones(1, 3).expand(4, 3)[:1])
    assert one.is_contiguous()  # a dimension of extent 1 may have any stride


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "int32"])
def test_a_number_may_be_a_tensor(kind):
    found = saved(torch.tensor([7], dtype=getattr(torch, kind)))
    assert found.number() == sources.whole(found, "x") == sources.real(found, 0.0) == 7
    assert saved(torch.tensor(7, dtype=getattr(torch, kind))).number() == 7
    with pytest.raises(Damaged, match="where a number is expected"):
        saved(torch.ones(2)).number()
    with pytest.raises(Damaged, match="where a number is expected"):
        saved(torch.ones(1, dtype=torch.bfloat16)).number()


def test_whole_and_real_numbers():
    assert [sources.whole(value, "x") for value in (0, 3, 3.0, (1 << 62) - 1)] == [
        0, 3, 3, (1 << 62) - 1,
    ]  # fmt: skip
    assert sources.whole(Record(Name("a", "b"), (2,)), "x") == 2
    for wrong in (-1, 1 << 62, 3.5, True, "3", None, Record(Name("a", "b"), (1, 2))):
        with pytest.raises(Damaged, match="x is no whole number"):
            sources.whole(wrong, "x")
    reals = [sources.real(value, 0.5) for value in (2, 2.5, float("nan"), float("inf"), "2", None)]
    assert reals == [2.0, 2.5, 0.5, 0.5, 0.5, 0.5]
    assert sources.shape_of([2, 3.0], "x") == (2, 3) and sources.shape_of((), "x") == ()
    assert len(sources.shape_of([1] * 64, "x")) == 64
    for wrong in (3, "23", [1] * 65):
        with pytest.raises(Damaged, match="the shape of 'x' is none"):
            sources.shape_of(wrong, "x")
    assert sources.item({"a": 1}, "a") == 1
    for mapping, why in (([], "'a' is missing"), ({}, "'a' is missing"),
                         ({"a": "x"}, "'a' is not what it should be")):  # fmt: skip
        with pytest.raises(Damaged, match=why):
            sources.item(mapping, "a", int)


def test_what_is_read_is_named_with_its_file(tmp_path):
    def fails(error):
        def read(folder):
            raise error

        return read

    for error, kind, text in (
        (Refused("why"), Refused, f"{tmp_path}: why"),
        (Damaged(f"{tmp_path}/x: why"), Damaged, f"{tmp_path}/x: why"),
        (KeyError("k"), Damaged, "not as W writes it"),
        (ValueError("v"), Damaged, "not as W writes it"),
        (TypeError("t"), Damaged, "not as W writes it"),
        (AttributeError("a"), Damaged, "not as W writes it"),
    ):
        with pytest.raises(kind) as raised:
            sources.naming(tmp_path, "W", fails(error))
        assert text in str(raised.value) and str(raised.value).startswith(str(tmp_path))


def test_spans_and_flat_tensors():
    values = tensor(np.arange(4, dtype="<f4"))
    spans = [sources.Span(values, 1, 2), sources.Span(None, 0, 2), sources.Span(values, 3, 1)]
    read = np.concatenate(list(sources.as_fp32(spans))).view("<f4")
    assert read.tolist() == [1, 2, 0, 0, 3]
    half = tensor(np.array([1.5, -2], "<f2"), "F16")
    read = np.concatenate(list(sources.as_fp32([sources.Span(half, 0, 2)]))).view("<f4")
    assert read.tolist() == [1.5, -2]
    assert sources.flat_tensors([values, half], "x") == [values, half]
    with pytest.raises(Damaged, match="x is no list"):
        sources.flat_tensors(values, "x")
    with pytest.raises(Damaged, match="x is not flat"):
        sources.flat_tensors([tensor(np.zeros((1, 1), "<f4"))], "x")
    with pytest.raises(Damaged, match="x is no tensor"):
        sources.check_floating(3, "x")
    with pytest.raises(Refused, match="x has the type I64, allowed F32, F16 and BF16"):
        sources.check_floating(tensor(np.zeros(1, "<i8"), "I64"), "x")
    assert {sources.check_floating(tensor([0], kind), "x").dtype for kind in sources.FLOATING} == {
        "F32", "F16", "BF16",
    }  # fmt: skip
    frozen = sources.frozen_parameter("w", (2, 3), [values, values])
    assert not frozen.trainable and (frozen.numel, frozen.weight_dtype) == (6, "F32")
    read = np.concatenate(list(frozen.arrays["weight"]())).view("<f4")
    assert read.tolist() == [0, 1, 2, 3, 0, 1]
    with pytest.raises(Damaged, match="of 'w' not all elements are there"):
        sources.frozen_parameter("w", (9,), [values, values])
    with pytest.raises(Damaged, match="the parts of 'w' are not of one type"):
        sources.frozen_parameter("w", (2,), [values, half])
    buffer = sources.buffer_of("b", tensor(np.arange(3), "I64"))
    assert (buffer.name, buffer.dtype, buffer.shape) == ("b", "I64", (3,))
    assert buffer.data.view("<i8").tolist() == [0, 1, 2]
    with pytest.raises(Damaged, match="the buffer 'b' is no tensor"):
        sources.buffer_of("b", 1)


def test_groups_of_other_programs():
    group = sources.group_of({}, ["w"], 5, "adam")
    assert group == writer.SavedGroup(["w"], 5, 0.0, (0.9, 0.999), 1e-8, 0.0, "adam")
    settings = {"lr": 0.1, "betas": [0.5, 0.6], "eps": 1e-3, "weight_decay": 0.2}
    group = sources.group_of(settings, ["w"], 5, "adam")
    assert (group.lr, group.betas, group.eps, group.weight_decay) == (0.1, (0.5, 0.6), 1e-3, 0.2)
    for flag, optimizer in ((True, "adamw"), (False, "adam"), (1, "adam")):
        settings = {"decoupled_weight_decay": flag}
        assert sources.group_of(settings, [], 0, "adam").optimizer == optimizer
    with pytest.raises(Refused, match="only Adam and AdamW can be imported"):
        sources.group_of({"betas": (0.9,)}, [], 0, "adam")
    with pytest.raises(Damaged, match="a group of parameters is no dictionary"):
        sources.group_of(None, [], 0, "adam")
    groups = sources.groups_by_step({}, {"a": 3, "b": 2, "c": 3}, "adamw")
    assert [(each.step, each.parameters) for each in groups] == [(3, ["a", "c"]), (2, ["b"])]
    state = writer.SavedState([], [], 4, 3)
    assert (state.scale, state.hysteresis_left, state.iteration, state.overflow_last) == (
        1.0, 1, 0, -1,
    )  # fmt: skip


def test_where_a_checkpoint_of_deepspeeds_lies(tmp_path):
    find = deepspeed_files.find_checkpoint
    (tmp_path / "step1").mkdir()
    (tmp_path / "step2").mkdir()
    assert find(tmp_path, None) == tmp_path  # the folder itself is a checkpoint
    (tmp_path / "latest_universal").write_text("step2\n")
    assert find(tmp_path, None) == tmp_path / "step2"
    (tmp_path / "latest").write_text("step1")
    assert find(tmp_path, None) == tmp_path / "step1"
    assert find(tmp_path, "step2") == tmp_path / "step2"
    for tag in ("a/b", "", ".", ".."):
        with pytest.raises(Refused, match="which is none"):
            find(tmp_path, tag)
    with pytest.raises(Refused, match="step3: no such folder"):
        find(tmp_path, "step3")
    names = {"zero_pp_rank_0_mp_rank_00_optim_states.pt": ("0", "00"),
             "bf16_zero_pp_rank_12_mp_rank_00_optim_states.pt": ("12", "00")}  # fmt: skip
    for name, numbers in names.items():
        assert deepspeed_files.OPTIMIZER_FILE.fullmatch(name).groups() == numbers
    assert deepspeed_files.OPTIMIZER_FILE.fullmatch("fp16_" + next(iter(names))) is None


def model_states(**root):
    return deepspeed_files._Model(pathlib.Path("file"), root, {}, [], {})


def test_what_a_run_of_deepspeeds_was(tmp_path):
    def optimizer(kind, **params):
        section = {"optimizer": {"type": kind, "params": params}}
        return deepspeed_files._optimizer_name(model_states(ds_config=section))

    assert optimizer("Adam") == optimizer("AdamW") == optimizer(None) == "adamw"
    assert optimizer("Adam", adam_w_mode=True) == optimizer("AdamW", adam_w_mode=False) == "adamw"
    assert optimizer("Adam", adam_w_mode=False) == optimizer("adam", adam_w_mode=False) == "adam"
    assert deepspeed_files._optimizer_name(model_states()) == "adamw"
    begun = deepspeed_files._begun(model_states(global_steps=7, skipped_steps=2))
    assert (begun.step, begun.updates) == (7, 5)
    begun = deepspeed_files._begun(model_states(global_steps=7, skipped_steps=7))
    assert (begun.step, begun.updates) == (7, 0)
    assert deepspeed_files._begun(model_states(global_steps=7)).updates == 7
    with pytest.raises(Damaged, match="file: it skipped more steps than it made"):
        deepspeed_files._begun(model_states(global_steps=7, skipped_steps=8))
    offload = {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}
    with pytest.raises(Refused, match="its optimizer on NVMe"):
        deepspeed_files._refuse_nvme(tmp_path, model_states(ds_config=offload))
    offload["zero_optimization"]["offload_optimizer"]["device"] = "cpu"
    deepspeed_files._refuse_nvme(tmp_path, model_states(ds_config=offload))
    (tmp_path / "offloaded_tensors").mkdir()
    with pytest.raises(Refused, match="its optimizer on NVMe"):
        deepspeed_files._refuse_nvme(tmp_path, model_states())


def test_a_loss_scale_of_deepspeeds_goes_on():
    def scaled(**attributes):
        state = writer.SavedState([], [], 9, 9)
        record = Record(Name("a", "DynamicLossScaler"), attributes=attributes)
        deepspeed_files._scaler({"loss_scaler": record}, state)
        return state.scale, state.iteration, state.hysteresis_left, state.overflow_last

    assert scaled(cur_scale=8.0, cur_iter=5, cur_hysteresis=2, last_overflow_iter=3) == (8, 5, 2, 3)
    assert scaled(cur_scale=8.0, cur_iter=5) == (8, 5, 1, -1)
    assert scaled(cur_iter=5, last_overflow_iter=5) == (1, 5, 1, -1)
    assert scaled(cur_iter=5, last_overflow_iter=4) == (1, 5, 1, 4)
    assert scaled(cur_iter=5, last_overflow_iter=-1) == (1, 5, 1, -1)
    assert scaled(cur_iter=5, last_overflow_iter=-2) == (1, 5, 1, -1)
    assert scaled(cur_scale=4.0, cur_iter=5, dynamic=False) == (4, 0, 1, -1)
    assert scaled(cur_scale=4.0) == (4, 0, 1, -1)
    state = writer.SavedState([], [], 9, 9)
    deepspeed_files._scaler({}, state)
    assert state.scale == 1.0


def test_flat_tensors_of_a_rank_are_cut_into_spans():
    first, second = tensor(np.arange(3, dtype="<f4")), tensor(np.arange(4, dtype="<f4"))
    flats = deepspeed_files._Flats({"fp32": [first, None, second]}, {"fp32": [3, 2, 4]})
    assert flats.total("fp32") == 9
    spans = [(span.tensor, span.first, span.count) for span in flats.spans("fp32", 2, 5)]
    assert spans == [(first, 2, 1), (None, 0, 2), (second, 0, 2)]
    assert [span.count for span in flats.spans("fp32", 3, 2)] == [2]
    assert flats.spans("fp32", 0, 0) == []
    with pytest.raises(Damaged, match="fp32: not all elements are there"):
        flats.spans("fp32", 5, 5)


def test_files_that_torch_does_not_write_are_refused(tmp_path):
    def error_of(data):
        path = tmp_path / "file"
        path.write_bytes(data)
        with pytest.raises(Damaged) as raised:
            torch_files.load_torch_file(path)
        return str(raised.value)

    file = io.BytesIO()
    torch.save({"w": torch.arange(4.0)}, file)
    whole = file.getvalue()
    assert error_of(b"") == f"{tmp_path}/file: it is empty"
    assert "not a zip as torch.save writes" in error_of(b"no zip")
    assert "its directory is damaged" in error_of(whole[: len(whole) // 2])
    big = whole.replace(b"little", b"bigbig")
    assert "its numbers are big endian" in error_of(big)
    with pytest.raises(Damaged, match="No such file"):
        torch_files.load_torch_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Damaged, match="not a plain file"):
        torch_files.load_torch_file(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(Damaged, match="Too many levels"):
        torch_files.load_torch_file(tmp_path / "link")


def saved_state(**more):
    data = np.arange(5, dtype="<f4")
    pieces = {"fp32": lambda: [data.view(np.uint8)]}
    frozen = writer.SavedParameter("f", (2,), {"weight": lambda: [np.zeros(4, np.uint8)]}, "BF16")
    parameters = [writer.SavedParameter("w", (5,), pieces), frozen]
    group = writer.SavedGroup(["w"], 3, lr=0.5, weight_decay=0.25, optimizer="adam")
    data8 = np.arange(8, dtype=np.uint8)
    buffers = [writer.SavedBuffer(name, "I64", (1,), data8) for name in ("b", "c")]
    given = {"buffers": buffers, "aliases": {"v": "w"}, "excluded": ["x"], **more}
    return writer.SavedState(parameters, [group], 4, 3, 2.0, 5, 6, 1, **given)


def test_a_checkpoint_that_is_written_says_what_it_is(tmp_path):
    writer.write_checkpoint(tmp_path / "new" / "one", "tag", saved_state(), "from a test")
    folder = tmp_path / "new" / "one"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "latest", "tag", "zero_to_fp32.py",
    ]  # fmt: skip
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in (folder / "tag").iterdir()} == {0}
    read = zero_to_fp32.Checkpoint(folder)
    manifest = read.manifest
    raw = manifest.raw
    assert (raw["version"], raw["serial"], raw["config"]) == (1, 1, "{}")
    assert raw["machine"] == {"imported": "from a test"} and raw["side_files"] == []
    assert raw["state"] == {
        "step": 4, "updates": 3, "skipped_in_a_row": 0, "random": {},
        "loss_scaler": {"scale": 2.0, "hysteresis_left": 5, "iteration": 6, "overflow_last": 1},
    }  # fmt: skip
    assert raw["groups"] == [{
        "optimizer": "adam", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.25, "lr": 0.5,
        "step": 3, "parameters": [0],
    }]  # fmt: skip
    ids = [raw[name] for name in ("id", "lineage", "run_id")]
    assert len(set(ids)) == 3 and all(len(each) == 16 for each in ids)
    assert raw["created"].endswith("Z") and raw["created"][:2] == "20"
    assert raw["aliases"] == {"v": "w"} and raw["excluded"] == ["x"]
    assert [(each.name, each.trainable) for each in manifest.parameters] == [
        ("w", True), ("f", False),
    ]  # fmt: skip
    assert read.master(0, 0, 5).tolist() == [0, 1, 2, 3, 4]
    assert read.master(0, 3, 2).tolist() == [3, 4] and read.master(1, 0, 2).tolist() == [0, 0]
    assert read.buffer(manifest.buffers[0]).tolist() == list(range(8))
    assert [each.offset % 64 for each in manifest.buffers] == [0, 0]
    # this array was not given
    assert read.read_array(0, "exp_avg", 0, 5).view("<f4").tolist() == [0.0] * 5


def test_a_checkpoint_that_cannot_be_is_refused(tmp_path):
    def refused(state, tag="tag"):
        with pytest.raises(Refused) as raised:
            writer.write_checkpoint(tmp_path, tag, state, "")
        assert {path.name for path in tmp_path.iterdir()} <= {".lock"}
        return str(raised.value)

    assert "which is none; give another one" in refused(saved_state(), "a/b")
    assert "'w' comes twice" in refused(saved_state(aliases={"w": "w"}))
    assert "is not UTF-8" in refused(saved_state(aliases={"\udcff": "w"}))
    for change in ({"updates": 5}, {"overflow_last": 6}, {"overflow_last": 7}):
        state = saved_state()
        vars(state).update(change)
        assert "numbers of steps contradict" in refused(state)
    state = saved_state()
    state.overflow_last = 5  # the last overflow may be in the step before
    writer.write_checkpoint(tmp_path, "tag", state, "")
    with open(tmp_path / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="in use by another process"):
            writer.write_checkpoint(tmp_path, "other", state, "")
    with pytest.raises(Refused, match="tag: it is there already"):
        writer.write_checkpoint(tmp_path, "tag", state, "")


def test_tensors_lie_in_a_file_one_behind_the_other(tmp_path):
    """The spool of an export, with tensor sizes that are no multiples of a page."""
    checkpoint = zero_to_fp32.Checkpoint(MadeUp().write(tmp_path))
    spool = exports.Spool(tmp_path)
    arrays = [(0, "fp32"), (1, "fp32"), (0, "exp_avg"), (0, "exp_avg_sq")]
    found = [spool.tensor(checkpoint, *each) for each in arrays]
    for ours, each in zip(found, arrays, strict=True):
        whole = exports.in_memory(checkpoint, *each)
        assert ours.shape == whole.shape and torch.equal(ours, whole)
        assert not torch.equal(ours, torch.zeros_like(ours))
    assert spool.file.seek(0, 2) % 4096 == 0
    # the spool has no name
    assert [path.name for path in tmp_path.iterdir() if "tmp" in path.name] == []


def test_a_universal_export_has_every_key(tmp_path):
    MadeUp().write(tmp_path / "ours")
    assert export_universal.main([str(tmp_path / "ours"), str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "global_step7"
    model = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=True)
    shapes = model.pop("param_shapes")
    assert [{name: tuple(shape) for name, shape in each.items()} for each in shapes] == [
        {"w": (4, 1039)}
    ]
    for name in ("module", "frozen_param_fragments"):
        values = {key: value.tolist() for key, value in model.pop(name).items()}
        assert set(values) == ({"frozen", "scale"} if name == "module" else {"frozen"})
    assert {name: tuple(s) for name, s in model.pop("frozen_param_shapes").items()} == {
        "frozen": (33,)
    }
    assert model.pop("ds_version") == export_universal.DEEPSPEED_VERSION
    assert model == {
        "buffer_names": ["scale"], "optimizer": None, "shared_params": {"head": "w"},
        "lr_scheduler": {"last_batch_iteration": 6}, "data_sampler": None, "random_ltd": None,
        "skipped_steps": 0, "global_steps": 7, "dp_world_size": 1, "mp_world_size": 1,
        "ds_config": {}, "universal_checkpoint_info": {"universal_checkpoint_version": 0.2},
    }  # fmt: skip


def test_padding_is_numbered(tmp_path):
    writer.write_checkpoint(tmp_path, "tag", saved_state(), "")
    with open(tmp_path / "tag" / "rank0.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    gaps = [name for name in header if name.startswith("~")]
    assert len(gaps) > 2 and gaps == [f"~{number}" for number in range(len(gaps))]


class Plain:
    """A class that a reader does not know."""

    def __init__(self):
        self.x = 3


@pytest.mark.parametrize("protocol", range(6))
def test_objects_of_unknown_classes_are_records(protocol):
    values = [Plain(), collections.OrderedDict(a=1), collections.defaultdict(list, b=[2]),
              frozenset({3}), {4}, b"5", torch.Size([6])]  # fmt: skip
    record, *others = Machine({}).run(pickle.dumps(values, protocol))
    assert isinstance(record, Record) and record.attributes == {"x": 3}
    assert str(record.of).endswith("Plain") or str(record.arguments[0]).endswith("Plain")
    assert others == [{"a": 1}, {"b": [2]}, {3}, {4}, b"5", (6,)]
    assert record.get("x") == 3 and record.get("y", 4) == 4


def test_places_of_tensors_are_whole_numbers():
    storage = Storage(np.zeros(16, np.uint8), "F32")
    assert torch_files._rebuilt(storage, 0, (4,), (1,), None).dtype == "F32"
    assert torch_files._rebuilt(storage, 0, (2,), (1,), "F64").dtype == "F64"
    for offset, shape, strides, what in (
        (-1, (1,), (1,), "an offset"), (True, (1,), (1,), "an offset"),
        (1 << 62, (1,), (1,), "an offset"), (0, (1.0,), (1,), "an extent"),
        (0, (-1,), (1,), "an extent"), (0, (1,), (-1,), "a stride"),
    ):  # fmt: skip
        with pytest.raises(Damaged, match=f"a tensor has {what} that is no whole number"):
            torch_files._rebuilt(storage, offset, shape, strides, None)
    for offset, shape, strides, why in (
        (0, (5,), (1,), "reaches to element 4 of a storage of 4"),
        (1, (4,), (1,), "reaches to element 4 of a storage of 4"),
        (0, (2,), (4,), "reaches to element 4 of a storage of 4"),
        (0, (5,), (0,), "has 5 elements of a storage of 4"),
        (0, (2,), (1, 1), "shape and strides do not fit"),
        (0, [2], (1,), "shape and strides do not fit"),
        (0, (1,) * 65, (1,) * 65, "has 65 dimensions, allowed 64"),
        (0, (0, 1 << 41), (1, 1), "extents that no tensor has"),
    ):
        with pytest.raises(Damaged, match=why):
            torch_files._rebuilt(storage, offset, shape, strides, None)
    assert torch_files._rebuilt(storage, 0, (4,), (0,), None).numel == 4
    assert torch_files._rebuilt(storage, 0, (0, 1 << 40), (1, 1), None).numel == 0
    assert torch_files._rebuilt(storage, 0, (1,) * 64, (1,) * 64, None).numel == 1
    with pytest.raises(Damaged, match="is made of what is no storage"):
        torch_files._rebuilt(3, 0, (1,), (1,), None)


def test_a_frozen_parameter_that_is_left_out_is_in_no_export(tmp_path):
    checkpoint = zero_to_fp32.Checkpoint(MadeUp().write(tmp_path))
    checkpoint.manifest.excluded.append("frozen")
    found = export_universal._model_states(checkpoint)
    assert found["frozen_param_shapes"] is None and found["frozen_param_fragments"] is None
    assert set(found["module"]) == {"scale"}


def test_what_was_imported_is_told(tmp_path, capsys):
    assert import_deepspeed.run("program", lambda: "what came out") == 0
    assert capsys.readouterr().out == "what came out\n"
    for error, code in ((Refused("no"), 2), (Damaged("bad"), 1), (OSError("disk"), 1)):

        def fails(error=error):
            raise error

        assert import_deepspeed.run("program", fails) == code
        assert capsys.readouterr().err == f"program: {error}\n"
    assert writer.SavedGroup([], 0).optimizer == "adamw"
    assert import_deepspeed.describe(saved_state()) == (
        "step 4, 2 parameters (1 of them frozen) with 7 elements, 2 buffers, 1 other names"
    )
    run = unpack("deepspeed", tmp_path / "recorded") / "z2-fp32-2" / "checkpoint"
    assert import_deepspeed.main([str(run), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/out/global_step3: step 3, ")


def test_shapes_of_a_manifest_are_bounded():
    shape = zero_to_fp32._shape
    assert shape({"shape": [2, 0, 3]}) == (2, 0, 3) and shape({"shape": [1] * 64}) == (1,) * 64
    assert shape({"shape": [1 << 58]}) == (1 << 58,)
    for extents in ([1] * 65, [(1 << 58) + 1], [1 << 30, 1 << 29], [0, 1 << 59]):
        with pytest.raises(Damaged, match="shape: its product is too large"):
            shape({"shape": extents})
    for entry in ({}, {"shape": 3}, {"shape": [-1]}, {"shape": [True]}, {"shape": [1.0]}):
        with pytest.raises(Damaged):
            shape(entry)
