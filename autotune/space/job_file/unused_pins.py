"""Knobs that a job pins though they do nothing in it, or to what they cannot be. Pure."""

from collections.abc import Iterator
from typing import Any

from autotune.job.job import Job
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.problems import as_yaml
from autotune.space.job_shape import JobShape
from autotune.space.knobs import Knob, condition_holds
from autotune.space.sharding.sharding import (
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    ZERO_FIELDS,
)

_PINNED_MEMORY = "pin_memory"
"""The field of DeepSpeed's that is for what is offloaded."""


def pin_problems(
    job: Job, definition: SpaceDefinition
) -> Iterator[tuple[str, str, str, str | None]]:
    """(section, knob, what is wrong, what to do) of pins that do nothing, or cannot be."""
    for section, name, condition in without_effect(job, definition):
        yield section, name, f"`{name}` needs `{condition}`", None


def without_effect(job: Job, definition: SpaceDefinition) -> list[tuple[str, str, str]]:
    """(section, knob, what it needs) of all that a job pins or lists in vain."""
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
    """Return what conditions of existence may ask, as far as the job alone decides it."""
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
    """Return what a field of DeepSpeed's needs where the job never comes to use it."""
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
