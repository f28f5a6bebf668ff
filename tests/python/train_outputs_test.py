"""Proves that `artesian train` destroys nothing that it is to read: an output that is one of its
inputs, or the other output, is refused by whatever name before anything is opened; and that outputs
which are no files go on working."""

import os
import subprocess
import sys

import pytest
from train_cli_test import ENVIRONMENT, TEXT, errors_of, place, pytestmark  # noqa: F401


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"log_jsonl": "text.txt"}, "--log-jsonl: got the file of --data"),
        ({"log_jsonl": "hard.txt"}, "--log-jsonl: got the file of --data"),
        ({"trace": "./config-0.json"}, "--trace: got the file of --config"),
        ({"log_jsonl": "model/model.safetensors"}, "model.safetensors, a file of --model"),
        ({"trace": "soft.json"}, "/model/config.json, a file of --model"),
        ({"data": "texts", "trace": "texts/deep/a.txt"}, "a.txt, a file of --data"),
        ({"log_jsonl": "out", "save": "out"}, "--log-jsonl: got the file of --save"),
        ({"trace": "a", "log_jsonl": "a"}, "--trace: got the file of --log-jsonl, allowed another"),
        ({"trace": "a", "log_jsonl": "./a"}, "--trace: got the file of --log-jsonl"),
        ({"trace": "model/../a", "log_jsonl": "a"}, "--trace: got the file of --log-jsonl"),
    ],
)  # fmt: skip
def test_an_output_that_is_read_is_refused(place, flags, expected):
    (place.model / "model.safetensors").write_bytes(b"weights")
    (place.folder / "texts" / "deep").mkdir(parents=True)
    (place.folder / "texts" / "deep" / "a.txt").write_text(TEXT)
    (place.folder / "soft.json").symlink_to("model/config.json")
    (place.folder / "hard.txt").hardlink_to(place.data)
    before = contents(place.folder)
    assert expected in errors_of(place.run(**flags), 2)
    assert contents(place.folder) == before


def test_outputs_that_are_no_files_may_be_one(place):
    result = place.run("--quiet", log_jsonl="/dev/null", trace="/dev/null")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = place.run("--quiet", log_jsonl="/dev/stdout", steps=3)
    assert result.returncode == 0 and result.stdout.count('{"step":') == 3
    os.mkfifo(place.folder / "pipe")
    reader = subprocess.Popen([sys.executable, "-c", "print(open('pipe').read())"],
                              cwd=place.folder, stdout=subprocess.PIPE, text=True)  # fmt: skip
    result = place.run("--quiet", log_jsonl="pipe", steps=2)
    assert (result.returncode, result.stderr) == (0, "")
    assert reader.communicate(timeout=60)[0].count('{"step":') == 2
