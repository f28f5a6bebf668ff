"""Fine-tunes a pretrained Hugging Face model on texts, completely or by LoRA, with Trainer. The
script contains nothing specific to Artesian:

    python finetune.py --model DIR --text FILE...                                        # plain
    ARTESIAN_AS_DEEPSPEED=1 python finetune.py --model DIR --text FILE... \\
        --deepspeed ds_config.json [--lora]

DIR contains weights and tokenizer. An eighth of the text is held out; its loss is printed before
and after. The result, the whole model or only the adapters, is saved in --output.
"""

import argparse
import pathlib

import torch
import transformers


def windows(tokenizer, files, length):
    """The training samples, and the held-out samples."""
    text = "\n".join(pathlib.Path(file).read_text() for file in files)
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    rows = [{"input_ids": row, "labels": row} for row in ids.split(length) if len(row) == length]
    return [row for at, row in enumerate(rows) if at % 8], rows[::8]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, nargs="+")
    parser.add_argument("--deepspeed", metavar="CONFIG")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--output", default="finetuned")
    given = parser.parse_args()
    # Create this before the model is loaded, so that Trainer's models are created in the tiers.
    arguments = transformers.TrainingArguments(
        output_dir=given.output,
        deepspeed=given.deepspeed,
        max_steps=given.steps,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=given.learning_rate or (1e-3 if given.lora else 5e-5),
        warmup_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=given.steps,
        eval_on_start=True,
        save_strategy="no",
        report_to=[],
        seed=3,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    if given.lora:
        import peft

        transformers.set_seed(arguments.seed)  # of the adapters' first values
        adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(model, adapters)
    training, held_out = windows(tokenizer, given.text, given.length)
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=training, eval_dataset=held_out
    )
    trainer.train()
    trainer.save_model()
    for entry in trainer.state.log_history:
        for key in ("loss", "eval_loss"):
            if key in entry:
                print(f"step {entry['step']}: {key} {entry[key]:.4f}")


if __name__ == "__main__":
    main()
