"""Fine-tunes a pretrained model on texts with TRL's SFTTrainer, completely or by LoRA. The script
contains nothing specific to Artesian:

    python sft.py --model DIR --data texts.jsonl                                         # plain
    ARTESIAN_AS_DEEPSPEED=1 python sft.py --model DIR --data texts.jsonl \\
        --deepspeed ds_config.json [--lora]

Each line of the data is {"text": "..."}. The result, the whole model or only the adapters, is saved
in --output.
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
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", default="fine-tuned")
    given = parser.parse_args()
    # Create this before the model is loaded, so that it is created in the tiers.
    arguments = trl.SFTConfig(
        output_dir=given.output,
        deepspeed=given.deepspeed,
        model_init_kwargs={"dtype": "float32"},
        max_steps=given.steps,
        max_length=128,
        per_device_train_batch_size=2,
        learning_rate=1e-3 if given.lora else 2e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=False,
        seed=3,
    )
    adapters = None
    if given.lora:
        import peft

        transformers.set_seed(arguments.seed)  # of the adapters' first values
        adapters = peft.LoraConfig(
            r=8,
            target_modules=["q_proj", "v_proj"],
            modules_to_save=["lm_head"],  # trained completely, not by LoRA
            task_type="CAUSAL_LM",
        )
    trainer = trl.SFTTrainer(
        model=given.model,
        args=arguments,
        train_dataset=datasets.load_dataset("json", data_files=given.data, split="train"),
        processing_class=transformers.AutoTokenizer.from_pretrained(given.model),
        peft_config=adapters,
    )
    trainer.train()
    trainer.save_model()
    print(json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))


if __name__ == "__main__":
    main()
