"""What a user should know of every candidate of a space. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.space.position_checks import Positions
from autotune.space.quantization import unquantised_note
from autotune.space.vllm.server import division_note


def space_notes(
    job: Job, facts: Facts, positions: Positions, candidates: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """The sentences, without full stops."""
    notes = (
        positions.note(candidates),
        division_note(job, facts),
        unquantised_note(job, facts, candidates),
    )
    return tuple(note for note in notes if note is not None)
