"""transformers' `auto_find_batch_size`: train with the whole global batch, less after each OOM."""

import sys

from common import GLOBAL_BATCH, answer, limit_memory, sft_trainer

trainer = sft_trainer(
    {
        "per_device_train_batch_size": GLOBAL_BATCH,
        "gradient_accumulation_steps": 1,
        "auto_find_batch_size": True,
        "max_steps": 10,
        "output_dir": sys.argv[2],
    }
)
limit_memory(int(sys.argv[1]))
trainer.train()
answer(
    fields={
        "per_device_train_batch_size": trainer._train_batch_size,
        "gradient_accumulation_steps": 1,
    }
)
