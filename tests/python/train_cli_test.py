"""Proves what a user of `artesian train` sees: flags, configs, models, data and paths that are
wrong are refused with one line each and exit code 2; JSONL, trace and saved model hold what they
promise; and nothing is left in nvme_path, whatever ends the run.

Models are tiny and compute with one thread, so that a run takes well under a second."""

import ctypes
import json
import math
import os
import re
import resource
import signal
import socket
import struct
import subprocess

import limits
import pytest
from build_folder import ARTESIAN as PROGRAM
from build_folder import ROOT

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
MODEL = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256,
    "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TEXT = "the deep well lifts the water, and the water lifts the well\n" * 100
NO_ERRORS = ("artesian: note: ", "artesian: warning: ", "initialising")
libc = ctypes.CDLL(None, use_errno=True)


def make_model(path, **changes):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**MODEL, **changes}))
    return path


class Place:
    """A folder with a model, data and a config on NVMe; nvme_path must be empty in the end."""

    def __init__(self, folder):
        self.folder = folder
        self.nvme = folder / "nvme"
        self.nvme.mkdir()
        self.model = make_model(folder / "model")
        self.data = folder / "text.txt"
        self.data.write_text(TEXT)
        self.log = folder / "steps.jsonl"
        self.config = self.write_config()

    def write_config(self, change=None):
        """`change(config)` edits it in place. Returns the file."""
        offload = {"device": "nvme", "nvme_path": str(self.nvme)}
        config = {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "fp16": {"enabled": True, "initial_scale_power": 8},
            "zero_optimization": {
                "stage": 3, "offload_param": dict(offload), "offload_optimizer": dict(offload),
            },
            "artesian": {"device_memory": "272KiB", "host_memory": "256KiB"},  # state on NVMe
        }  # fmt: skip
        if change is not None:
            change(config)
        path = self.folder / f"config-{len(list(self.folder.glob('config-*')))}.json"
        path.write_text(json.dumps(config))
        return path

    def at(self, path):
        """A config whose state lives under `path`."""

        def change(config):
            for key in ["offload_param", "offload_optimizer"]:
                config["zero_optimization"][key]["nvme_path"] = str(path)

        return self.write_config(change)

    def words(self, *arguments, **flags):
        given = {"model": self.model, "data": self.data, "config": self.config, "steps": 1,
                 **flags}  # fmt: skip
        words = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()
                 if value is not None]  # fmt: skip
        return [PROGRAM, "train", *words, *map(str, arguments)]

    def run(self, *arguments, preexec_fn=None, **flags):
        return subprocess.run(self.words(*arguments, **flags), capture_output=True, text=True,
                              cwd=self.folder, env=ENVIRONMENT, preexec_fn=preexec_fn,
                              timeout=600)  # fmt: skip

    def run_plan(self, config, preexec_fn=None):
        words = ["plan", "--model", self.model, "--config", config, "--seq-len", "64",
                 "--micro-batch", "4", "--accumulation", "2"]  # fmt: skip
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, cwd=self.folder,
                              env=ENVIRONMENT, preexec_fn=preexec_fn, timeout=600)  # fmt: skip

    def trained(self, *arguments, **flags):
        """The JSONL lines of a run that must succeed."""
        result = self.run(*arguments, log_jsonl=self.log, **flags)
        assert result.returncode == 0, result.stderr
        return self.steps()

    def steps(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def refused(self, *arguments, lines=1, **flags):
        """The error lines of a run that must end before its first step."""
        self.log.write_text("of an earlier run\n")
        result = self.run(*arguments, **{"log_jsonl": self.log, **flags})
        assert self.log.read_text() == "of an earlier run\n"
        return errors_of(result, 2, lines)

    def start(self, *arguments, **flags):
        return subprocess.Popen(
            self.words(*arguments, **{"log_jsonl": self.log, "steps": 1000000, **flags}),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
            env=ENVIRONMENT)  # fmt: skip

    def start_and_wait_for_a_step(self, **flags):
        self.log.write_text("")
        process = self.start("--quiet", **flags)
        while not self.log.read_text().endswith("\n"):
            assert process.poll() is None, process.stderr.read()
        return process


def errors_of(result, code, lines=1):
    assert result.returncode == code, (result.returncode, result.stderr)
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if ": error: " in line]
    assert all(line.startswith("artesian: error: ") for line in errors)
    assert len(errors) == lines, result.stderr
    others = set(result.stderr.splitlines()) - set(errors)
    assert all(line.startswith(NO_ERRORS) for line in others), others
    return errors if lines > 1 else errors[0]


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    assert list(made.nvme.iterdir()) == []


