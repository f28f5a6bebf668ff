"""Proves that our safetensors reader judges files as the reference reader (the PyPI package
safetensors) does, over 1,000 mutated files; and that transformers loads what our writer writes, bit
for bit.

Drives build/tests/checkpoint_tool."""

import json
import os
import random
import struct
import subprocess

import pytest
from build_folder import BUILD, ROOT

numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save, save_file  # noqa: E402

TOOL = BUILD / "tests" / "checkpoint_tool"
pytestmark = pytest.mark.skipif(not TOOL.exists(), reason=f"{TOOL} is not built")

CONFIG = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 23, "n_positions": 9,
    "n_embd": 8, "n_layer": 2, "n_head": 2,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip


def our_verdicts(paths):
    done = subprocess.run(
        [TOOL, "check"],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def reference_accepts(file):
    try:
        safetensors.deserialize(file)
        return True
    except Exception:
        return False


def repeats_a_name(header):
    """Our reader is stricter on purpose if a tensor's name occurs twice."""
    repeated = []

    def collect(pairs):
        names = [name for name, _ in pairs]
        repeated.append(len(names) != len(set(names)))
        return dict(pairs)

    try:
        json.loads(header.decode(), object_pairs_hook=collect)
    except ValueError:
        return False
    return bool(repeated) and repeated[-1]


def mutate(header, source):
    snippets = b"0 8 -1 1e3 [ ] { } , : \" \xff null 18446744073709551616 [] {}".split(b" ")
    snippets += [b" ", b"\n", b'"F16"', b'"x":[1],', b'"dtype":"F32",']
    header = bytearray(header)
    for _ in range(source.randint(1, 3)):
        position = source.randrange(len(header))
        kind = source.randrange(6)
        if kind == 0:
            header[position] = source.randrange(256)
        elif kind == 1:
            del header[position : position + source.randint(1, 4)]
        elif kind == 2:
            header[position:position] = source.choice(snippets)
        elif kind == 3:
            header[position] = ord("0") + source.randrange(10)
        elif kind == 4:
            name = header.find(source.choice([b"wte", b"bias", b"F32", b"BF16"]))
            header[name + 1 : name + 2] = bytes([source.choice(b"abcdefF16")])
        else:
            other = source.randrange(len(header))
            header[position], header[other] = header[other], header[position]
    return bytes(header) or b"{"


def test_mutated_files_are_judged_as_the_reference_does(tmp_path):
    seed = int(os.environ.get("ARTESIAN_TEST_SEED", "20251121"))
    print("seed", seed)
    source = random.Random(seed)
    tensors = {
        "wte": numpy.ones((2, 3), "float32"),
        "bias": numpy.ones(4, "float16"),
        "none": numpy.ones((0, 2), "uint8"),
    }
    original = save(tensors, metadata={"format": "pt"})
    (length,) = struct.unpack("<Q", original[:8])
    header, data = original[8 : 8 + length], original[8 + length :]
    files, headers = [], []
    for index in range(1000):
        headers.append(mutate(header, source))
        written = struct.pack("<Q", len(headers[-1])) + headers[-1] + data
        if source.random() < 0.1:  # also damages the header's length or the data's length
            written = source.choice(
                [
                    written[:-1],
                    written + b"\0",
                    struct.pack("<Q", source.randrange(2 * length)) + written[8:],
                ]
            )
        files.append(written)
        (tmp_path / f"{index}.safetensors").write_bytes(written)
    verdicts = our_verdicts(tmp_path / f"{index}.safetensors" for index in range(1000))
    assert len(verdicts) == 1000
    accepted = stricter = 0
    for written, mutated_header, verdict in zip(files, headers, verdicts):
        expected = reference_accepts(written)
        accepted += expected
        if expected and verdict != "ok" and repeats_a_name(mutated_header):
            stricter += 1
            continue
        assert (verdict == "ok") == expected, (written, verdict)
    print(f"{accepted} accepted, {stricter} refused by us alone: a name twice")
    assert 10 < accepted < 990


def test_the_fuzzers_kept_corpus_is_judged_as_the_reference_does():
    files = sorted((ROOT / "tests/models/corpus/safetensors").iterdir())
    verdicts = our_verdicts(files)
    assert len(verdicts) == len(files) > 20
    accepted = 0
    for path, verdict in zip(files, verdicts):
        written = path.read_bytes()
        expected = reference_accepts(written)
        accepted += expected
        length = int.from_bytes(written[:8], "little")
        if expected and verdict != "ok" and repeats_a_name(written[8 : 8 + length]):
            continue
        assert (verdict == "ok") == expected, (path, verdict)
    assert accepted > 3


def rewrite(source, target, dtype="fp32", shard_size_max=5_000_000_000, seed=None):
    words = [
        TOOL,
        "rewrite",
        source,
        target,
        dtype,
        shard_size_max,
        *([] if seed is None else [seed]),
    ]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


@pytest.fixture
def hugging_face_model(tmp_path):
    """Returns a model as transformers saves it, and its folder."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG))
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shard_size_max", [5_000_000_000, 2000])
def test_transformers_loads_what_we_write(hugging_face_model, tmp_path, dtype, shard_size_max):
    import torch
    import transformers

    model, saved = hugging_face_model
    done = rewrite(saved, tmp_path / "ours", dtype, shard_size_max)
    assert done.returncode == 0, done.stderr
    names = os.listdir(tmp_path / "ours")
    assert ("model.safetensors.index.json" in names) == (shard_size_max == 2000)
    narrow = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    ours, report = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert ours.dtype == narrow
    loaded = ours.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded[name], weight.to(narrow)), name


def test_untied_head_and_sharded_input(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**CONFIG, tie_word_embeddings=False)
    )
    model.save_pretrained(tmp_path / "saved", max_shard_size="3KB")
    assert (tmp_path / "saved" / "model.safetensors.index.json").exists()
    assert rewrite(tmp_path / "saved", tmp_path / "ours").returncode == 0
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded[name], weight), name


def test_names_without_prefix(hugging_face_model, tmp_path):
    model, saved = hugging_face_model
    tensors = load_file(saved / "model.safetensors")
    tensors = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, tmp_path / "bare" / "model.safetensors")
    assert rewrite(tmp_path / "bare", tmp_path / "ours").returncode == 0
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    for name, value in tensors.items():
        assert numpy.array_equal(ours["transformer." + name], value), name


def test_random_weights_are_a_model_that_transformers_loads(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps(CONFIG))
    assert rewrite(tmp_path / "empty", tmp_path / "ours", seed=3).returncode == 0
    _, report = transformers.GPT2LMHeadModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
