"""Proves that `--data` is what it says it is: each of twenty-one files is read right or refused by
its name; that forms may be mixed; that the same text is tokenised once; and that all that can be
known is checked before text is tokenised."""

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import zipfile

import pytest
from build_folder import ROOT
from train_cli_test import ENVIRONMENT, MODEL, errors_of, place, pytestmark  # noqa: F401

TEXT = "the deep well lifts the water\n" * 40
IDS = [i * 7 % 256 for i in range(1200)]
LINES = "".join(json.dumps({"text": TEXT, "n": i}) + "\n" for i in range(2))


def zipped(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("text.txt", text)
    return file.getvalue()


REFUSED = {
    "text.gz": (gzip.compress(TEXT.encode()), "got gzip"),
    "gzip.txt": (gzip.compress(TEXT.encode()), "got gzip"),
    "text.bz2": (bz2.compress(TEXT.encode()), "got bzip2"),
    "text.xz": (lzma.compress(TEXT.encode()), "got xz"),
    "text.zst": (b"\x28\xb5\x2f\xfd\x24\x40" + os.urandom(100), "got zstd"),
    "text.zip": (zipped(TEXT), "got zip"),
    "table.parquet": (b"PAR1" + os.urandom(500) + b"PAR1", "got Parquet"),
    "program": (open("/bin/true", "rb").read(), "got an ELF program"),
    "latin": ("caf\u00e9 na\u00efve ".encode("latin-1") * 100, "of its bytes are no UTF-8 text"),
    "wide.txt": (TEXT.encode("utf-16"), "got UTF-16"),
    "ids.dat": (struct.pack("<1200I", *IDS), "of its bytes are no UTF-8 text"),
    "ids32.bin": (struct.pack("<1200I", *IDS), "every second id is 0"),
    "ids64.bin": (struct.pack("<1200Q", *IDS), "every second id is 0"),
    "other.jsonl": (b'{"content": "abc"}\n', "line 1: allowed a JSON object with a string"),
    "cut.jsonl": (LINES.encode()[:-20], "line 2: allowed a JSON object"),
    "empty.txt": (b"", "no text or tokens in it"),
}
READ = {
    "ids.bin": (struct.pack("<1200H", *IDS), 1200),
    "text.txt": (TEXT.encode(), len(TEXT)),
    "lines.jsonl": (LINES.encode(), 2 * len(TEXT) + 2),
    "lines.txt": (LINES.encode(), 2 * len(TEXT) + 2),
    "mostly.txt": (TEXT.encode() + b"\xe9" * 30, len(TEXT) + 30),
}


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", REFUSED)
def test_item_5_what_is_not_read_is_refused_by_name(place, name):
    data, expected = REFUSED[name]
    path = place.folder / name
    path.write_bytes(data)
    line = place.refused(data=path)
    assert line.startswith(f"artesian: error: --data: {path}: ") and expected in line


def windows(place, **flags):
    """How many samples of 31 tokens there are: an epoch's steps."""
    return len(place.trained("--quiet", steps=None, seq_len=31, **flags))


@pytest.mark.parametrize("name", READ)
def test_item_5_what_is_read_is_read_whole(place, name):
    data, tokens = READ[name]
    (place.folder / name).write_bytes(data)
    assert windows(place, data=place.folder / name) == (tokens - 1) // 31


def test_item_5_ids_are_said_with_their_width(place):
    (place.folder / "ids.bin").write_bytes(READ["ids.bin"][0])
    said = place.run(data=place.folder / "ids.bin").stderr
    assert f"data: {place.folder}/ids.bin: read as uint16: 1200 tokens" in said


def test_item_5_a_field_may_be_named(place):
    path = place.folder / "lines"
    path.write_text("".join(json.dumps({"content": TEXT}) + "\n" for _ in range(2)))
    assert windows(place, data=path, text_field="content") == (2 * len(TEXT) + 1) // 31
    assert "line 1: allowed a JSON object with a string \"body\"" in place.refused(
        data=path, text_field="body")  # fmt: skip


def test_item_5_data_may_be_repeated(place):
    for name, (data, _) in READ.items():
        (place.folder / name).write_bytes(data)
    more = [f"--data={place.folder / name}" for name in ["ids.bin", "lines.jsonl"]]
    steps = place.trained("--quiet", *more, steps=None, seq_len=31,
                          data=place.folder / "text.txt")  # fmt: skip
    assert len(steps) == (3 * len(TEXT) + 2 + 1200 - 1) // 31
    assert "got gzip" in place.refused(
        f"--data={write(place, 'a.gz', REFUSED['text.gz'][0])}", data=place.folder / "text.txt")


def write(place, name, data):
    (place.folder / name).write_bytes(data)
    return place.folder / name


@pytest.fixture
def tokenizer(place):
    """The model gets a tokenizer with an end-of-text token; its id."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "the": 1}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(place.model / "tokenizer.json"))
    config = {**MODEL, "eos_token_id": None}
    (place.model / "config.json").write_text(json.dumps(config))
    return made.token_to_id("<|endoftext|>")


def kept_tokens(place):
    return sorted((place.folder / "cache/artesian/tokens").glob("*.bin"))


def test_item_5_documents_are_parted(place, tokenizer):
    place.data.write_text("the the " * 40)
    lines = write(place, "lines.jsonl", b'{"text": "the"}\n{"text": "well"}\n' * 20)
    done = place.run(f"--data={lines}", steps=1, seq_len=16)
    assert done.returncode == 0, done.stderr
    assert f"41 documents, parted by <|endoftext|> (id {tokenizer})" in done.stderr
    (kept,) = kept_tokens(place)
    ids = struct.unpack(f"<{kept.stat().st_size // 2}H", kept.read_bytes())
    assert list(ids) == [1] * 80 + [tokenizer, 1, tokenizer, 0] * 20


def test_item_4_tokens_are_kept(place, tokenizer):
    def run(*flags):
        done = place.run(*flags, steps=1, seq_len=16, log_jsonl=place.log)
        assert done.returncode == 0, done.stderr
        return "MB/s" in done.stderr, place.steps()[-1]["digest"]

    tokenised, digest = run()
    assert tokenised and len(kept_tokens(place)) == 1
    assert run() == (False, digest)
    assert run("--no-token-cache") == (True, digest)
    place.data.write_text(place.data.read_text() + "the")
    assert run()[0] and len(kept_tokens(place)) == 2
    with (place.model / "tokenizer.json").open("a") as file:
        file.write(" ")
    assert run()[0] and len(kept_tokens(place)) == 3


def test_item_4_the_module_works_as_printed(place, tokenizer):
    done = subprocess.run(
        [sys.executable, "-m", "artesian_tokenize", "--tokenizer", place.model, "--input",
         place.data, "--output", "tokens.bin"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/python"})  # fmt: skip
    assert done.returncode == 0, done.stderr
    digest = place.trained(seq_len=16)[-1]["digest"]
    assert place.trained(seq_len=16, data=place.folder / "tokens.bin")[-1]["digest"] == digest


def late_path(place):
    return {"config": place.at(place.folder / "no" / "such" / "parent")}


def low_budget(place):
    def change(config):
        config["artesian"]["device_memory"] = "1KiB"

    return {"config": place.write_config(change)}


def held_lock(place):
    return {"config": place.at("/proc/self")}


LATE = {
    "an nvme_path without a parent": (late_path, "offload_param.nvme_path"),
    "an nvme_path that cannot be written": (held_lock, "offload_param.nvme_path"),
    "a budget too small": (low_budget, "artesian.device_memory"),
    "a folder of the log": (lambda place: {"log_jsonl": "no/such/log"}, "--log-jsonl"),
    "a folder of the trace": (lambda place: {"trace": "no/such/trace"}, "--trace"),
    "a folder of the save": (lambda place: {"save": "no/such/save"}, "--save"),
    "an empty model.safetensors": (
        lambda place: write(place, "model/model.safetensors", b"") and {}, "--model"),
    "held-out data": (lambda place: {"eval_data": "no/such"}, "--eval-data"),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
@pytest.mark.parametrize("steps", [1, None])
def test_item_3_nothing_is_tokenised_where_the_run_cannot_be(
    place, tokenizer, monkeypatch, name, steps
):
    change, expected = LATE[name]
    script = write(place, "python", b"#!/bin/sh\ntouch tokenised\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setitem(ENVIRONMENT, "ARTESIAN_PYTHON", str(script))
    done = place.run(steps=steps, seq_len=16, **change(place))
    assert done.returncode == 2
    (error,) = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert expected in error, done.stderr
    assert not (place.folder / "tokenised").exists()
    errors_of(place.run(seq_len=16, config=place.at(place.nvme)), 2)
    assert (place.folder / "tokenised").exists() or name == "an empty model.safetensors"


def test_item_2_hidden_files_in_a_folder_are_not_trained_on(place):
    folder = place.folder / "folder"
    folder.mkdir()
    (folder / "a.txt").write_bytes(place.data.read_bytes())
    expected = windows(place, data=folder)
    for name in [".ipynb_checkpoints/a-checkpoint.txt", ".git/x", "__MACOSX/._a.txt", "._a.txt",
                 ".cache/huggingface/download/y.metadata", "b/.hidden/z.txt"]:  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(place.data.read_bytes())
    assert windows(place, data=folder) == expected
    said = place.run(data=folder).stderr
    note = [line for line in said.splitlines() if "left out what is hidden" in line]
    assert len(note) == 1 and '".git", ".hidden", ".ipynb_checkpoints", ...' in note[0], said


def test_item_7_a_path_that_is_not_utf8_is_saved(place):
    name = os.fsencode(place.folder) + b"/t\xe9xt.txt"
    with open(name, "wb") as file:
        file.write(place.data.read_bytes())
    saved = place.folder / "saved"
    flags = {"data": os.fsdecode(name), "checkpoint_dir": saved, "log_jsonl": place.log}
    for steps in (1, 2):
        result = place.run("--quiet", "--resume", **flags, steps=steps)
        assert result.returncode == 0, result.stderr
    manifest = json.loads((saved / "global_step2" / "manifest.json").read_text())
    assert "/t\\xE9xt.txt" in json.dumps(manifest["trainer"]).replace("\\\\", "\\")