def command(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


# Flags


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "missing command: got nothing, allowed train, plan, doctor, inspect, export or "
             "report; see artesian --help"),
        (["trian"], "trian: got an unknown argument, allowed are those of artesian --help; "
                    "did you mean train?"),
        (["--bogus"], "--bogus: got an unknown flag"),
        (["--quiet", "train"], "--quiet: got an unknown flag, allowed are those of artesian train "
                               "--help; write it after artesian train"),
        (["train", "--modle", "x"], "--modle: got an unknown flag, allowed are those of artesian "
                                    "train --help; did you mean --model?"),
        (["train", "--step=3", "--lr"], "--step: got an unknown flag, allowed are those of "
                                        "artesian train --help; did you mean --steps?"),
        (["train", "stray"], "stray: got an unknown argument"),
        (["train", "--model"], "--model: got no value, allowed one; write it after the flag"),
        (["train", "--init=3"], "--init: got a value, allowed none; drop it"),
        *[([word, "--any", "thing"], f"not supported yet: {word}") for word in
          ["generate", "config", "run"]],
    ],
)  # fmt: skip
def test_wrong_commands_are_one_line(arguments, expected):
    assert errors_of(command(*arguments), 2).startswith(f"artesian: error: {expected}")


def test_missing_flags_are_named_together():
    lines = errors_of(command("train"), 2, lines=3)
    for line, flag in zip(lines, ["--model", "--data", "--config"]):
        assert line.startswith(f"artesian: error: {flag}: got nothing, allowed a path; ")


@pytest.mark.parametrize("words", [[], ["train"], ["plan"]])
def test_help_goes_to_stdout(words):
    result = command(*words, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert f"Usage: {' '.join(['artesian', *words])} " in result.stdout
    assert result.stdout.rstrip("\n") + "\n" == result.stdout


def test_version():
    result = command("--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count(".") == 2


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["train", "--help"]])
def test_a_full_stdout_is_one_error(words):
    limits.full_stdout([PROGRAM, *words], "artesian: error: stdout: cannot write")


WHOLE = "allowed a whole number of at least 1; "


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"steps": "x"}, f'--steps: got "x", {WHOLE}'),
        ({"steps": ""}, f'--steps: got "", {WHOLE}'),
        ({"steps": "0"}, f'--steps: got "0", {WHOLE}'),
        ({"steps": "-1"}, f'--steps: got "-1", {WHOLE}'),
        ({"steps": "1e3"}, f'--steps: got "1e3", {WHOLE}'),
        ({"steps": "99999999999999999999"}, f'--steps: got "99999999999999999999", {WHOLE}'),
        ({"steps": "9999999999"}, '--steps: got "9999999999", allowed a whole number of at most'),
        ({"steps": None, "epochs": "0"}, f'--epochs: got "0", {WHOLE}'),
        ({"epochs": "1"}, "--epochs: got both --steps and --epochs, allowed one of them"),
        ({"seq_len": "1.5"}, f'--seq-len: got "1.5", {WHOLE}'),
        ({"seq_len": "33"}, "--seq-len: got 33, allowed 1 to 32, the model's positions"),
        ({"micro_batch": "two"}, f'--micro-batch: got "two", {WHOLE}'),
        ({"micro_batch": "1000000000"}, "train_micro_batch_size_per_gpu: got 1000000000 samples"),
        ({"accumulation": "0"}, f'--accumulation: got "0", {WHOLE}'),
        ({"lr": "-1"}, '--lr: got "-1", allowed a number of at least 0; '),
        ({"lr": "nan"}, '--lr: got "nan", allowed a number of at least 0; '),
        ({"lr": "inf"}, '--lr: got "inf", allowed a number of at least 0; '),
        ({"lr": "0.002"}, "the command line contradicts the config: --lr 0.002 and "
                          "optimizer.params.lr 0.001"),
        ({"seed": "-3"}, '--seed: got "-3", allowed a whole number from 0 to 18446744073709551615'),
        ({"seed": "18446744073709551616"}, '--seed: got "18446744073709551616", allowed'),
        ({"order": "random"}, '--order: got "random", allowed shuffled or sequential; '),
        ({"save": "out", "save_dtype": "bf16"}, '--save-dtype: got "bf16", allowed model or fp32'),
        ({"device": "cuda:"}, '--device: got "cuda:", allowed cpu, cuda or cuda:i; write one'),
        ({"device": "cuda:-1"}, '--device: got "cuda:-1", allowed cpu, cuda or cuda:i; write one'),
        ({"device": "tpu"}, '--device: got "tpu", allowed cpu, cuda or cuda:i; write one'),
        ({"resume": "x"}, "--resume: cannot open a folder: x: No such file or directory"),
        ({"checkpoint_every": "3"}, "--checkpoint-every: got no --checkpoint-dir"),
        ({"model": ""}, '--model: got "", allowed a path'),
        ({"trace": ""}, '--trace: got "", allowed a path'),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_in_our_words(place, flags, expected):
    assert place.refused(**flags).startswith(f"artesian: error: {expected}")


