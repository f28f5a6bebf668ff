"""Models, data and contestants of part `step`: who trains what with which configuration."""

import argparse
import dataclasses
import json
import pathlib
import random
import struct
import subprocess
import sys

MODELS = {  # layers, hidden, heads, vocabulary; budget of each of our tiers
    "124m": (12, 768, 12, 50257, "512MiB"),
    "355m": (24, 1024, 16, 50257, "1GiB"),
    "tiny": (2, 64, 2, 512, "1MiB"),
}
LENGTH = 128
CLIPPING = 1.0
# A config in which no update waits for the last gradient of its step.
FREE = {"gradient_clipping": 0.0, "bf16": {"enabled": True, "check_grad_overflow": False}}
SETTLED = 3  # after this many steps an artesian engine has finished its measurements and decisions
OPTIMIZER = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
# Muon for matrices in blocks, OPTIMIZER for all other parameters. In bf16, as torch.optim.Muon.
MUON = {"muon_lr": 0.01, "adam_lr": OPTIMIZER["lr"], "momentum": 0.95, "ns_method": "standard"}
AIO = {
    "block_size": 1 << 20,
    "queue_depth": 32,
    "single_submit": False,
    "overlap_events": True,
}


@dataclasses.dataclass(frozen=True)
class Contestant:
    words: str
    kind: str  # artesian, python (its package with Hugging Face's model), torch or deepspeed
    dtype: str
    setting: str = ""  # of DeepSpeed; for artesian: "two" folders, or everything in "ram"
    clipped: bool = True
    optimizer: str = "AdamW"


CONTESTANTS = {
    "artesian_fp32": Contestant("Artesian fp32, offloaded to NVMe", "artesian", "fp32"),
    "artesian_fp32_ram": Contestant("Artesian fp32, all in RAM", "artesian", "fp32", "ram"),
    "torch_fp32": Contestant("PyTorch fp32, all in RAM", "torch", "fp32"),
    "deepspeed_fp32": Contestant(
        "DeepSpeed fp32, optimizer on NVMe, parameters in RAM", "deepspeed", "fp32", "ram"
    ),
    "artesian_bf16": Contestant("Artesian bf16, offloaded to NVMe", "artesian", "bf16"),
    # Two folders on one disk: no gain is possible, so the cost of dividing shows.
    "artesian_bf16_two": Contestant(
        "Artesian bf16, over two folders of the disk", "artesian", "bf16", "two"
    ),
    "artesian_bf16_free": Contestant(
        "Artesian bf16, offloaded to NVMe, nothing clipped", "artesian", "bf16", clipped=False
    ),
    "python_fp32": Contestant("Artesian from Python fp32, offloaded to NVMe", "python", "fp32"),
    "python_fp32_ram": Contestant(
        "Artesian from Python fp32, all in RAM", "python", "fp32", "ram"
    ),
    "python_bf16": Contestant("Artesian from Python bf16, offloaded to NVMe", "python", "bf16"),
    "python_bf16_free": Contestant(
        "Artesian from Python bf16, offloaded to NVMe, nothing clipped", "python", "bf16",
        clipped=False,
    ),
    "torch_bf16": Contestant("PyTorch bf16, fp32 master, all in RAM", "torch", "bf16"),
    "deepspeed_lim": Contestant(
        "DeepSpeed bf16, all on NVMe, least memory", "deepspeed", "bf16", "lim"
    ),
    "deepspeed_mid": Contestant(
        "DeepSpeed bf16, all on NVMe, pipelined", "deepspeed", "bf16", "mid"
    ),
    "deepspeed_mid_free": Contestant(
        "DeepSpeed bf16, all on NVMe, pipelined, nothing clipped", "deepspeed", "bf16", "mid",
        clipped=False,
    ),
    "artesian_muon_fp32": Contestant(
        "Artesian fp32, Muon, offloaded to NVMe", "artesian", "fp32", optimizer="Muon"
    ),
    "artesian_muon_fp32_ram": Contestant(
        "Artesian fp32, Muon, all in RAM", "artesian", "fp32", "ram", optimizer="Muon"
    ),
    "torch_muon_fp32": Contestant(
        "PyTorch fp32, Muon, all in RAM", "torch", "fp32", optimizer="Muon"
    ),
    "artesian_muon_bf16": Contestant(
        "Artesian bf16, Muon, offloaded to NVMe", "artesian", "bf16", optimizer="Muon"
    ),
    "torch_muon_bf16": Contestant(
        "PyTorch bf16, Muon, fp32 master, all in RAM", "torch", "bf16", optimizer="Muon"
    ),
}
# Each of our contestants, and its rivals.
RIVALS = {
    "artesian_fp32": ["torch_fp32", "deepspeed_fp32"],
    "artesian_bf16": ["torch_bf16", "deepspeed_lim", "deepspeed_mid"],
    "artesian_bf16_two": ["artesian_bf16"],
    "artesian_bf16_free": ["deepspeed_mid_free", "artesian_bf16"],
    "python_fp32": ["artesian_fp32", "deepspeed_fp32"],
    "artesian_fp32_ram": ["torch_fp32"],
    "python_fp32_ram": ["torch_fp32", "artesian_fp32_ram"],
    "python_bf16": ["artesian_bf16", "deepspeed_lim", "deepspeed_mid"],
    "python_bf16_free": ["artesian_bf16_free", "python_bf16"],
    "artesian_muon_fp32": ["torch_muon_fp32", "artesian_fp32"],
    "artesian_muon_fp32_ram": ["torch_muon_fp32"],
    "artesian_muon_bf16": ["torch_muon_bf16", "artesian_bf16"],
}


