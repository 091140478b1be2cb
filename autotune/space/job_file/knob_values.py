"""Values that a job pins or lists, and that their knobs cannot have or that do nothing. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.job.fields import MOST_LENGTH, MOST_ROWS
from autotune.job.job import Job
from autotune.space.definition import COUNTS, COUNTS_FROM_ZERO, SpaceDefinition, counts
from autotune.space.job_file.problems import as_yaml
from autotune.space.job_file.training_values import wrong_value
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    ACCUMULATION,
    COMPLETION,
    GLOBAL_BATCH,
    RESPONSE,
    TENSOR_PARALLEL,
    VLLM_SHARE,
    Knob,
    condition_holds,
)
from autotune.space.sharding.sharding import (
    BUCKET_SIZE,
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    ZERO_FIELDS,
)
from autotune.space.vllm.colocated import MODE, USE

Found = tuple[str, str, str, str | None]
"""The section, the knob, what is wrong, and what to do."""
_WHOLE_NUMBERS = (*COUNTS, ACCUMULATION, "lora_r", "num_iterations", "num_ppo_epochs")
"""Knobs that are whole numbers above 0."""
_MOST = {
    **dict.fromkeys(("max_length", COMPLETION, RESPONSE), MOST_LENGTH),
    **dict.fromkeys((BUCKET_SIZE, *COUNTS_FROM_ZERO), 10**12),
}
"""The most that they can be, where it is not `MOST_ROWS`."""
_JUDGED_ELSEWHERE = (*_WHOLE_NUMBERS, *COUNTS_FROM_ZERO, VLLM_SHARE)


def uncounted(job: Job) -> Iterator[Found]:
    """Yield knobs that count something, and values that do not."""
    for section, name, values in _entries(job):
        if name not in (*_WHOLE_NUMBERS, *COUNTS_FROM_ZERO):
            continue
        never = [None] if (section, name) == ("recipe", "max_length") else []
        most = _MOST.get(name, MOST_ROWS)
        if not all(counts(name, v) or v in never for v in values):
            minimum = "from 0 on" if name in COUNTS_FROM_ZERO else "above 0"
            yield section, name, f"`{name}` must be a whole number {minimum}", None
        elif any(value is not None and value > most for value in values):
            yield section, name, f"`{name}` must be at most {most:,}", None


def impossible(job: Job, definition: SpaceDefinition, types: Mapping[str, str]) -> Iterator[Found]:
    """Yield values that are no choices of their knobs, or not of their types.

    Args:
        types: of the trainer's fields, as its source has them.
    """
    for section, name, values in _entries(job):
        knob = definition.knob(name)
        for value in values if knob is not None else ():
            wrong = _wrong_choice(knob, value, types) if knob is not None else None
            if wrong is not None:
                yield section, name, *wrong
    for name in ("max_length", GLOBAL_BATCH):
        if name in job.fixed:
            yield "fixed", name, f"`{name}` is a field of the job itself", None
    yield from _of_vllm(job)


def _wrong_choice(
    knob: Knob, value: Any, types: Mapping[str, str]
) -> tuple[str, str | None] | None:
    if knob.choices is not None:
        if knob.allows(value):
            return None
        choices = ", ".join(dict.fromkeys(f"`{as_yaml(c)}`" for c in knob.choices))
        return f"`{knob.name}` cannot be `{as_yaml(value)}`", f"choose from {choices}"
    if knob.name in _JUDGED_ELSEWHERE:
        return None
    return wrong_value(knob.name, value, types.get(knob.name))


def _of_vllm(job: Job) -> Iterator[Found]:
    share = job.fixed.get(VLLM_SHARE, 0.5)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        what = f"`{VLLM_SHARE}: {as_yaml(share)}` must be a fraction, above 0 and at most 1"
        yield "fixed", VLLM_SHARE, what, None
    pinned_use = job.fixed.get(USE) and job.devices.total == 1
    if pinned_use and job.fixed.get(TENSOR_PARALLEL, 1) != 1:
        what = f"`{TENSOR_PARALLEL}: {as_yaml(job.fixed[TENSOR_PARALLEL])}` needs more devices"
        yield "fixed", TENSOR_PARALLEL, what, "raise `devices.count`, or unpin it"
    for name in sorted({USE, MODE, VLLM_SHARE} & job.recipe.keys()):
        what = f"`{name}` cannot be tried with several values: probes would not differ"
        yield "recipe", name, what, f"pin it: `fixed: {{{name}: ...}}`"


def _entries(job: Job) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield (section, knob, values) of all that a job pins or lists."""
    yield from (("fixed", name, [value]) for name, value in job.fixed.items())
    yield from (("recipe", name, list(values)) for name, values in job.recipe.items())


