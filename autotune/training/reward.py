"""A candidate as a real `trl.RewardTrainer`: a classifier with one output, on pairs of rows."""

from typing import Any

from trl import ModelConfig, RewardTrainer, get_peft_config, get_quantization_config

from autotune.training.family import Family, Models


class RewardFamily(Family):
    """Reward modelling."""

    method = "reward"

    def build(
        self, training: Any, model: ModelConfig, rows: Any, made: Models, tokenizer: Any
    ) -> RewardTrainer:
        """The trainer; rows with token ids it does not tokenize again."""
        return RewardTrainer(
            model=made.policy,
            args=training,
            train_dataset=rows,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
        )
