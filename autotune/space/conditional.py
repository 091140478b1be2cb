"""Knobs that a job pins though they do not exist in it. Pure."""

from typing import Any

from autotune.job import Job
from autotune.space.definition import SpaceDefinition
from autotune.space.explain import as_yaml
from autotune.space.knobs import Knob, condition_holds


def without_effect(job: Job, definition: SpaceDefinition) -> list[tuple[str, str, str]]:
    """(section, knob, what it needs) of all that a job pins or lists in vain."""
    known = _known(job, definition)
    found = []
    for section in ("fixed", "recipe"):
        for name in getattr(job, section):
            knob = definition.knob(name)
            lacking = _lacking(knob, known) if knob is not None else None
            if lacking is not None:
                found.append((section, name, lacking))
    return found


def _known(job: Job, definition: SpaceDefinition) -> dict[str, Any]:
    """What conditions of existence may ask, as far as the job alone decides it."""
    pinned = {
        knob.name: job.fixed.get(knob.name, knob.values[0])
        for knob in definition.knobs
        if isinstance(knob.values, list)
        and knob.name not in job.recipe
        and (len(knob.values) == 1 or knob.name in job.fixed)
    }
    return {**pinned, "job.tuning": job.tuning}


def _lacking(knob: Knob, known: dict[str, Any]) -> str | None:
    for name, condition in knob.only_if.items():
        if name not in known or condition_holds(condition, known[name], known):
            continue
        wanted = condition[0] if isinstance(condition, list) else condition
        if isinstance(wanted, dict):
            continue
        return f"{name[4:]}: {wanted}" if name.startswith("job.") else _pin(name, wanted)
    return None


def _pin(name: str, value: Any) -> str:
    return f"fixed: {{{name}: {as_yaml(value)}}}"
