"""Trains a Hugging Face model in a custom loop, with parameters and optimizer state on NVMe.

    python examples/python/own_loop.py [--nvme FOLDER] [--steps N]

The model is created from a configuration, with random weights; the text is a licence that every
Debian system has.
"""

import argparse
import pathlib

import torch
import transformers

import artesian

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")


def batches(length, size, seed):
    """Windows of the text, its bytes as tokens."""
    data = torch.tensor(list(TEXT.read_bytes()))
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(0, len(data) - length, (size,), generator=generator)
        yield torch.stack([data[start : start + length] for start in starts])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvme", default="own-loop-nvme")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    torch.manual_seed(1)
    shape = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    model = transformers.LlamaForCausalLM(shape)
    offload = {"device": "nvme", "nvme_path": given.nvme}
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 1000,
            "offload_param": {**offload, "max_in_cpu": 0},
            "offload_optimizer": offload,
        },
        "artesian": {"device_memory": "4MiB", "host_memory": "8MiB"},
    }
    print(artesian.explain(model))
    engine, _, _, _ = artesian.initialize(model=model, config=config, device="cpu")
    for step, ids in zip(range(given.steps), batches(64, 8, seed=1), strict=False):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        read = engine.last_step["bytes_nvme_read"] / 1e6
        print(f"step {step + 1}: loss {loss.item():.4f}, {read:.1f} MB read")
    engine.destroy()


if __name__ == "__main__":
    main()
