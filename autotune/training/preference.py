"""Candidates as real `trl.DPOTrainer`, `trl.KTOTrainer` and `trl.RewardTrainer`: what learns from
preferences.

A policy is held against a reference: a model of its own; with LoRA the policy without its adapter;
with `precompute_ref_log_probs` none during the training, as it is computed once before. A probe's
data set holds the same few rows again and again: for each the reference is computed once, and
    timed. A reward model is a classifier with one output, which does not tokenize tokenized rows
    again.
"""

from typing import Any

from trl import DPOTrainer, KTOTrainer, ModelConfig, RewardTrainer

from autotune.facts.row_formats import turned_by_one
from autotune.job.methods import METHODS
from autotune.process import clock
from autotune.training.family import Family, Models
from autotune.training.spec import TrainerSpec


class PreferenceFamily(Family):
    """The common part of the families of DPO and KTO."""

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


class ReferenceOnce:
    """A base class before one of TRL's trainers: its rows are tokenized already.

    Attributes:
        method: its columns take the reference.
        reference_steps: (tokens, seconds) of each micro-batch that the reference was computed for.
    """

    method: str
    reference_steps: list[tuple[int, float]]

    def __init__(self, *args: Any, **kwargs: Any):
        self.reference_steps = []
        super().__init__(*args, **kwargs)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Compute the reference of each row once; of none where the rows hold it."""
        columns = METHODS[self.method].reference
        if columns[0] in dataset.column_names:
            return dataset
        first: dict[str, int] = {}
        places = [first.setdefault(repr(row), n) for n, row in enumerate(dataset)]
        different = sorted(set(places))
        parent: Any = super()
        logps = parent._precompute_ref_logps(dataset.select(different), name, batch_size)
        index_of = {place: n for n, place in enumerate(different)}
        for column in set(columns) & set(logps.column_names):
            values = logps[column][:]
            dataset = dataset.add_column(column, [values[index_of[place]] for place in places])
        return dataset

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        """Compute as the trainer does, and time it."""
        began = clock.now()
        parent: Any = super()
        result = parent.compute_ref_log_probs(model, inputs)
        self.reference_steps.append((int(inputs["attention_mask"].sum()), clock.now() - began))
        return result

    def reference_s_per_token(self) -> float:
        """Return seconds for each real token; the first micro-batch is left out, it warms up."""
        timed_steps = self.reference_steps[1:] or self.reference_steps
        return (
            sum(s for _, s in timed_steps) / sum(n for n, _ in timed_steps) if timed_steps else 0.0
        )


class TokenizedDpoTrainer(ReferenceOnce, DPOTrainer):
    """A DPOTrainer on tokenized rows."""

    method = "dpo"


class TokenizedKtoTrainer(ReferenceOnce, KTOTrainer):
    """A KTOTrainer on tokenized rows; their order decides which are compared."""

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


class RewardFamily(Family):
    """Reward modelling."""

    method = "reward"
    trainer_class = RewardTrainer
