"""Reads checkpoints of DeepSpeed: ZeRO-1, 2 and 3, and universal ones.

ZeRO stores fp32 weights and moments as flat tensors, divided among ranks. With ZeRO-1 and 2 a
group's parameters are concatenated, and ranks have consecutive parts of that; with ZeRO-3 each
parameter is divided separately into equal parts, the last one padded. A universal checkpoint has a
folder for each parameter. This module only determines where everything lies, and copies no data.
"""

import math
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from artesian.checkpoint.pickles import Record
from artesian.checkpoint.sources import (
    Span,
    as_fp32,
    buffer_of,
    check_floating,
    flat_tensors,
    frozen_parameter,
    group_of,
    groups_by_step,
    item,
    naming,
    real,
    shape_of,
    whole,
)
from artesian.checkpoint.torch_files import Tensor, load_torch_file
from artesian.checkpoint.writer import Pieces, SavedGroup, SavedParameter, SavedState
from artesian.checkpoint.zero_to_fp32 import Damaged, Refused, shown

OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
MODEL_FILE = "mp_rank_00_model_states.pt"
CONVERT = "convert it with DeepSpeed's ds_to_universal.py, and import what that writes"
ARRAYS = ("fp32", "exp_avg", "exp_avg_sq")


def find_checkpoint(source: Path, tag: str | None) -> Path:
    """The folder of a checkpoint: SOURCE/TAG, the one that `latest` names, or SOURCE itself."""
    if tag is None:
        for name in ("latest", "latest_universal"):
            if (source / name).is_file():
                tag = (source / name).read_text(errors="replace")[:256].strip()
                break
    if tag is not None and ("/" in tag or tag in ("", ".", "..")):
        raise Refused(f"tag: got {shown(tag)}, which is none")
    folder = source if tag is None else source / tag
    if not folder.is_dir():
        raise Refused(f"{folder}: no such folder")
    return folder


@dataclass
class _Model:
    """The content of a file of model states."""

    path: Path
    root: dict[Any, Any]
    module: dict[Any, Any]
    shapes: list[dict[str, tuple[int, ...]]]  # shapes of trained parameters, by group
    frozen_shapes: dict[str, tuple[int, ...]]

    def frozen_fragment(self, name: str) -> Tensor:
        fragments = self.root.get("frozen_param_fragments")
        found = fragments.get(name) if isinstance(fragments, dict) else None
        return check_floating(self.module.get(name) if found is None else found, shown(name))


@dataclass
class _Flats:
    """The flat tensors of one rank, concatenated, by array."""

    tensors: dict[str, list[Tensor | None]] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)

    def total(self, array: str) -> int:
        return sum(self.sizes[array])

    def spans(self, array: str, first: int, count: int) -> list[Span]:
        """Elements [first, first + count) of the concatenation. Raises Damaged if there are too
        few."""
        spans, at = [], 0
        for tensor, size in zip(self.tensors[array], self.sizes[array], strict=True):
            low, high = max(first, at), min(first + count, at + size)
            if low < high:
                spans.append(Span(tensor, low - at, high - low))
            at += size
        if sum(span.count for span in spans) != count:
            raise Damaged(f"{array}: not all elements are there")
        return spans


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise Damaged("param_shapes are no names with shapes")
    return {name: shape_of(shape, name) for name, shape in value.items()}


def _read_model(path: Path) -> _Model:
    root = load_torch_file(path)
    try:
        module = item(root, "module", (dict, type(None))) or {}
        shapes = item(root, "param_shapes", (list, dict))
        groups = [_shapes(each) for each in (shapes if isinstance(shapes, list) else [shapes])]
        frozen = root.get("frozen_param_shapes")
        return _Model(path, root, module, groups, _shapes(frozen) if frozen else {})
    except Damaged as error:
        raise Damaged(f"{path}: {error}; not model states of a ZeRO run?") from None


def _setting(root: Any, *keys: str) -> Any:
    for key in keys:
        root = root.get(key) if isinstance(root, dict) else None
    return root


def _refuse_nvme(folder: Path, model: _Model) -> None:
    device = _setting(model.root, "ds_config", "zero_optimization", "offload_optimizer", "device")
    if device == "nvme" or (folder / "offloaded_tensors").exists():
        raise Refused(
            f"{folder}: of a run with its optimizer on NVMe (offload_optimizer.device: nvme): "
            "DeepSpeed saves of such a run its swap files, without saying what lies where. Load it "
            "into a DeepSpeed run with offload_optimizer.device: cpu, if it can, and save there"
        )


