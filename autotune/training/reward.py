"""A candidate as a real `trl.RewardTrainer`: a classifier with one output, on pairs of rows.

Rows that have token ids it does not tokenize again.
"""

from trl import RewardTrainer

from autotune.training.family import Family


class RewardFamily(Family):
    """Reward modelling."""

    method = "reward"
    trainer_class = RewardTrainer
