"""What divides or offloads more than it must is not probed where it is expected to be slower."""

import pytest

from autotune.search.rules.dominance import dominated
from tests.unit.builders import GIB, bad, make_candidate, make_facts, make_job, make_space, ok
from tests.unit.search.rules.test_replication import record

SAYS = "probe 3 fits with {}; more sharding or offloading is estimated slower"


def way(kind="DEEPSPEED", stage=0, adam="none", weights="none", reshard=True, **fields):
    return make_candidate(
        distributed_type=kind,
        zero_stage=stage,
        offload_optimizer_device=adam,
        offload_param_device=weights,
        fsdp_reshard_after_forward=reshard,
        **fields,
    )


DDP = way("MULTI_GPU")
ALONE = way("NO", num_processes=1)
ALONE_OFF = way(stage=2, adam="cpu", num_processes=1)
TWO, THREE = way(stage=2), way(stage=3)
FAST, SLOW = 100.0, 90.0


def reason_against(candidate, probed_candidate, measurement=None, *, speeds=(SLOW, FAST)):
    speeds_by_key = dict(zip((candidate.key, probed_candidate.key), speeds, strict=True))
    probe = record(3, measurement or ok(100, GIB), probed_candidate)
    return dominated([candidate], [probe], 10 * GIB, speeds_by_key).get(candidate.key)


@pytest.mark.parametrize(
    ("sharded", "leaner", "name"),
    [
        (way(stage=1), DDP, "DDP"),
        (THREE, DDP, "DDP"),
        (THREE, TWO, "ZeRO-2"),
        (way(stage=2, adam="cpu"), TWO, "ZeRO-2"),
        (
            way(stage=3, adam="cpu", weights="cpu"),
            way(stage=3, adam="cpu"),
            "ZeRO-3, optimizer on cpu",
        ),
        (way(stage=3, adam="cpu", weights="cpu"), TWO, "ZeRO-2"),
        (way("FSDP"), way("FSDP", reshard=False), "FSDP2, not resharded"),
        (way("FSDP", reshard=False), DDP, "DDP"),
        (ALONE_OFF, ALONE, "a plain copy"),
    ],
)
def test_what_divides_or_offloads_more_is_not_probed(sharded, leaner, name):
    assert reason_against(sharded, leaner) == SAYS.format(name)
    assert reason_against(leaner, sharded) is None  # and never the other way round


@pytest.mark.parametrize("speeds", [(FAST, FAST), (FAST, SLOW)])
def test_it_is_probed_where_it_may_be_as_fast(speeds):
    assert reason_against(THREE, TWO, speeds=speeds) is None


def test_it_is_probed_where_nobody_knows_how_fast_it_is():
    probe = record(3, ok(100, GIB), TWO)
    assert dominated([THREE], [probe], 10 * GIB) == {}
    assert dominated([THREE], [probe], 10 * GIB, {TWO.key: FAST}) == {}


@pytest.mark.parametrize("measurement", [ok(100, 11 * GIB), bad("oom"), bad("unstable")])
def test_it_is_probed_where_less_does_not_do(measurement):
    assert reason_against(THREE, TWO, measurement) is None


@pytest.mark.parametrize(
    "candidate",
    [
        way(stage=3, num_processes=4),
        way(stage=3, gradient_checkpointing=True),
        way(stage=3, overlap_comm=False),
        way("FSDP"),
        DDP,
    ],
)
def test_only_like_is_compared_with_like(candidate):
    assert reason_against(candidate, TWO) is None


def test_neither_is_more_where_one_divides_more_and_the_other_offloads_more():
    first, second = THREE, way(stage=2, adam="cpu")
    assert reason_against(first, second) is None and reason_against(second, first) is None


def test_of_a_whole_space_one_probe_rules_out_all_that_save_memory_only():
    job = make_job(devices={"count": 8}, global_batch_size=8, fixed={"optim": "adamw_torch"})
    space = make_space(job, make_facts("cuda"))
    plain = next(c for c in space.candidates if c["distributed_type"] == "MULTI_GPU")
    speeds = {candidate.key: FAST if candidate is plain else SLOW for candidate in space.candidates}
    reasons_by_key = dominated(space.candidates, [record(3, ok(100, GIB), plain)], 10 * GIB, speeds)
    ruled_out = [key for key, reason in reasons_by_key.items() if reason == SAYS.format("DDP")]
    # ZeRO-1 and 2 with and without an offloaded optimizer, ZeRO-3 with either place of each of
    # two, FSDP2 resharded or not.
    assert len(ruled_out) == 2 * 2 + 4 + 2
