"""Proves that the tokenising script writes the ids that the tokenizer gives for the whole text, in
the right width, although it reads in small pieces; and that each fault is one line that says what
to do."""

import array
import json
import os
import random
import subprocess
import sys

import limits
import pytest

tokenizers = pytest.importorskip("tokenizers")

PYTHON_FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "python")
sys.path.append(PYTHON_FOLDER)  # searched after the package that was built
import artesian_tokenize  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE tokenizer as GPT-2 has it, trained on a few words."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the deep well\n\n  lifts the water\n" * 20], trainer)
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "artesian_tokenize", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHON_FOLDER},
    )


def read_ids(file, type_code):
    ids = array.array(type_code)
    ids.frombytes(file.read_bytes())
    return list(ids)


def test_pieces_encode_as_the_whole(tokenizer_file, tmp_path, monkeypatch):
    source = random.Random(7)
    words = ["the", "deep", "well", "\n", "\n\n", "  ", " ", "lifts", "wasser", "ü", "水"]
    words += ["\r\n", ".\n", "\t"]
    text = "".join(source.choice(words) for _ in range(20000))
    (tmp_path / "text.txt").write_bytes(text.encode())
    monkeypatch.setattr(artesian_tokenize, "PIECE_BYTES", 97)
    output = tmp_path / "out.bin"
    arguments = ["--tokenizer", str(tokenizer_file), "--input", str(tmp_path / "text.txt")]
    assert artesian_tokenize.main([*arguments, "--output", str(output), "--quiet"]) == 0
    whole = tokenizers.Tokenizer.from_file(str(tokenizer_file)).encode(text).ids
    assert read_ids(output, "H") == whole


@pytest.mark.parametrize("vocab_size, type_code", [(400, "H"), (65536, "H"), (65537, "I")])
def test_width_follows_the_vocabulary(tokenizer_file, tmp_path, vocab_size, type_code):
    (tmp_path / "text.txt").write_text("the deep well\n")
    output = tmp_path / "out.bin"
    options = ["--vocab-size", vocab_size, "--output", output, "--input", tmp_path / "text.txt"]
    assert run("--tokenizer", tokenizer_file, *options).returncode == 0
    whole = tokenizers.Tokenizer.from_file(str(tokenizer_file)).encode("the deep well\n").ids
    assert read_ids(output, type_code) == whole


def test_vocabulary_of_the_config_beside_the_tokenizer(tokenizer_file, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (tmp_path / "config.json").write_text('{"vocab_size": 70000}')
    (tmp_path / "text.txt").write_text("the deep well\n")
    output = tmp_path / "out.bin"
    done = run("--tokenizer", tmp_path, "--input", tmp_path / "text.txt", "--output", output)
    assert done.returncode == 0
    assert output.stat().st_size % 4 == 0 and max(read_ids(output, "I")) < 400


def test_folder_is_walked_in_sorted_order(tokenizer_file, tmp_path):
    for name in ["b/2.txt", "a.txt", "b/1.txt"]:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name + "\n")
    output = tmp_path / "out.bin"
    done = run("--tokenizer", tokenizer_file, "--input", tmp_path / "in", "--output", output)
    assert done.returncode == 0
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert tokenizer.decode(read_ids(output, "H")) == "a.txt\nb/1.txt\nb/2.txt\n"


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tokenizer_file, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"the \xff\xfe well\n")
    output = tmp_path / "out.bin"
    done = run("--tokenizer", tokenizer_file, "--input", tmp_path / "text.txt", "--output", output)
    assert done.returncode == 0 and "2 bytes are not UTF-8" in done.stderr


