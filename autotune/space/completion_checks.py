"""Whether a candidate can generate its completions as it says. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.space.batch import generation_problem, update_problem
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    GENERATION_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    ROLLOUT_CHUNK,
)


def completions_problem(
    shape: JobShape, rows: int, values: Mapping[str, Any], sequences: int
) -> str | None:
    """Return why it cannot; None: it can, or generates none.

    Args:
        rows: of the data.
        values: of the candidate's knobs; its micro-batch divides the global batch.
        sequences: of the global batch.
    """
    if GENERATION_BATCH in values:
        return _groups_problem(shape, rows, values, sequences)
    if ROLLOUT_CHUNK in values:
        return _update_problem(shape, rows, values, sequences)
    return None


def _groups_problem(
    shape: JobShape, rows: int, values: Mapping[str, Any], sequences: int
) -> str | None:
    generation_batch = values[GENERATION_BATCH]
    requested = shape.pinned_or_listed(GENERATION_BATCH)
    if generation_batch > sequences and not requested:
        return (
            "a `generation_batch_size` above the global batch trains on completions of an older "
            "policy: the job must ask for it"
        )
    if generation_batch > rows * values[GROUP]:
        return "the data has fewer prompts than are generated from together"
    return generation_problem(
        generation_batch,
        global_batch=sequences,
        per_step=values[MICRO_BATCH] * shape.processes(values),
        group=values[GROUP],
    )


def _update_problem(
    shape: JobShape, rows: int, values: Mapping[str, Any], sequences: int
) -> str | None:
    job, processes = shape.job, shape.processes(values)
    local = sequences // processes
    requested = shape.pinned_or_listed(ROLLOUT_CHUNK)
    if values[ROLLOUT_CHUNK] > local and not requested:
        return "`local_rollout_forward_batch_size` cannot be larger than an update of one device"
    if sequences > rows:
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
