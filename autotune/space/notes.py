"""What a user should know of every candidate of a space. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.space.job_shape import JobShape
from autotune.space.knobs import SEGMENTS
from autotune.space.position_checks import Positions
from autotune.space.quantization import loading_note, packed_note, unquantised_note
from autotune.space.sharding.sharding import SP_SIZE
from autotune.space.vllm.server import division_note


def space_notes(
    shape: JobShape, facts: Facts, positions: Positions, candidates: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """Return the sentences, without full stops."""
    notes = (
        _maker_note(facts),
        positions.note(candidates),
        division_note(shape, facts),
        unquantised_note(shape.job, facts, candidates),
        loading_note(shape.job, facts, candidates),
        packed_note(facts, candidates),
        _weighing_note(facts, candidates),
        _shape_note(facts),
        _segments_note(candidates),
        code_note(shape.job),
    )
    return tuple(note for note in notes if note is not None)


def code_note(job: Job) -> str | None:
    """Return what code a training runs that is neither the stack's nor ours; None: none."""
    own = [name for name in job.reward_funcs if "." in name]
    parts = [
        *(["the model's (`trust_remote_code: true`)"] if trusts(job) else []),
        *([f"the job's (`reward_funcs: {', '.join(own)}`)"] if own else []),
    ]
    return f"it runs code that is not the stack's: {' and '.join(parts)}" if parts else None


def trusts(job: Job) -> bool:
    """True if the job lets a model bring code of its own."""
    values = [fields.get("trust_remote_code") for fields in (job.training, job.fixed)]
    return True in [*values, *job.recipe.get("trust_remote_code", [])]


def _shape_note(facts: Facts) -> str | None:
    """Return where the model's shape is from, if neither from the hub nor from a file."""
    name = facts.model.name
    return f"the shape of {name} is built in: the hub gave none" if facts.model.built_in else None


def _weighing_note(facts: Facts, candidates: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is learned otherwise where processes share rows by Ulysses' way."""
    sizes = {values.get(SP_SIZE, 1) for values in candidates}
    if sizes == {1} or not facts.data.ragged:
        return None
    return (
        "with `sp_size` the micro-batches of an optimizer step weigh alike, however many tokens "
        "they have (transformers); without, and with one of them, tokens do"
    )


def _segments_note(candidates: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a training by hand needs, too, where the allocator's segments always grow."""
    if not all(values.get(SEGMENTS) for values in candidates):
        return None
    return (
        "`launch.sh` sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; without it more memory "
        "is kept than this says"
    )


def _maker_note(facts: Facts) -> str | None:
    device = facts.device
    if device.kind == "cpu" or device.maker == "NVIDIA":
        return None
    return (
        f"nothing was tested on a GPU of {device.maker}: memory is reckoned with the caching "
        "allocator and the kernels of NVIDIA's, speeds with peaks of data sheets, and how far "
        "they are off is not known"
    )
