"""Why a global batch cannot be exact, with the nearest values that can, and why a candidate cannot
generate its completions. Pure."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.errors import Problem
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.batch import (
    WHITENED,
    divisors,
    generation_problem,
    micro_batches,
    nearest_token_batches,
    nearest_values,
    update_problem,
)
from autotune.space.job_shape import JobShape, processes_problem, row_parts, undivided
from autotune.space.knobs import (
    ACCUMULATION,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    ROLLOUT_CHUNK,
)
from autotune.space.sharding.sharding import SP_SIZE


def batch_problems(shape: JobShape, lengths: Iterable[Any], groups: Iterable[Any]) -> list[Problem]:
    """Return everything that is wrong with the batches of a job, each once.

    Args:
        lengths: every `max_length` that may be chosen.
        groups: every number of completions of one prompt that may be chosen; 1 where none are
            generated.
    """
    lengths, problems = list(lengths), dict[Problem, None]()
    job = shape.job
    for batch, length, group in itertools.product(job.batches, lengths, groups):
        of_batch = JobShape.of(job.with_batch(batch))
        problem = batch_problem(of_batch, length) or group_problem(of_batch, length, group)
        problem = problem or update_batch_problem(of_batch, length)
        if problem is not None:
            problems[problem] = None
    if not problems and METHODS[job.method].value_model:
        whitening = whitening_problem(shape, lengths)
        return [] if whitening is None else [whitening]
    return list(problems)


def batch_problem(shape: JobShape, max_length: Any) -> Problem | None:
    """Return why the global batch cannot be exact at this length, with the nearest values that
    can."""
    job = shape.job
    sequences = job.batch_sequences(max_length)
    where = "global_batch_size"
    if sequences is None:
        tokens = int(str(job.global_batch_size).split()[0])
        if max_length is None:
            return Problem(where=where, what="a batch in tokens needs a `max_length`")
        nearest = " or ".join(f"`{n} tokens`" for n in nearest_token_batches(tokens, max_length))
        return Problem(
            where=where,
            what=f"{tokens} tokens is not a multiple of max_length ({max_length})",
            hint=f"the nearest are {nearest}",
        )
    counts = shape.replica_counts
    problem = processes_problem(shape) or undivided(sequences, shape)
    if problem is not None:
        return problem
    valid = sorted({micro for count in counts for micro in micro_batches(sequences, count)})
    micro_batch = job.fixed.get(MICRO_BATCH)
    if isinstance(micro_batch, int) and micro_batch not in valid:
        nearest = " or ".join(str(n) for n in nearest_values(micro_batch, valid))
        target = _process_target(sequences, counts)
        return Problem(
            where=MICRO_BATCH,
            what=f"a micro-batch of {micro_batch} does not divide {target}",
            hint=f"the nearest possible values are {nearest}",
        )
    pinned = job.fixed.get(ACCUMULATION)
    valid_counts = {m for count in counts for m in divisors(sequences // count)}
    if isinstance(pinned, int) and pinned not in valid_counts:
        nearest = " or ".join(str(n) for n in nearest_values(pinned, sorted(valid_counts)))
        return Problem(
            where=ACCUMULATION,
            what=f"{pinned} micro-batches do not divide {_process_target(sequences, counts)}",
            hint=f"the nearest possible values are {nearest}",
        )
    return None


def _process_target(sequences: int, counts: Sequence[int]) -> str:
    """Return the target of micro-batches, in words: the global batch, or each process's share."""
    target = f"the global batch of {sequences}"
    if max(counts) == 1:
        return target
    shares = " or ".join(
        f"the {sequences // n} sequences of each of {n} processes"
        if n > 1
        else f"all {n * sequences} of one"
        for n in counts
    )
    return f"{shares} ({target})"


def group_problem(shape: JobShape, max_length: Any, group: Any) -> Problem | None:
    """Return why the completions of a batch cannot be split into groups; None: they can."""
    if group == 1 and not shape.pinned_or_listed(GROUP):
        return None
    sequences = shape.job.batch_sequences(max_length) or 0
    where = GROUP if shape.pinned_or_listed(GROUP) else GLOBAL_BATCH
    if not isinstance(group, int) or group < 2:
        what = f"must be at least 2, but got {group}: completions of a prompt are compared"
        return Problem(where=GROUP, what=what, hint="generate at least 2 completions of a prompt")
    if sequences % group:
        multiple = math.lcm(group, max(shape.process_counts))
        smaller = sequences // multiple * multiple
        batches = " or ".join(str(n) for n in (smaller, smaller + multiple) if n)
        sizes = nearest_values(group, [n for n in divisors(sequences) if n > 1])
        nearest = " or ".join(str(n) for n in sizes)
        hint = f"the nearest possible batches: {batches}"
        return Problem(
            where=where,
            what=f"{sequences} completions cannot be split into groups of {group}",
            hint=f"{hint}; the nearest {GROUP}: {nearest}" if sizes else hint,
        )
    return _generation_problem(shape, sequences, group)


