"""Child of `test_shared_rows.py`: a few steps of TRL's SFTTrainer, alone or as one of two ranks."""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from autotune.space.sharding.deepspeed import deepspeed_config
from autotune.space.sharding.sharding import Sharding
from autotune.training.distributed import STATE_IS_THERE, engine_environment, state_on_cpu


def main(model: str, out: str, fields: str) -> None:
    """Print the losses and norms of gradients of three optimizer steps."""
    torch.set_num_threads(1)
    extra: dict[str, Any] = {"use_cpu": True}
    config = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    if fields:
        sharding = Sharding(**json.loads(fields))
        os.environ.update(engine_environment(sharding), DS_ACCELERATOR="cpu")
        dist.init_process_group("gloo")
        state_on_cpu(sharding, "gloo")
        extra = dict(STATE_IS_THERE)
        if sharding.zero_stage:
            extra["deepspeed"] = deepspeed_config(sharding, config, 64, device_kind="cpu")
    arguments = SFTConfig(
        output_dir=out,
        **config,
        **extra,
        max_steps=3,
        learning_rate=0.1,
        max_grad_norm=1.0,
        optim="sgd",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        bf16=False,
        max_length=64,
        pad_to_multiple_of=4,
        train_sampling_strategy="sequential",
        disable_tqdm=True,
        gradient_checkpointing=False,
        model_init_kwargs={"attn_implementation": "sdpa"},
    )
    drawn = torch.Generator().manual_seed(1)
    rows = [
        {"input_ids": torch.randint(3, 200, (61,), generator=drawn).tolist()} for _ in range(12)
    ]
    trainer = SFTTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=PreTrainedTokenizerFast.from_pretrained(model),
    )
    seen: list[int] = []
    step = trainer.training_step

    def watched(model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        seen.append(inputs["input_ids"].shape[1])
        return step(model, inputs, *rest, **more)

    trainer.training_step = watched
    trainer.train()
    if int(os.environ.get("RANK", "0")) == 0:
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        reply = {name: [entry[name] for entry in logs] for name in ("loss", "grad_norm")}
        print("REPLY", json.dumps({**reply, "lengths": seen}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
