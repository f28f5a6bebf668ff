"""Turns text into a file of little-endian token ids for `artesian train --data`.

    python3 -m artesian_tokenize --tokenizer DIR|tokenizer.json --input PATH... --output FILE.bin

Files are read in pieces cut at line ends, if the tokenizer gives the same ids as for the whole
document. For other tokenizers each document is encoded as a whole, in as much memory as that needs.
A folder means all regular files below it, in sorted order, except hidden ones. JSON lines (.jsonl,
.ndjson, or lines that are objects with the field) contribute the field `text` of each line, or
--text-field. Each file and each JSON line is a document; documents are separated by the tokenizer's
end-of-text token, if it has one, and no other special tokens are added. Ids are uint16 if the
vocabulary has at most 65536 entries, else uint32. Other kinds of files are refused by name. The
output is written under another name and renamed when complete.

models/data/data_form.cpp has the same rules for the formats of files.
"""

import argparse
import array
import codecs
import contextlib
import json
import os
import re
import sys
import time

PIECE_BYTES = 256 * 1024  # text per call of encode: enough to amortise the call, small in memory
BATCH_PIECES = 16  # pieces encoded together, on all cores
PROGRESS_SECONDS = 1.0
LINES_ENDINGS = (".jsonl", ".ndjson")
HALVES = re.compile("[\ud800-\udfff]")
FORMS = [  # file formats by their first bytes, with what converts them to text
    (b"\x1f\x8b\x08", "gzip", "unpack it: gzip -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unpack it: zstd -d"),
    (b"BZh", "bzip2", "unpack it: bzip2 -d"),
    (b"\xfd7zXZ\x00", "xz", "unpack it: xz -d"),
    (b"\x04\x22\x4d\x18", "lz4", "unpack it: lz4 -d"),
    (b"PK\x03\x04", "zip", "unpack it: unzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "unpack it: 7z x"),
    (b"PAR1", "Parquet", "write its text as JSON lines, as pandas does: to_json(lines=True)"),
    (b"ARROW1", "Arrow", "write its text as JSON lines"),
    (b"\x7fELF", "an ELF program", "name a text file"),
    (b"\x93NUMPY", "a numpy array", "write its ids as .bin: array.astype('<u2').tofile(...)"),
    (b"\x89HDF", "HDF5", "write its text as JSON lines"),
    (b"SQLite format 3", "an SQLite database", "write its text as JSON lines"),
    (b"%PDF", "PDF", "extract its text: pdftotext"),
    (b"\x89PNG", "a PNG picture", "name a text file"),
    (b"\xff\xd8\xff", "a JPEG picture", "name a text file"),
    (b"\x80\x02", "a pickle", "write its text as JSON lines"),
    (b"\x80\x04", "a pickle", "write its text as JSON lines"),
    (b"\xff\xfe", "UTF-16", "convert it: iconv -f utf-16 -t utf-8"),
    (b"\xfe\xff", "UTF-16", "convert it: iconv -f utf-16 -t utf-8"),
]
SAMPLES = 64  # number of samples of a large file, to check that it is text
SAMPLE_BYTES = 16 * 1024
BAD_SHARE = 0.03  # allowed share of bytes that are not text
BAD_LEAST = 16


class Fault(Exception):
    """A problem that the user can fix; printed as one line."""


@contextlib.contextmanager
def naming(path):
    """Names the file in errors of reading and writing, which lack its name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


def bad_bytes(block):
    """Counts bytes that are not text: NUL and invalid UTF-8; the ends may cut a character."""
    start = 0
    while start < min(3, len(block)) and block[start] & 0xC0 == 0x80:
        start += 1
    counted = CountErrors("artesian_count", "")
    codecs.getincrementaldecoder("utf-8")(counted.name).decode(block[start:])
    return counted.bytes + block.count(0)


class CountErrors:
    """A decoding error handler: counts bytes that are not UTF-8, and replaces them by `text`."""

    def __init__(self, name, text):
        self.name, self.text = name, text
        self.bytes = 0
        codecs.register_error(name, self)

    def __call__(self, error):
        self.bytes += error.end - error.start
        return self.text, error.end


def line_text(line, field):
    """The text of a JSON line, or None if it is not one. It may contain lone surrogates from JSON
    escapes, which whole_text() replaces."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = value.get(field) if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def whole_text(text):
    """The text with U+FFFD for each lone surrogate, and their number."""
    return HALVES.subn("\ufffd", text)


def looks_like_lines(head, field):
    """True if the first two lines, as far as they are complete here, are objects with the field."""
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    whole = [line for line in lines[:-1] if line.strip()] or [lines[-1]]
    return all(line_text(line, field) is not None for line in whole[:2])


def other_form(path, name, fix):
    return Fault(f"--input: {path}: got {name}, allowed text (UTF-8) or JSON lines; {fix}")


def form_of(path, field):
    """Returns "text" or "lines". A file that is neither is a fault. `field` None: not given."""
    with open(path, "rb") as stream:
        head = read_block(stream, path)
        for magic, name, fix in FORMS:
            if head.startswith(magic):
                raise other_form(path, name, fix)
        if head[257:262] == b"ustar":
            raise other_form(path, "a tar archive", "unpack it: tar -x")
        size = os.fstat(stream.fileno()).st_size
        seen = bad = 0
        if size <= SAMPLES * SAMPLE_BYTES:
            stream.seek(0)
            while block := read_block(stream, path):
                seen, bad = seen + len(block), bad + bad_bytes(block)
        else:
            for sample in range(SAMPLES):
                stream.seek((size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                with naming(path):
                    block = stream.read(SAMPLE_BYTES)
                seen, bad = seen + len(block), bad + bad_bytes(block)
    if bad >= BAD_LEAST and bad > BAD_SHARE * seen:
        raise Fault(
            f"--input: {path}: {100 * bad // seen}% of its bytes are no UTF-8 text, allowed 3%; "
            "convert it (iconv -t utf-8), or give token ids as .bin"
        )
    lines = path.lower().endswith(LINES_ENDINGS) or field is not None
    return "lines" if lines or looks_like_lines(head, field or "text") else "text"


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="python3 -m artesian_tokenize",
        description="Turns text into a file of token ids (little-endian) for `artesian train`.",
        epilog="Ids are uint16 when the vocabulary has at most 65536 entries, else uint32. "
        "A folder means every regular file below it, in sorted order. Documents, which are files "
        "and JSON lines, are parted by the tokenizer's end-of-text token.",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="DIR|FILE",
        help="a Hugging Face directory that holds tokenizer.json, or such a file itself",
    )
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        metavar="PATH",
        help="text files, JSON lines or folders, in order",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE.bin", help="the file to write; replaced if present"
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="entries of the model's vocabulary, which decides the width of an id "
        "(default: vocab_size of the config.json beside tokenizer.json, else the tokenizer's own)",
    )
    parser.add_argument(
        "--text-field",
        metavar="NAME",
        help="every file is JSON lines, with the text in this field (default: text)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress lines")
    return parser.parse_args(arguments)


def load_tokenizer(path):
    """Returns the tokenizer and the path of its file."""
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise Fault(f"--tokenizer: {file}: no such file; give a folder with tokenizer.json")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise Fault(
            f"the Python package `tokenizers` is missing in {sys.executable}; "
            "install it (pip install tokenizers)"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:  # the package raises plain Exception
        raise Fault(f"--tokenizer: {file}: not a tokenizer: {error}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, file


def vocabulary_size(arguments, tokenizer, tokenizer_file):
    if arguments.vocab_size is not None:
        if arguments.vocab_size < 1:
            raise Fault(f"--vocab-size: got {arguments.vocab_size}, allowed 1 or more")
        return arguments.vocab_size
    config = os.path.join(os.path.dirname(tokenizer_file), "config.json")
    if os.path.isfile(config):
        try:
            with open(config, encoding="utf-8") as stream:
                size = json.load(stream).get("vocab_size")
        except (OSError, ValueError) as error:
            raise Fault(f"{config}: {error}") from None
        if isinstance(size, int) and size > 0:
            return size
    return tokenizer.get_vocab_size(with_added_tokens=True)


def is_hidden(name):
    """True for files that editors, version control, downloads and archives leave in a folder."""
    return name.startswith(".") or name == "__MACOSX"


def list_files(paths):
    """All regular files of the paths, with folders walked in sorted order and without hidden
    files."""
    files = []
    for path in paths:
        if os.path.isfile(path):
            files.append(path)
        elif os.path.isdir(path):
            hidden = set()
            for folder, folders, names in os.walk(path):
                hidden.update(filter(is_hidden, [*folders, *names]))
                folders[:] = sorted(name for name in folders if not is_hidden(name))
                members = (os.path.join(folder, n) for n in sorted(names) if not is_hidden(n))
                files.extend(member for member in members if os.path.isfile(member))
            if hidden:
                shown = sorted(hidden)[:5] + (["..."] if len(hidden) > 5 else [])
                say(f"note: {path}: left out what is hidden: {', '.join(shown)}")
        else:
            raise Fault(f"--input: {path}: no such file or folder")
    return files


def cut_position(text, begin=0):
    """The first place from `begin` on where cutting does not change the ids: before a line end that
    follows a letter or a digit (class Cuts). 0 if there is none."""
    end = len(text)
    while (end := text.rfind("\n", begin, end)) > 0:
        start = end - 1 if text[end - 1] == "\r" else end
        if text[start - 1 : start].isalnum():
            return start
    return 0


# Pre-tokenizers that only look at a few neighbouring characters.
NEAR = {"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation"}
# Normalizers that treat the text before and after a line end independently.
LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Replace", "StripAccents"}
# Matches vocabulary entries in which a line end may follow a letter or digit: as text, and in
# ByteLevel's alphabet.
ACROSS = re.compile("[^\\0-/:-@\\[-`{-~\u0109\u010a\u010d\u0120][\n\r\u010a\u010d]")
TRIAL = "A word\nthen 12\n\n more words9\r\n  and\ttabs: z\nlast one\n"


class Cuts:
    """Whether documents may be cut, and how a piece after a cut is encoded: by itself or, if the
    tokenizer puts a space before its input (as for Llama 2 and Mistral), after a letter whose ids
    are dropped. A cut separates a letter or a digit from a line end. The ids are those of the whole
    document if pre-tokenizing splits there anyway, or if no vocabulary entry has a line end after a
    letter or digit, so that no merge reaches across. A trial must confirm this. With other
    tokenizers documents are not cut."""

    LETTER = "a"

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.dropped = len(self.encode(self.LETTER))
        self.allowed = self._may_be_allowed(json.loads(tokenizer.to_str()))
        self.behind_letter = False
        if self.allowed and not self._agrees():
            self.behind_letter = True
            self.allowed = self._agrees()

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def given(self, piece, begins):
        """The text to encode for a piece, and the number of leading ids to drop."""
        if begins or not self.behind_letter:
            return piece, 0
        return self.LETTER + piece, self.dropped

    def _agrees(self):
        ids, rest, begins = [], TRIAL, True
        while rest:
            at = cut_position(rest[:-1])
            while at and (earlier := cut_position(rest[:at])):
                at = earlier
            text, dropped = self.given(rest[:at] if at else rest, begins)
            ids += self.encode(text)[dropped:]
            rest, begins = rest[at:] if at else "", False
        return ids == self.encode(TRIAL)

    @staticmethod
    def _may_be_allowed(parts):
        for token in parts.get("added_tokens") or []:
            if "\n" in token["content"] or token.get("rstrip"):
                return False
        for part in _parts(parts.get("normalizer"), "normalizers"):
            far = part["type"] == "Replace" and "\n" in part["pattern"].get("String", "\n")
            if far or part["type"] not in LOCAL:
                return False
        splits = [*_parts(parts.get("pre_tokenizer"), "pretokenizers")]
        if any(_parts_lines(part) for part in splits):
            return True
        model = parts.get("model") or {}
        vocabulary = model.get("vocab", {})
        known = model.get("byte_fallback") or "\n" in vocabulary or "\u010a" in vocabulary
        if not ({part["type"] for part in splits} <= NEAR and model.get("type") == "BPE" and known):
            return False
        return not any(map(ACROSS.search, vocabulary))


def _parts(part, members):
    """Yields a normalizer or pre-tokenizer, or the members of a sequence."""
    if part and part["type"] == "Sequence":
        for member in part[members]:
            yield from _parts(member, members)
    elif part:
        yield part


def _parts_lines(part):
    """True if this pre-tokenizer always separates a letter or digit from a following line end:
    those of GPT-2 and its relatives, recognised by their patterns, and those that split at
    spaces."""
    if part["type"] == "ByteLevel":
        return part.get("use_regex", True)
    if part["type"] == "Split":
        pattern = part["pattern"].get("Regex", "")
        return r"\p{L}+" in pattern and r"\s+" in pattern and part["behavior"] == "Isolated"
    return part["type"] in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")


def read_block(stream, file):
    with naming(file):
        return stream.read(PIECE_BYTES)


def end_of_text(tokenizer, tokenizer_file, id_limit):
    """The token that separates documents, as (text, id), or None: the one named in the files beside
    the tokenizer, else one of the usual names."""
    folder = os.path.dirname(tokenizer_file)
    named = []
    for name, key in [
        ("tokenizer_config.json", "eos_token"),
        ("special_tokens_map.json", "eos_token"),
        ("config.json", "eos_token_id"),
    ]:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                value = json.load(stream).get(key)
        except (OSError, ValueError, AttributeError):
            continue  # readers that need the file report what is wrong with it
        value = value[0] if isinstance(value, list) and value else value
        value = value.get("content") if isinstance(value, dict) else value
        named.append(tokenizer.id_to_token(value) if type(value) is int and value >= 0 else value)
    for text in [*named, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"]:
        number = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if number is not None and number < id_limit:
            return text, number
    return None


def cut(text, cuts):
    """Yields the text in pieces whose ids are those of the whole."""
    begin, step = 0, 8 * PIECE_BYTES
    while cuts and len(text) - begin > step:
        at = cut_position(text[begin : begin + step])
        if at:
            yield text[begin : begin + at]
            begin, step = begin + at, 8 * PIECE_BYTES
        else:
            step *= 2
    yield text[begin:]


def read_lines(file, field, cuts):
    """Yields (bytes read, text, whether it begins a document) of JSON lines."""
    halves = 0
    with open(file, "rb") as stream:
        for number, line in enumerate(lines_of(stream, file), start=1):
            read = len(line)
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            text = line_text(line, field)
            if text is None:
                raise Fault(
                    f"--input: {file}: line {number}: allowed a JSON object with a string "
                    f"{json.dumps(field)}; repair it, or name the field: --text-field"
                )
            text, found = whole_text(text)
            if found and not halves:
                say(f"warning: {file}: line {number}: half a surrogate pair became U+FFFD")
            halves += found
            for piece in cut(text, cuts):
                yield read, piece, read != 0
                read = 0
    if halves > 1:
        say(f"note: {file}: {halves} halves of surrogate pairs; each became U+FFFD")


def lines_of(stream, file):
    with naming(file):
        yield from stream


def read_text(file, cuts):
    """Yields (bytes read, text, whether it begins a document) of a text file."""
    first = True
    for read, text in read_pieces(file, "artesian_replace", cuts):
        yield read, text, first
        first = first and not text


def read_pieces(file, handler_name, cuts):
    """Yields (bytes read for this piece, its text)."""
    decoder = codecs.getincrementaldecoder("utf-8")(handler_name)
    pending, seen = [], ""  # texts so far without a place to cut, and the end of the last one
    with open(file, "rb") as stream:
        while block := read_block(stream, file):
            text = decoder.decode(block)
            at = cut_position(seen + text) if cuts else 0
            if at:
                whole = "".join([*pending, text])
                at += len(whole) - len(seen) - len(text)
                yield len(block), whole[:at]
                pending = [whole[at:]]
            else:
                yield len(block), ""
                pending.append(text)
            seen = pending[-1][-2:]
    yield 0, "".join(pending) + decoder.decode(b"", True)


class Progress:
    def __init__(self, bytes_total, quiet):
        self.bytes_total = bytes_total
        self.quiet = quiet
        self.started = self.printed = time.monotonic()

    def show(self, bytes_done, tokens, last=False):
        now = time.monotonic()
        if self.quiet or (not last and now - self.printed < PROGRESS_SECONDS):
            return
        self.printed = now
        rate = bytes_done / 1e6 / max(now - self.started, 1e-9)
        print(
            f"artesian_tokenize: {bytes_done / 1e6:.1f} of {self.bytes_total / 1e6:.1f} MB, "
            f"{tokens} tokens, {rate:.1f} MB/s",
            file=sys.stderr,
        )


class Writer:
    """Encodes pieces of documents, in batches, and appends their ids to the stream."""

    def __init__(self, tokenizer, id_limit, separator, stream):
        self.cuts = Cuts(tokenizer)
        self.tokenizer, self.id_limit, self.separator = tokenizer, id_limit, separator
        self.type_code = "H" if id_limit <= 65536 else "I"
        self.stream = stream
        self.tokens = self.documents = 0
        self.batch = []  # (text, whether it begins a document, its file)

    def add(self, text, begins, file):
        """Adds a piece. Returns True if a batch was encoded."""
        if text:
            self.batch.append((text, begins, file))
        if len(self.batch) < BATCH_PIECES:
            return False
        self.flush()
        return True

    def _encode(self, given):
        try:
            texts = [text for text, _ in given]
            return self.tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # the package may raise anything
            files = sorted({file for _, _, file in self.batch})
            raise Fault(
                f"--input: {' or '.join(files)}: the tokenizer cannot encode it: {error}"
            ) from None

    def flush(self):
        given = [self.cuts.given(text, begins) for text, begins, _ in self.batch]
        for encoding, (_, dropped), (_, begins, _) in zip(self._encode(given), given, self.batch):
            ids = encoding.ids[dropped:]
            if ids and max(ids) >= self.id_limit:
                raise Fault(
                    f"the tokenizer gives id {max(ids)}, allowed below the vocabulary size "
                    f"{self.id_limit}; use the tokenizer that belongs to the model"
                )
            if begins and self.documents != 0 and self.separator is not None:
                ids = [self.separator, *ids]
            self.documents += begins
            values = array.array(self.type_code, ids)
            if sys.byteorder != "little":
                values.byteswap()
            values.tofile(self.stream)
            self.tokens += len(ids)
        self.batch.clear()


def encode_files(files, field, writer, progress):
    """Streams all files, pairs of (path, form), through the tokenizer."""
    handler = CountErrors("artesian_replace", "\ufffd")
    bytes_done = 0
    for file, form in files:
        handler.bytes = 0
        cuts = writer.cuts.allowed
        parts = read_text(file, cuts) if form == "text" else read_lines(file, field, cuts)
        for read, text, begins in parts:
            bytes_done += read
            if writer.add(text, begins, file):
                progress.show(bytes_done, writer.tokens)
        if handler.bytes:
            say(f"note: {file}: {handler.bytes} bytes are not UTF-8; each became U+FFFD")
    writer.flush()
    progress.show(bytes_done, writer.tokens, last=True)


def say(line):
    print(f"artesian_tokenize: {line}", file=sys.stderr)


def say_separator(separator, documents):
    if documents < 2:
        return
    if separator is None:
        say(f"note: {documents} documents run on: the tokenizer has no end-of-text token")
    else:
        say(f"note: {documents} documents, parted by {separator[0]} (id {separator[1]})")


def tokenize(arguments):
    tokenizer, tokenizer_file = load_tokenizer(arguments.tokenizer)
    id_limit = vocabulary_size(arguments, tokenizer, tokenizer_file)
    field = arguments.text_field
    files = [(file, form_of(file, field)) for file in list_files(arguments.input)]
    separator = end_of_text(tokenizer, tokenizer_file, id_limit)
    progress = Progress(sum(os.path.getsize(file) for file, _ in files), arguments.quiet)
    temporary = f"{arguments.output}.partial-{os.getpid()}"
    try:
        with naming(temporary), open(temporary, "xb") as stream:
            writer = Writer(tokenizer, id_limit, separator and separator[1], stream)
            encode_files(files, field or "text", writer, progress)
            stream.flush()
            os.fsync(stream.fileno())
        if writer.tokens == 0:
            raise Fault(f"--input: {' '.join(arguments.input)}: no text in it")
        if not arguments.quiet:
            say_separator(separator, writer.documents)
        os.replace(temporary, arguments.output)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return writer.tokens


def main(arguments=None):
    try:
        tokenize(parse_arguments(arguments))
    except Fault as fault:
        print(f"artesian_tokenize: error: {fault}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"artesian_tokenize: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except MemoryError:
        print("artesian_tokenize: error: a document does not fit into memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
