"""Trains a pretrained model on preferences with TRL's DPOTrainer, with a frozen reference model in
a separate engine below the same nvme_path. The script contains nothing specific to Artesian:

    python dpo.py --model DIR --data pairs.jsonl                                         # plain
    ARTESIAN_AS_DEEPSPEED=1 python dpo.py --model DIR --data pairs.jsonl \\
        --deepspeed ds_config.json

Each line of the data is {"prompt": "...", "chosen": "...", "rejected": "..."}.
"""

import argparse
import json

import datasets
import transformers
import trl


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--deepspeed", metavar="CONFIG")
    parser.add_argument("--local_rank", type=int)  # passed by the command deepspeed
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", default="preferred")
    given = parser.parse_args()
    # Create this before the models are loaded, so that they are created in the tiers.
    arguments = trl.DPOConfig(
        output_dir=given.output,
        deepspeed=given.deepspeed,
        model_init_kwargs={"dtype": "float32"},
        max_steps=given.steps,
        max_length=128,
        per_device_train_batch_size=2,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=False,
        seed=3,
    )
    trainer = trl.DPOTrainer(
        model=given.model,  # and the reference, which TRL copies from it
        args=arguments,
        train_dataset=datasets.load_dataset("json", data_files=given.data, split="train"),
        processing_class=transformers.AutoTokenizer.from_pretrained(given.model),
    )
    trainer.train()
    trainer.save_model()
    print(json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))


if __name__ == "__main__":
    main()
