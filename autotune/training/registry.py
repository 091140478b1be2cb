"""The family of each method."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.training.family import Family

FAMILIES = {
    "sft": ("sft", "SftFamily"),
    "reward": ("preference", "RewardFamily"),
    "dpo": ("preference", "DpoFamily"),
    "kto": ("preference", "KtoFamily"),
    "grpo": ("online", "GrpoFamily"),
    "rloo": ("online", "RlooFamily"),
    "distillation": ("distillation", "DistillationFamily"),
    "ppo": ("ppo", "PpoFamily"),
}


def own_script(name: str) -> str:
    """Return the text of a script that trains where TRL has none; probes use its functions."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def family(method: str) -> "Family":
    """Return the family of a method; loads its trainer only."""
    file, name = FAMILIES[method]
    trainer_family: Family = getattr(importlib.import_module(f"autotune.training.{file}"), name)()
    return trainer_family
