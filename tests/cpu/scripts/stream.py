"""A script that trains on a stream, evaluates, saves and stops early."""

import sys
from pathlib import Path

import torch
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        for length in range(400):
            yield {"input_ids": list(range(1, 4 + length % 40))}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (longest - len(r["input_ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids}


class Note(TrainerCallback):
    def on_evaluate(self, args, state, control, **kwargs):
        Path(sys.argv[1], "evaluated").touch()


args = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=2,
    max_steps=4,
    eval_strategy="steps",
    eval_steps=2,
    save_steps=2,
    load_best_model_at_end=True,
    lr_scheduler_type="reduce_lr_on_plateau",
    use_cpu=not torch.cuda.is_available(),
)
args.output_dir, args.save_strategy, args.save_steps = sys.argv[1], "steps", 1
config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    vocab_size=100,
)
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=args,
    train_dataset=Rows(),
    eval_dataset=Rows(),
    data_collator=collate,
    callbacks=[EarlyStoppingCallback(2), Note()],
)
trainer.train()
