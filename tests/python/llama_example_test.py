"""Proves that examples/llama_3b/run.py makes the model that its flags say and trains it on real
text with its state on NVMe; that its disk-space check counts the state; and that what it cannot do
is said in one line with exit code 2. At a tiny scale: the flags give the shape."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types

import pytest
from build_folder import ARTESIAN as PROGRAM
from build_folder import ROOT

SCRIPT = ROOT / "examples" / "llama_3b" / "run.py"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")
pytest.importorskip("tokenizers")

TINY = "--hidden 32 --layers 2 --ffn 48 --heads 4 --vocab 400 --seq-len 16 --steps 3".split()
STATE_3B = 14 * 3_141_962_240


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("llama_3b_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "dev"))
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    """A folder with a text, so that none is downloaded."""
    (tmp_path / "llama-data").mkdir()
    text = (ROOT / "LICENSE").read_text() + (ROOT / "docs" / "dev" / "design.md").read_text()
    (tmp_path / "llama-data" / "text.txt").write_text(text)
    return tmp_path


def start(folder, *flags):
    words = [sys.executable, SCRIPT, "--program", PROGRAM, *TINY, *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(word) for word in words], cwd=folder, capture_output=True, text=True, env=environment
    )


def test_a_tiny_shape_trains_on_nvme(script, folder):
    config = json.loads((SCRIPT.parent / "ds_config.json").read_text())
    # With the usual 3 GiB of each tier everything would stay in memory.
    memory = {"device_memory": "320KiB", "host_memory": "256KiB"}
    config["artesian"] = memory | {"compute_dtype": "fp32"}  # on every processor
    (folder / "small.json").write_text(json.dumps(config))
    done = start(folder, "--config", "small.json")
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line) for line in (folder / "llama-out/steps.jsonl").read_text().split("\n")
             if line]  # fmt: skip
    assert [step["tokens"] for step in steps] == [16, 16, 16]
    config = json.loads((folder / "llama-data/model/config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"]) == (32, 48)
    options = script.read_arguments(TINY)
    parameters = script.count_parameters(options)
    # Each parameter begins at a multiple of 2048 elements.
    padded = parameters + 2048 * (9 * config["num_hidden_layers"] + 2)
    # The optimizer's 10 bytes a parameter, but for some that host memory keeps; at this scale all
    # parameters stay on the device.
    for direction in ["nvme_read", "nvme_write"]:
        assert 9 * parameters <= steps[-1]["bytes"][direction] <= 10 * padded
    assert not (folder / "llama-nvme").exists()
    made = (folder / "llama-data/model/tokenizer.json").stat().st_mtime_ns
    assert start(folder).returncode == 0
    assert (folder / "llama-data/model/tokenizer.json").stat().st_mtime_ns == made
    assert start(folder, "--vocab", 420).returncode == 0  # another shape is made anew
    assert (folder / "llama-data/model/tokenizer.json").stat().st_mtime_ns != made


def test_the_usual_shape_has_three_billion_parameters(script):
    options = script.read_arguments([])
    assert 14 * script.count_parameters(options) == STATE_3B
    config = script.model_config(options)
    assert config["vocab_size"] == 32000 and not config["tie_word_embeddings"]


@pytest.mark.parametrize("free", [0, STATE_3B, STATE_3B + (1 << 30) - 1, STATE_3B + (1 << 30)])
def test_the_disk_is_checked_before_anything_is_made(script, tmp_path, monkeypatch, capfd, free):
    monkeypatch.chdir(tmp_path)
    usage = types.SimpleNamespace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(script, "prepare", lambda *given: pytest.skip("enough: it would go on"))
    if free == STATE_3B + (1 << 30):
        with pytest.raises(pytest.skip.Exception):
            script.main(["--program", str(PROGRAM)])
        return
    assert script.main(["--program", str(PROGRAM)]) == 2
    assert "42.0 GiB needed" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--program", "/no/program"], "/no/program is missing; run `make build` first"),
        (["--vocab", "100"], "--vocab: got 100, allowed 259 to 65536"),
        (["--vocab", "65537"], "--vocab: got 65537, allowed 259 to 65536"),
    ],
)
def test_what_is_missing_is_said_in_one_line(folder, flags, expected):
    done = start(folder, *flags)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"llama_3b: error: {expected}"
    assert not (folder / "llama-out").exists()
