"""Whether a candidate can generate its completions as it says. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.job.job import Job
from autotune.space.batch import generation_problem, update_problem
from autotune.space.knobs import (
    GENERATION_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    ROLLOUT_CHUNK,
)
from autotune.space.sharding.processes import processes_of


def completions_problem(
    job: Job, context: Mapping[str, Any], values: Mapping[str, Any], sequences: int
) -> str | None:
    """Return why it cannot; None: it can, or generates none.

    Args:
        context: facts, by the context that rules have for them.
        values: of the candidate's knobs; its micro-batch divides the global batch.
        sequences: of the global batch.
    """
    if GENERATION_BATCH in values:
        return _groups_problem(job, context, values, sequences)
    if ROLLOUT_CHUNK in values:
        return _update_problem(job, context, values, sequences)
    return None


def _groups_problem(
    job: Job, context: Mapping[str, Any], values: Mapping[str, Any], sequences: int
) -> str | None:
    generation_batch = values[GENERATION_BATCH]
    requested = GENERATION_BATCH in job.fixed or GENERATION_BATCH in job.recipe
    if generation_batch > sequences and not requested:
        return (
            "a `generation_batch_size` above the global batch trains on completions of an older "
            "policy: the job must ask for it"
        )
    if generation_batch > context["data.rows"] * values[GROUP]:
        return "the data has fewer prompts than are generated from together"
    return generation_problem(
        generation_batch,
        global_batch=sequences,
        per_step=values[MICRO_BATCH] * processes_of(values, job),
        group=values[GROUP],
    )


def _update_problem(
    job: Job, context: Mapping[str, Any], values: Mapping[str, Any], sequences: int
) -> str | None:
    processes = processes_of(values, job)
    local = sequences // processes
    requested = ROLLOUT_CHUNK in job.fixed or ROLLOUT_CHUNK in job.recipe
    if values[ROLLOUT_CHUNK] > local and not requested:
        return "`local_rollout_forward_batch_size` cannot be larger than an update of one device"
    if sequences > context["data.rows"]:
        return "the data has fewer prompts than an update takes"
    if processes > 1 and job.tuning != "full" and not values.get("copy_reference"):
        return "on several devices PPOTrainer needs `fixed: {copy_reference: true}` beside adapters"
    return update_problem(
        local,
        local // values[MICRO_BATCH],
        chunk=values[ROLLOUT_CHUNK],
        mini_batches=values[MINI_BATCHES],
        whitened=bool(job.training.get("whiten_rewards")),
    )