def test_several_faults_and_repeated_flags(place):
    lines = place.refused("--lr", "x", "--seed", "y", "--steps", "4", "--order", "z", lines=4)
    assert lines[0] == "artesian: error: --steps: got 2 values, allowed one; drop the others"
    assert len(place.refused("--lr=x", "--seed=y", "--order=z", steps="a", micro_batch="b",
                             accumulation="c", lines=5)) == 5  # fmt: skip


def test_flags_fill_what_is_auto_or_missing(place):
    def change(config):
        config["optimizer"]["params"]["lr"] = "auto"
        del config["gradient_accumulation_steps"]

    steps = place.trained(config=place.write_config(change), seq_len=8, micro_batch=3,
                          accumulation=2, lr=0.25, steps=2)  # fmt: skip
    assert [step["lr"] for step in steps] == [0.25, 0.25]
    assert [step["tokens"] for step in steps] == [48, 48]


# Config and budgets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "--config: cannot read the config: "),
        ("{", "line 1, column 2: "),
        ("[]", "allowed an object {...}"),
        ('{"zero_optimisation": 1}', 'zero_optimization'),
        ('{"fp16": {"enabled": true}, "bf16": {"enabled": true}}', "bf16"),
        ('{"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2}', "train_batch_size: got 3"),
    ],
)  # fmt: skip
def test_wrong_configs(place, text, expected):
    path = place.folder / "ds.json"
    if text is not None:
        path.write_text(text)
    assert expected in place.refused(config=path)


@pytest.mark.parametrize("key", ["device_memory", "host_memory"])
def test_budgets_too_small_name_key_and_missing_bytes(place, key):
    def change(config):
        config["artesian"][key] = 1000

    line = place.refused(config=place.write_config(change))
    assert line.startswith(f"artesian: error: artesian.{key}: got 1000 B, allowed at least ")
    assert " bytes missing for " in line


# nvme_path


def test_missing_nvme_path_is_made_and_removed(place):
    for path in [place.folder / "new", "relative", place.folder / "slashed//"]:
        place.trained(config=place.at(path))
    assert not {"new", "relative", "slashed"} & set(os.listdir(place.folder))


def test_two_spellings_of_one_nvme_path(place):
    def change(config):
        config["zero_optimization"]["offload_optimizer"]["nvme_path"] = "model/../nvme/"

    place.trained(config=place.write_config(change))


def test_relative_nvme_path_starts_at_the_current_directory(place):
    process = place.start_and_wait_for_a_step(config=place.at("relative"))
    held = os.listdir(place.folder / "relative")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert any(name.endswith(".swap") for name in held)
    assert not (place.folder / "relative").exists()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing/deeper", "nvme directory does not exist and its parent neither"),
        ("text.txt", "nvme directory is not a directory"),
        ("text.txt/below", "nvme directory is not a directory"),
        ("x" * 300, "nvme directory is not a usable path"),
    ],
)
def test_wrong_nvme_paths_name_the_key(place, path, expected):
    line = place.refused(config=place.at(path))
    key = "zero_optimization.offload_param.nvme_path"
    assert line.startswith(f"artesian: error: {key}: {expected}")
    assert path in line


