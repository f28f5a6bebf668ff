"""A script for Hugging Face's Trainer, the same for plain PyTorch, DeepSpeed and Artesian.
--deepspeed CONFIG, and the package imported as deepspeed, decide which one trains. Prints one line,
"RESULT " and JSON: seconds and loss of each step, and the memory used."""

import argparse
import json
import pathlib
import time

import torch
import transformers


class Clock(transformers.TrainerCallback):
    def __init__(self):
        self.begin = 0.0
        self.seconds = []

    def on_step_begin(self, *_, **__):
        self.begin = time.monotonic()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.monotonic() - self.begin)


def peak_rss():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed")
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    arguments = transformers.TrainingArguments(
        output_dir=given.output,
        deepspeed=given.deepspeed,
        max_steps=given.steps,
        per_device_train_batch_size=1,
        learning_rate=1e-4,
        weight_decay=0.01,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=3,
    )
    transformers.set_seed(3)
    shape = transformers.GPT2Config.from_pretrained(given.model)
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(0, shape.vocab_size, (64, 128), generator=draw)
    clock = Clock()
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(shape),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[clock],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    result = {"seconds": clock.seconds, "losses": losses, "peak_rss": peak_rss()}
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
