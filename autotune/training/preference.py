"""Candidates as real `trl.DPOTrainer` and `trl.KTOTrainer`: a policy, held against a reference.

The reference is a model of its own; with LoRA the policy without its adapter; and with
`precompute_ref_log_probs` nothing is kept of it during training.
"""

from typing import Any

from trl import DPOTrainer, KTOTrainer, ModelConfig

from autotune.facts.row_formats import turned_by_one
from autotune.training.family import Family, Models
from autotune.training.reference_logps import ReferenceOnce
from autotune.training.spec import TrainerSpec


class PreferenceFamily(Family):
    """What the families of DPO and KTO have in common."""

    hooks = ("_prepare_dataset", "_precompute_ref_logps", "compute_ref_log_probs")

    def models(self, spec: TrainerSpec, training: Any, model: ModelConfig, device: str) -> Models:
        """Return models of random weights, the reference too where it is one of its own."""
        policy = self.random_model(spec, training, model, device)
        needs_copy = not (model.use_peft or training.precompute_ref_log_probs)
        reference = self.random_model(spec, training, model, device) if needs_copy else None
        return Models(policy=policy, reference=reference)

    def before_training_s(self, trainer: Any) -> float:
        """Return seconds of the reference's forward passes for each real token."""
        seconds: float = trainer.reference_s_per_token()
        return seconds


class TokenizedDpoTrainer(ReferenceOnce, DPOTrainer):
    """A DPOTrainer on tokenized rows."""

    method = "dpo"


class TokenizedKtoTrainer(ReferenceOnce, KTOTrainer):
    """A KTOTrainer on tokenized rows; who is compared with whom follows from their order."""

    method = "kto"

    def _prepare_dataset(self, dataset: Any, tokenizer: Any, args: Any, name: str) -> Any:
        if not self.calculate_KL or "KL_completion_ids" in dataset.column_names:
            return dataset
        size = args.per_device_train_batch_size
        completions = dataset["completion_ids"][:]
        turned = []
        for start in range(0, len(completions), size):
            turned += turned_by_one(completions[start : start + size])
        return dataset.add_column("KL_completion_ids", turned)


class DpoFamily(PreferenceFamily):
    """Direct preference optimization."""

    method = "dpo"
    trainer_class = TokenizedDpoTrainer


class KtoFamily(PreferenceFamily):
    """Kahneman-Tversky optimization."""

    method = "kto"
    trainer_class = TokenizedKtoTrainer
