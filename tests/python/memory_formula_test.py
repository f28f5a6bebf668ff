"""Proves that memory is what docs/memory.md says: its formulas, computed here anew from config.json
and ds.json alone, give the peak of each tier, the size of the swap files and the activations within
16 MiB each, over thirteen shapes of GPT-2 and two of Llama; and the parts that the log reports add
up to the peak resident memory of the process within 64 MiB. Every term of the formulas is above 16
MiB in some shape, so that leaving one out fails."""

import dataclasses
import json
import os
import pathlib
import random
import struct
import subprocess
import time

import pytest
from build_folder import ARTESIAN as PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")

MIB = 1 << 20
TIER_MARGIN = 16 * MIB
PROCESS_MARGIN = 64 * MIB
STEPS = 2
POSITIONS = 256
TABLES = ("wte", "lm_head")
TILE = 4 << 20  # elements


@dataclasses.dataclass
class Shape:
    layers: int
    hidden: int
    vocab: int
    tied: bool = True
    dtype: str = "fp16"
    grad_dtype: str = ""  # default by accumulation; empty: the dtype, as accumulation is below 8
    micro_batch: int = 1
    accumulation: int = 1
    length: int = 64
    param: str = "nvme"
    optimizer: str = "nvme"
    paths: int = 1
    device: int = 1024  # budgets, MiB
    host: int = 1024
    activation: int = 1024
    max_in_cpu: int = 0
    threshold: int = 100_000
    live: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    buffers: int = 4
    engine: str = "auto"
    ffn: int = 0  # makes the model a Llama with an MLP of this width
    key_heads: int = 0
    cpu_checkpointing: bool = False
    compute: str = "fp32"

    def config(self):
        if self.ffn:
            return {
                "model_type": "llama",
                "num_hidden_layers": self.layers,
                "hidden_size": self.hidden,
                "intermediate_size": self.ffn,
                "num_attention_heads": self.hidden // 64,
                "num_key_value_heads": self.key_heads,
                "max_position_embeddings": POSITIONS,
                "vocab_size": self.vocab,
                "tie_word_embeddings": self.tied,
            }
        return {
            "model_type": "gpt2",
            "n_layer": self.layers,
            "n_embd": self.hidden,
            "n_head": self.hidden // 64,
            "n_positions": POSITIONS,
            "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }

    def settings(self):
        def offload(device, path):
            return {"device": device, **({"nvme_path": path} if device == "nvme" else {})}

        precision = {
            "fp32": {},
            "bf16": {"bf16": {"enabled": True}},
            "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
        }
        return {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            **precision[self.dtype],
            **({"data_types": {"grad_accum_dtype": self.grad_dtype}} if self.grad_dtype else {}),
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "activation_checkpointing": {"cpu_checkpointing": self.cpu_checkpointing},
            "zero_optimization": {
                "stage": 3,
                "stage3_param_persistence_threshold": self.threshold,
                "stage3_max_live_parameters": self.live,
                "sub_group_size": self.sub_group,
                "offload_param": {
                    **offload(self.param, "swap0"),
                    "max_in_cpu": self.max_in_cpu,
                },
                "offload_optimizer": {
                    **offload(self.optimizer, f"swap{self.paths - 1}"),
                    "buffer_count": self.buffers,
                },
            },
            "artesian": {
                "device_memory": f"{self.device}MiB",
                "host_memory": f"{self.host}MiB",
                "activation_memory": f"{self.activation}MiB",
                "engine": self.engine,
                "compute_dtype": self.compute,
            },
        }


SHAPES = {
    "all on nvme, device tight": Shape(6, 512, 16000, device=48, host=90),
    "half of the state in host memory": Shape(6, 512, 16000, host=240),
    "untied, bf16, max_in_cpu, one at a time": Shape(
        4, 512, 12000, tied=False, dtype="bf16", accumulation=2, max_in_cpu=1_000_000_000,
        device=96, host=200, activation=1,
    ),
    "everything fits in host memory": Shape(3, 512, 9000, max_in_cpu=1_000_000_000),
    "fp32 on nvme": Shape(
        3, 512, 20000, dtype="fp32", micro_batch=2, max_in_cpu=10_000_000, device=100, host=180
    ),
    "fp32, parameters stay on the device": Shape(
        3, 512, 20000, dtype="fp32", micro_batch=2, max_in_cpu=10_000_000, device=200, host=180
    ),
    "parameters in host memory": Shape(
        4, 640, 10000, grad_dtype="fp32", param="cpu", engine="threads", host=256
    ),
    "nothing offloaded": Shape(4, 512, 16000, dtype="bf16", param="none", optimizer="none"),
    "fp32 in host memory": Shape(4, 512, 10000, dtype="fp32", param="cpu", optimizer="cpu"),
    "spilled gradients, two disks": Shape(
        3, 768, 16000, host=36, buffers=8, sub_group=65536, paths=2, device=512
    ),
    "persistent, few live": Shape(
        6, 512, 9000, micro_batch=2, length=256, threshold=800_000, live=4_000_000, buffers=8,
        host=128,
    ),
    "llama, all on nvme": Shape(
        6, 768, 16000, tied=False, dtype="bf16", micro_batch=2, length=128, ffn=2048, key_heads=12,
        host=256,
    ),
    "llama, grouped, tied, three at a time": Shape(
        4, 512, 9000, dtype="bf16", accumulation=5, activation=360, length=256, micro_batch=2,
        ffn=1408, key_heads=2, device=128, host=128,
    ),
    "inputs in host memory and on nvme": Shape(
        4, 512, 9000, accumulation=10, grad_dtype="fp16", length=256, micro_batch=2, host=75,
        cpu_checkpointing=True,
    ),
    "computed in bf16": Shape(
        2, 1024, 1000, dtype="bf16", compute="bf16", length=16, device=96, host=128
    ),
}


def gpt2_stages(shape):
    """Returns the parameters of each stage as (name, elements); the model's first parameter is
    looked up."""
    c, inner = shape.hidden, 4 * shape.hidden
    table = shape.vocab * c
    block = {
        "ln_1.weight": c, "ln_1.bias": c, "c_attn.weight": 3 * c * c, "c_attn.bias": 3 * c,
        "attn.c_proj.weight": c * c, "attn.c_proj.bias": c, "ln_2.weight": c, "ln_2.bias": c,
        "c_fc.weight": c * inner, "c_fc.bias": inner, "mlp.c_proj.weight": inner * c,
        "mlp.c_proj.bias": c,
    }  # fmt: skip
    stages = [[("wte", table), ("wpe", POSITIONS * c)]]
    for layer in range(shape.layers):
        stages.append([(f"h.{layer}.{name}", size) for name, size in block.items()])
    stages.append([("ln_f.weight", c), ("ln_f.bias", c)])
    stages[-1].append(("wte" if shape.tied else "lm_head", table))
    return stages


def llama_stages(shape):
    c, table = shape.hidden, shape.vocab * shape.hidden
    keys = 64 * shape.key_heads * c
    block = {
        "input_layernorm": c, "q_proj": c * c, "k_proj": keys, "v_proj": keys, "o_proj": c * c,
        "post_attention_layernorm": c, "gate_proj": c * shape.ffn, "up_proj": c * shape.ffn,
        "down_proj": c * shape.ffn,
    }  # fmt: skip
    stages = [[("wte", table)]]
    for layer in range(shape.layers):
        stages.append([(f"layers.{layer}.{name}", size) for name, size in block.items()])
    stages.append([("norm", c), ("wte" if shape.tied else "lm_head", table)])
    return stages


@dataclasses.dataclass
class Unit:
    key: object
    persistent: bool
    table: bool  # a table that is looked up, or the head's
    elements: int = 0
    stages: set = dataclasses.field(default_factory=set)
    stays: bool = False  # meant for NVMe, kept in spare device memory
    in_host: bool = False  # meant for NVMe, kept in spare host memory


class Formula:
    """The formulas of docs/memory.md, in bytes, without padding (at most 4 KiB a parameter). Call
    host() first: what it keeps in host memory is not elsewhere."""

    def __init__(self, shape, without=None):
        self.shape = shape
        self.without = without
        self.terms = {}
        self.stages = (llama_stages if shape.ffn else gpt2_stages)(shape)
        sizes = {name: size for stage in self.stages for name, size in stage}
        self.all = sum(sizes.values())
        kept = {name for name, size in sizes.items() if size <= shape.threshold}
        self.persistent = sum(sizes[name] for name in kept)
        self.units = self.list_units(kept)
        in_graph = [[size for name, size in stage if name not in TABLES] for stage in self.stages]
        self.largest_gradient = max(sum(sizes) for sizes in in_graph)
        width = {"fp32": 4, "fp16": 2, "bf16": 2}
        self.p = width[shape.dtype]
        self.g = width[shape.grad_dtype or shape.dtype]
        self.c = width[shape.compute]
        self.s = {"fp32": 8, "bf16": 10, "fp16": 12}[shape.dtype]
        self.spilled = self.in_host = self.state_in_host = self.inputs_on_nvme = 0
        self.state_on_device = 0
        if self.p == self.c or self.something_on_nvme():
            self.stay_on_device()

    def list_units(self, kept):
        """Lists units in model order: a stage's streamed and its persistent parameters; each table
        by itself."""
        units = []
        for index, stage in enumerate(self.stages):
            parts = {}
            for name, size in stage:
                key = name if name in TABLES else (index, name in kept)
                unit = next((unit for unit in units if unit.key == key), None)
                if unit is None:
                    unit = Unit(key, persistent=name in kept, table=name in TABLES)
                    units.append(unit)
                if unit.table and unit.stages:  # a tied table has its unit already
                    size = 0
                unit.elements += size
                unit.stages.add(index)
        return units

    def add(self, term, size):
        self.terms[term] = size
        return 0 if term == self.without else size

    def width(self, unit):
        """Returns bytes of a gathered element: tables are used as they are stored."""
        return self.p if unit.table else self.c

    def in_place(self, unit):
        """True if compute reads the unit's home directly."""
        in_memory = self.shape.param != "nvme" or unit.persistent or unit.stays or unit.in_host
        return in_memory and self.width(unit) == self.p

    def gathered_persistent(self):
        units = [unit for unit in self.units if unit.persistent and not self.in_place(unit)]
        return sum(self.c * unit.elements for unit in units)

    def device_homes(self):
        """Returns bytes of homes that are not of streamed parameters."""
        shape = self.shape
        homes = self.p * (self.all if shape.param == "none" else self.persistent)
        homes += self.s * self.all if shape.optimizer == "none" else 0
        homes += self.gathered_persistent()
        return homes + self.c * self.largest_gradient

    def staying(self):
        return sum(unit.elements for unit in self.units if unit.stays)

    def slots(self):
        """Returns bytes of all slots, of the largest stage, and of the largest beside it."""

        def of_stage(index, without):
            return sum(
                self.width(unit) * unit.elements
                for unit in self.units
                if index in unit.stages and without not in unit.stages
                and not unit.persistent and not self.in_place(unit)
            )  # fmt: skip

        stages = range(len(self.stages))
        largest = max(stages, key=lambda index: of_stage(index, None))
        need = of_stage(largest, None)
        following = max(of_stage(index, largest) for index in stages)
        whole = sum(
            self.width(unit) * unit.elements
            for unit in self.units
            if not unit.persistent and not self.in_place(unit)
        )
        return whole, need, following

    def room(self):
        """Returns bytes of device memory for parameters meant for NVMe, and for slots."""
        return self.shape.device * MIB - self.device_homes() - self.p * self.staying()

    def stay_on_device(self):
        """Gives parameters meant for NVMe homes in spare device memory."""
        shape = self.shape
        if shape.param == "nvme":
            if self.p != self.c:  # tables first: each also saves its slot
                for unit in self.units:
                    unit.stays = unit.table and not unit.persistent
                    if unit.stays and self.room() < sum(self.slots()[1:]):
                        unit.stays = False
            left = self.room()
            whole, largest, following = self.slots()
            if self.p == self.c:
                left = min(left, self.c * shape.live)
            if self.p != self.c or left < whole:
                left -= largest + following
            for unit in self.units:
                if unit.persistent or unit.stays or self.p * unit.elements > left:
                    continue
                unit.stays = True
                left -= self.p * unit.elements
        if shape.optimizer == "nvme":
            spare = self.room() - sum(self.slots()[1:])
            self.state_on_device = max(0, min(spare, self.s * self.all))

    def something_on_nvme(self):
        self.host()
        found = any(self.swap())
        self.terms = {}
        return found

    def device(self):
        shape = self.shape
        on_device = shape.param == "none"
        need = self.add("device: parameters", self.p * (self.all if on_device else self.persistent))
        need += self.add("device: parameters meant for nvme", self.p * self.staying())
        need += self.add("device: state meant for nvme", self.state_on_device)
        if shape.optimizer == "none":
            need += self.add("device: optimizer", self.s * self.all)
        need += self.add("device: gathered persistent", self.gathered_persistent())
        whole, largest, _ = self.slots()
        need += self.add("device: gathered", min(whole, self.c * shape.live + largest))
        need += self.add("device: gradients", self.c * self.largest_gradient)
        return min(need, shape.device * MIB)

    def ring(self, room):
        shape = self.shape
        if "nvme" not in (shape.param, shape.optimizer):
            return 0
        sub_group = min(shape.sub_group, 262144)
        while shape.buffers * sub_group * (self.s + self.g + self.p) > room / 4:
            sub_group //= 2
        item = sub_group * (self.s + self.g + self.p)
        stage = self.all // len(self.stages) // sub_group + 1
        longest = min(shape.sub_group // sub_group * shape.buffers, stage, room // 8 // item, 256)
        return max(shape.buffers, longest) * item

    def grad_buffer(self):
        if "nvme" not in (self.shape.param, self.shape.optimizer):
            return 0
        return self.g * max(sum(size for _, size in stage) for stage in self.stages)

    def worth(self):
        """Returns how often a step moves a byte of each kind to or from NVMe, if that is its
        home."""
        shape = self.shape
        whole, largest, following = self.slots()
        for_slots = largest + following if shape.optimizer == "nvme" else self.room()
        kept = shape.live >= self.all and whole <= min(self.room(), for_slots)
        # fetched in backward; forward uses what the update has just made
        fetches = 0 if kept else 1
        update = 1 if shape.dtype == "fp16" else 2
        return {
            "tied gradient": 4 if shape.tied else 2,  # rows are added after everything else
            "gradients": 2,
            "parameters": fetches + update,
            "inputs": 2 * -(-shape.accumulation // self.at_once()),
            "optimizer": 2,
        }

    def input_bytes(self):
        """Returns bytes of the input of one stage and micro-batch."""
        shape = self.shape
        return self.c * shape.micro_batch * shape.length * shape.hidden

    def at_once(self):
        """Returns the number of micro-batches whose inputs are kept in tiers at once."""
        room = self.shape.activation * MIB // self.input_bytes()
        return max(1, min(self.shape.accumulation, room))

    def all_inputs(self):
        return len(self.stages) * self.at_once() if self.shape.cpu_checkpointing else 0

    def input_buffers(self, room):
        if not self.shape.cpu_checkpointing:
            return 0
        return min(room // 8, 2 * self.input_bytes(), 64 * MIB)

    def keep(self, room):
        """Fills `room` of host memory: all gradients if they fit; then what saves most, in this
        order if equal. Returns the bytes kept of each kind."""
        shape = self.shape
        kinds = ["tied gradient", "gradients", "parameters", "inputs", "optimizer"]
        there = dict.fromkeys(kinds, 0)
        left = shape.max_in_cpu
        worth = self.worth()
        if self.g * self.all <= room:
            worth["tied gradient"] = worth["gradients"] = 5
        for kind in sorted(kinds, key=lambda kind: -worth[kind]):
            if kind == "optimizer":
                if shape.optimizer == "nvme":
                    state = self.s * self.all - self.state_on_device
                    there[kind] = min(state, room - sum(there.values()))
                continue
            if kind == "parameters" and shape.param != "nvme":
                continue
            if kind == "inputs":
                count = min(self.all_inputs(), (room - sum(there.values())) // self.input_bytes())
                there[kind] = count * self.input_bytes()
                continue
            # Unit by unit in model order: each one that still fits.
            units = self.units
            if kind != "parameters":
                units = units[:1] if kind == "tied gradient" else units[1:]
            for unit in units:
                size, elsewhere = unit.elements, unit.persistent or unit.stays
                width = self.p if kind == "parameters" else self.g
                if kind == "parameters":
                    unit.in_host = False
                    if elsewhere or size > left:
                        continue
                if sum(there.values()) + width * size > room:
                    continue
                there[kind] += width * size
                if kind == "parameters":
                    unit.in_host = True
                    left -= size
        there["gradients"] += there.pop("tied gradient")
        return there

    def all_that_could_be_there(self):
        shape = self.shape
        total = self.g * self.all + self.all_inputs() * self.input_bytes()
        streamed = self.all - self.persistent - self.staying()
        total += self.p * streamed if shape.param == "nvme" else 0
        state = self.s * self.all - self.state_on_device
        return total + (state if shape.optimizer == "nvme" else 0)

    def host(self):
        shape = self.shape
        homes = 0
        if shape.param == "cpu":
            homes += self.add("host: parameters", self.p * (self.all - self.persistent))
        if shape.optimizer == "cpu":
            homes += self.add("host: optimizer", self.s * self.all)
        room = shape.host * MIB - homes
        there = self.keep(room)
        total = homes
        if sum(there.values()) < self.all_that_could_be_there():
            buffer = self.grad_buffer()
            ring = self.ring(room - buffer)
            ring += self.input_buffers(room - buffer - ring)
            total += self.add("host: ring", ring)
            there = self.keep(room - ring)
            if there["gradients"] < self.g * self.all:
                total += self.add("host: buffer of gradients", buffer)
                there = self.keep(room - ring - buffer)
        self.spilled = self.g * self.all - there["gradients"]
        self.in_host = there["parameters"]
        self.state_in_host = there["optimizer"]
        self.inputs_on_nvme = self.all_inputs() * self.input_bytes() - there["inputs"]
        total += self.add("host: kept inputs", there["inputs"])
        total += self.add("host: gradients", there["gradients"])
        total += self.add("host: kept parameters", there["parameters"])
        return total + self.add("host: kept optimizer state", there["optimizer"])

    def swap(self):
        """Bytes of each swap file."""
        shape = self.shape
        files = [0] * shape.paths
        if shape.param == "nvme":
            streamed = self.p * (self.all - self.persistent - self.staying()) - self.in_host
            files[0] += self.add("nvme: parameters", streamed)
        files[0] += self.add("nvme: spilled gradients", self.spilled)
        files[0] += self.add("nvme: inputs", self.inputs_on_nvme)
        if shape.optimizer == "nvme":
            state = self.s * self.all - self.state_on_device - self.state_in_host
            files[-1] += self.add("nvme: optimizer", state)
        return [size for size in files if size > MIB]

    def figures(self):
        host = self.host()
        return [self.device(), host, sum(self.swap()), self.activations()]

    def tile(self):
        """Returns bytes of a tile of the head's table, or of its gradient."""
        return 4 * min(self.shape.vocab * self.shape.hidden, TILE)

    def activations(self, first_step=False):
        """In the first step one micro-batch runs ahead alone."""
        shape = self.shape
        tokens, c = shape.micro_batch * shape.length, shape.hidden
        kept = 8 * c + 3 * shape.ffn if shape.ffn else 16 * c  # numbers a token in a block
        one = self.c * tokens * (kept * shape.layers + shape.vocab + 4 * c)
        if shape.cpu_checkpointing:
            between = self.add("activations: between stages", 8 * tokens * c * self.at_once())
            block = 4 * tokens * kept + 48 * c * c
            return between + max(block, 4 * tokens * shape.vocab + self.tile())
        count = shape.accumulation - 1 if first_step else shape.accumulation
        at_once = max(1, min(count, shape.activation * MIB // one))
        total = self.add("activations: blocks", at_once * self.c * tokens * kept * shape.layers)
        logits = self.add("activations: logits", at_once * 4 * tokens * shape.vocab)
        gradient = self.add("activations: a block's gradient", self.c * self.largest_gradient)
        total += max(logits + self.tile(), gradient)
        return total + 4 * tokens * c * (4 * at_once + shape.accumulation)


def write_inputs(folder, shape):
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(shape.config()))
    (folder / "ds.json").write_text(json.dumps(shape.settings()))
    count = STEPS * shape.accumulation * shape.micro_batch * shape.length + 1
    tokens = random.Random(1).choices(range(shape.vocab), k=count)
    (folder / "tokens.bin").write_bytes(struct.pack(f"<{count}H", *tokens))


def swap_sizes(folder):
    """Returns the bytes allocated in each directory of the run. Uses os.walk, which ignores a
    directory that is removed meanwhile; pathlib's glob does not."""
    sizes = {}
    for place, _, names in os.walk(folder):
        key = pathlib.Path(place).relative_to(folder).parts[:1]
        for name in names if key and key[0].startswith("swap") else []:
            try:
                status = os.stat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            allocated = min(status.st_size, status.st_blocks * 512)
            sizes[key[0]] = max(sizes.get(key[0], 0), allocated)
    return sizes


def train(folder, shape):
    """Returns the lines of the log, and the most bytes seen in each swap directory."""
    write_inputs(folder, shape)
    arguments = f"--model model --init --data tokens.bin --config ds.json --steps {STEPS}"
    arguments += f" --seq-len {shape.length} --log-jsonl steps.jsonl --quiet"
    seen = {}
    with open(folder / "stderr", "w+") as errors:
        run = subprocess.Popen([PROGRAM, "train", *arguments.split()], cwd=folder, stderr=errors)
        while run.poll() is None:
            for key, size in swap_sizes(folder).items():
                seen[key] = max(seen.get(key, 0), size)
            time.sleep(0.02)
        errors.seek(0)
        assert run.returncode == 0, errors.read()
    lines = (folder / "steps.jsonl").read_text().splitlines()
    assert not list(folder.glob("swap*"))
    # an empty swap file has only its headers
    sizes = [seen[key] for key in sorted(seen) if seen[key] > MIB]
    return [json.loads(line) for line in lines], sizes


@pytest.mark.parametrize("name", SHAPES)
def test_peaks_equal_the_formulas(name, tmp_path):
    shape = SHAPES[name]
    formula = Formula(shape)
    host, device, swap = formula.host(), formula.device(), formula.swap()
    steps, swap_seen = train(tmp_path, shape)
    assert len(steps) == STEPS
    for number, step in enumerate(steps):
        activations = formula.activations(first_step=number == 0)
        peak = step["peak"]
        parts = [peak[part] for part in ["program", "host", "activations", "heap"]]
        explained = sum(parts) + peak["device"] - peak["gradients"]
        print(
            *(f"{part} {size / MIB:.1f}" for part, size in peak.items()),
            f"explained {explained / MIB:.1f}; formulas: device {device / MIB:.1f} host "
            f"{host / MIB:.1f} activations {activations / MIB:.1f}",
        )
        assert abs(peak["device"] - device) <= TIER_MARGIN
        assert peak["device"] <= shape.device * MIB
        assert abs(peak["host"] - host) <= TIER_MARGIN
        assert peak["host"] <= shape.host * MIB
        assert abs(peak["activations"] - activations) <= TIER_MARGIN
        assert abs(peak["process_rss"] - explained) <= PROCESS_MARGIN
    assert len(swap_seen) == len(swap)
    for seen, stated in zip(swap_seen, swap):
        assert abs(seen - stated) <= TIER_MARGIN


def test_a_formula_without_one_of_its_terms_is_off_by_more_than_the_margin():
    whole, terms = {}, set()
    for name, shape in SHAPES.items():
        formula = Formula(shape)
        whole[name] = formula.figures()
        terms |= formula.terms.keys()
    assert len(terms) == 23
    for term in terms:
        worst = 0
        for name, shape in SHAPES.items():
            lacking = Formula(shape, without=term).figures()
            worst = max(worst, *(abs(a - b) for a, b in zip(whole[name], lacking)))
        assert worst > TIER_MARGIN, term
