"""The same job by another method: RLOO or GRPO in place of PPO, which need no value model."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from autotune.errors import user_error
from autotune.facts.stack import missing, training_fields
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.knobs import COMPLETION, GROUP, MINI_BATCHES, RESPONSE, ROLLOUT_CHUNK

WITHOUT_A_VALUE_MODEL = ("rloo", "grpo")
GROUPS = (8, 4, 2)
_RESPONSE_LENGTH = 53
_KL_COEF = 0.05
"""TRL's defaults of PPO, kept where the job names no other value."""
_OF_PPO = {ROLLOUT_CHUNK, MINI_BATCHES, RESPONSE, "num_ppo_epochs", "copy_reference"}


def refuse_missing(job: Job) -> None:
    """Refuse a job whose trainer the installed TRL does not have.

    Raises:
        UserError: it has none of that name any more.
    """
    reason = missing(job.method)
    if reason is not None:
        others = " or ".join(f"`method: {method}`" for method in WITHOUT_A_VALUE_MODEL)
        hint = f"`pip install trl==1.12.0`, or {others}, which need no value model"
        raise user_error(reason, where="method", hint=hint)


def in_place_of_ppo(job: Job, method: str) -> Job | None:
    """Return a job of PPO by `method`, with responses of the same length, as many in a batch, and
    the same rewards.

    Args:
        method: `rloo` or `grpo`.

    Returns:
        None where the batch makes up no groups.
    """
    batches = [batch for batch in job.batches if isinstance(batch, int)]
    group = next((g for g in GROUPS if batches and all(b % g == 0 for b in batches)), None)
    if group is None:
        return None
    fixed = {name: value for name, value in job.fixed.items() if name not in _OF_PPO}
    recipe = {name: values for name, values in job.recipe.items() if name not in _OF_PPO}
    if RESPONSE in job.recipe:
        recipe[COMPLETION] = job.recipe[RESPONSE]
    else:
        fixed[COMPLETION] = job.fixed.get(RESPONSE, _RESPONSE_LENGTH)
    fixed[GROUP] = group
    fixed["beta"] = job.training.get("kl_coef", _KL_COEF)  # a reference, as PPO has one
    update = {
        "method": method,
        "fixed": fixed,
        "recipe": recipe,
        "training": _shared_fields(job.training, method),
        "reward_model_path": job.reward_model_path or _folder(job.model),
        "search_space": None,
    }
    return job.model_copy(update=update)


def _folder(model: str) -> str:
    """Return the name of a model as that of a reward model: the folder of a bare config."""
    return str(PurePath(model).parent) if model.endswith(".json") else model


def _shared_fields(training: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the training fields that the other trainer has, with the same meaning."""
    fields = training_fields(method) - METHODS[method].refusals.keys()
    return {name: value for name, value in training.items() if name in fields}
