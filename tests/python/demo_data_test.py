"""Proves dev/demo_data.py: the tokenizer is GPT-2's, text of any usual encoding is taken, what is
there is reused, and without the package there is a substitute. apt-get and dpkg-deb are fakes."""

import array
import gzip
import json

import demo_data
import pytest

FAKE_UNPACK = """#!/bin/sh
mkdir -p "$3/usr/share/doc/jargon-text"
cp "$FAKE_TEXT" "$3/usr/share/doc/jargon-text/jargon.txt.gz"
"""


def install(folder, name, body):
    program = folder / name
    program.write_text(body)
    program.chmod(0o755)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A fake jargon-text; returns a function that sets its text, as bytes."""
    programs = tmp_path / "programs"
    programs.mkdir()
    install(programs, "apt-get", "#!/bin/sh\ntouch jargon-text_1_all.deb\n")
    install(programs, "dpkg-deb", FAKE_UNPACK)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_TEXT", str(tmp_path / "text.gz"))
    monkeypatch.setattr(demo_data, "installed_texts", lambda: [])

    def set_text(content):
        (tmp_path / "text.gz").write_bytes(gzip.compress(content))

    set_text(b"Cruft is what accumulates. " * 5000)
    return set_text


def test_ids_are_those_of_gpt2():
    tokenizer = demo_data.gpt2_tokenizer()
    assert tokenizer.encode("Hello world").ids == [15496, 995]
    assert tokenizer.encode("The quick brown fox").ids == [464, 2068, 7586, 21831]
    assert tokenizer.encode("<|endoftext|>").ids == [50256]
    text = "naïve 1234\n\n  “quoted”\ttab"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_everything_is_prepared_and_reused(tmp_path, package, monkeypatch):
    folder = tmp_path / "demo"
    assert demo_data.main([folder]) == 0
    config = json.loads((folder / "model/config.json").read_text())
    tokens = array.array("H", (folder / "tokens.bin").read_bytes())
    assert len(tokens) > 20_000 and max(tokens) < config["vocab_size"]
    assert demo_data.gpt2_tokenizer().decode(list(tokens[:20])).startswith("Cruft is what")

    made = (folder / "tokens.bin").stat().st_mtime_ns
    monkeypatch.setenv("PATH", "/nowhere")  # neither the text nor the package is asked for again
    assert demo_data.main([folder]) == 0
    assert (folder / "tokens.bin").stat().st_mtime_ns == made


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_text_of_any_usual_encoding_ends_as_utf8(tmp_path, package, encoding):
    text = "naïve façade " * 10_000
    package(text.encode(encoding))
    demo_data.prepare_text(tmp_path)
    assert (tmp_path / "text.txt").read_text(encoding="utf-8") == text


def test_substitute_is_said_and_replaced_once_the_package_is_there(
    tmp_path, package, monkeypatch, capfd
):
    path = tmp_path / "programs/apt-get"
    working = path.read_text()
    path.write_text("#!/bin/sh\nexit 100\n")
    demo_data.prepare_text(tmp_path)
    assert "note: jargon-text cannot be downloaded" in capfd.readouterr().err
    assert "Cruft" not in (tmp_path / "text.txt").read_text()

    path.write_text(working)
    demo_data.prepare_text(tmp_path)
    assert "Cruft" in (tmp_path / "text.txt").read_text()


def test_too_little_text_is_one_clear_line(tmp_path, package, capfd):
    package(b"short")
    assert demo_data.main([tmp_path]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == "demo data: error: only 5 characters of text found, 100000 needed"
    assert not (tmp_path / "text.txt").exists()
