"""Proves `artesian inspect` and `artesian export`: what they say of checkpoints is what is in them,
damage in any file is found and named, and exported weights are, bit for bit, those that `--save`
writes, in every precision and shard size, with memory for some blocks alone."""

import json
import os
import subprocess

import numpy
import pytest
from artesian.checkpoint import exports, zero_to_fp32
from build_folder import ARTESIAN as PROGRAM
from made_up_checkpoint import unpack
from safetensors.numpy import load_file
from train_checkpoints_test import config_of, damage, words
from train_cli_test import ENVIRONMENT, errors_of, make_model, place, pytestmark  # noqa: F401


def artesian(*arguments, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          env=ENVIRONMENT, **options)  # fmt: skip


def config(place, dtype):
    """In fp16 with a loss scale that the first step bears."""
    path = config_of(place, dtype)
    text = path.read_text()
    path.write_text(text.replace('"initial_scale_power": 18', '"initial_scale_power": 8'))
    return path


def trained(place, dtype, **flags):
    flags = {"config": config(place, dtype), **words(place, 4), **flags}
    result = place.run("--quiet", **flags)
    assert result.returncode == 0, result.stderr
    return place.folder / "saved"


def tensors_in(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], raw[8 + size + begin : 8 + size + end])
    return tensors


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_exported_weights_are_those_of_save(place, dtype):
    saved = trained(place, dtype, save=place.folder / "hf", save_dtype="fp32")
    for word in sorted({"fp32", dtype}):
        out = place.folder / f"out-{word}"
        result = artesian("export", saved, out, "--dtype", word, "--shard-size", "20KB")
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert len(list(out.glob("*.safetensors"))) > 1
        assert (out / "model.safetensors.index.json").exists()
        assert (out / "config.json").exists()
        if word == "fp32":
            assert tensors_in(out) == tensors_in(place.folder / "hf")
    result = place.run("--quiet", "--resume", config=config(place, dtype),
                       **{**words(place, 4), "save": place.folder / "own"})  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert tensors_in(place.folder / f"out-{dtype}") == tensors_in(place.folder / "own")
    if dtype == "fp32":  # as other programs read it
        one = place.folder / "one"
        assert artesian("export", saved / "global_step4", one).returncode == 0
        read = load_file(one / "model.safetensors")
        assert all(numpy.isfinite(array).all() for array in read.values())


@pytest.mark.parametrize("form", ["whole", "split"])
def test_frozen_parameters_are_exported_as_they_are(tmp_path, form):
    """Reads as zero_to_fp32.py does, which shares no code with the program."""
    unpack("artesian", tmp_path)
    saved = zero_to_fp32.Checkpoint(tmp_path / form)
    result = artesian("export", tmp_path / form, tmp_path / "out")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    tensors = tensors_in(tmp_path / "out")
    assert not all(parameter.trainable for parameter in saved.manifest.parameters)
    for index, parameter in enumerate(saved.manifest.parameters):
        weights = b"".join(piece.tobytes() for piece in exports.pieces(saved, index, "fp32"))
        assert tensors[parameter.name] == ("F32", list(parameter.shape), weights)


def test_an_export_is_whole_or_not_at_all(place):
    saved = trained(place, "bf16")
    out = place.folder / "out"
    out.mkdir()
    assert str(out) in errors_of(artesian("export", saved, out), 2)
    out.rmdir()
    assert "global_step9" in errors_of(artesian("export", saved / "global_step9", out), 2)
    assert '--dtype: got "fp8"' in errors_of(artesian("export", saved, out, "--dtype", "fp8"), 2)
    data = saved / "global_step4" / "rank0.safetensors"
    # Damages the last block of the lower halves of the weights; moments are not read.
    header = data.read_bytes()[8 : 8 + int.from_bytes(data.read_bytes()[:8], "little")]
    low = [entry["data_offsets"] for name, entry in json.loads(header).items()
           if name.startswith("fp32_low/")]  # fmt: skip
    damage(data, 8 + len(header) + max(low)[0])
    assert "rank0.safetensors" in errors_of(artesian("export", saved, out), 1)
    assert not out.exists() and not list(place.folder.glob("*.partial*"))


def test_an_export_takes_memory_for_some_blocks_alone(place):
    model = make_model(place.folder / "wide", n_embd=512, vocab_size=20000, n_head=4)
    text = place.folder / "ids.bin"
    text.write_bytes(b"\1\1" * 2000)
    saved = trained(place, "fp32", model=model, data=text, steps=1, micro_batch=1, seq_len=4,
                    config=place.write_config(lambda c: (c.pop("fp16"), c.pop("artesian"))))
    size = (saved / "global_step1" / "rank0.safetensors").stat().st_size
    assert size > 150e6

    def rss(*arguments):
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], env=ENVIRONMENT,
                                   stdout=subprocess.DEVNULL)  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        return usage.ru_maxrss * 1024

    least = rss("inspect", saved)
    assert rss("export", saved, place.folder / "out") < least + 32e6
    assert rss("inspect", saved, "--verify") < least + 32e6


def test_inspect_says_what_is_there(place):
    saved = trained(place, "bf16")
    result = artesian("inspect", saved)
    assert (result.returncode, result.stderr) == (0, "")
    assert "global_step3  step 3, " in result.stdout
    assert "global_step4  step 4, " in result.stdout and ", latest\n" in result.stdout
    assert "adamw, " in result.stdout and "next sample 4, shuffled, seed 0" in result.stdout
    assert "model/config.json" in result.stdout
    result = artesian("inspect", saved, "--json", "-", "--verify")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert told["latest"] == "global_step4" and told["damaged"] == {}
    assert [each["step"] for each in told["checkpoints"]] == [3, 4]
    assert [each["damage"] for each in told["checkpoints"]] == [[], []]
    assert told["checkpoints"][1]["parent"] == told["checkpoints"][0]["id"]
    one = artesian("inspect", saved / "global_step3", "--json", "-")
    assert [each["tag"] for each in json.loads(one.stdout)["checkpoints"]] == ["global_step3"]


def test_inspect_names_what_is_damaged(place):
    saved = trained(place, "bf16")
    step = saved / "global_step4"
    for path in [step / "rank0.safetensors", step / "rank0.sums", step / "manifest.json",
                 step / "model" / "config.json"]:  # fmt: skip
        at = path.stat().st_size // 2
        damage(path, at)
        result = artesian("inspect", saved, "--verify")
        assert result.returncode == 1
        assert path.name in result.stdout and "DAMAGED" in result.stdout
        assert "global_step3  step 3, " in result.stdout and ", verified" in result.stdout
        damage(path, at)
    assert artesian("inspect", saved, "--verify").returncode == 0
    assert "allowed a folder of checkpoints" in errors_of(artesian("inspect", place.folder), 2)
    assert "nowhere" in errors_of(artesian("inspect", place.folder / "nowhere"), 2)
    assert "no folder" in errors_of(artesian("inspect"), 2)
