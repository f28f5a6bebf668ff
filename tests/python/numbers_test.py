"""Proves that training computes what its settings say: losses, gradient norms, learning rates, loss
scales and final weights of a small GPT-2 are those of a plain PyTorch script
(reference_training.py) that starts from the same Hugging Face directory and reads the same tokens.
And that the digest of a run does not depend on where its state lives or on what is printed.

Tolerances are relative and stated where they are used; the share that a run needs of each is
printed (pytest -s)."""

import json
import os
import pathlib
import subprocess

import pytest
from build_folder import ARTESIAN as PROGRAM

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402

import reference_training as reference  # noqa: E402

torch.set_num_threads(1)

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")

LENGTH = 32
VOCABULARY = 512
STEPS = 20
FP32_TOLERANCE = 1e-5  # two orders of summation, nothing else
WEIGHTS_TOLERANCE = 2e-4
# Sums in another order sometimes round to another 16-bit number, so the runs diverge slowly, and
# losses and norms need a wide tolerance. They show a wrong scale, clip or schedule, but hardly
# where gradients are rounded.
LOSS_TOLERANCE_16_BIT = 2e-4
NORM_TOLERANCE_16_BIT = 1e-3
# Wrong rounding of gradients shows in the first norm, while the weights are the same. Right rules
# agree to 1e-7. Wrong ones differ by 3e-6 or more in bf16 and 2.7e-7 in fp16 with accumulation:
# rounding once a step, or only the sums; adding the embedding's rows in every micro-batch, or
# without rounding them.
FIRST_NORM_TOLERANCE = {"bf16": 1e-6, "fp16": 2e-7}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with the models `tied` and `untied`, and tokens.bin; and the tokens."""
    folder = tmp_path_factory.mktemp("inputs")
    torch.manual_seed(11)
    for name in ["tied", "untied"]:
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=64,
            n_layer=2,
            n_head=4,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            initializer_range=0.08,  # large enough that gradients differ between parameters
            tie_word_embeddings=name == "tied",
            bos_token_id=0,
            eos_token_id=0,
        )
        model = transformers.GPT2LMHeadModel(config)
        model.save_pretrained(folder / name)
    # Fewer samples than a run reads, and a rest: the stream wraps around during the run.
    source = numpy.random.default_rng(12)
    tokens = [7]
    for jump in source.integers(0, 3, size=LENGTH * 30 + 5):
        tokens.append((5 * tokens[-1] + int(jump)) % VOCABULARY)
    tokens = numpy.array(tokens, dtype="<u2")
    tokens.tofile(folder / "tokens.bin")
    return folder, tokens


def make_config(tmp_path, offload="nvme", accumulation=1, optimizer=None, **changes):
    """Returns a config in which all parameters are offloaded, unless `offload` is "none"; with
    "nvme", host memory has room for a part of the state."""
    place = {"device": offload}
    if offload == "nvme":
        (tmp_path / "nvme").mkdir(exist_ok=True)
        place["nvme_path"] = str(tmp_path / "nvme")
    params = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "Adam", "params": params | (optimizer or {})},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "sub_group_size": 20000,
            "offload_param": dict(place),
            "offload_optimizer": dict(place),
        },
        "artesian": {
            "device_memory": "512KiB" if offload == "nvme" else "16MiB",
            "host_memory": "1MiB" if offload == "nvme" else "32MiB",
            "compute_dtype": "fp32",
        },
    } | changes


def artesian(inputs, tmp_path, config, *flags, model="tied", steps=STEPS):
    """Runs the program, without --steps if that is None; returns (finished process, log lines)."""
    folder, _ = inputs
    (tmp_path / "config.json").write_text(json.dumps(config))
    log = tmp_path / "steps.jsonl"
    words = [PROGRAM, "train", "--model", folder / model, "--data", folder / "tokens.bin"]
    words += ["--config", tmp_path / "config.json", "--seq-len", LENGTH]
    words += [] if steps is None else ["--steps", steps]
    words += ["--order", "sequential", "--log-jsonl", log, *flags]
    # One thread: the model is so small that a second thread would only wait, for long on a busy
    # machine.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return done, lines


def train_both(inputs, tmp_path, config, *flags, model="tied", steps=STEPS):
    """Returns (our log lines, the reference's Run) of a run that must succeed."""
    done, ours = artesian(inputs, tmp_path, config, *flags, model=model, steps=steps)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in ours] == list(range(1, len(ours) + 1))
    assert len(ours) == (steps or len(ours))
    on_nvme = config["zero_optimization"]["offload_optimizer"]["device"] == "nvme"
    assert any(line["bytes"]["nvme_write"] for line in ours) == on_nvme
    folder, tokens = inputs
    return ours, reference.train(folder / model, config, tokens, LENGTH, len(ours))