def drop_capabilities():
    """Root as any other user: permissions and limits hold."""
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def test_unwritable_nvme_path(place):
    locked = place.folder / "locked"
    locked.mkdir(mode=0o555)
    result = place.run(config=place.at(locked), preexec_fn=drop_capabilities)
    assert "nvme_path: nvme directory cannot be written" in errors_of(result, 2)
    assert list(locked.iterdir()) == []


def test_full_disk_tells_needed_and_free_bytes(place):
    small = place.folder / "small"
    small.mkdir()
    with limits.small_disk(small, "256k"):
        line = place.refused(config=place.at(small))
        assert list(small.iterdir()) == []
    assert "offload_param.nvme_path: nvme directory is too full" in line
    assert " needs " in line and " free are 256 KiB (262144 bytes)" in line


def test_file_size_limit(place):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    line = errors_of(place.run(preexec_fn=limit), 2)
    assert "nvme_path: nvme directory lies on a file system that cannot hold a file" in line


def test_second_run_on_the_path_is_refused_and_the_first_goes_on(place):
    first = place.start_and_wait_for_a_step()
    second = errors_of(place.run(), 2)
    assert f"in use by pid {first.pid} on host {socket.gethostname()}, started " in second
    lines = len(place.steps())
    while len(place.log.read_text().splitlines()) <= lines:
        assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert first.communicate(timeout=60) == (
        "", f"artesian: note: stopped by SIGINT after step {len(place.steps())} of 1000000\n")
    assert first.returncode == 130
    assert "digest" in place.steps()[-1]


def test_path_of_a_killed_run_works_again(place):
    first = place.start_and_wait_for_a_step()
    first.kill()
    first.communicate(timeout=60)
    assert len(os.listdir(place.nvme)) >= 2  # the lock and the swap file
    place.trained()
    assert os.listdir(place.nvme) == []


