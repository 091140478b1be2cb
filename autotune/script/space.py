"""What may vary of a script: knobs of the shipped space that can be set from outside. Pure.

The rows of an optimizer step stay those that the script's arguments come to, and so does its
recipe. Where nobody chooses, a knob has the value that the script has: its own settings are the
candidate that everything is held against.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from autotune.errors import nearest, user_error
from autotune.estimate.variant import SAME_STATE
from autotune.facts import Facts
from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts
from autotune.facts.model import ModelFacts
from autotune.facts.stack import StackFacts, canonical_name, field_name
from autotune.job.job import Job
from autotune.job.methods import SFT
from autotune.script.protocol import TOKENS, Look
from autotune.space.attention import is_flash
from autotune.space.bind import SearchSpace, bind
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.knobs import (
    ACCUMULATION,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    MICRO_BATCH,
    SAMPLING,
    SEGMENTS,
    Candidate,
    Knob,
)

PADDING_FREE, OPTIM = "padding_free", "optim"
WORKERS = "dataloader_num_workers"
GENERATION_STEPS = "steps_per_generation"
SEGMENTS_BY_DEVICE = {"cpu": [False], "cuda": [False, True]}
"""Fixed segments are what a script has: its own way is among what is tried."""
SET_FROM_OUTSIDE = (
    MICRO_BATCH,
    CHECKPOINTING,
    "use_liger_kernel",
    PADDING_FREE,
    SAMPLING,
    "activation_offloading",
    OPTIM,
    WORKERS,
    "torch_empty_cache_steps",
)
SWITCHES = (CHECKPOINTING, "use_liger_kernel", PADDING_FREE, "activation_offloading")
AS_THEY_ARE = (GLOBAL_BATCH, "max_length", "packing")
"""Knobs of the recipe that rules ask for."""
BATCH_IS_RECIPE = ("SentenceTransformerTrainer", "CrossEncoderTrainer", "KTOTrainer")
"""Trainers whose loss compares the rows of a micro-batch: another size learns something else."""


def value_of(look: Look, name: str) -> Any:
    """Return the value that a script has of a knob, by whatever name its stack has the field; a
    switch that it leaves open is off."""
    value = look.arguments.get(field_name(name, frozenset(look.arguments)))
    return False if value is None and name in SWITCHES else value


def definition_of(look: Look) -> SpaceDefinition:
    """Return the knobs of a script, of the shipped space, and the rules between them."""
    shipped = load_definition(SFT.name)
    knobs = [_of_script(knob, look) for knob in shipped.knobs]
    return dataclasses.replace(
        shipped, name="the script", knobs=tuple(knob for knob in knobs if knob is not None)
    )


def _of_script(knob: Knob, look: Look) -> Knob | None:
    if knob.name == GLOBAL_BATCH:
        return knob
    if knob.name == SEGMENTS:
        return dataclasses.replace(knob, values=SEGMENTS_BY_DEVICE)
    if knob.name not in (*SET_FROM_OUTSIDE, *AS_THEY_ARE):
        return None
    if field_name(knob.name, frozenset(look.arguments)) not in look.arguments:
        return None
    has = value_of(look, knob.name)
    if knob.name == CHECKPOINTING and not (look.checkpointing or has):
        return None
    if knob.name == CHECKPOINTING:  # one field is set from outside: all layers or none
        knob = dataclasses.replace(knob, values=[False, True])
    if knob.name == MICRO_BATCH:
        return dataclasses.replace(knob, default=has)
    values = knob.values if _may_vary(knob.name, look, has) else [has]
    if isinstance(values, list) and has not in values:
        values = [*values, has]
    if isinstance(values, dict):
        values = {kind: _with(has, each) for kind, each in values.items()}
    if knob.name == WORKERS and isinstance(values, dict) and _needs_workers(look):
        values = {kind: [n for n in each if n] for kind, each in values.items()}
    return dataclasses.replace(knob, values=values, default=has, choices=None)


def _with(value: Any, values: list[Any]) -> list[Any]:
    return values if value in values else [*values, value]


def _needs_workers(look: Look) -> bool:
    """True if other arguments of the script are refused without data workers."""
    names = ("dataloader_prefetch_factor", "dataloader_persistent_workers")
    return any(look.arguments.get(name) for name in names) and bool(value_of(look, WORKERS))


def _may_vary(name: str, look: Look, has: Any) -> bool:
    if name in AS_THEY_ARE:
        return False
    if name == OPTIM:
        return has in SAME_STATE
    if name == SAMPLING:
        return look.groups and not look.online and has in ("random", "group_by_length")
    if name == PADDING_FREE:
        return is_flash(look.attention)
    return True


def job_of(look: Look, limits: Mapping[str, Any]) -> Job:
    """Return the job that the loop of a run works on: its batch is that of one process.

    Args:
        limits: `budget`, `headroom`, `devices` and `fixed` of a job.

    Raises:
        UserError: a pinned knob is none of this script's.
    """
    lengths = {name: max(int(value), 1) for name, value in look.lengths.items()}
    longest = lengths.get("longest", 1)
    data = {"max": longest, "p50": lengths.get("p50", longest), "p99": lengths.get("p99", longest)}
    fixed = dict(limits.get("fixed") or {})
    if any(kind in BATCH_IS_RECIPE for kind in look.kinds):
        fixed.setdefault(MICRO_BATCH, value_of(look, MICRO_BATCH))
    known = [knob.name for knob in definition_of(look).knobs if knob.name != GLOBAL_BATCH]
    for name in fixed:
        if name not in (*known, ACCUMULATION):
            what = f"`{name}` is not a knob that can be set in this script from outside"
            raise user_error(what, where="--set", hint=nearest(name, known))
    job: Job = Job.model_validate(
        {
            **limits,
            "model": look.model,
            "dataset": {"lengths": {**data, "rows": look.rows or 10_000}},
            "global_batch_size": look.global_batch // look.ways,
            "max_length": value_of(look, "max_length"),
            "training": {"seed": look.arguments.get("seed", 42)},
            "fixed": fixed,
        }
    )
    return job


def facts_of(look: Look, device: DeviceFacts, stack: StackFacts) -> Facts:
    """Return the facts of a script before any probe."""
    rows, lengths = look.rows or 0, look.lengths
    shape: dict[str, Any] = dict(look.shape)
    return Facts(
        model=ModelFacts(
            name=look.model,
            path="",
            weights="real",
            architecture=look.model,
            model_type=look.model_type,
            parameters=look.parameters,
            attention_modules=(),
            **shape,
        ),
        data=DataFacts(
            source="",
            form="lengths",
            rows=rows,
            rows_measured=rows,
            test_rows=0,
            mean_length=lengths.get("mean", 1.0),
            quantiles={
                name: int(lengths[name])
                for name in ("p1", "p50", "p99")
                if name in lengths and look.unit == TOKENS
            },
            longest=int(lengths.get("longest", 1)),
        ),
        device=device,
        stack=stack,
    )


def space_of(look: Look, job: Job, facts: Facts) -> SearchSpace:
    """Return every candidate of a script.

    Raises:
        UserError: nothing is feasible.
    """
    # To rules a stream has rows without end.
    data = dataclasses.replace(facts.data, rows=facts.data.rows or sys.maxsize)
    space = bind(definition_of(look), job, dataclasses.replace(facts, data=data))
    has: dict[str, Any] = {knob.name: knob.default for knob in space.knobs}
    kept = tuple(c for c in space.candidates if _generates_whole(look, c))
    default = min(kept, key=lambda c: (c.distance(has), abs(c.micro_batch - has[MICRO_BATCH])))
    notes = (*space.notes, *look.notes)
    return dataclasses.replace(space, candidates=kept, stack_default=default, notes=notes)


def _generates_whole(look: Look, candidate: Candidate) -> bool:
    """True if whole micro-batches make up what is generated at once."""
    together = look.arguments.get(GENERATION_BATCH) if look.online else None
    return together is None or together % (candidate.micro_batch * look.ways) == 0


def fields_of(candidate: Candidate, look: Look) -> dict[str, Any]:
    """Return all fields of the arguments that a candidate decides, by the names of the script's
    stack."""
    names = frozenset(look.arguments)
    return {
        field_name(name, names): value
        for name, value in candidate.knobs.items()
        if name not in (*AS_THEY_ARE, SEGMENTS)
    }


def changes_of(candidate: Candidate, look: Look) -> dict[str, Any]:
    """Return the fields in which a candidate differs from the script's own arguments."""
    fields = {
        name: value
        for name, value in fields_of(candidate, look).items()
        if value_of(look, canonical_name(name)) != value
    }
    together = look.arguments.get(GENERATION_BATCH) if look.online else None
    if fields.keys() & {MICRO_BATCH, ACCUMULATION} and together not in (None, look.global_batch):
        fields |= {GENERATION_BATCH: together, GENERATION_STEPS: None}
    return fields


def environment_of(candidate: Candidate) -> dict[str, str]:
    """Return variables that a candidate sets."""
    if not candidate.values.get(SEGMENTS):
        return {}
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
