"""Turns text into a file of little-endian token ids for `artesian train --data`.

    python3 -m artesian_tokenize --tokenizer DIR|tokenizer.json --input PATH... --output FILE.bin

Files are read in pieces cut at line ends, never whole. A folder means every regular file below it,
in sorted order. No special tokens are added. Ids are uint16 when the vocabulary has at most 65536
entries, else uint32. The output is written beside its final name and renamed when complete.
"""

import argparse
import array
import codecs
import contextlib
import json
import os
import sys
import time

PIECE_BYTES = 256 * 1024  # text per encode call: enough to amortise it, small in memory
BATCH_PIECES = 16  # pieces that are encoded together, on all cores
PROGRESS_SECONDS = 1.0


class Fault(Exception):
    """What the user can repair; printed as one line."""


@contextlib.contextmanager
def naming(path):
    """Errors of reading and writing an open file do not say which: this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = path
        raise


class ReplaceAndCount:
    """A decoding error handler: bytes that are not UTF-8 become U+FFFD, and are counted."""

    def __init__(self):
        self.count = 0
        codecs.register_error("artesian_replace", self)

    def __call__(self, error):
        self.count += error.end - error.start
        return "\ufffd", error.end


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="python3 -m artesian_tokenize",
        description="Turns text into a file of token ids (little-endian) for `artesian train`.",
        epilog="Ids are uint16 when the vocabulary has at most 65536 entries, else uint32. "
        "A folder means every regular file below it, in sorted order. No special tokens are added.",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="DIR|FILE",
        help="a Hugging Face directory that holds tokenizer.json, or such a file itself",
    )
    parser.add_argument(
        "--input", required=True, nargs="+", metavar="PATH", help="text files or folders, in order"
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


def list_files(paths):
    """Every regular file of the paths, folders walked in sorted order."""
    files = []
    for path in paths:
        if os.path.isfile(path):
            files.append(path)
        elif os.path.isdir(path):
            for folder, folders, names in os.walk(path):
                folders.sort()
                members = (os.path.join(folder, name) for name in sorted(names))
                files.extend(member for member in members if os.path.isfile(member))
        else:
            raise Fault(f"--input: {path}: no such file or folder")
    return files


def cut_position(text, must):
    """Where to cut so that the pieces encode as the whole: before a line end that follows a letter
    or a digit, where the patterns of GPT-2 and its kin split anyway. Without such a place: nowhere
    (0), or, when we must, after the last line end, or at the end."""
    end = len(text)
    while (end := text.rfind("\n", 0, end)) > 0:
        start = end - 1 if text[end - 1] == "\r" else end
        if text[start - 1 : start].isalnum():
            return start
    return (text.rfind("\n") + 1 or len(text)) if must else 0


def read_block(stream, file):
    with naming(file):
        return stream.read(PIECE_BYTES)


def read_pieces(file, handler_name):
    """Yields (bytes read for this piece, its text)."""
    decoder = codecs.getincrementaldecoder("utf-8")(handler_name)
    pending = ""
    with open(file, "rb") as stream:
        while block := read_block(stream, file):
            pending += decoder.decode(block)
            cut = cut_position(pending, must=len(pending) >= 8 * PIECE_BYTES)
            yield len(block), pending[:cut]
            pending = pending[cut:]
    yield 0, pending + decoder.decode(b"", True)


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


def write_batch(tokenizer, texts, type_code, id_limit, stream):
    """Encodes the texts and appends their ids; returns how many."""
    count = 0
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
        ids = encoding.ids
        if ids and max(ids) >= id_limit:
            raise Fault(
                f"the tokenizer gives id {max(ids)}, allowed below the vocabulary size {id_limit}; "
                "use the tokenizer that belongs to the model"
            )
        values = array.array(type_code, ids)
        if sys.byteorder != "little":
            values.byteswap()
        values.tofile(stream)
        count += len(ids)
    return count


def encode_files(tokenizer, files, type_code, id_limit, stream, progress):
    """Streams all files through the tokenizer; returns the number of tokens."""
    handler = ReplaceAndCount()
    tokens = bytes_done = 0
    batch = []
    for file in files:
        handler.count = 0
        for bytes_read, text in read_pieces(file, "artesian_replace"):
            bytes_done += bytes_read
            if text:
                batch.append(text)
            if len(batch) == BATCH_PIECES:
                tokens += write_batch(tokenizer, batch, type_code, id_limit, stream)
                batch.clear()
                progress.show(bytes_done, tokens)
        if handler.count:
            print(
                f"artesian_tokenize: note: {file}: {handler.count} bytes are not UTF-8; "
                "each became U+FFFD",
                file=sys.stderr,
            )
    tokens += write_batch(tokenizer, batch, type_code, id_limit, stream)
    progress.show(bytes_done, tokens, last=True)
    return tokens


def tokenize(arguments):
    tokenizer, tokenizer_file = load_tokenizer(arguments.tokenizer)
    id_limit = vocabulary_size(arguments, tokenizer, tokenizer_file)
    type_code = "H" if id_limit <= 65536 else "I"
    files = list_files(arguments.input)
    progress = Progress(sum(os.path.getsize(file) for file in files), arguments.quiet)
    temporary = f"{arguments.output}.partial-{os.getpid()}"
    try:
        with naming(temporary), open(temporary, "xb") as stream:
            tokens = encode_files(tokenizer, files, type_code, id_limit, stream, progress)
            stream.flush()
            os.fsync(stream.fileno())
        if tokens == 0:
            raise Fault(f"--input: {' '.join(arguments.input)}: no text in it")
        os.replace(temporary, arguments.output)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return tokens


def main(arguments=None):
    try:
        tokenize(parse_arguments(arguments))
    except Fault as fault:
        print(f"artesian_tokenize: error: {fault}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"artesian_tokenize: error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
