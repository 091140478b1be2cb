"""Candidates as real `trl.DistillationTrainer`: the student learns a teacher's words from texts of
its own.

Every completion has its full length, as those of `online.py`. The teacher is loaded as TRL's script
loads it; with random weights it is made in the same type.
"""

import dataclasses
from typing import Any

from trl import DistillationTrainer, ModelConfig, ScriptArguments, get_peft_config

from autotune.facts.model import model_config
from autotune.training.family import PROBE_OVERRIDES, Models, from_config
from autotune.training.online import OnlineFamily
from autotune.training.spec import TrainerSpec


class DistillationFamily(OnlineFamily):
    """Distillation on the student's own completions."""

    method = "distillation"
    trainer_class = DistillationTrainer
    script_arguments = ScriptArguments
    overrides = {**PROBE_OVERRIDES, "shuffle_dataset": False}
    hooks = (*OnlineFamily.hooks, "_prepare_inputs", "_compute_loss")

    def load_models(self, spec: TrainerSpec, training: Any, model: ModelConfig) -> Models:
        """Return student and teacher by name."""
        return Models(policy=spec.model_path, teacher=training.teacher_model_name_or_path)

    def models(self, spec: TrainerSpec, training: Any, model: ModelConfig, device: str) -> Models:
        """Return student and teacher of random weights."""
        path = training.teacher_model_name_or_path
        config = model_config(path, self.method, trust_remote_code=training.trust_remote_code)
        loaded = dataclasses.replace(model, dtype=_teacher_kwargs(training, model)["dtype"])
        return Models(
            policy=self.random_model(spec, training, model, device),
            teacher=from_config(config, path, self.method, loaded, device),
        )

    def build(
        self, training: Any, model: ModelConfig, rows: Any, models: Models, tokenizer: Any
    ) -> Any:
        """Return the trainer, as TRL's script makes it."""
        tokenizer.padding_side = tokenizer.truncation_side = "left"
        named = isinstance(models.teacher, str)
        training.teacher_model_init_kwargs = _teacher_kwargs(training, model) if named else None
        return self.trainer_class(
            model=models.policy,
            teacher_model=models.teacher,
            args=training,
            train_dataset=rows,
            processing_class=tokenizer,
            quantization_config=self.quantization(model, models),
            peft_config=get_peft_config(model),
        )


def _teacher_kwargs(training: Any, model: ModelConfig) -> dict[str, Any]:
    """Return what TRL's script passes to the teacher's `from_pretrained`."""
    return {
        "revision": training.teacher_model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.teacher_model_init_kwargs or {}),
    }
