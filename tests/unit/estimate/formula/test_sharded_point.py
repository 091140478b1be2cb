"""An estimate divided by formula: as the record that it came from would be."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.formula.devices import sharded_point, sharded_record, zero_of
from autotune.estimate.protocol import PointReply
from autotune.estimate.records.events import ALLOCATE, FREE, PHASE, live_bytes
from autotune.space.sharding.sharding import Sharding

MIB = 2**20
WEIGHTS = 100 * MIB


def record(activations, logits, *, accumulates, buckets=True):
    """A model in float32 whose gradients are there during a micro-step, or only after it."""
    gradients = (ALLOCATE, 9, WEIGHTS, "gradients", "mm", 0)
    return [
        (ALLOCATE, 1, WEIGHTS, "weights", "init", 0),
        (ALLOCATE, 2, 2 * WEIGHTS, "optimizer", "zeros", 0),
        *([(ALLOCATE, 3, WEIGHTS, "communication", "bucket", 0)] * buckets),
        (PHASE, "data", 0),
        (PHASE, "micro-step", 0),
        *([gradients] * accumulates),
        (ALLOCATE, 4, activations, "activations", "mm", 0),
        (ALLOCATE, 5, logits, "logits", "mm", 0),
        (FREE, 4, 0),
        (FREE, 5, 0),
        *([gradients] * (not accumulates)),
        (PHASE, "step", 0),
        (ALLOCATE, 6, WEIGHTS, "temporaries", "mul", 0),
        (FREE, 6, 0),
    ]


def point_of(events):
    use = live_bytes(events)
    return PointReply(
        peak_allocated_bytes=use.peak_bytes,
        peak_reserved_bytes=use.peak_bytes,
        parts=use.parts,
        operator=use.operator,
        phase=use.phase,
        oom=False,
        missing_bytes=None,
        retries=0,
        phases=use.phases,
        micro_peaks=use.micro_peaks,
        sample=[],
        masked=False,
        method="trace",
    )


def zero(stage, **fields):
    sharding = Sharding(distributed_type="DEEPSPEED", num_processes=8, zero_stage=stage, **fields)
    return zero_of({"dtype": "float32"}, sharding, 8, 256)


SIZES = st.integers(1, 2000).map(lambda n: n * MIB)


@given(SIZES, SIZES, st.booleans(), st.sampled_from((1, 2, 3)))
def test_it_is_what_the_whole_record_divided_comes_to(activations, logits, accumulates, stage):
    shape = {"accumulates": accumulates}
    copies = point_of(record(activations, logits, **shape))
    point_reply = sharded_point(copies, zero(stage), gradients=WEIGHTS, accumulates=accumulates)
    use = live_bytes(
        sharded_record(record(activations, logits, **shape, buckets=False), zero(stage))
    )
    assert point_reply.phases["step"] == use.phases["step"]
    assert point_reply.peak_allocated_bytes == use.peak_bytes


def test_states_that_are_not_there_yet_at_the_peak_are_divided_too():
    """A first step makes them one by one, beside what it lets go of."""
    whole = point_of(record(10 * MIB, MIB, accumulates=True))
    early = {part: size for part, size in whole.parts.items() if part != "optimizer"}
    found, expected = (
        sharded_point(point, zero(3), gradients=WEIGHTS, accumulates=True)
        for point in (replace(whole, parts=early), whole)
    )
    assert found.phases == expected.phases


def test_what_is_offloaded_is_not_on_the_device():
    events = record(10 * MIB, MIB, accumulates=True)
    away = zero(2, offload_optimizer_device="cpu")
    point_reply = sharded_point(point_of(events), away, gradients=WEIGHTS, accumulates=True)
    assert "optimizer" not in point_reply.parts
    assert point_reply.peak_allocated_bytes < 2 * WEIGHTS
