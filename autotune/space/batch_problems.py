"""Why a global batch cannot be exact, with the nearest values that can. Pure."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

from autotune.errors import Problem
from autotune.job import Job
from autotune.space.batch import (
    divisors,
    generation_problem,
    micro_batches,
    nearest_token_batches,
    nearest_values,
)
from autotune.space.knobs import (
    ACCUMULATION,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    ROLLOUT_CHUNK,
)


def batch_problems(job: Job, lengths: Iterable[Any], groups: Iterable[Any]) -> list[Problem]:
    """Everything that is wrong with the batches of a job, each once.

    Args:
        lengths: every `max_length` that may be chosen.
        groups: every number of completions of one prompt that may be chosen; 1 where none are
            generated.
    """
    found: dict[Problem, None] = {}
    for batch, length, group in itertools.product(job.batches, lengths, groups):
        one = job.with_batch(batch)
        problem = batch_problem(one, length) or group_problem(one, length, group)
        problem = problem or update_batch_problem(one, length)
        if problem is not None:
            found[problem] = None
    return list(found)


def batch_problem(job: Job, max_length: Any) -> Problem | None:
    """Why the global batch cannot be exact at this length, with the nearest values that can."""
    sequences = job.batch_sequences(max_length)
    where = "global_batch_size"
    if sequences is None:
        tokens = int(str(job.global_batch_size).split()[0])
        if max_length is None:
            return Problem(where=where, what="a batch in tokens needs a `max_length`")
        near = " or ".join(f"`{n} tokens`" for n in nearest_token_batches(tokens, max_length))
        return Problem(
            where=where,
            what=f"{tokens} tokens are no whole number of rows of max_length {max_length}",
            hint=f"the nearest are {near}",
        )
    count = job.devices.count
    valid = micro_batches(sequences, count)
    if not valid:
        less = sequences // count * count
        near = " or ".join(str(n) for n in (less, less + count) if n)
        return Problem(
            where=where,
            what=f"{sequences} rows cannot be divided among {count} devices",
            hint=f"the nearest batches that can are {near}",
        )
    wanted = job.fixed.get(MICRO_BATCH)
    if isinstance(wanted, int) and wanted not in valid:
        near = " or ".join(str(n) for n in nearest_values(wanted, valid))
        return Problem(
            where=MICRO_BATCH,
            what=f"a micro-batch of {wanted} does not divide the global batch of {sequences}",
            hint=f"the nearest values that do are {near}",
        )
    pinned = job.fixed.get(ACCUMULATION)
    counts = [sequences // (m * count) for m in valid]
    if isinstance(pinned, int) and pinned not in counts:
        near = " or ".join(str(n) for n in nearest_values(pinned, sorted(counts)))
        return Problem(
            where=ACCUMULATION,
            what=f"{pinned} micro-batches do not make up the global batch of {sequences}",
            hint=f"the nearest values that do are {near}",
        )
    return None


def group_problem(job: Job, max_length: Any, group: Any) -> Problem | None:
    """The same of the groups of completions, where a batch can be exact but for them."""
    if group == 1 and GROUP not in job.fixed and GROUP not in job.recipe:
        return None
    sequences = job.batch_sequences(max_length) or 0
    where = GROUP if GROUP in job.fixed or GROUP in job.recipe else GLOBAL_BATCH
    if not isinstance(group, int) or group < 2:
        what = f"a group of {group} cannot be compared within itself"
        return Problem(where=GROUP, what=what, hint="generate at least 2 completions of a prompt")
    if sequences % group:
        whole = math.lcm(group, job.devices.count)
        less = sequences // whole * whole
        batches = " or ".join(str(n) for n in (less, less + whole) if n)
        sizes = nearest_values(group, [n for n in divisors(sequences) if n > 1])
        near = " or ".join(str(n) for n in sizes)
        return Problem(
            where=where,
            what=f"{sequences} completions are no whole number of groups of {group}",
            hint=f"the nearest batches that are: {batches}; the nearest {GROUP}: {near}",
        )
    return _generation_problem(job, sequences, group)


def update_batch_problem(job: Job, max_length: Any) -> Problem | None:
    """A pinned division of PPO's completions."""
    local = (job.batch_sequences(max_length) or 0) // job.devices.count
    micro = job.fixed.get(MICRO_BATCH)
    steps = local // micro if isinstance(micro, int) else local
    for knob, number, what in (
        (MINI_BATCHES, steps, "{} mini-batches are no whole micro-batches of {} completions"),
        (ROLLOUT_CHUNK, local, "rollout batches of {} do not divide the {} completions"),
    ):
        for value in [job.fixed[knob]] if knob in job.fixed else job.recipe.get(knob, []):
            many = knob == ROLLOUT_CHUNK and isinstance(value, int) and value > local
            if not isinstance(value, int) or value < 1 or many or number % value == 0:
                continue
            near = " or ".join(str(n) for n in nearest_values(value, divisors(number)))
            text = what.format(value, local) + " of a device"
            return Problem(where=knob, what=text, hint=f"the nearest values that do: {near}")
    return None


def _generation_problem(job: Job, sequences: int, group: int) -> Problem | None:
    """A pinned number of completions that are generated together."""
    together = job.fixed.get(GENERATION_BATCH)
    if not isinstance(together, int):
        return None
    micro = job.fixed.get(MICRO_BATCH)
    per_step = (micro if isinstance(micro, int) else 1) * job.devices.count

    def problem(number: int) -> str | None:
        return generation_problem(number, global_batch=sequences, per_step=per_step, group=group)

    why = problem(together)
    if why is None:
        return None
    most = sequences * (together // sequences + 1)
    valid = [n for n in range(group, most + 1, group) if problem(n) is None]
    near = " or ".join(str(n) for n in nearest_values(together, valid)) or "none"
    return Problem(where=GENERATION_BATCH, what=why, hint=f"the nearest values that do: {near}")