def assert_near(name, ours, expected, tolerance):
    """Compares two lists of numbers; prints the largest share of the tolerance that is used."""
    assert len(ours) == len(expected)
    ours, expected = numpy.array(ours, dtype=float), numpy.array(expected, dtype=float)
    share = numpy.max(numpy.abs(ours - expected) / (tolerance * numpy.abs(expected)))
    print(f"{name}: {share:.3f} of {tolerance:g}")
    assert share <= 1, (name, ours, expected)


def column(lines, name):
    return [line[name] for line in lines]


def assert_lr(ours, expected):
    """Learning rates must be equal, except for the order of operations of one formula in double."""
    lr = numpy.array(column(ours, "lr"))
    assert numpy.allclose(lr, column(expected.steps, "lr"), rtol=1e-14, atol=0), lr


def assert_weights_near(start, end, expected):
    """Each tensor's distance from the expected one is small against the way it went.

    A key's bias moves all scores of a query alike and so has no gradient; every implementation of
    Adam amplifies the rounding errors in its place, so that part is not compared."""
    before, after = load_file(start / "model.safetensors"), load_file(end / "model.safetensors")
    shares = {}
    for name, weight in expected.items():
        distance, way = after[name] - weight, weight - before[name]
        if name.endswith("attn.c_attn.bias"):
            hidden = len(distance) // 3
            distance[hidden : 2 * hidden] = 0
        shares[name] = float(distance.norm() / way.norm()) / WEIGHTS_TOLERANCE
    worst = max(shares, key=shares.get)
    print(f"final weights: {shares[worst]:.3f} of {WEIGHTS_TOLERANCE:g}, in {worst}")
    assert shares[worst] <= 1, shares


FP32_RUNS = {
    "plain": {},
    "accumulation": {"accumulation": 2},
    "untied": {"model": "untied", "accumulation": 2},
    "no clipping": {"gradient_clipping": 0.0},
    "L2": {"optimizer": {"adam_w_mode": False}},
}


@pytest.mark.parametrize("run", FP32_RUNS)
def test_fp32_is_plain_pytorch(inputs, tmp_path, run):
    changes = dict(FP32_RUNS[run])
    model = changes.pop("model", "tied")
    config = make_config(tmp_path, **changes)
    flags = ["--save", tmp_path / "saved", "--save-dtype", "fp32"]
    ours, expected = train_both(inputs, tmp_path, config, *flags, model=model)
    if "gradient_clipping" not in config:  # the norms show that clipping is active, if it is on
        assert max(column(ours, "grad_norm")) > 1.5
    assert ours[-1]["loss"] < ours[0]["loss"] - 0.3
    for name in ["loss", "grad_norm"]:
        assert_near(name, column(ours, name), column(expected.steps, name), FP32_TOLERANCE)
    assert_lr(ours, expected)
    assert_weights_near(inputs[0] / model, tmp_path / "saved", expected.weights)


