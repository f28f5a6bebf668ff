"""Proves that `artesian plan` answers without running anything: its figures are those of formulas
computed here anew, from config.json and ds.json alone; what a run then moves is what was said; what
does not fit is refused with the bytes missing; and several GPUs, 405 billion parameters among them,
are planned as quickly. No test asserts a time that was measured."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree

import pytest
from build_folder import ARTESIAN

pytestmark = pytest.mark.skipif(not ARTESIAN.exists(), reason="artesian is not built")

LLAMA = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_405B = LLAMA | {
    "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}  # fmt: skip
# Rates are given, not measured, so that the plan is the same on every machine.
RATES = ["--tflops", "0.5", "--memory-bandwidth", "10", "--nvme-read", "2", "--nvme-write", "1"]
MIB = 1 << 20
SLOTS = "512KiB"  # device memory for gathered parameters, without homes


def parameters(model):
    """Returns the elements of (embedding, a block, final norm, head)."""
    hidden, inner, vocabulary = (
        model[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    key = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    block = 2 * hidden * hidden + 2 * hidden * key + 3 * hidden * inner + 2 * hidden
    return vocabulary * hidden, block, hidden, vocabulary * hidden


def total(model):
    embedding, block, norm, head = parameters(model)
    return embedding + model["num_hidden_layers"] * block + norm + head


@pytest.fixture
def job(tmp_path):
    """Writes model and config into tmp_path; returns a function that plans them."""

    def plan(*flags, model=None, config=None, code=0, rates=RATES):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(LLAMA | (model or {})))
        (tmp_path / "ds.json").write_text(json.dumps(ds_config(tmp_path) | (config or {})))
        command = [ARTESIAN, "plan", "--config", tmp_path / "ds.json", *rates, *flags]
        if "--params" not in flags:
            command += ["--model", folder]
        done = subprocess.run(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr + done.stdout
        return done

    return plan


@pytest.fixture
def figures(job):
    def plan(*flags, **settings):
        done = job("--json", "-", *flags, **settings)
        return json.loads(done.stdout)

    return plan


def ds_config(tmp_path, offload="nvme", **artesian):
    offload = {"device": offload, "nvme_path": str(tmp_path / "nvme")}
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": offload | {"max_in_cpu": 0},
            "offload_optimizer": offload,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
        },
        # Micro-batches run one after the other unless a test says otherwise; computed in fp32 on
        # every processor.
        "artesian": {
            "device_memory": "64MiB", "host_memory": "1MiB", "activation_memory": 1,
            "compute_dtype": "fp32",
        } | artesian,
    }


def image(*parameters):
    """Returns the elements of a unit: each parameter begins, and the unit ends, at a multiple of
    2048."""
    return sum((numel + 2047) // 2048 * 2048 for numel in parameters)


def images(model):
    """Returns the elements of (the embedding, all blocks, final norm and head)."""
    hidden, inner, vocabulary = (
        model[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    key = hidden // model["num_attention_heads"] * model["num_key_value_heads"]
    attention = [hidden * hidden] * 2 + [hidden * key] * 2
    block = image(*attention, *[hidden * inner] * 3, hidden, hidden)
    table = vocabulary * hidden
    return image(table), model["num_hidden_layers"] * block, image(hidden, table)


def test_bytes_are_the_closed_form(figures, tmp_path):
    artesian = ds_config(tmp_path, speculative_update=False, device_memory=SLOTS)["artesian"]
    # bf16, so that the bytes of gradients in host memory do not depend on the number of
    # micro-batches.
    under_forward = {"artesian": artesian, "data_types": {"grad_accum_dtype": "bf16"}}
    for micro_batches in [1, 2, 4, 8]:
        plan = figures(config=under_forward | {"gradient_accumulation_steps": micro_batches})
        embedding, blocks, head = images(LLAMA)
        elements = embedding + blocks + head
        # Forward and backward read all parameters, except the table, which backward does not need,
        # and except those that the update gives to the first forward. The update reads the old
        # parameters, which are the upper halves of the master weights.
        fetched = 2 * (2 * (blocks + head) + embedding) * micro_batches
        moved = plan["bytes_per_step"]
        assert moved["nvme_read"]["param"] == fetched
        state = plan["memory"]["nvme"]["optimizer"]  # the rest of the state is in spare host memory
        assert 0 < state < 10 * elements
        assert moved["nvme_read"]["optimizer"] == state
        assert moved["nvme_write"] == {
            "param": 2 * elements, "grad": 0, "optimizer": state, "input": 0,
            "total": 2 * elements + state,
        }  # fmt: skip
        assert moved["nvme_read"]["total"] == fetched + state
        written = moved["nvme_write"]["total"]
        assert plan["ssd_tb_written_per_1000_steps"] == pytest.approx(written * 1e-9)


@pytest.mark.parametrize("micro_batches", [1, 4, 8])
@pytest.mark.parametrize("kept", [60_000, 110_000])
def test_what_host_memory_keeps_is_not_in_the_closed_form(figures, tmp_path, micro_batches, kept):
    config = ds_config(tmp_path, speculative_update=False, device_memory=SLOTS)
    config["zero_optimization"]["offload_param"] = {
        "device": "nvme", "nvme_path": str(tmp_path / "nvme"), "max_in_cpu": kept,
    }  # fmt: skip
    config |= {"data_types": {"grad_accum_dtype": "bf16"}}
    plan = figures(config=config | {"gradient_accumulation_steps": micro_batches})
    embedding, blocks, head = images(LLAMA)
    memory, moved = plan["memory"], plan["bytes_per_step"]
    resident = memory["host"]["param"]  # without the embedding, which backward does not read
    assert 0.8 * 2 * kept < resident < 2 * kept
    fetched = 2 * (2 * (blocks + head) + embedding) - 2 * resident
    assert moved["nvme_read"]["param"] == fetched * micro_batches
    assert moved["nvme_write"]["param"] == 2 * (embedding + blocks + head) - resident
    state = memory["nvme"]["optimizer"]
    assert moved["nvme_read"]["optimizer"] == moved["nvme_write"]["optimizer"] == state


def test_memory_is_that_of_the_formulas(figures, tmp_path):
    plan = figures(config={"artesian": ds_config(tmp_path, device_memory=SLOTS)["artesian"]})
    elements = sum(images(LLAMA))
    memory = plan["memory"]
    assert plan["model"]["parameters"] == total(LLAMA)
    assert memory["nvme"]["param"] == 2 * elements
    assert memory["nvme"]["optimizer"] + memory["host"]["optimizer"] == 10 * elements
    assert memory["host"]["grad"] == 2 * elements
    assert (memory["device"]["budget"], memory["host"]["budget"]) == (MIB // 2, MIB)
    for tier in ["device", "host", "nvme"]:
        parts = ["param", "grad", "optimizer", "gathered", "buffers", "input"]
        assert memory[tier]["used"] == sum(memory[tier][part] for part in parts)
    for tier in ["device", "host"]:
        assert 0 < memory[tier]["used"] <= memory[tier]["budget"]
    tokens = 2 * 128
    width, inner, layers = 64, 192, 3
    assert memory["activations"] == 4 * tokens * (
        (8 * width + 3 * inner) * layers + 512 + 4 * width + width
    )


def test_time_follows_from_the_given_rates(figures, tmp_path):
    on_nvme = {"artesian": ds_config(tmp_path, device_memory=SLOTS)["artesian"]}
    plan = figures(config=on_nvme)
    step, moved = plan["step"], plan["bytes_per_step"]
    tokens = 2 * 128
    _, block, norm, head = parameters(LLAMA)
    weights = 3 * (block - 2 * 64) + head  # matrices only
    flops = tokens * (6 * weights + 12 * 3 * 64 * 128)
    assert step["tokens"] == tokens
    assert step["model_seconds"] == pytest.approx(flops / 0.5e12, rel=1e-6)
    assert step["tokens_per_s"] == pytest.approx(tokens / step["seconds"])
    assert step["tflops"] == pytest.approx(flops / step["seconds"] * 1e-12, rel=1e-6)
    read, written = moved["nvme_read"]["total"] / 2e9, moved["nvme_write"]["total"] / 1e9
    assert step["busy_s"]["nvme_read"] == pytest.approx(read)
    assert step["busy_s"]["nvme_write"] == pytest.approx(written)
    # Not faster than the disk, which reads and writes share, and not slower than everything in
    # sequence.
    busy = sum(step["busy_s"].values())
    assert read + written <= step["seconds"] <= busy
    assert 0 <= step["compute_idle_share"] < 1
    assert step["bottleneck"] == "NVMe"
    slow = figures(rates=["--tflops", "0.001", *RATES[2:]])["step"]
    assert slow["bottleneck"] == "compute" and slow["compute_idle_share"] < 0.5


def test_a_run_moves_what_was_planned(job, figures, tmp_path):
    config = {"gradient_accumulation_steps": 2}
    plan = figures("--seq-len", "32", config=config)
    (tmp_path / "tokens.bin").write_bytes(
        b"".join((7 * i % 512).to_bytes(2, "little") for i in range(4000))
    )
    done = subprocess.run(
        [ARTESIAN, "train", "--model", "model", "--config", "ds.json", "--data", "tokens.bin",
         "--seq-len", "32", "--steps", "4", "--quiet", "--log-jsonl", "log.jsonl"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    for step in steps[2:]:
        for key in ["nvme_read", "nvme_write", "h2d", "d2h"]:
            assert step["bytes"][key] == plan["bytes_per_step"][key]["total"], key
        device = plan["memory"]["device"]
        assert step["peak"]["device"] == device["used"]


def test_changes_are_plans_of_their_own(figures):
    plan = figures()
    assert 1 <= len(plan["changes"]) <= 3
    gains = [change["gain"] for change in plan["changes"]]
    assert gains == sorted(gains, reverse=True) and gains[-1] >= 0.01
    for change in plan["changes"]:
        assert change["tokens_per_s"] == pytest.approx(
            plan["step"]["tokens_per_s"] * (1 + change["gain"])
        )
    larger = "train_micro_batch_size_per_gpu (and train_batch_size)"
    change = next(change for change in plan["changes"] if change["key"] == larger)
    changed = figures(config={"train_micro_batch_size_per_gpu": int(change["to"])})
    assert changed["step"]["seconds"] == pytest.approx(change["step_seconds"])


def test_candidates_come_fastest_first_and_keep_the_batch(figures):
    plan = figures(config={"gradient_accumulation_steps": 4})
    rates = [candidate["tokens_per_s"] for candidate in plan["candidates"]]
    assert rates == sorted(rates, reverse=True) and len(rates) > 1
    for candidate in plan["candidates"]:
        micro = candidate["train_micro_batch_size_per_gpu"]
        assert micro * candidate["gradient_accumulation_steps"] == 8
    assert plan["candidates"][0]["offload_optimizer"] != "nvme"


def test_people_read_a_table_and_programs_one_object(job):
    text = job().stdout
    for word in ["memory of a rank", "bytes of a step", "predicted step", "tokens/s", "bottleneck",
                 "written to SSD", "a checkpoint", "what would help most",
                 "what fits, fastest first"]:  # fmt: skip
        assert word in text, word
    assert "bf16, computed in fp32, gradients in bf16; ZeRO stage 3, parameters on nvme, " in text
    assert "given" in text and "measured" not in text
    done = job("--json", "-")
    assert done.stderr == ""
    assert set(json.loads(done.stdout)) == {
        "model", "target", "planned", "memory", "bytes_per_step", "step", "changes", "candidates",
        "ssd_tb_written_per_1000_steps", "checkpoint", "advice", "notes", "rates",
    }  # fmt: skip


def test_a_plan_says_what_checkpoints_take(figures):
    plan = figures()
    saved = plan["checkpoint"]
    assert saved["bytes"] >= 12 * plan["model"]["parameters"]
    assert saved["bytes_keep_1"] == 2 * saved["bytes"]
    assert saved["bytes_keep_2"] == 3 * saved["bytes"]
    assert saved["save_seconds"] > 0
    assert saved["stop_seconds"] == pytest.approx(
        saved["save_seconds"] + plan["step"]["seconds"])  # fmt: skip


def test_notes_of_the_config_are_notes_of_the_plan(figures):
    plan = figures(config={"wall_clock_breakdown": False, "prescale_gradients": False})
    for begin in ["gradient_clipping: absent: 1, ", "prescale_gradients: accepted, has no effect"]:
        assert any(note.startswith(begin) for note in plan["notes"]), plan["notes"]
    assert plan["planned"]["param_dtype"] == plan["planned"]["grad_accum_dtype"] == "bf16"
    wide = figures(config={"data_types": {"grad_accum_dtype": "fp32"}})
    assert wide["planned"]["grad_accum_dtype"] == "fp32"
    many = figures(config={"gradient_accumulation_steps": 8})
    assert many["planned"]["grad_accum_dtype"] == "fp32"
    assert any(note.startswith("data_types.grad_accum_dtype: ") for note in many["notes"])


def test_rates_say_where_they_come_from(figures):
    rates = {rate["name"]: rate for rate in figures()["rates"]}
    assert rates["nvme_read"] == {
        "name": "nvme_read", "value": 2.0, "unit": "GB/s", "source": "given",
    }  # fmt: skip
    measured = {rate["name"]: rate for rate in figures(rates=[])["rates"]}
    assert measured["compute"]["source"].startswith("measured: one block and the head")
    assert measured["compute"]["value"] > 0 and measured["cpu_kernels"]["value"] > 0
    assert measured["nvme_read"]["source"].startswith(("assumed", "measured"))


def test_a_gpus_kinds_of_work_have_rates_of_their_own(figures):
    given = {"attention": "--attention-tflops", "device_memory": "--device-bandwidth",
             "launch": "--launch"}  # fmt: skip
    plan = figures("--gpus", "1")
    assumed = {rate["name"]: rate for rate in plan["rates"]}
    assert [assumed[name]["value"] for name in given] == [0.25, 2000, 5]
    for name, flag in given.items():
        # So small a model mostly waits for launches, so the other rates show only where launches
        # cost nothing.
        others = [] if name == "launch" else ["--launch", "1e-6"]
        times = [
            figures("--gpus", "1", *others, flag, str(value))["step"]["model_seconds"]
            for value in (1e-3, 1e3)
        ]
        slower, faster = times if name != "launch" else reversed(times)
        assert slower > 2 * faster, name


def test_what_does_not_fit_is_refused_with_the_bytes_missing(job):
    small = {"artesian": {"device_memory": "16KiB", "host_memory": "64MiB"}}
    done = job(config=small, code=2)
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1
    assert errors[0].startswith("artesian: error: artesian.device_memory: got 16.0 KiB, allowed")
    assert " bytes missing for " in errors[0]
    larger = job("--device-memory", "64MiB", config=small)
    assert larger.stderr == ""
    replaced = "--device-memory: planned with 64.0 MiB, in place of the config's "
    assert replaced + "artesian.device_memory, 16.0 KiB" in larger.stdout


def test_what_fits_instead_is_said_whole(job, tmp_path):
    in_memory = ds_config(tmp_path, offload="cpu")["zero_optimization"]
    memory = {"device_memory": "64MiB", "host_memory": "700KiB"}
    done = job(config={"zero_optimization": in_memory, "artesian": memory}, code=2)
    hint = next(line for line in done.stderr.splitlines() if "what fits, and is fastest: " in line)
    assert re.search(r"fastest: .*, micro-batch [12] x [12]$", hint), hint


def test_a_gpu_holds_activations_beside_the_tier(job, figures):
    flags = ["--gpus", "1", "--device-memory", "4GiB", "--seq-len", "128"]
    config = {"artesian": {"device_memory": "1GiB"}}
    plan = figures(*flags, config=config)
    assert plan["memory"]["device"]["budget"] == 1 << 30
    rest = figures(*flags, config={"artesian": {}})
    left = (4 << 30) - (1 << 30) - rest["memory"]["activations"]
    assert rest["memory"]["device"]["budget"] == left
    assert any(note.startswith("artesian.device_memory: planned with ") for note in rest["notes"])
    config["artesian"]["device_memory"] = left + 1
    done = job(*flags, config=config)  # activation_checkpointing makes room
    assert "activation_checkpointing: planned with it" in done.stdout
    config["artesian"]["device_memory"] = 3 << 30
    done = job(*flags, config=config, code=2)
    assert "artesian: error: artesian.device_memory: got 3.00 GiB beside " in done.stderr
    assert " bytes missing; lower it" in done.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--measure", "--gpus", "2"], "--measure: got --gpus and --nodes for 2 ranks, allowed "),
        (["--params", "7e9", "--model", "x"], "--model: got both --model and --params, allowed "),
        (["--params", "12"], '--params: got "12", allowed a number above '),
        (["--params", "1e9x"], '--params: got "1e9x", allowed a number above '),
        (["--gpus", "0"], '--gpus: got "0", allowed a whole number of at least 1; '),
        (["--nodes", "2"], '--nodes: got "2" without --gpus or --ranks, allowed it with one '),
        (["--disks", "2"], '--disks: got "2" without --gpus, allowed it with --gpus N alone; '),
        (["--ranks", "2", "--gpus", "2"], "--ranks: got both --gpus and --ranks, allowed --gpus "),
        (["--measure", "--ranks", "2"], "--measure: got --ranks and --nodes for 2 ranks, allowed "),
        (["--launch", "5"], '--launch: got "5" without --gpus, allowed it with --gpus N alone; '),
        (["--gpus", "1", "--launch", "-1"], '--launch: got "-1", allowed a number above 0'),
        (["--gpus", "1000000", "--nodes", "1000"], "--gpus: got 1000000000 ranks with --nodes, "),
        (["--device-memory", "much"], '--device-memory: got "much", allowed a size '),
        (["--nvme-read", "-1"], '--nvme-read: got "-1", allowed a number above 0'),
        (["--tflops", "nan"], '--tflops: got "nan", allowed a number above 0'),
        (["--json", "file"], '--json: got "file", allowed -; '),
        (["--plot", "picture.png"], '--plot: got "picture.png", allowed a name that ends in .svg'),
        (["--seq-len", "129"], "--seq-len: got 129, allowed 1 to 128, the model's positions"),
        (["--bogus"], "--bogus: got an unknown flag, allowed are those of artesian plan --help"),
    ],
)
def test_wrong_flags_are_one_line(job, flags, expected):
    done = job(*flags, rates=[] if flags[0] in RATES else RATES, code=2)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"artesian: error: {expected}"), done.stderr


def test_the_fastest_are_run_and_leave_nothing_behind(job, tmp_path):
    done = json.loads(job("--measure", "--json", "-").stdout)
    measured = [each["measured_step_seconds"] for each in done["candidates"]]
    assert [seconds is not None for seconds in measured] == [True] * 3 + [False] * (
        len(measured) - 3
    )
    assert all(seconds > 0 for seconds in measured[:3])
    assert list((tmp_path / "nvme").glob("*")) == []
    assert "; measured " in job("--measure").stdout
    plain = json.loads(job("--json", "-").stdout)
    assert all(each["measured_step_seconds"] is None for each in plain["candidates"])


def test_what_cannot_be_run_is_passed_over_and_said(job):
    # The device has no room for all parameters, and the config names no folder.
    zero = {"stage": 3} | dict.fromkeys(["offload_param", "offload_optimizer"], {"device": "cpu"})
    memory = {"device_memory": "600KiB", "host_memory": "64MiB", "compute_dtype": "fp32"}
    done = job("--measure", config={"zero_optimization": zero, "artesian": memory})
    assert "on nvme was not run: the config names no nvme_path" in done.stdout
    assert done.stdout.count("; measured ") == 1


ONLY_NVME = {"device_memory": "600KiB", "host_memory": "1MiB"}


def test_a_folder_that_cannot_be_written_ends_the_measurement_and_not_the_plan(job, tmp_path):
    (tmp_path / "nvme").write_text("a file")
    done = job("--measure", config={"artesian": ONLY_NVME}, code=1)
    assert "predicted step" in done.stdout and "; measured " not in done.stdout
    assert "artesian: error: zero_optimization.offload_" in done.stderr, done.stderr


def test_a_run_on_the_same_folder_ends_the_measurement_and_not_the_plan(job, tmp_path):
    job(config={"artesian": ONLY_NVME})
    (tmp_path / "text").write_text("a line of text\n" * 1000)
    command = [
        ARTESIAN, "train", "--init", "--model", "model", "--data", "text", "--config", "ds.json",
        "--seq-len", "16", "--steps", "1000000", "--log-jsonl", "steps",
    ]  # fmt: skip
    (tmp_path / "nvme").mkdir()
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            steps = tmp_path / "steps"
            while running.poll() is None and not (steps.exists() and steps.read_text()):
                time.sleep(0.05)
            done = job("--measure", config={"artesian": ONLY_NVME}, code=1)
        finally:
            running.kill()
    assert "predicted step" in done.stdout
    assert f"in use by pid {running.pid}" in done.stderr, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once_while_it_plans(job, tmp_path, number, code):
    job()
    command = [ARTESIAN, "plan", "--params", "1e9", "--config", "ds.json", *RATES[2:]]  # seconds
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert "measuring one block" in running.stderr.readline()
        running.send_signal(number)
        text, _ = running.communicate(timeout=60)
    assert running.returncode == code
    assert text == ""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, and a function that changes its size."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(*options):
        return subprocess.run(["mount", *options, folder], capture_output=True).returncode == 0

    if not mount("-t", "tmpfs", "-o", "size=80m", "tmpfs"):
        pytest.skip("needs root to mount a file system")
    yield folder, lambda size: mount("-o", f"remount,size={size}")
    subprocess.run(["umount", folder], check=True)


def test_what_the_disk_turns_out_to_have_no_room_for_is_passed_over(job, tmp_path, small_disk):
    folder, resize = small_disk
    wide = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8,
            "num_key_value_heads": 4}  # fmt: skip
    memory = {"device_memory": "8MiB", "host_memory": "24MiB", "compute_dtype": "fp32"}
    config = ds_config(folder) | {"artesian": memory}
    job(model=wide, config=config)  # this model fits
    command = [ARTESIAN, "plan", "--model", "model", "--config", "ds.json", "--measure", *RATES[2:]]
    running = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # the plan has checked the disk by then
    assert "measuring one block" in running.stderr.readline()
    assert resize("8m")
    text, errors = running.communicate()
    assert running.returncode == 0, errors
    assert "--measure: ZeRO-Infinity, optimizer on nvme was not run: " in text
    assert "nvme directory is too full" in text
    assert "; measured " not in text


def test_files_that_are_missing_are_named(tmp_path):
    done = subprocess.run([ARTESIAN, "plan"], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.returncode == 2 and len(lines) == 2
    assert lines[0].startswith("artesian: error: --model: got nothing, allowed ")
    assert lines[1].startswith("artesian: error: --config: got nothing, allowed a path; ")
    command = [ARTESIAN, "plan", "--model", tmp_path, "--config", tmp_path / "ds.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("artesian: error: --model: ")


def test_a_picture_is_well_formed(job, tmp_path):
    on_nvme = {"artesian": ds_config(tmp_path, device_memory=SLOTS)["artesian"]}
    job("--plot", "plan.svg", config=on_nvme)
    root = xml.etree.ElementTree.parse(tmp_path / "plan.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    words = {text.text for text in root.iter(f"{space}text")}
    assert {"device", "host", "nvme", "compute", "NVMe read", "NVMe write"} <= words
    titles = [title.text for title in root.iter(f"{space}title")]
    assert any(title.startswith("optimizer state: ") for title in titles)
    assert any(title.startswith("forward, backward: ") for title in titles)


@pytest.mark.parametrize("target", ["no/such/folder.svg", "ds.json/plan.svg", "folder.svg"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(
    job, tmp_path, target
):
    (tmp_path / "folder.svg").mkdir()
    done = job("--plot", target, rates=[], code=2)
    assert done.stdout == ""
    assert done.stderr == (
        f'artesian: error: --plot: got "{target}", allowed a file in a folder that is there and '
        "writable; name another\n"
    )


def test_a_picture_replaces_the_one_before_as_a_whole(job, tmp_path):
    (tmp_path / "real.svg").write_text("old")
    (tmp_path / "plan.svg").symlink_to("real.svg")
    text = job("--plot", "plan.svg").stdout
    assert "what fits, fastest first" in text
    assert (tmp_path / "plan.svg").is_symlink()
    assert (tmp_path / "real.svg").read_text().startswith("<svg ")
    assert sorted(path.name for path in tmp_path.glob("*.svg*")) == ["plan.svg", "real.svg"]


@pytest.mark.parametrize("kind", ["WarmupDecayLR", "WarmupCosineLR"])
@pytest.mark.parametrize("steps", [{}, {"total_num_steps": "auto"}, {"total_num_steps": 77}])
def test_a_schedule_may_leave_its_end_to_the_run(figures, kind, steps):
    params = {"warmup_num_steps": "auto"} | steps
    plan = figures(config={"scheduler": {"type": kind, "params": params}})
    assert plan["step"] == figures()["step"]


def test_a_schedule_that_is_wrong_is_refused(job):
    params = {"total_num_steps": 0}
    done = job(config={"scheduler": {"type": "WarmupDecayLR", "params": params}}, code=2)
    assert "scheduler.params.total_num_steps: got 0, allowed an integer " in done.stderr


def test_activations_beyond_memory_are_refused_with_the_bytes_missing(job):
    done = job(config={"train_micro_batch_size_per_gpu": 1_000_000}, code=2)
    assert done.stdout == ""
    error = next(line for line in done.stderr.splitlines() if ": error: " in line)
    assert error.startswith("artesian: error: train_micro_batch_size_per_gpu: got "), error
    assert re.search(r"the available memory: \d+ bytes missing; lower it", error), error


def test_budgets_beyond_memory_are_no_fault_where_less_is_used(figures, tmp_path):
    artesian = {"device_memory": "1024GiB", "host_memory": "1024GiB", "compute_dtype": "fp32"}
    in_memory = ds_config(tmp_path, offload="cpu")["zero_optimization"]
    plan = figures(config={"artesian": artesian, "zero_optimization": in_memory})
    assert plan["candidates"]
    assert plan["memory"]["host"]["used"] < 100 * MIB


def test_free_space_is_the_budget_of_nvme(figures, tmp_path):
    on_nvme = {"artesian": ds_config(tmp_path, device_memory=SLOTS)["artesian"]}
    plan = figures(config=on_nvme)
    space = os.statvfs(tmp_path)
    free = space.f_bavail * space.f_frsize
    assert plan["memory"]["nvme"]["budget"] == pytest.approx(free, rel=0.2)
    assert figures("--gpus", "1")["memory"]["nvme"]["budget"] is None


def test_a_disk_that_is_too_small_is_refused_with_the_bytes_missing(job, figures, tmp_path):
    memory = pathlib.Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        pytest.skip("needs a small file system")
    space = os.statvfs(memory)
    free = space.f_bavail * space.f_frsize
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
            "num_key_value_heads": 8}  # fmt: skip
    layers = free // (12 * 16 * 1024 * 1024) + 8  # bytes of a block
    if layers > 4000:
        pytest.skip("needs a small file system")
    model = wide | {"num_hidden_layers": layers}
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        config = ds_config(pathlib.Path(folder), device_memory="512MiB", host_memory="512MiB")
        config["artesian"]["speculative_update"] = False
        done = job(model=model, config=config, code=2)
        assert done.stdout == ""
        error = next(line for line in done.stderr.splitlines() if ": error: " in line)
        key = "zero_optimization.offload_optimizer.nvme_path"
        found = re.fullmatch(
            rf"artesian: error: {re.escape(key)}: got .* free in {folder}/nvme, allowed at least "
            r"(\d+) bytes \(.*\): (\d+) bytes missing for the swap files; .*", error)  # fmt: skip
        assert found, error
        needed, missing = map(int, found.groups())
        assert missing == pytest.approx(needed - free, rel=0.1)
        assert os.listdir(folder) == []
        # With GPUs, nothing is assumed about the space on the disk.
        plan = figures("--gpus", "1", model=model, config=config | {"artesian": {
            "device_memory": "512MiB", "host_memory": "2GiB", "speculative_update": False,
        }})  # fmt: skip
        assert plan["memory"]["nvme"]["used"] > free


def test_parameters_and_optimizer_state_may_have_a_disk_each(figures, tmp_path):
    zero = ds_config(tmp_path)["zero_optimization"]
    zero["offload_param"] = zero["offload_param"] | {"nvme_path": str(tmp_path / "other")}
    memory = ["--device-memory", "2GiB", "--host-memory", "4MiB"]
    deep = {"num_hidden_layers": 24}
    settings = {"model": deep, "config": {"zero_optimization": zero}}
    plan = figures("--gpus", "1", *memory, rates=RATES[:4], **settings)
    rates = {rate["name"]: rate for rate in plan["rates"]}
    assert rates["nvme_read"]["source"].endswith("; of offload_optimizer.nvme_path")
    assert rates["param_nvme_read"]["source"].endswith("; of offload_param.nvme_path")
    moved, busy = plan["bytes_per_step"], plan["step"]["busy_s"]
    for link, name in [("read", "nvme_read"), ("write", "nvme_write")]:
        state = moved[name]["optimizer"]
        rest = moved[name]["total"] - state
        assert state > 0 and rest > 0
        assert busy[name] == pytest.approx(state / rates[name]["value"] * 1e-9), link
        assert busy[f"param_{name}"] == pytest.approx(rest / rates[name]["value"] * 1e-9), link
    # Parameters and optimizer state are on one disk here, for which each given rate holds.
    names = {rate["name"] for rate in figures(**settings)["rates"]}
    assert "param_nvme_read" not in names


def test_bf16_is_offered_as_it_would_compute(figures):
    flags = ["--gpus", "1", "--device-memory", "4GiB", "--host-memory", "4GiB"]
    flags += ["--memory-bandwidth", "1000", "--link", "1000", "--seq-len", "128"]
    memory = {"device_memory": "1GiB", "host_memory": "1GiB"}
    common = {"zero_optimization": {"stage": 3}, "artesian": memory}
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    settings = {"model": wide, "rates": []}
    plan = figures(*flags, config=common | {"bf16": {"enabled": False}}, **settings)
    rates = {rate["name"]: rate["value"] for rate in plan["rates"]}
    assert (rates["compute"], rates["compute_bf16"]) == (50, 400)
    change = next(each for each in plan["changes"] if each["key"] == "bf16.enabled")
    changed = figures(*flags, config=common, **settings)
    assert change["step_seconds"] == pytest.approx(changed["step"]["seconds"])
    assert "compute_bf16" not in {rate["name"] for rate in changed["rates"]}


def test_bf16_is_measured_where_it_computes_otherwise(figures):
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    amd = "AuthenticAMD" in cpu and "avx512_bf16" in cpu
    for dtype, measured in [("fp32", False), ("auto", amd or "amx_bf16" in cpu)]:
        memory = {"device_memory": "64MiB", "host_memory": "1MiB", "compute_dtype": dtype}
        config = {"bf16": {"enabled": False}, "artesian": memory}
        rates = {rate["name"]: rate for rate in figures(config=config, rates=RATES[2:])["rates"]}
        assert ("compute_bf16" in rates) == measured
        if measured:
            assert rates["compute_bf16"]["source"].startswith("measured: one block and the head")
            assert rates["compute_bf16"]["value"] > 0


def test_buckets_of_deepspeed_are_advised_of(figures):
    zero = {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 2e8,
            "reduce_bucket_size": "auto"}  # fmt: skip
    plan = figures("--gpus", "8", config={"zero_optimization": zero, "artesian": {}})
    advice = next(line for line in plan["advice"] if "overlap_comm" in line)
    assert f"{4.5 * (2e8 + 64 * 64) * 2e-9:.3g} GB of each GPU" in advice
    plan = figures("--gpus", "8", config={"zero_optimization": {"stage": 2}, "artesian": {}})
    assert not any("overlap_comm" in line for line in plan["advice"])


def test_a_size_becomes_a_llama(figures):
    flags = ["--params", "7e9", "--gpus", "1", "--seq-len", "2048"]
    plan = figures(*flags, "--host-memory", "200GB", rates=RATES[:4], config={"artesian": {}})
    assert plan["model"]["parameters"] == pytest.approx(7e9, rel=0.02)
    assert plan["model"]["type"] == "llama" and "vocabulary 32000" in plan["model"]["chosen"]


def test_inputs_go_to_tiers_where_nothing_else_fits(job, figures):
    flags = ["--params", "7e9", "--gpus", "1", "--seq-len", "4096", "--host-memory", "200GB"]
    small = {"train_micro_batch_size_per_gpu": 1, "artesian": {}}

    def planned(device, checkpointing, run=figures):
        memory = ["--device-memory", str(device)]
        return run(*flags, *memory, rates=RATES[:4], config=small | checkpointing)

    def section(key):
        return {"activation_checkpointing": {key: True}}

    roomy = 80_000_000_000
    kept, in_tiers = (
        planned(roomy, section(key))["memory"]["activations"]
        for key in ["partition_activations", "cpu_checkpointing"]
    )
    cuda = 1 << 30
    assert in_tiers < kept
    plan = planned(kept + cuda, {})  # one byte too little for inputs that stay on the device
    assert plan["memory"]["activations"] == in_tiers
    assert plan["memory"]["host"]["input"] > 0
    note = next(note for note in plan["notes"] if note.startswith("activation_checkpointing: "))
    assert note.endswith('set "activation_checkpointing": {"cpu_checkpointing": true}')
    assert plan["candidates"]
    for candidate in plan["candidates"]:
        assert candidate["activation_checkpointing"] and candidate["cpu_checkpointing"]
    text = planned(kept + cuda, {}, job).stdout
    assert ", activation_checkpointing.cpu_checkpointing, micro-batch 1 x 1" in text
    # The setting that the note recommends gives the same plan.
    assert planned(kept + cuda, section("cpu_checkpointing"))["step"] == plan["step"]


def test_405_billion_parameters_on_512_gpus(figures, tmp_path):
    flags = ["--gpus", "8", "--nodes", "64", "--seq-len", "8192", "--tflops", "400"]
    config = {"train_micro_batch_size_per_gpu": 1, "artesian": {}}
    plan = figures(*flags, model=LLAMA_405B, config=config, rates=RATES[2:])
    assert plan["target"] == {"device": "gpu", "gpus": 8, "nodes": 64, "ranks": 512}
    elements = total(LLAMA_405B)
    assert plan["model"]["parameters"] == elements
    state, host = plan["memory"]["nvme"], plan["memory"]["host"]
    # With all of it in host memory and max_in_cpu 0, the old parameters are on NVMe, so whole
    # weights move fewer bytes.
    assert state["optimizer"] == 0
    assert host["optimizer"] == pytest.approx(12 * elements / 512, rel=0.001)
    assert state["param"] == pytest.approx(2 * elements / 512, rel=0.001)
    # Each rank receives all parameters but its share, twice: nothing is kept in between.
    embedding, _, head = images(LLAMA_405B)
    bus = plan["bytes_per_step"]["bus"]["param"]
    assert bus == pytest.approx(2 * (2 * elements - embedding) * 511 / 512, rel=0.001)
    assert plan["step"]["tokens"] == 512 * 8192
    assert any(note.startswith("activation_checkpointing: ") for note in plan["notes"])


def test_more_ranks_need_less_memory_of_each(figures):
    used = []
    for gpus in ["1", "4"]:
        plan = figures("--gpus", gpus, "--device-memory", "4GB", "--host-memory", "1GB")
        used.append(plan["memory"]["nvme"]["optimizer"])
    assert used[1] == pytest.approx(used[0] / 4, rel=0.15)  # equal except for padding


def test_shapes_that_no_matrix_unit_likes_are_named(figures):
    advice = figures(model={"vocab_size": 500})["advice"]
    assert "vocabulary: 500 is no multiple of 16, which matrix units want; 512 is" in advice


def test_a_model_far_larger_than_host_memory_is_planned_as_quickly(job):
    """If each ring between the longest and the shortest were tried with all residents, planning
    would take hours."""
    done = job("--params", "7e9", "--gpus", "1", "--host-memory", "2GiB", "--json", "-",
               config={"artesian": {}})  # fmt: skip
    assert json.loads(done.stdout)["memory"]["host"]["used"] <= 2 << 30


def test_item_10_two_offloads_may_be_one_change(figures, tmp_path):
    """Of 3 billion parameters on a GPU, all in host memory, one of the two elsewhere gains little.
    Of all on NVMe it is one: a GPU's spare memory keeps the state of parameters that are there.
    """
    config = ds_config(tmp_path, "cpu") | {"artesian": {}}
    found = figures("--params", "3e9", "--gpus", "1", rates=[], config=config)
    assert found["changes"][0]["key"] == (
        "zero_optimization.offload_param.device and offload_optimizer.device"
    )
    assert found["changes"][0]["gain"] > 1.0
    found = figures("--params", "3e9", "--gpus", "1", rates=[], config={"artesian": {}})
    assert found["changes"][0]["key"] == "zero_optimization.offload_param.device"
    assert found["changes"][0]["gain"] > 1.0


def test_item_10_more_gpus_than_a_node_has_are_noted(job):
    settings = {"rates": [], "config": {"artesian": {}}}
    said = job("--params", "7e9", "--gpus", "512", **settings).stdout
    assert "--gpus: got 512, planned as one node" in said and "--gpus 8 --nodes 64" in said
    for flags in [["--gpus", "8"], ["--gpus", "16", "--nodes", "2"]]:
        assert "planned as one node" not in job("--params", "7e9", *flags, **settings).stdout