_PINNED_MEMORY = "pin_memory"
"""The field of DeepSpeed's that is for what is offloaded."""


def pin_problems(
    job: Job, definition: SpaceDefinition
) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield (section, knob, what is wrong, what to do) of pins that do nothing."""
    for section, name, condition in without_effect(job, definition):
        yield section, name, f"`{name}` needs `{condition}`", None


def without_effect(job: Job, definition: SpaceDefinition) -> list[tuple[str, str, str]]:
    """Return (section, knob, what it needs) of all pins and lists that do nothing."""
    context = _decided_context(job, definition)
    pins = []
    for section in ("fixed", "recipe"):
        for name in getattr(job, section):
            knob = definition.knob(name)
            condition = _lacking_condition(knob, context) if knob is not None else None
            if condition is None and knob is not None and name in ZERO_FIELDS:
                condition = _not_offloaded(name, job, definition)
            if condition is not None:
                pins.append((section, name, condition))
    return pins


def _decided_context(job: Job, definition: SpaceDefinition) -> dict[str, Any]:
    """Return the values of knobs that the job alone decides, for the conditions of other knobs."""
    pinned = {
        knob.name: job.fixed.get(knob.name, knob.values[0])
        for knob in definition.knobs
        if isinstance(knob.values, list)
        and knob.name not in job.recipe
        and (len(knob.values) == 1 or knob.name in job.fixed)
    }
    return {**pinned, "job.tuning": job.tuning}


def _lacking_condition(knob: Knob, context: dict[str, Any]) -> str | None:
    for name, condition in knob.only_if.items():
        if name not in context or condition_holds(condition, context[name], context):
            continue
        value = condition[0] if isinstance(condition, list) else condition
        if isinstance(value, dict):
            continue
        return f"{name[4:]}: {value}" if name.startswith("job.") else _pin(name, value)
    return None


def _not_offloaded(name: str, job: Job, definition: SpaceDefinition) -> str | None:
    """Return what a field of DeepSpeed needs, in a job that never uses it; None: it is used."""
    is_sharded = JobShape.of(job).may_be_sharded
    if name != _PINNED_MEMORY:
        return None if is_sharded else _pin(DISTRIBUTED_TYPE, DEEPSPEED)
    offloads = [_tried_values(knob, job, definition) for knob in (OPTIMIZER_OFFLOAD, PARAM_OFFLOAD)]
    if is_sharded and any("cpu" in values for values in offloads):
        return None
    example = f"{DISTRIBUTED_TYPE}: {DEEPSPEED}, zero_stage: 2, {OPTIMIZER_OFFLOAD}: cpu"
    return f"fixed: {{{example}}}"


def _tried_values(name: str, job: Job, definition: SpaceDefinition) -> list[Any]:
    """Return the values of a knob that the job tries."""
    if name in job.fixed:
        return [job.fixed[name]]
    knob = definition.knob(name)
    values = job.recipe.get(name, knob.values if knob is not None else [])
    return values if isinstance(values, list) else []


def _pin(name: str, value: Any) -> str:
    return f"fixed: {{{name}: {as_yaml(value)}}}"
