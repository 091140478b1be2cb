"""A candidate as a real `trl.SFTTrainer`."""

from typing import Any

import torch
from trl import SFTTrainer

from autotune.training.batch_plan import Batching
from autotune.training.family import PROBE_OVERRIDES, Family


class SftFamily(Family):
    """Supervised fine-tuning."""

    method = "sft"
    trainer_class = SFTTrainer
    overrides = {
        **PROBE_OVERRIDES,
        # The rows come tokenized, truncated and packed.
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "shuffle_dataset": False,
    }

    def problem(self, trainer: Any, batching: Batching) -> str | None:
        """Return the problem of rows that see each other without padding; None: they do not."""
        if not batching.flat or not rows_see_each_other(trainer):
            return None
        return (
            "without padding, the rows of a micro-batch attend to each other in this model and "
            "attention kernel: the loss would be another one"
        )


def rows_see_each_other(trainer: SFTTrainer) -> bool:
    """True if, without padding, one row of a micro-batch changes the model's answer to another.

    Flattened micro-batches of two rows differ in one token, first of the other row, then of the
    row itself; an isolated row changes its answer by the second alone. A thousandth of that change
    is let pass, for kernels whose rounding depends on the whole batch.
    """
    model = trainer.model
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (1, 24), generator=generator).to(device)
    positions = torch.arange(12, device=device).repeat(2)[None]

    def answer(changed: int | None) -> torch.Tensor:
        """Return the logits of the second row, behind its first token."""
        tokens = ids.clone()
        if changed is not None:
            tokens[:, changed] = (tokens[:, changed] + 1) % vocabulary
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        return logits[:, 13:].double()

    was_training = model.training
    model.eval()
    with torch.no_grad(), trainer.compute_loss_context_manager():
        as_is = answer(None)
        foreign, own_change = ((answer(changed) - as_is).abs().max() for changed in (11, 12))
    model.train(was_training)
    return bool(foreign > 1e-3 * own_change)