def update_batch_problem(shape: JobShape, max_length: Any) -> Problem | None:
    """Return the problem of a pinned or listed division of PPO's completions."""
    job = shape.job
    local = (job.batch_sequences(max_length) or 0) // max(shape.process_counts)
    micro = job.fixed.get(MICRO_BATCH)
    steps = local // micro if isinstance(micro, int) else local

    def problem(*, chunk: int = 1, mini_batches: int = 1) -> str | None:
        return update_problem(local, steps, chunk=chunk, mini_batches=mini_batches, whitened=False)

    for knob, name, number in (
        (MINI_BATCHES, "mini_batches", steps),
        (ROLLOUT_CHUNK, "chunk", local),
    ):
        for value in _requested_values(job, knob, ()):
            reason = problem(**{name: value}) if isinstance(value, int) and value > 0 else None
            if reason is not None:
                nearest = " or ".join(str(n) for n in nearest_values(value, divisors(number)))
                what = f"{value} is not possible: {reason} ({local} completions on a device)"
                return Problem(
                    where=knob, what=what, hint=f"the nearest possible values: {nearest}"
                )
    return None


def whitening_problem(shape: JobShape, lengths: Iterable[Any]) -> Problem | None:
    """Return the problem of mini-batches that are all too small for PPO to whiten rewards."""
    job = shape.job
    if not job.training.get("whiten_rewards"):
        return None
    minis = [n for n in _requested_values(job, MINI_BATCHES, (1,)) if isinstance(n, int) and n > 0]
    sizes = [
        job.with_batch(batch).batch_sequences(length)
        for batch, length in itertools.product(job.batches, lengths)
    ]
    count = max(shape.process_counts)
    local = max((size // count for size in sizes if size), default=0)
    parts = min(minis, default=1)
    if not local or local // parts >= WHITENED:
        return None
    micro, chunk = job.fixed.get(MICRO_BATCH), job.fixed.get(ROLLOUT_CHUNK)
    part_rows, common_step = parts * _count(micro), _count(chunk)
    enough = itertools.count(-(-WHITENED * parts // part_rows) * part_rows, part_rows)
    smallest = next(n for n in enough if n < common_step or n % common_step == 0) * count
    fewer = [n for n in divisors(local) if local // n >= WHITENED]
    hint = f"the nearest possible {GLOBAL_BATCH}: {smallest}; "
    if fewer:
        hint += f"the nearest {MINI_BATCHES}: {fewer[-1]}; "
    return Problem(
        where="training.whiten_rewards",
        what=f"whitened rewards need mini-batches of at least {WHITENED} completions on each "
        f"device, but {local} completions in {parts} part(s) make {local // parts}",
        hint=f"{hint}or leave whiten_rewards out",
    )


def _requested_values(job: Job, knob: str, otherwise: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a knob that the job pins or lists."""
    return [job.fixed[knob]] if knob in job.fixed else job.recipe.get(knob, otherwise)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _generation_problem(shape: JobShape, sequences: int, group: int) -> Problem | None:
    """Return the problem of a pinned number of completions that are generated together."""
    job = shape.job
    generation_batch = job.fixed.get(GENERATION_BATCH)
    if not isinstance(generation_batch, int):
        return None
    micro = job.fixed.get(MICRO_BATCH)
    per_step = (micro if isinstance(micro, int) else 1) * max(shape.process_counts)

    def problem(number: int) -> str | None:
        return generation_problem(number, global_batch=sequences, per_step=per_step, group=group)

    reason = problem(generation_batch)
    if reason is None:
        return None
    largest = sequences * (generation_batch // sequences + 1)
    valid = [n for n in range(group, largest + 1, group) if problem(n) is None]
    nearest = " or ".join(str(n) for n in nearest_values(generation_batch, valid)) or "none"
    return Problem(
        where=GENERATION_BATCH, what=reason, hint=f"the nearest possible values: {nearest}"
    )


def completions_problem(
    shape: JobShape, rows: int, values: Mapping[str, Any], sequences: int
) -> str | None:
    """Return why a candidate cannot generate its completions; None: it can, or generates none.

    Args:
        rows: of the data.
        values: of the candidate's knobs; its micro-batch divides the global batch.
        sequences: of the global batch.
    """
    if METHODS[shape.job.method].teacher and sequences > rows:
        return "the data has fewer prompts than are generated from together"
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


def shared_rows_problem(shape: JobShape, facts: Facts, values: Mapping[str, Any]) -> str | None:
    """Return why processes cannot share rows as a candidate wants it; None: they can.

    Source: DeepSpeed 0.19.8, `runtime/sequence_parallel/ulysses_sp.py`, `UlyssesSPAttention`.
    """
    parts, processes = row_parts(values), shape.processes(values)
    if processes % parts:
        return f"{processes} processes cannot be divided into groups of {parts} that share rows"
    sp_size, heads = int(values.get(SP_SIZE, 1)), facts.model.attention_heads
    pairs = facts.model.key_value_heads or heads
    if heads is not None and heads % sp_size:
        return f"{heads} heads of attention cannot be divided among {sp_size} processes"
    if pairs is not None and pairs % sp_size and sp_size % pairs:
        return f"{pairs} heads of keys and values cannot be divided among {sp_size} processes"
    return None
