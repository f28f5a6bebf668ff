#!/usr/bin/env python3
"""Trains a Llama of 3.1 billion parameters, 50 GB of state, in 3 GiB of device and 3 GiB of host
memory (ds_config.json beside this file), on real text:

    make build
    cd FOLDER_ON_THE_NVME_DISK
    REPOSITORY/dev/setup.sh python3 REPOSITORY/examples/llama_3b/run.py --steps 3

Creates in the current folder, and keeps,

    llama-data/text.txt     the text of `make demo`
    llama-data/model/       config.json of the shape given by the flags, without weights, and a
                            tokenizer trained on the text
    llama-data/tokens.bin   the text as token ids
    llama-out/steps.jsonl   a line for each step

and, while it runs, the swap file in llama-nvme/. Free space is checked first. Exit code: that of
`artesian train`; 2 if something is missing before it starts."""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "dev"))
import demo_data  # noqa: E402

DISK_MARGIN = 1 << 30  # for the data, and for other uses of the disk
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]


def say(message):
    print(f"llama_3b: {message}", file=sys.stderr, flush=True)


def read_arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, value, meaning in [
        ("hidden", 2560, "width between blocks"),
        ("layers", 32, "blocks"),
        ("ffn", 8704, "width within a block's MLP"),
        ("heads", 20, "heads of attention"),
        ("vocab", 32000, "tokens of the vocabulary"),
        ("seq-len", 64, "tokens of a sample"),
        ("steps", 3, "optimizer steps"),
        ("seed", 1, "of the weights and of the order of samples"),
    ]:
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{meaning} ({value})")
    parser.add_argument("--program", type=pathlib.Path, default=REPOSITORY / "build/bin/artesian")
    parser.add_argument("--config", type=pathlib.Path, default=HERE / "ds_config.json",
                        help="budgets and training (ds_config.json beside this file)")  # fmt: skip
    return parser.parse_args(words)


def model_config(options):
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": options.vocab,
        "hidden_size": options.hidden,
        "intermediate_size": options.ffn,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def count_parameters(options):
    block = 4 * options.hidden**2 + 3 * options.hidden * options.ffn + 2 * options.hidden
    return options.layers * block + 2 * options.vocab * options.hidden + options.hidden


def check_disk(parameters):
    """On disk the state is 14 bytes a parameter: 2 of bf16, 10 of moments and the rest of the
    master weight, and 2 of gradient, which spills if host memory is short."""
    needed = 14 * parameters + DISK_MARGIN
    free = shutil.disk_usage(".").free
    if free < needed:
        raise demo_data.Fault(
            f"{pathlib.Path.cwd()}: {free / 2**30:.1f} GiB free, {needed / 2**30:.1f} GiB needed; "
            "start this in a folder of a larger disk"
        )
    say(f"{parameters / 1e9:.2f} billion parameters, {needed / 1e9:.0f} GB of disk")


def write_tokenizer(text, vocabulary, target):
    """A byte-level BPE of at most this many tokens, trained on the text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train([str(text)], trainer)
    demo_data.write_whole(target, tokenizer.to_str().encode())


def prepare(folder, options):
    least = len(SPECIAL_TOKENS) + 256
    if not least <= options.vocab <= 65536:
        raise demo_data.Fault(f"--vocab: got {options.vocab}, allowed {least} to 65536")
    folder.mkdir(exist_ok=True)
    text = demo_data.prepare_text(folder)
    model = folder / "model"
    model.mkdir(exist_ok=True)
    config = json.dumps(model_config(options), indent=2) + "\n"
    tokenizer, old = model / "tokenizer.json", model / "config.json"
    if not tokenizer.exists() or not old.exists() or old.read_text() != config:
        write_tokenizer(text, options.vocab, tokenizer)
        demo_data.write_whole(old, config.encode())
    demo_data.prepare_tokens(folder, text, model)
    return model


def main(words):
    options = read_arguments(words)
    folder, log = pathlib.Path("llama-data"), pathlib.Path("llama-out/steps.jsonl")
    try:
        if not options.program.exists():
            raise demo_data.Fault(f"{options.program} is missing; run `make build` first")
        check_disk(count_parameters(options))
        model = prepare(folder, options)
        log.parent.mkdir(exist_ok=True)
    except demo_data.Fault as fault:
        say(f"error: {fault}")
        return 2
    except OSError as error:
        say(f"error: {error.filename or folder}: {error.strerror or error}")
        return 2
    command = [options.program, "train", "--model", model, "--init"]
    command += ["--data", folder / "tokens.bin", "--config", options.config]
    command += ["--steps", options.steps, "--seq-len", options.seq_len, "--seed", options.seed]
    command += ["--log-jsonl", log]
    return subprocess.run([str(word) for word in command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
