"""A script for Hugging Face's Trainer, as used with DeepSpeed; it contains nothing specific to
Artesian:

    python hf_trainer.py                                         # plain
    deepspeed hf_trainer.py --deepspeed ds_config.json           # with the wheel artesian-deepspeed
    ARTESIAN_AS_DEEPSPEED=1 python hf_trainer.py --deepspeed ds_config.json
    python -m artesian.run hf_trainer.py --deepspeed ds_config.json

Trains a small GPT-2 on the bytes of this file, evaluates, and saves the model.
"""

import argparse
import json
import pathlib

import torch
import transformers


def samples(length):
    """All windows of this length in this file."""
    text = pathlib.Path(__file__).read_bytes()
    windows = [text[at : at + length] for at in range(0, len(text) - length, length // 2)]
    return [{"input_ids": torch.tensor(list(window))} for window in windows]


def collate(batch):
    ids = torch.stack([sample["input_ids"] for sample in batch])
    return {"input_ids": ids, "labels": ids}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deepspeed", metavar="CONFIG")
    parser.add_argument("--local_rank", type=int)  # passed by the command deepspeed
    parser.add_argument("--output", default="trainer-out")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    given = parser.parse_args()
    arguments = transformers.TrainingArguments(
        output_dir=given.output,
        deepspeed=given.deepspeed,
        max_steps=given.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=given.accumulation,
        learning_rate=1e-3,
        weight_decay=given.weight_decay,
        warmup_steps=4,
        max_grad_norm=0.5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=3,
    )
    transformers.set_seed(3)
    shape = transformers.GPT2Config(
        vocab_size=256,
        n_positions=64,
        n_embd=64,
        n_layer=3,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(shape),
        args=arguments,
        train_dataset=samples(64),
        eval_dataset=samples(48)[:8],
        data_collator=collate,
    )
    trainer.train()
    print(json.dumps(trainer.state.log_history))
    print(json.dumps(trainer.evaluate()))
    trainer.save_model()


if __name__ == "__main__":
    main()
