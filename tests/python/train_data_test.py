"""Proves that `--data` is what it says it is: each of twenty-one files is read right or refused by
its name; and that forms may be mixed."""

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import zipfile

import pytest
from train_cli_test import ENVIRONMENT, place, pytestmark  # noqa: F401

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