def _optimizer_name(model: _Model) -> str:
    """The same choice as DeepSpeed's: Adam is AdamW unless adam_w_mode is false."""
    kind = _setting(model.root, "ds_config", "optimizer", "type")
    plain = _setting(model.root, "ds_config", "optimizer", "params", "adam_w_mode") is False
    return "adam" if isinstance(kind, str) and kind.lower() == "adam" and plain else "adamw"


def _scaler(state: dict[Any, Any], saved: SavedState) -> None:
    scaler = state.get("loss_scaler")
    if not isinstance(scaler, Record):
        return
    saved.scale = real(scaler.get("cur_scale"), 1.0)
    if scaler.get("dynamic") is False or "cur_iter" not in scaler.attributes:
        return
    saved.iteration = whole(scaler.get("cur_iter"), "cur_iter")
    saved.hysteresis_left = whole(scaler.get("cur_hysteresis", 1), "cur_hysteresis")
    last = scaler.get("last_overflow_iter", -1)
    saved.overflow_last = last if type(last) is int and -1 <= last < saved.iteration else -1


def _begun(model: _Model) -> SavedState:
    """Everything except parameters, groups and the loss scale."""
    step = whole(item(model.root, "global_steps"), "global_steps")
    skipped = whole(model.root.get("skipped_steps", 0), "skipped_steps")
    if skipped > step:
        raise Damaged(f"{model.path}: it skipped more steps than it made")
    return SavedState([], [], step, step - skipped)


def _finish(model: _Model, saved: SavedState, frozen_of: list[_Model]) -> None:
    """Adds frozen parameters, buffers and aliases."""
    for name, shape in model.frozen_shapes.items():
        fragments = [each.frozen_fragment(name) for each in frozen_of]
        saved.parameters.append(frozen_parameter(name, shape, fragments))
    names = {parameter.name for parameter in saved.parameters}
    buffers = model.root.get("buffer_names")
    for name in buffers if isinstance(buffers, (list, tuple)) else []:
        if isinstance(name, str) and name not in names and name in model.module:
            saved.buffers.append(buffer_of(name, model.module[name]))
            names.add(name)
    _add_aliases(model, saved, names)
    # ZeRO-1 does not list frozen parameters: they are the module's other tensors. With ZeRO-3 these
    # tensors are empty.
    for name, tensor in model.module.items():
        if name not in names and isinstance(tensor, Tensor) and tensor.numel > 0:
            check_floating(tensor, shown(name))
            saved.parameters.append(frozen_parameter(name, tensor.shape, [tensor]))


def _add_aliases(model: _Model, saved: SavedState, names: set[str]) -> None:
    shared = model.root.get("shared_params")
    for alias, name in (shared if isinstance(shared, dict) else {}).items():
        if isinstance(alias, str) and name in names and alias not in names:
            saved.aliases[alias] = name
            names.add(alias)


# For ZeRO.


@dataclass
class _Rank:
    path: Path
    state: dict[Any, Any]
    stage: int


def _read_rank(path: Path) -> _Rank:
    root = load_torch_file(path)
    try:
        state = item(root, "optimizer_state_dict", dict)
        return _Rank(path, state, whole(item(state, "zero_stage"), "zero_stage"))
    except Damaged as error:
        raise Damaged(f"{path}: {error}; not optimizer states of a ZeRO run?") from None


def _optimizer_files(folder: Path) -> list[Path]:
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = OPTIMIZER_FILE.fullmatch(path.name)
        if match is None:
            if path.name.startswith("layer_"):
                raise Refused(f"{path}: of a pipeline or mixture of experts; {CONVERT}")
            continue
        if int(match[2]) != 0:
            raise Refused(f"{path}: of a tensor-parallel run; {CONVERT}")
        if int(match[1]) in found:
            raise Damaged(f"{path}: a second file of that rank is there")
        found[int(match[1])] = path
    if not found:
        raise Refused(f"{folder}: no ZeRO checkpoint: no file is named *_optim_states.pt")
    for rank in range(max(found) + 1):
        if rank not in found:
            raise Damaged(f"{folder}: the optimizer states of rank {rank} are missing")
    return [found[rank] for rank in range(len(found))]


def _inner_state(rank: _Rank) -> dict[Any, Any]:
    """The state dict of the optimizer that DeepSpeed wraps."""
    key = "optimizer_state_dict" if rank.stage == 3 else "base_optimizer_state"
    inner = item(rank.state, key)
    if isinstance(inner, list):
        raise Refused(f"{rank.path}: saved with elastic_checkpoint; {CONVERT}")
    if not isinstance(inner, dict):
        raise Damaged(f"{rank.path}: {key} is not what it should be")
    return inner


