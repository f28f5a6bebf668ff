#!/usr/bin/env python3
"""Generates tokens with a Llama model from a folder, and prints the seconds of each run.
bench/inference.py starts it in a memory control group.

`--how nvme`: artesian with parameters on NVMe; `disk`: accelerate's disk_offload; `memory`: plain
PyTorch. `--make`: only writes the folder, with random weights."""

import argparse
import json
import pathlib
import time

import torch
import transformers

SHAPES = {  # layers, hidden, intermediate, heads, vocabulary
    "3b": (26, 3200, 8640, 32, 32000),
    "tiny": (4, 256, 512, 4, 2048),
}
PROMPT = 16  # tokens


def make(folder, name):
    """The random weights repeat one block, which is faster than drawing all of them."""
    from safetensors.torch import save_file

    layers, hidden, intermediate, heads, vocabulary = SHAPES[name]
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, vocab_size=vocabulary, dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {n: v.shape for n, v in transformers.LlamaForCausalLM(config).state_dict().items()}
    block = (0.02 * torch.randn(1 << 20)).bfloat16()
    files, shards = {}, {}
    for key, shape in shapes.items():
        shard = ".".join(key.split(".")[:3]) if ".layers." in key else key.split(".")[-2]
        files[key] = f"model-{shard}.safetensors"
        shards.setdefault(files[key], {})[key] = shape
    for file, parts in shards.items():
        tensors = {}
        for key, shape in parts.items():
            count = shape.numel()
            values = block.repeat(-(-count // len(block)))[:count].view(shape)
            tensors[key] = torch.ones(shape, dtype=torch.bfloat16) if len(shape) == 1 else values
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def on_nvme(options):
    import artesian

    shape = transformers.AutoConfig.from_pretrained(options.folder)
    layer = shape.hidden_size * (4 * shape.hidden_size + 3 * shape.intermediate_size)
    nvme = {"device": "nvme", "nvme_path": str(options.nvme)}
    config = {
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_param": nvme,
            "stage3_prefetch_bucket_size": 2 * layer,  # the default is half a layer of this model
        },
        "aio": {"queue_depth": options.queue_depth},
        "artesian": {"device_memory": options.budget, "host_memory": options.budget},
    }
    with artesian.zero.Init(config_dict_or_path=config):
        model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype="bfloat16")
    return artesian.init_inference(model.eval(), config)


def on_disk(options):
    from accelerate import disk_offload, init_empty_weights

    config = transformers.AutoConfig.from_pretrained(options.folder)
    with init_empty_weights(include_buffers=False):
        model = transformers.LlamaForCausalLM(config).bfloat16().eval()
    index = json.loads((options.folder / "model.safetensors.index.json").read_text())
    offload = options.nvme / "offload"
    offload.mkdir()
    entries = {
        name: {"safetensors_file": str(options.folder / file), "weight_name": name,
               "dtype": "bfloat16"}
        for name, file in index["weight_map"].items()
    }  # fmt: skip
    (offload / "index.json").write_text(json.dumps(entries))
    return disk_offload(model, str(offload), execution_device=torch.device("cpu"))


def in_memory(options):
    return transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype="bfloat16")


def generate(engine, rows, tokens):
    ids = torch.arange(rows * PROMPT).view(rows, PROMPT) % 500 + 5
    return engine.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--make", choices=list(SHAPES))
    add("--how", choices=["nvme", "disk", "memory"])
    add("--folder", type=pathlib.Path, required=True, help="of the model")
    add("--nvme", type=pathlib.Path, help="an empty folder")
    add("--budget", default="1GiB")
    add("--queue-depth", type=int, default=8)
    add("--rows", type=int, nargs="+", default=[1, 8])
    add("--tokens", type=int, default=16)
    add("--warm-up", type=int, default=2, help="tokens")
    options = parser.parse_args()
    if options.make is not None:
        make(options.folder, options.make)
        return
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    engine = {"nvme": on_nvme, "disk": on_disk, "memory": in_memory}[options.how](options)
    results = {}
    for rows in options.rows:
        if options.warm_up > 0:
            generate(engine, rows, options.warm_up)
        before = getattr(engine, "bytes_nvme_read", 0)
        begun = time.perf_counter()
        made = generate(engine, rows, options.tokens)
        seconds = time.perf_counter() - begun
        assert made.shape == (rows, PROMPT + options.tokens)
        results[rows] = {"seconds": seconds / options.tokens}
        if options.how == "nvme":
            read = engine.bytes_nvme_read - before
            results[rows] |= {"bytes": read / options.tokens, "planned": engine.planned_pass()}
    print("RESULT " + json.dumps(results), flush=True)
    if options.how == "nvme":
        engine.destroy()


if __name__ == "__main__":
    main()