# Model and data


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "--model: cannot open (give the folder of a Hugging Face model, which holds "
         "config.json): "),
        ("{", "--model: model config: "),
        ('{"model_type": "mamba"}', 'model_type: got "mamba", allowed "gpt2"'),
        ("{}", "model_type: missing"),
        (json.dumps({**MODEL, "n_embd": 33}), "n_embd"),
        (json.dumps({**MODEL, "n_layer": "2"}), "n_layer: got "),
        (json.dumps({**MODEL, "n_layer": 1e30}), "n_layer: got "),
    ],
)
def test_wrong_model_configs(place, text, expected):
    model = place.folder / "other"
    model.mkdir()
    if text is not None:
        (model / "config.json").write_text(text)
    line = place.refused(model=model)
    assert line.startswith("artesian: error: --model: ") and expected in line


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model as `--save` writes it."""
    place = Place(tmp_path_factory.mktemp("saved"))
    place.trained(save=place.folder / "saved", steps=3, micro_batch=2)
    return place.folder / "saved"


def with_header(change):
    def edit(file):
        (length,) = struct.unpack("<Q", file[:8])
        header = json.loads(file[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + file[8 + length :]

    return edit


def reshape(header):
    header["transformer.wte.weight"]["shape"].reverse()


def point_outside(header):
    header["transformer.wpe.weight"]["data_offsets"] = [0, 1 << 60]


def rename(header):
    header["other"] = header.pop("transformer.wpe.weight")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda file: file[:-1], "safetensors"),
        (lambda file: file[: len(file) // 2], "safetensors"),
        (lambda file: file[:5], "safetensors"),
        (lambda file: b"", "safetensors"),
        (lambda file: struct.pack("<Q", 1 << 62) + file[8:], "safetensors"),
        (lambda file: struct.pack("<Q", 8) + b"[" * 8, "safetensors"),
        (with_header(point_outside), "safetensors"),
        (with_header(reshape), "wte.weight (got [32, 256], allowed [256, 32])"),
    ],
)
def test_broken_weights(place, saved, edit, expected):
    model = make_model(place.folder / "broken")
    file = edit((saved / "model.safetensors").read_bytes())
    (model / "model.safetensors").write_bytes(file)
    line = place.refused(model=model)
    assert line.startswith("artesian: error: --model: ") and expected in line
    assert len(line) < 1000


@pytest.mark.parametrize(
    ("name", "fix"),
    [("pytorch_model.bin", "with transformers"), ("model-00001-of-00002.safetensors", "complete")],
)
def test_weights_that_are_not_read_are_no_random_start(place, name, fix):
    (place.model / name).write_bytes(b"x")
    line = place.refused("--quiet")
    assert line.startswith(f'artesian: error: --model: model weights: {place.model}: got "{name}"')
    assert fix in line and line.endswith("; or start at random: --init")
    assert len(place.trained("--quiet", "--init")) == 1


def test_a_link_of_weights_that_leads_nowhere_is_no_random_start(place):
    (place.model / "model.safetensors").symlink_to("nowhere")
    assert '"model.safetensors", a link that leads nowhere, allowed' in place.refused("--quiet")


def test_weights_of_another_model(place, saved):
    model = make_model(place.folder / "renamed")
    file = with_header(rename)((saved / "model.safetensors").read_bytes())
    (model / "model.safetensors").write_bytes(file)
    lines = place.refused(model=model, lines=2)
    assert lines[0].endswith("missing: wpe.weight")
    assert lines[1].endswith('not in this model: "other"')


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("missing.txt", None, "no such file or folder"),
        ("empty.txt", b"", "no text or tokens in it"),
        ("short.txt", b"x" * 32, "got 32 tokens, allowed 33 or more"),
        ("empty.bin", b"", "no text or tokens in it"),
        ("odd.bin", b"x" * 101, "got 101 bytes, allowed a multiple of 2"),
        ("ids.bin", b"\7\0" * 80 + b"\0\1" + b"\7\0" * 80, "token 80: got id 256, allowed below"),
    ],
)
def test_wrong_data(place, name, content, expected):
    path = place.folder / name
    if content is not None:
        path.write_bytes(content)
    line = place.refused(data=path)
    assert line.startswith(f"artesian: error: --data: {path}: ") and expected in line


def test_wrong_data_of_other_kinds(place):
    (place.folder / "folder").mkdir()
    assert "no text or tokens" in place.refused(data=place.folder / "folder")
    assert "--data: not a regular file: /dev/zero" in place.refused(data="/dev/zero")
    small = make_model(place.folder / "small", vocab_size=200)
    assert "got vocab_size 200, allowed 256 or more" in place.refused(model=small)


# What a run writes


FIELDS = {
    "step": int, "loss": float, "lr": float, "loss_scale": float, "overflow": bool,
    "grad_norm": float, "tokens": int, "tokens_per_s": float, "tflops": float, "step_s": float,
    "predicted_step_s": float, "bound_step_s": float, "bytes": dict, "fetch": dict,
    "live_parameters_max": int, "peak": dict, "wait_s": dict, "time_s": dict,
}  # fmt: skip
NESTED = {
    "bytes": (["nvme_read", "nvme_write", "h2d", "d2h"], int),
    "fetch": (["demand", "prefetched", "reused"], int),
    "peak": (
        ["device", "host", "activations", "process_rss", "gradients", "program", "heap"], int
    ),
    "wait_s": (["param", "grad", "optimizer", "input"], float),
    "time_s": (["forward", "backward", "gradients", "casts", "optimizer"], float),
}


def test_jsonl_has_the_promised_fields(place):
    place.log.write_text("of an earlier run, and longer than what comes\n" * 1000)
    steps = place.trained(steps=3, micro_batch=2, accumulation=2)
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert len(steps[-1].pop("digest")) == 32
    assert steps[0]["predicted_step_s"] is None  # not finite: nothing to go by yet
    steps[0]["predicted_step_s"] = 0.0
    for step in steps:
        assert {key: type(value) for key, value in step.items()} == FIELDS
        for key, (names, kind) in NESTED.items():
            types = {name: type(value) for name, value in step[key].items()}
            assert types == dict.fromkeys(names, kind)
        assert step["tokens"] == 2 * 2 * 32
        assert step["tokens_per_s"] == pytest.approx(step["tokens"] / step["step_s"])
        assert step["bytes"]["nvme_read"] > 0 and step["bytes"]["nvme_write"] > 0
        assert step["bound_step_s"] > 0
        assert math.isfinite(step["loss"]) and step["loss_scale"] == 256.0 and step["lr"] == 1e-3
    json.loads(place.log.read_text().splitlines()[-1], parse_float=(literals := []).append)
    for text in literals:  # enough digits to round-trip: the fewest that do, or all 17
        assert text == repr(float(text)) or len(text.lstrip("-0.")) >= 17


def test_what_is_not_finite_is_null(place):
    def change(config):
        config["fp16"]["initial_scale_power"] = 30

    place.run(config=place.write_config(change), steps=2, log_jsonl=place.log)  # takes no step
    steps = place.steps()
    assert steps[0]["overflow"] is True and steps[0]["grad_norm"] is None
    assert steps[0]["loss_scale"] == 2.0**30
    assert "NaN" not in place.log.read_text() and "Infinity" not in place.log.read_text()


@pytest.mark.parametrize("flag", ["log_jsonl", "trace", "save"])
def test_paths_that_cannot_be_written(place, flag):
    name = "--" + flag.replace("_", "-")
    for path in ["missing/file", "model"]:
        line = errors_of(place.run(**{flag: path}), 2)
        assert line.startswith(f"artesian: error: {name}: ") and path in line
    assert os.listdir(place.model) == ["config.json"]


def test_a_full_disk_under_the_outputs(place):
    line = errors_of(place.run("--quiet", trace="/dev/full"), 2)
    assert line == "artesian: error: --trace: cannot write: /dev/full: No space left on device"
    limits.full_stdout(place.words(), "artesian: error: stdout: cannot write", env=ENVIRONMENT)


def test_seed_and_order_decide_the_result(place):
    def digest(**flags):
        return place.trained("--quiet", steps=2, **flags)[-1]["digest"]

    first = digest()
    assert digest() == digest(seed=0) == digest(order="shuffled") == first
    assert len({first, digest(seed=1), digest(order="sequential")}) == 3
    kept = place.steps()[0]["loss"]
    assert place.trained(steps=1, order="sequential", seed=0)[0]["loss"] == kept


def test_epochs(place):
    place.data.write_text("x" * (32 * 6 + 1))  # 6 samples
    assert len(place.trained(steps=None, micro_batch=2)) == 3
    assert len(place.trained(steps=None, micro_batch=2, epochs=2)) == 6
    assert len(place.trained(steps=None, micro_batch=100)) == 1


def test_quiet_prints_nothing(place):
    result = place.run("--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_stdout_holds_the_table_alone_and_printing_follows_the_config(place):
    def change(config):
        config["steps_per_print"] = 2
        config["wall_clock_breakdown"] = True

    result = place.run(config=place.write_config(change), steps=6)
    assert result.stdout.startswith("\nTraining, 6 steps\n  loss, first -> last ")
    lines = result.stderr.splitlines()
    for step in [2, 4, 6]:
        assert any(line.startswith(f"step {step}/6  loss ") for line in lines)
    assert sum("time: forward " in line and " optimizer " in line for line in lines) == 6


def test_the_end_table_tells_what_the_disk_wore_the_start_included(place):
    result = place.run(log_jsonl=place.log, steps=4)
    assert result.returncode == 0, result.stderr
    steps = [step["bytes"]["nvme_write"] for step in place.steps()]
    size = r"([\d.]+) ([KMG]iB)"
    found = re.search(rf"nvme, written in all +{size}, of it {size} at the start; "
                      r"([\d.e-]+) TB per 1,000 steps\n", result.stdout)  # fmt: skip
    assert found, result.stdout
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    written, start = (float(found[at]) * units[found[at + 1]] for at in (1, 3))
    assert start > 0 and written - start == pytest.approx(sum(steps), rel=0.05)
    assert float(found[5]) == pytest.approx(sum(steps) / 4 * 1e3 / 1e12, rel=0.01)


def test_an_existing_save_folder_is_refused(place):
    (place.folder / "out").mkdir()
    assert place.refused(save=place.folder / "out").endswith("exists already; give a name that "
                                                             "does not")  # fmt: skip


def test_what_is_saved_does_not_need_the_models_folder_any_more(place):
    (place.model / "generation_config.json").write_text("{}")
    process = place.start_and_wait_for_a_step(save=place.folder / "out")
    for file in place.model.iterdir():
        file.unlink()
    place.model.rmdir()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, process.stderr.read()
    assert (place.folder / "out" / "generation_config.json").read_text() == "{}"
    assert len(place.trained(model=place.folder / "out")) == 1


@pytest.mark.parametrize("dtype", ["model", "fp32"])
def test_saved_models_load_and_train_on(place, dtype):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from first_calls import make_first_calls

    make_first_calls()
    out = place.folder / "out"
    first = place.trained(steps=3, save=f"{out}/", save_dtype=dtype, order="sequential")
    model, report = transformers.GPT2LMHeadModel.from_pretrained(out, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == (torch.float16 if dtype == "model" else torch.float32)
    again = place.trained(steps=1, model=out, order="sequential")
    ids = torch.tensor([list(TEXT.encode()[:33])])
    with torch.no_grad():
        logits = model.float()(ids[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:]).item()
    assert again[0]["loss"] == pytest.approx(expected, rel=2e-3)
    assert again[0]["loss"] < first[0]["loss"]
    assert place.trained(steps=1, model=out, order="sequential")[0]["loss"] == again[0]["loss"]
    fresh = place.trained("--init", steps=1, model=out, order="sequential")
    assert fresh[0]["loss"] == first[0]["loss"]


# Limits of the machine


def test_refused_io_uring_falls_back_with_one_line(place):
    digest = place.trained("--quiet")[-1]["digest"]
    result = place.run("--quiet", log_jsonl=place.log, preexec_fn=limits.refuse_io_uring)
    if result.returncode == 77:
        pytest.skip("no seccomp filters here")
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("artesian: warning: io_uring is not available: ")
    assert place.steps()[-1]["digest"] == digest

    def change(config):
        config["artesian"]["engine"] = "io_uring"

    forced = place.run("--quiet", config=place.write_config(change),
                       preexec_fn=limits.refuse_io_uring)  # fmt: skip
    line = errors_of(forced, 2)
    assert line.startswith("artesian: error: artesian.engine: ") and "seccomp" in line


def test_little_locked_memory_is_one_warning(place):
    def limit():
        drop_capabilities()
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    digest = place.trained("--quiet")[-1]["digest"]
    result = place.run("--quiet", log_jsonl=place.log, preexec_fn=limit)
    assert result.returncode == 0, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("artesian: warning: ") and "ulimit -l" in result.stderr
    assert place.steps()[-1]["digest"] == digest


@limits.needs_root
@pytest.mark.parametrize("limit", [0, 64 << 10, 8 << 20])
def test_little_lockable_memory_of_another_user(place, limit):
    digest = place.trained("--quiet")[-1]["digest"]
    place.log.unlink()
    limits.give(place.folder)
    result = subprocess.run([*limits.AS_NOBODY, *place.words("--quiet", log_jsonl=place.log)],
                            capture_output=True, text=True, cwd=place.folder, env=ENVIRONMENT,
                            preexec_fn=limits.lockable(limit), timeout=600)  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert place.steps()[-1]["digest"] == digest
    lines = result.stderr.splitlines()
    assert all(line.startswith("artesian: warning: ") and "ulimit -l" in line for line in lines)
    # 8 MiB are enough for these pools. Some kernels count the rings as locked memory, too; without
    # room for them another engine is used.
    fallen = [line for line in lines if "io_uring is not available" in line]
    assert len(lines) - len(fallen) == (0 if limit == 8 << 20 else 1), lines
    assert not fallen or limit == 0


def test_refused_direct_io_is_one_warning(place):
    digest = place.trained("--quiet")[-1]["digest"]
    result = place.run("--quiet", log_jsonl=place.log, preexec_fn=limits.refuse_direct)
    assert result.returncode == 0, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "warning: direct I/O (O_DIRECT) is not available in " in result.stderr
    assert place.steps()[-1]["digest"] == digest


def test_few_file_descriptors(place):
    result = place.run("--quiet", preexec_fn=limits.descriptors(64))
    assert (result.returncode, result.stderr) == (0, "")


# The configs that people paste

CONFIGS = sorted((ROOT / "tests" / "zero3" / "config" / "configs").iterdir())


def test_all_pasted_configs_are_here():
    assert len(CONFIGS) == 11


@pytest.mark.parametrize("source", CONFIGS, ids=lambda path: path.stem)
def test_pasted_configs_train(place, source):
    content = source.read_bytes().replace(b"/local_nvme", bytes(place.nvme))
    config = place.folder / source.name
    config.write_bytes(content)
    flags = {"micro_batch": 2, "accumulation": 2, "lr": 1e-4} if "auto" in source.stem else {}
    steps = place.trained(config=config, steps=2, seq_len=16, **flags)
    assert [step["step"] for step in steps] == [1, 2]
    assert len(steps[-1]["digest"]) == 32