def per_model(text):
    """Model -> number, from "124m=2,355m=1", or from one number for all. Errors: ValueError and
    ArgumentTypeError, for argparse."""
    if text.isdigit():
        return dict.fromkeys(MODELS, int(text))
    items = (item.split("=") for item in text.split(","))
    numbers = {name.strip(): int(number) for name, number in items}
    expect_known(numbers, MODELS)
    return numbers


def expect_known(names, allowed):
    for name in names:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"got {name}, allowed are {', '.join(allowed)}")


def some_of(allowed):
    """Parses names, such as "one,another", or none for "". Errors: ArgumentTypeError, for
    argparse."""

    def parse(text):
        names = [name.strip() for name in text.split(",") if name.strip()]
        expect_known(names, allowed)
        return names

    return parse


def largest_parameter(name):
    _, hidden, _, vocabulary, _ = MODELS[name]
    return vocabulary * hidden


def deepspeed_config(contestant, name, folder):
    """The settings that work and are fastest with 0.19.8: fp32 with parameters on NVMe does not
    work, nor does the default buffer count with two sub-groups in the pipeline."""
    nvme = {"device": "nvme", "nvme_path": str(folder)}
    zero = {"stage": 3, "sub_group_size": int(2e7), "offload_optimizer": dict(nvme)}
    if contestant.setting == "ram":
        zero.pop("sub_group_size")
    else:
        zero["offload_param"] = nvme | {
            "max_in_cpu": 0,
            "buffer_size": -(-largest_parameter(name) // 1000000) * 1000000,
        }
    if contestant.setting == "lim":
        zero["offload_param"]["buffer_count"] = 5
        live, reuse, prefetch = 1e6, 0, 0
    elif contestant.setting == "mid":
        zero["offload_param"]["buffer_count"] = 12
        pipeline = {"buffer_count": 12, "pipeline_read": True, "pipeline_write": True}
        zero["offload_optimizer"] |= pipeline
        live, reuse, prefetch = 4e7, 1e7, 1e7
    if contestant.setting != "ram":
        zero["stage3_max_live_parameters"] = int(live)
        zero["stage3_max_reuse_distance"] = int(reuse)
        zero["stage3_prefetch_bucket_size"] = int(prefetch)
    return base_config(contestant) | {"zero_optimization": zero}


def optimizer_section(contestant):
    params = OPTIMIZER
    if contestant.optimizer == "Muon":
        params = MUON | {key: value for key, value in OPTIMIZER.items() if key != "lr"}
    return {"type": contestant.optimizer, "params": params}


def base_config(contestant):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIPPING,
        "optimizer": optimizer_section(contestant),
        "aio": AIO,
    }
    config |= {"bf16": {"enabled": True}} if contestant.dtype == "bf16" else {}
    return config | ({} if contestant.clipped else FREE)


def our_config(contestant, name, folder):
    if contestant.setting == "ram":
        whole = {"device_memory": "12GiB", "host_memory": "1GiB"}
        return base_config(contestant) | {"zero_optimization": {"stage": 3}, "artesian": whole}
    two = [f"{folder}/one", f"{folder}/two"]
    nvme = {"device": "nvme", "nvme_path": two if contestant.setting == "two" else str(folder)}
    budget = MODELS[name][4]
    return base_config(contestant) | {
        "zero_optimization": {
            "stage": 3,
            "offload_param": nvme | {"max_in_cpu": 0},
            "offload_optimizer": nvme,
        },
        "artesian": {"device_memory": budget, "host_memory": budget},
    }


def write_tokens(name, path):
    """Tokens of which few are common, so that the loss changes within ten steps."""
    vocabulary = MODELS[name][3]
    draw = random.Random(1)
    tokens = [min(int(draw.paretovariate(1.0)) - 1, vocabulary - 1) for _ in range(32 * LENGTH + 1)]
    path.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def write_model(name, folder):
    """The same fp32 weights for all contestants, as a Hugging Face directory."""
    import torch
    import transformers

    layers, hidden, heads, vocabulary, _ = MODELS[name]
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=1024, n_embd=hidden, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=vocabulary - 1, eos_token_id=vocabulary - 1,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


def model_of(name, folder):
    """A directory without weights, which are made from a seed."""
    layers, hidden, heads, vocabulary, _ = MODELS[name]
    shape = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": vocabulary}
    dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    fixed = {"model_type": "gpt2", "n_positions": 1024}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fixed | dropout | shape))
    return folder


def prepare(name, work):
    """(model directory, token file), created if needed."""
    model, tokens = pathlib.Path(work) / f"gpt2-{name}", pathlib.Path(work) / f"tokens-{name}.bin"
    if not (model / "complete").exists():
        # In a separate process, so that this one stays small.
        subprocess.run([sys.executable, __file__, name, str(model)], check=True)
        (model / "complete").touch()
    write_tokens(name, tokens)
    return model, tokens


def worker_job(contestant, name, model, tokens, steps, folder):
    job = {
        "kind": contestant.kind,
        "dtype": contestant.dtype,
        "model": str(model),
        "tokens": str(tokens),
        "length": LENGTH,
        "steps": steps,
        "optimizer": OPTIMIZER,
        "clipping": CLIPPING,
    }
    if contestant.optimizer == "Muon":
        job["muon"] = MUON
    if contestant.kind == "deepspeed":
        job["config"] = deepspeed_config(contestant, name, folder)
    if contestant.kind == "python":
        job["config"] = our_config(contestant, name, folder)
    return json.dumps(job)


if __name__ == "__main__":
    write_model(sys.argv[1], sys.argv[2])