@pytest.mark.parametrize(
    "change, message",
    [
        ({"--tokenizer": "none"}, "no such file"),
        ({"--tokenizer": "bad.json"}, "not a tokenizer"),
        ({"--input": "none"}, "no such file or folder"),
        ({"--input": "empty.txt"}, "no text in it"),
        ({"--vocab-size": "100"}, "allowed below the vocabulary size 100"),
        ({"--vocab-size": "0"}, "allowed 1 or more"),
    ],
)
def test_faults_are_one_line_and_leave_nothing(
    tokenizer_file, tmp_path, monkeypatch, change, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the deep well\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.json").write_text("{}")
    options = {"--tokenizer": tokenizer_file, "--input": "text.txt", "--output": "out.bin"}
    options |= change
    done = run("--quiet", *(word for option in options.items() for word in option))
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["bad.json", "empty.txt", "text.txt"]


def test_a_full_disk_is_named(tokenizer_file, tmp_path):
    (tmp_path / "text.txt").write_text("the deep well\n" * 20000)
    (tmp_path / "small").mkdir()
    with limits.small_disk(tmp_path / "small", "16k") as small:
        done = run("--quiet", "--tokenizer", tokenizer_file, "--input", tmp_path / "text.txt",
                   "--output", small / "out.bin")  # fmt: skip
        assert os.listdir(small) == []
    assert done.returncode == 1
    assert done.stderr.startswith(f"artesian_tokenize: error: {small}/out.bin.partial-")
    assert done.stderr.endswith(": No space left on device\n")


def with_end_of_text(tokenizer_file, folder):
    """A tokenizer with an end-of-text token, in its own folder; and that token's id."""
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    tokenizer.add_special_tokens(["<|endoftext|>", "<stop>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


def test_item_5_documents_are_parted_by_the_end_of_text(tokenizer_file, tmp_path, monkeypatch):
    folder, tokenizer = with_end_of_text(tokenizer_file, tmp_path / "tokenizer")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("the deep well\n")
    (tmp_path / "in/b.txt").write_text("")
    (tmp_path / "in/c.jsonl").write_text('{"text": "lifts"}\n\n{"text": ""}\n{"text": "the well"}')
    last = tmp_path / "last.txt"
    last.write_text("water\n" * 100)
    monkeypatch.setattr(artesian_tokenize, "PIECE_BYTES", 97)  # cuts a document into several pieces
    texts = ["the deep well\n", "lifts", "the well", "water\n" * 100]

    def ids_with(separator):
        output = tmp_path / "out.bin"
        arguments = ["--tokenizer", folder, "--input", tmp_path / "in", last, "--output", output]
        assert artesian_tokenize.main([*map(str, arguments), "--quiet"]) == 0
        ids = [tokenizer.encode(text).ids for text in texts]
        expected = ids[0]
        for each in ids[1:]:
            expected += ([] if separator is None else [tokenizer.token_to_id(separator)]) + each
        assert read_ids(output, "H") == expected

    ids_with("<|endoftext|>")
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<stop>"}}')
    ids_with("<stop>")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "not in it"}')
    number = tokenizer.token_to_id("<stop>")
    (folder / "config.json").write_text(f'{{"eos_token_id": [{number}, 3], "vocab_size": 500}}')
    ids_with("<stop>")
    (folder / "config.json").unlink()
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    ids_with(None)


def test_item_5_parting_is_said(tokenizer_file, tmp_path):
    folder, tokenizer = with_end_of_text(tokenizer_file, tmp_path / "tokenizer")
    lines = tmp_path / "lines"
    lines.write_text('{"text": "lifts"}\n{"text": "the well"}\n')
    words = ["--input", lines, "--output", tmp_path / "out.bin"]
    number = tokenizer.token_to_id("<|endoftext|>")
    assert f"2 documents, parted by <|endoftext|> (id {number})" in run(
        "--tokenizer", folder, *words).stderr  # fmt: skip
    assert "2 documents run on" in run("--tokenizer", tokenizer_file, *words).stderr
    lines.write_text("one document\n")
    assert "documents" not in run("--tokenizer", folder, *words).stderr


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.txt", b"\x1f\x8b\x08\x00" + b"x" * 50, "got gzip"),
        ("a.txt", b"PAR1" + b"x" * 50, "got Parquet"),
        ("a.txt", b"\x7fELF" + b"x" * 50, "got an ELF program"),
        ("a.txt", b"n" * 257 + b"ustar", "got a tar archive"),
        ("a.txt", b"caf\xe9 " * 100, "of its bytes are no UTF-8 text"),
        ("a.txt", b"some words\n" * 100000 + b"\xe9" * 100000, "of its bytes are no UTF-8 text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', "line 2: allowed a JSON object with a string"),
        ("a.jsonl", b"words\n", "line 1: allowed a JSON object"),
    ],
)
def test_item_5_what_is_no_text_is_refused_by_name(tokenizer_file, tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    done = run("--quiet", "--tokenizer", tokenizer_file, "--input", tmp_path / name,
               "--output", tmp_path / "out.bin")  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{tmp_path / name}" in done.stderr and message in done.stderr
    assert os.listdir(tmp_path) == [name]


# The ids of a document are those of the whole document, for every tokenizer.


def bpe_of_words(**options):
    """A BPE tokenizer as SentencePiece makes them: unknown characters become bytes, and there are
    no line ends."""
    model = tokenizers.models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>", **options)
    tokenizer = tokenizers.Tokenizer(model)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(["\u2581the\u2581deep", "\u2581well", "lifts"] * 20, trainer)
    return tokenizer


def like_llama_2():
    tokenizer = bpe_of_words()
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Prepend("\u2581"),
            tokenizers.normalizers.Replace(" ", "\u2581"),
        ]
    )
    return tokenizer


