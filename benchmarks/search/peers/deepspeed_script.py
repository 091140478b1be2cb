"""What DeepSpeed's autotuner launches again and again: a plain TRL script."""

import argparse
import os

from common import limit_memory, sft_trainer

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed")
parser.add_argument("--local_rank")
parser.add_argument("--per_device_train_batch_size", type=int, default=1)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--output_dir")
options = parser.parse_args()
import accelerate  # noqa: E402

accelerate.PartialState(backend="gloo")
trainer = sft_trainer(
    {
        "use_cpu": False,
        "accelerator_config": {"use_configured_state": True},
        "deepspeed": options.deepspeed,
        "per_device_train_batch_size": options.per_device_train_batch_size,
        "gradient_accumulation_steps": options.gradient_accumulation_steps,
        "max_steps": 20,
        "optim": "adamw_torch",
        "learning_rate": 2e-4,  # transformers wants it to agree with DeepSpeed's file
        "output_dir": options.output_dir,
    }
)
limit_memory(int(os.environ["LIMIT_BYTES"]))
trainer.train()