def _flats(rank: _Rank, groups: list[int] | None = None) -> _Flats:
    """Of all flat groups, or of the given ones; a group without updates has zero moments."""
    key = "fp32_flat_groups" if rank.stage == 3 else "single_partition_of_fp32_groups"
    masters = flat_tensors(item(rank.state, key), key)
    states = item(_inner_state(rank), "state", dict)
    flats = _Flats()
    chosen = range(len(masters)) if groups is None else groups
    for array in ARRAYS:
        tensors: list[Tensor | None] = []
        sizes = []
        for group in chosen:
            tensor: Tensor | None = masters[group]
            size = masters[group].numel
            if array != "fp32":
                tensor = _moment(states.get(group), array)
                size = size if tensor is None else tensor.numel
            tensors.append(tensor)
            sizes.append(size)
        flats.tensors[array], flats.sizes[array] = tensors, sizes
    return flats


def _moment(state: Any, array: str) -> Tensor | None:
    if not isinstance(state, dict) or not state:
        return None
    if array not in state:
        raise Refused(f"its optimizer has no {array}: only Adam and AdamW can be imported")
    return flat_tensors([state[array]], array)[0]


def _step_of(rank: _Rank, group: int, settings: Any, otherwise: int) -> int:
    state = item(_inner_state(rank), "state", dict).get(group)
    step = state.get("step") if isinstance(state, dict) else None
    if step is None and isinstance(settings, dict):
        step = settings.get("step")
    return otherwise if step is None else whole(step, "step")


def _count_partitions(ranks: list[_Rank]) -> None:
    for rank in ranks:
        if rank.stage != ranks[0].stage:
            raise Damaged(f"{rank.path}: of another ZeRO stage than {ranks[0].path.name}")
        counts = item(rank.state, "partition_count")
        for count in counts if isinstance(counts, (list, tuple)) else [counts]:
            if whole(count, "partition_count") != len(ranks):
                raise Damaged(
                    f"{rank.path}: of a run with {count} partitions, but {len(ranks)} files are "
                    "there; of a mixture of experts, convert it with ds_to_universal.py"
                )
        if rank.state.get("ds_zero_partition_groups"):
            raise Refused(f"{rank.path}: of a mixture of experts; {CONVERT}")


def _parameter(name: str, shape: tuple[int, ...], spans: dict[str, list[Span]]) -> SavedParameter:
    arrays: dict[str, Pieces] = {array: partial(as_fp32, spans[array]) for array in ARRAYS}
    return SavedParameter(name, shape, arrays)


def _read_stage_1_or_2(model: _Model, ranks: list[_Rank], saved: SavedState) -> None:
    settings = item(_inner_state(ranks[0]), "param_groups", list)
    paddings = ranks[0].state.get("param_alignment_paddings")
    if len(settings) != len(model.shapes):
        raise Damaged(f"{model.path}: its groups are not those of {ranks[0].path.name}")
    for group, shapes in enumerate(model.shapes):
        parts = [_flats(rank, [group]) for rank in ranks]
        flats = _Flats(
            {array: [part.tensors[array][0] for part in parts] for array in ARRAYS},
            {array: [part.sizes[array][0] for part in parts] for array in ARRAYS},
        )
        pads = paddings[group] if isinstance(paddings, list) else [0] * len(shapes)
        at = 0
        for (name, shape), pad in zip(shapes.items(), pads, strict=True):
            numel = math.prod(shape)
            spans = {array: flats.spans(array, at, numel) for array in ARRAYS}
            saved.parameters.append(_parameter(name, shape, spans))
            at += numel + whole(pad, "a padding")
        step = _step_of(ranks[0], group, settings[group], saved.updates)
        optimizer = _optimizer_name(model)
        saved.groups.append(group_of(settings[group], list(shapes), step, optimizer))