SCHEDULES = {
    "log": ("WarmupLR", {"warmup_min_lr": 1e-4, "warmup_max_lr": 3e-3, "warmup_num_steps": 7}),
    "linear": ("WarmupLR", {"warmup_num_steps": 5, "warmup_type": "linear"}),
    "decay": ("WarmupDecayLR", {"warmup_num_steps": 6, "total_num_steps": 16}),
    "decay of the optimizer's lr": (
        "WarmupDecayLR",
        {"warmup_max_lr": 2e-3, "warmup_num_steps": 1, "total_num_steps": 30},
    ),
    "cosine": (
        "WarmupCosineLR",
        {"warmup_num_steps": 6, "total_num_steps": 17, "warmup_min_ratio": 0.1},
    ),
    "linear cosine": (
        "WarmupCosineLR",
        {
            "warmup_num_steps": 4,
            "total_num_steps": 40,
            "warmup_type": "linear",
            "cos_min_ratio": 0.05,
        },
    ),
    "one cycle": (
        "OneCycle",
        {
            "cycle_min_lr": 1e-4,
            "cycle_max_lr": 2e-3,
            "cycle_first_step_size": 10,
            "cycle_second_step_size": 6,
            "decay_lr_rate": 0.5,
            "decay_step_size": 3,
        },
    ),
    "range test": (
        "LRRangeTest",
        {
            "lr_range_test_min_lr": 1e-5,
            "lr_range_test_step_size": 4,
            "lr_range_test_step_rate": 2.0,
        },
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(inputs, tmp_path, name):
    kind, params = SCHEDULES[name]
    config = make_config(tmp_path, "none", scheduler={"type": kind, "params": params})
    # --steps would have to equal total_num_steps; two epochs exceed it.
    ours, expected = train_both(inputs, tmp_path, config, "--epochs", 2, steps=None)
    assert len(ours) == 30
    assert_lr(ours, expected)
    assert len(set(column(ours, "lr"))) >= 5
    for name in ["loss", "grad_norm"]:
        assert_near(name, column(ours, name), column(expected.steps, name), FP32_TOLERANCE)


def assert_overflows_are_clear(run):
    """Checks that the order of sums does not decide which gradients overflow."""
    for line, ratio in zip(run.steps, run.overflow_ratios):
        assert not 0.98 < ratio < 1.02, (line, ratio)


def assert_16_bit_run(ours, expected, first_norm_tolerance):
    """Checks that scales, overflows and learning rates agree exactly, the rest within the
    tolerances."""
    for name in ["loss_scale", "overflow"]:
        assert column(ours, name) == column(expected.steps, name)
    assert_lr(ours, expected)
    names = {"loss": LOSS_TOLERANCE_16_BIT, "grad_norm": NORM_TOLERANCE_16_BIT}
    for name, tolerance in names.items():
        pairs = zip(column(ours, name), column(expected.steps, name))
        pairs = [pair for pair in pairs if pair != (None, None)]
        assert_near(name, *zip(*pairs), tolerance)
    norms = [(a["grad_norm"], b["grad_norm"]) for a, b in zip(ours, expected.steps)]
    first = next(pair for pair in norms if pair[0] is not None)
    assert_near("first grad_norm", [first[0]], [first[1]], first_norm_tolerance)


# The first steps overflow, and growth of the scale causes more overflows.
HALF = {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 4, "hysteresis": 1}
ROUNDED_RUNS = {
    "bf16": {"bf16": {"enabled": True}},
    "bf16 accumulation": {"bf16": {"enabled": True}, "accumulation": 3},
    "bf16 accumulated in fp32": {
        "bf16": {"enabled": True},
        "accumulation": 3,
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    "bf16 untied": {"bf16": {"enabled": True}, "accumulation": 2, "model": "untied"},
    "fp16": {"fp16": HALF},
    "fp16 accumulation": {"fp16": HALF, "accumulation": 2},
    "fp16 L2": {"fp16": HALF, "optimizer": {"adam_w_mode": False}},
}


@pytest.mark.parametrize("run", ROUNDED_RUNS)
def test_16_bit_rounds_where_the_rules_say(inputs, tmp_path, run):
    changes = dict(ROUNDED_RUNS[run])
    model = changes.pop("model", "tied")
    config = make_config(tmp_path, **changes)
    config["optimizer"]["params"]["lr"] = 1e-3  # so that the two runs diverge more slowly
    flags = ["--save", tmp_path / "saved"]
    ours, expected = train_both(inputs, tmp_path, config, *flags, model=model)
    dtype = "fp16" if "fp16" in config else "bf16"
    if dtype == "fp16":
        assert_overflows_are_clear(expected)
        assert any(column(ours, "overflow")) and not all(column(ours, "overflow"))
    assert_16_bit_run(ours, expected, FIRST_NORM_TOLERANCE[dtype])
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert all(value.dtype == reference.DTYPES[dtype] for value in saved.values())


SCALERS = {
    "grows until it overflows": {"loss_scale_window": 1, "hysteresis": 1},
    "tolerates two": {"loss_scale_window": 2, "hysteresis": 3},
    "refilled by clean steps": {
        "loss_scale_window": 2,
        "hysteresis": 2,
        "consecutive_hysteresis": True,
    },
    "kept from one overflow to the next": {"loss_scale_window": 5, "hysteresis": 2},
    "down to the minimum": {
        "initial_scale_power": 22,
        "loss_scale_window": 100,
        "hysteresis": 1,
        "min_loss_scale": 98304,
    },
    "static": {"loss_scale": 4096.0},
    "static and too large": {"loss_scale": 2.0**30},
}


@pytest.mark.parametrize("name", SCALERS)
def test_loss_scale_follows_its_own_overflows(inputs, tmp_path, name):
    fp16 = {"enabled": True, "initial_scale_power": 21} | SCALERS[name]
    params = {"warmup_num_steps": 8, "warmup_type": "linear"}
    scheduler = {"type": "WarmupLR", "params": params}
    config = make_config(tmp_path, "none", fp16=fp16, scheduler=scheduler)
    done, ours = artesian(inputs, tmp_path, config)
    assert done.returncode == (name == "static and too large"), done.stderr
    scaler = reference.LossScaler(fp16)
    updates = 0
    for line in ours:
        assert line["loss_scale"] == scaler.scale, line
        assert line["lr"] == pytest.approx(reference.learning_rate(config, updates), rel=1e-14)
        assert (line["grad_norm"] is None) == line["overflow"]
        scaler.update(line["overflow"])
        updates += not line["overflow"]
    overflows = column(ours, "overflow")
    print(f"{sum(overflows)} of {STEPS} overflow, scales {sorted(set(column(ours, 'loss_scale')))}")
    assert any(overflows) == (name != "static")
    assert all(overflows) == (name == "static and too large")


def test_overflow_at_the_minimum_ends_the_run(inputs, tmp_path):
    fp16 = {"enabled": True, "initial_scale_power": 26, "hysteresis": 1, "min_loss_scale": 2**24}
    done, ours = artesian(inputs, tmp_path, make_config(tmp_path, fp16=fp16), "--quiet")
    assert done.returncode == 1
    assert column(ours, "loss_scale") == [2.0**26, 2.0**25, 2.0**24]  # the last step, too
    assert all(column(ours, "overflow"))
    errors = [line for line in done.stderr.splitlines() if line.startswith("artesian: error: ")]
    assert len(errors) == 1, done.stderr
    print(errors[0])
    assert "minimum loss scale" in errors[0] and "fp16.min_loss_scale" in errors[0]
    assert errors[0].startswith("artesian: error: step 3: gradient of wte.weight: got ")
    # the first parameter in model order
    assert set(column(ours, "overflow_parameter")) == {"wte.weight"}
    assert os.listdir(tmp_path / "nvme") == []


def test_digest_does_not_depend_on_placement_or_output(inputs, tmp_path):
    fp16 = {"enabled": True, "initial_scale_power": 20, "loss_scale_window": 3, "hysteresis": 1}
    on_disk = make_config(tmp_path, "nvme", accumulation=2, fp16=fp16)
    resident = make_config(tmp_path, "none", accumulation=2, fp16=fp16)
    resident["artesian"] = {"device_memory": "64MiB", "compute_dtype": "fp32"}
    runs = {
        "nvme": (on_disk, []),
        "nvme again": (on_disk, []),
        "none": (resident, []),
        "trace": (on_disk, ["--trace", tmp_path / "trace.json"]),
        "quiet": (resident, ["--quiet"]),
        "printing": (resident | {"steps_per_print": 1, "wall_clock_breakdown": True}, []),
    }
    outcomes = {}
    for name, (config, flags) in runs.items():
        done, lines = artesian(inputs, tmp_path, config, *flags, steps=8)
        assert done.returncode == 0, done.stderr
        assert not any("digest" in line for line in lines[:-1])
        names = ["loss", "grad_norm", "loss_scale", "lr"]
        outcomes[name] = (lines[-1]["digest"], [[line[name] for name in names] for line in lines])
    assert json.loads((tmp_path / "trace.json").read_text())
    for name, outcome in outcomes.items():
        assert outcome == outcomes["nvme"], name
    assert len(outcomes["nvme"][0]) == 32
    done, lines = artesian(inputs, tmp_path, resident, steps=7)
    assert done.returncode == 0 and lines[-1]["digest"] != outcomes["nvme"][0]


def test_auto_computes_in_what_the_log_says(inputs, tmp_path):
    digests, logs = {}, {}
    for dtype in ["auto", "bf16", "fp32"]:
        config = make_config(tmp_path, "nvme", bf16={"enabled": True})
        config["artesian"]["compute_dtype"] = dtype
        done, lines = artesian(inputs, tmp_path, config, steps=3)
        assert done.returncode == 0, done.stderr
        digests[dtype], logs[dtype] = lines[-1]["digest"], done.stderr
    assert digests["bf16"] != digests["fp32"]
    (chosen,) = [
        dtype
        for dtype in ["bf16", "fp32"]
        if f"artesian.compute_dtype: {dtype}, chosen here; parameters are bf16" in logs["auto"]
    ]
    assert digests["auto"] == digests[chosen]
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    if "AuthenticAMD" in processor and "avx512_bf16" in processor:
        assert chosen == "bf16"
    elif "amx_bf16" not in processor:  # with it, the kernel may still refuse
        assert chosen == "fp32"
