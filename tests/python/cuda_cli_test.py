"""Proves what `--device cuda` does: without a GPU or a build for one, exit code 2 and one line that
says what to do; with one, runs whose numbers do not depend on where state lives. And that the
library and the program hold machine code for sm_80 and sm_90."""

import json
import struct
import subprocess

import pytest
from build_folder import ARTESIAN, BUILD, WITH_GPUS

FAT_BINARY = struct.pack("<I", 0xBA55ED50)
MODEL = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 32,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
}


def configuration(folder, device):
    offload = {"device": device}
    if device == "nvme":
        offload["nvme_path"] = str(folder / "nvme")
    return {
        "train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": offload,
            "offload_optimizer": offload,
        },
        "artesian": {
            "device_memory": "64MiB", "host_memory": "768KiB" if device == "nvme" else "64MiB",
        },
    }


def train(folder, where, device, steps=4):
    """Runs it; the finished process and the lines of its log."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    (folder / "data.txt").write_bytes(bytes(i * 7 % 127 + 1 for i in range(4096)))
    (folder / "ds.json").write_text(json.dumps(configuration(folder, device)))
    log = folder / f"{device}.jsonl"
    command = [ARTESIAN, "train", "--model", model, "--data", folder / "data.txt", "--config",
               folder / "ds.json", "--steps", str(steps), "--init", "--device", where,
               "--log-jsonl", log, "--quiet"]  # fmt: skip
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=WITH_GPUS
    )
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return ended, lines


def gpus():
    """Returns the number of GPUs that the driver shows."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return listing.stdout.count("GPU ")


def test_without_a_gpu_it_says_what_to_do(tmp_path):
    if gpus():
        pytest.skip("there is a GPU")
    for where in ["cuda", "cuda:3"]:
        ended, lines = train(tmp_path, where, "cpu")
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.startswith("artesian: error: --device: got cuda, allowed cpu")
        assert "on the CPU" in ended.stderr
        assert not lines


def test_the_cpu_may_be_named(tmp_path):
    ended, lines = train(tmp_path, "cpu", "cpu", steps=1)
    assert ended.returncode == 0, ended.stderr
    assert len(lines) == 1


def test_numbers_do_not_depend_on_homes(tmp_path):
    if not gpus():
        pytest.skip("no GPU")
    runs = {}
    for device in ["none", "cpu", "nvme"]:
        ended, runs[device] = train(tmp_path, "cuda:0", device)
        assert ended.returncode == 0, ended.stderr
    for lines in runs.values():
        assert [line["loss"] for line in lines] == [line["loss"] for line in runs["cpu"]]
        assert lines[-1]["digest"] == runs["cpu"][-1]["digest"]
        assert lines[-1]["peak"]["device"] <= 64 << 20
    assert runs["nvme"][-1]["bytes"]["h2d"] > 0
    assert runs["nvme"][-1]["bytes"]["d2h"] > 0
    ended, _ = train(tmp_path, f"cuda:{gpus()}", "cpu")
    assert ended.returncode == 2
    assert f"--device: got cuda:{gpus()}, allowed cuda:0" in ended.stderr


def gpu_code(path):
    """The architectures of the machine code in a file's fat binaries, as `cuobjdump --list-elf`
    lists them; that tool is not in every toolkit. A fat binary is a header and entries, each with a
    header of its own: kind (2: ELF), header bytes, payload bytes and, at byte 28, architecture."""
    data = path.read_bytes()
    found = set()
    begin = data.find(FAT_BINARY)
    while begin >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, begin + 4)
        at, end = begin + header, begin + header + size
        while version == 1 and at < end <= len(data):
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, at)
            if kind == 2:
                found.add(struct.unpack_from("<I", data, at + 28)[0])
            at += max(entry_header + payload, 1)
        begin = data.find(FAT_BINARY, begin + 4)
    return found


def test_library_and_program_have_code_for_the_gpus():
    archive = BUILD / "kernels" / "libartesian_kernels_cuda.a"
    if not archive.exists():
        pytest.skip("this build has no CUDA: no toolkit was found")
    for path in [archive, ARTESIAN]:
        assert gpu_code(path) == {80, 90}, path