def _read_stage_3(model: _Model, ranks: list[_Rank], saved: SavedState) -> None:
    flats = [_flats(rank) for rank in ranks]
    at = 0
    for shapes in model.shapes:
        for name, shape in shapes.items():
            numel = math.prod(shape)
            part = -(-numel // len(ranks))
            spans: dict[str, list[Span]] = {array: [] for array in ARRAYS}
            for index, flat in enumerate(flats):
                count = max(0, min(part, numel - index * part))
                for array in ARRAYS:
                    spans[array] += flat.spans(array, at, count)
            saved.parameters.append(_parameter(name, shape, spans))
            at += part
    for rank, flat in zip(ranks, flats, strict=True):
        for array in ARRAYS:
            if flat.total(array) != at:
                raise Damaged(
                    f"{rank.path}: {array} has {flat.total(array)} elements, {at} were expected"
                )
    saved.groups = _groups_of_stage_3(model, ranks[0], saved.updates)


def _groups_of_stage_3(model: _Model, rank: _Rank, updates: int) -> list[SavedGroup]:
    """Each dictionary of shapes is a sub-group, which belongs to one of the optimizer's groups."""
    groups = []
    for settings in item(_inner_state(rank), "param_groups", list):
        members = item(settings, "params", list)
        steps: dict[str, int] = {}
        for index in members:
            index = whole(index, "params")
            if index >= len(model.shapes):
                raise Damaged(f"{rank.path}: its groups are not those of {model.path.name}")
            step = _step_of(rank, index, settings, updates)
            steps |= dict.fromkeys(model.shapes[index], step)
        groups += groups_by_step(settings, steps, _optimizer_name(model))
    return groups


def _read_zero(folder: Path) -> SavedState:
    ranks = [_read_rank(path) for path in _optimizer_files(folder)]
    _count_partitions(ranks)
    stage = ranks[0].stage
    if stage not in (1, 2, 3):
        raise Refused(f"{ranks[0].path}: ZeRO stage {stage}, allowed 1, 2 and 3")
    names = [MODEL_FILE]
    if stage == 3:
        names = [f"zero_pp_rank_{rank}_{MODEL_FILE}" for rank in range(len(ranks))]
    model = _read_model(folder / names[0])
    _refuse_nvme(folder, model)
    saved = _begun(model)
    (_read_stage_3 if stage == 3 else _read_stage_1_or_2)(model, ranks, saved)
    others = names[1:] if model.frozen_shapes else []
    _finish(model, saved, [model, *(_read_model(folder / name) for name in others)])
    _scaler(ranks[0].state, saved)
    return saved


# For universal checkpoints.


def _universal_tensor(path: Path, shape: tuple[int, ...]) -> Tensor:
    value = load_torch_file(path)
    tensor = check_floating(value.get("param") if isinstance(value, dict) else value, str(path))
    if tensor.numel != math.prod(shape):
        raise Damaged(f"{path}: got {tensor.numel} elements, its shape {shape} has another number")
    return tensor


def _universal_step(folder: Path, otherwise: int) -> int:
    path = folder / "step.pt"
    return whole(load_torch_file(path), f"{path}: step") if path.exists() else otherwise


def _universal_parameter(folder: Path, shape: tuple[int, ...], name: str) -> SavedParameter:
    spans = {}
    for array in ARRAYS:
        path = folder / f"{array}.pt"
        tensor = None
        if array == "fp32" or path.exists():  # a parameter that never got a gradient has no moments
            tensor = _universal_tensor(path, shape)
        spans[array] = [Span(tensor, 0, math.prod(shape))]
    return _parameter(name, shape, spans)


def _universal_models(folder: Path) -> list[_Model]:
    """The model file of ZeRO-1 and 2, or the files of all ranks of ZeRO-3, which contain parts of
    frozen parameters."""
    if (folder / MODEL_FILE).exists():
        return [_read_model(folder / MODEL_FILE)]
    first = _read_model(folder / f"zero_pp_rank_0_{MODEL_FILE}")
    models = [first]
    while first.frozen_shapes:
        path = folder / f"zero_pp_rank_{len(models)}_{MODEL_FILE}"
        if not path.exists():
            break
        models.append(_read_model(path))
    return models


def _read_universal(folder: Path) -> SavedState:
    model, *others = _universal_models(folder)
    saved = _begun(model)
    state = load_torch_file(folder / "zero/optimizer_state.pt")
    inner = state.get("optimizer_state_dict") if isinstance(state, dict) else None
    settings = item(state if not isinstance(inner, dict) else inner, "param_groups", list)
    otherwise = saved.updates
    first = _setting(inner, "state")
    if isinstance(first, dict) and isinstance(first.get(0), dict) and "step" in first[0]:
        otherwise = whole(first[0]["step"], "step")
    for group, shapes in enumerate(model.shapes):
        steps = {}
        for name, shape in shapes.items():
            place = folder / "zero" / name
            if ".." in name.split("/") or name.startswith("/"):
                raise Damaged(f"{model.path}: {shown(name)} is no name of a parameter")
            saved.parameters.append(_universal_parameter(place, shape, name))
            steps[name] = _universal_step(place, otherwise)
        of_group = settings[group if len(settings) == len(model.shapes) else 0]
        saved.groups += groups_by_step(of_group, steps, _optimizer_name(model))
    _finish(model, saved, [model, *others])
    _scaler(state, saved)
    return saved


def read_deepspeed(folder: Path) -> SavedState:
    """The state in the folder of one checkpoint. Raises Refused, Damaged, each naming a file."""
    universal = (folder / "zero").is_dir()
    return naming(folder, "DeepSpeed", _read_universal if universal else _read_zero)