def with_metaspace(scheme, split):
    tokenizer = bpe_of_words()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme=scheme, split=split
    )
    return tokenizer


def byte_level(prefix):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the deep well\n\n  lifts\n" * 20], trainer)
    return tokenizer


def merges_across_lines():
    """A tokenizer that splits nothing before merging, so that entries of its vocabulary span line
    ends."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    alphabet = [*map(chr, range(32, 127)), "\n", "\t", "\r", "\u00fc", "\u6c34"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=160, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["deep\nwell\nthe\n" * 20], trainer)
    return tokenizer


def unigram():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(["the deep well lifts the water"] * 20, trainer)
    return tokenizer


KINDS = {  # name: (tokenizer, whether documents are cut, the same if a letter precedes)
    "byte level": (lambda: byte_level(False), (True, False)),
    "byte level with a space": (lambda: byte_level(True), (True, True)),
    "like Llama 2": (like_llama_2, (True, True)),
    "Metaspace always": (lambda: with_metaspace("always", False), (True, True)),
    "Metaspace always, split": (lambda: with_metaspace("always", True), (True, True)),
    "Metaspace first": (lambda: with_metaspace("first", False), (True, True)),
    "Metaspace never": (lambda: with_metaspace("never", False), (True, False)),
    "merges across lines": (merges_across_lines, (False, False)),
    "Unigram": (unigram, (False, False)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["text", "lines"])
def test_item_3_long_documents_have_the_ids_of_the_whole(tmp_path, monkeypatch, kind, form):
    make, expected = KINDS[kind]
    tokenizer = make()
    cuts = artesian_tokenize.Cuts(tokenizer)
    assert (cuts.allowed, cuts.allowed and cuts.behind_letter) == expected
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = random.Random(11)
    words = ["the", " deep", " well", "\n", "\n", "\n\n", " ", "  ", "lifts", "\u00fc", "7"]
    words += ["\u6c34"]
    words += ["\r\n", ".\n", "\t", "\u2581", "\n the"]
    text = "".join(source.choice(words) for _ in range(20000))
    if form == "text":
        (tmp_path / "a.txt").write_bytes(text.encode())
    else:
        (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    monkeypatch.setattr(artesian_tokenize, "PIECE_BYTES", 97)
    pieces = []
    add = artesian_tokenize.Writer.add
    monkeypatch.setattr(artesian_tokenize.Writer, "add",
                        lambda self, text, *rest: (pieces.append(text), add(self, text, *rest))[1])
    output = tmp_path / "out.bin"
    arguments = ["--tokenizer", str(tmp_path), "--output", str(output), "--quiet"]
    name = str(tmp_path / ("a.txt" if form == "text" else "a.jsonl"))
    assert artesian_tokenize.main([*arguments, "--input", name]) == 0
    assert len(list(filter(None, pieces))) > 10 or not expected[0]
    assert read_ids(output, "H") == tokenizer.encode(text, add_special_tokens=False).ids


def test_item_3_a_text_without_a_place_to_cut_is_encoded_whole(
    tokenizer_file, tmp_path, monkeypatch
):
    text = "the deep. " * 3000 + ".\n" * 2000
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(artesian_tokenize, "PIECE_BYTES", 97)
    output = tmp_path / "out.bin"
    arguments = ["--tokenizer", str(tokenizer_file), "--output", str(output), "--quiet"]
    assert artesian_tokenize.main([*arguments, "--input", str(tmp_path / "a.txt")]) == 0
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert read_ids(output, "H") == tokenizer.encode(text, add_special_tokens=False).ids


# Half of a surrogate pair in JSON lines.


def test_item_4_half_a_surrogate_pair_is_replaced_and_said(tokenizer_file, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "whole"}\n')
    lines = ['{"text": "fine"}', r'{"text": "cut \ud83d here"}', r'{"text": "\ude00\ud83d\ude00"}']
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n")
    output = tmp_path / "out.bin"
    done = run("--tokenizer", tokenizer_file, "--output", output, "--input", tmp_path / "a.jsonl",
               tmp_path / "b.jsonl")  # fmt: skip
    assert done.returncode == 0, done.stderr
    file = tmp_path / "b.jsonl"
    assert f"warning: {file}: line 2: half a surrogate pair became U+FFFD\n" in done.stderr
    assert f"note: {file}: 2 halves of surrogate pairs; each became U+FFFD\n" in done.stderr
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    texts = ["whole", "fine", "cut \ufffd here", "\ufffd\U0001f600"]
    assert read_ids(output, "H") == sum((tokenizer.encode(text).ids for text in texts), [])


def test_item_4_what_the_tokenizer_raises_names_the_file(
    tokenizer_file, tmp_path, monkeypatch, capsys
):
    class Failing:
        def encode_batch(self, texts, add_special_tokens):
            raise TypeError("TextEncodeInput must be ...")

    (tmp_path / "a.txt").write_text("deep well")
    writer = artesian_tokenize.Writer
    made = writer.__init__

    def fail(self, *arguments):
        made(self, *arguments)
        self.tokenizer = Failing()

    monkeypatch.setattr(writer, "__init__", fail)
    arguments = ["--tokenizer", str(tokenizer_file), "--output", str(tmp_path / "out.bin")]
    assert artesian_tokenize.main([*arguments, "--input", str(tmp_path / "a.txt")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (f"artesian_tokenize: error: --input: {tmp_path / 'a.txt'}: the tokenizer "
                     "cannot encode it: TextEncodeInput must be ...")  # fmt: skip


# Hidden files in a folder.


def test_item_2_hidden_files_are_left_out_and_said(tokenizer_file, tmp_path):
    data = tmp_path / "data"
    for name in [".ipynb_checkpoints/a-checkpoint.txt", ".git/x", "__MACOSX/._a.txt", "._a.txt",
                 ".cache/huggingface/download/y.metadata", "b/.hidden/z.txt"]:  # fmt: skip
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("not this")
    (data / "a.txt").write_text("the deep well")
    output = tmp_path / "out.bin"
    done = run("--tokenizer", tokenizer_file, "--output", output, "--input", data)
    assert done.returncode == 0, done.stderr
    left_out = "._a.txt, .cache, .git, .hidden, .ipynb_checkpoints, ..."
    assert f"note: {data}: left out what is hidden: {left_out}\n" in done.stderr
    tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert read_ids(output, "H") == tokenizer.encode("the deep well").ids
    hidden = data / ".git" / "x"  # a hidden file that is named explicitly is read
    assert run("--tokenizer", tokenizer_file, "--output", output, "--input", hidden).returncode == 0
