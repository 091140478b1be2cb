"""A script with a trainer, a collator and data of its own; its arguments are in its source."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return {"input_ids": list(range(1, 4 + index)), "weight": 1.0}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (longest - len(r["input_ids"])) for r in rows])
    weights = torch.tensor([row["weight"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids, "weights": weights}


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        weights = inputs.pop("weights")
        return super().compute_loss(model, inputs, return_outputs, **kwargs) * weights.mean()


def trainer_of(output):
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=100,
    )
    args = TrainingArguments(
        output_dir=output,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        remove_unused_columns=False,
    )
    model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    return WeightedTrainer(model=model, args=args, train_dataset=Rows(), data_collator=collate)


def main(output):
    trainer = trainer_of(output)
    trainer.train()
    args = trainer.args
    print(f"trained {args.per_device_train_batch_size} x {args.gradient_accumulation_steps}")


if __name__ == "__main__":
    main(sys.argv[1])
