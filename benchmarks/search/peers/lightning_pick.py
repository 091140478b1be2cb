"""Lightning's BatchSizeFinder (`Tuner.scale_batch_size`) around the same model and rows."""

import sys
from typing import Any

import lightning
import torch
from common import answer, limit_memory, sft_trainer
from lightning.pytorch.tuner import Tuner

limit, scratch, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
trl = sft_trainer({"per_device_train_batch_size": 1, "output_dir": scratch})


class Module(lightning.LightningModule):
    """The model with TRL's own loss and batches; `batch_size` is what the tuner moves."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.batch_size = trl.model, 2

    def training_step(self, batch: Any, _: int) -> Any:
        return trl.compute_loss(self.model, batch)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            trl.train_dataset, self.batch_size, shuffle=True, collate_fn=trl.data_collator
        )

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


module = Module()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=10,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    default_root_dir=scratch,
)
limit_memory(limit)
found = Tuner(trainer).scale_batch_size(module, mode=mode, steps_per_trial=3, max_trials=10)
answer(fields={"per_device_train_batch_size": found, "gradient_accumulation_steps": 1})
