"""Values that a job pins or lists of knobs, and that these cannot have. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.job.fields import MOST_LENGTH, MOST_ROWS
from autotune.job.job import Job
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.problems import as_yaml
from autotune.space.job_file.training_values import wrong_value
from autotune.space.knobs import (
    ACCUMULATION,
    COMPLETION,
    GLOBAL_BATCH,
    RESPONSE,
    TENSOR_PARALLEL,
    VLLM_SHARE,
    Knob,
)
from autotune.space.sharding.sharding import BUCKET_SIZE
from autotune.space.value_words import COUNTS, COUNTS_FROM_ZERO, counts
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
_JUDGED_ELSEWHERE = (*_WHOLE_NUMBERS, *COUNTS_FROM_ZERO, VLLM_SHARE, "lora_target_modules")


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
        if any(type(value) is type(c) and value == c for c in knob.choices):
            return None
        choices = ", ".join(dict.fromkeys(f"`{as_yaml(c)}`" for c in knob.choices))
        return f"`{knob.name}` cannot be `{as_yaml(value)}`", f"choose from {choices}"
    if knob.place != "config" or knob.name in _JUDGED_ELSEWHERE:
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
    """(Section, knob, values) of all that a job pins or lists."""
    yield from (("fixed", name, [value]) for name, value in job.fixed.items())
    yield from (("recipe", name, list(values)) for name, values in job.recipe.items())
