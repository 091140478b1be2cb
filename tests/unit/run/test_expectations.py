"""What is expected of the candidates of a space, and what probes teach about it."""

import json
from dataclasses import replace

import pytest

from autotune.estimate.estimate import CONTEXT, GUESSED_SIGMA, estimated
from autotune.estimate.formula.closed_form import Dimensions, logits_held
from autotune.estimate.protocol import EstimateReply, PointReply, ShapeWork
from autotune.estimate.records.events import ACTIVATIONS, WEIGHTS
from autotune.estimate.residual import Residual
from autotune.estimate.speed.ceilings import AttentionRate, Bandwidth, Ceilings, MatmulRate
from autotune.plain_data import from_plain
from autotune.plan.candidates import estimates_of
from autotune.plan.variants import variant_tasks
from autotune.run.expectations import Expectations
from autotune.run.opening import prior_of
from autotune.search.record import Record
from autotune.space.trl_config import settings
from tests.unit.builders import GIB, bad, make_candidate, make_facts, make_job, ok

LIMIT = 20 * GIB
PRIOR = Residual(offset_bytes=0.5 * GIB, sigma_bytes=0.5 * GIB, relative_sigma=0.02)
SIZES = (1, 2, 4, 8, 16)
CANDIDATES = tuple(make_candidate(size, 16 // size) for size in SIZES)
CEILINGS = Ceilings(
    device="some device",
    kind="cuda",
    measured=True,
    matmul=(MatmulRate("float32", 64, 64, 64, 1e9),),
    attention=(AttentionRate("float32", 64, False, False, 1e9),),
    bandwidth=(Bandwidth(1000, 1e9),),
    overhead_s_per_operator=1e-6,
    host_bytes_per_s=1e9,
)
ELEMENTWISE = ["aten::add", "memory", "float32", [], 0, 10**6, 0, 1]
"""Work: a million bytes moved, once."""


def point(activations=4 * GIB, weights=GIB, **changes):
    allocated = activations + weights
    fields = {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": allocated,
        "parts": {ACTIVATIONS: activations, WEIGHTS: weights},
        "operator": "aten::mm",
        "phase": "micro-step",
        "oom": False,
        "missing_bytes": None,
        "retries": 0,
        "phases": {"micro-step": allocated, "step": weights},
        "micro_peaks": [{ACTIVATIONS: activations, WEIGHTS: weights}],
        "sample": [(800, 1000, 3), (100, 100, 1)],
        "masked": True,
        "method": "trace",
    }
    return PointReply(**{**fields, **changes})


def reply(points=(), **changes):
    shape = ShapeWork(rows=1, length=100, masked=False, flat=False, work=[ELEMENTWISE])
    fields = {
        "points": list(points),
        "shapes": [shape, replace(shape, length=1000)],
        "optimizer_work": {"": [ELEMENTWISE]},
        "process_bytes": 0,
    }
    return EstimateReply(**{**fields, **changes})


def expected(*peaks_gib, prior=PRIOR, **changes) -> Expectations:
    """Candidates of these peaks in GiB, in the order of `CANDIDATES`."""
    estimates = {
        candidate.key: replace(
            estimated(point(round(peak * GIB) - GIB), (), prior, LIMIT, 2), **changes
        )
        for candidate, peak in zip(CANDIDATES, peaks_gib, strict=False)
    }
    return Expectations(estimates=estimates, prior=prior, limit_bytes=LIMIT)


def probed(index, peak_gib, outcome=None) -> Record:
    measurement = bad(outcome) if outcome else ok(10.0, round(peak_gib * GIB))
    return Record(number=index, candidate=CANDIDATES[index], measurement=measurement)


def left_out(expectations, records=()):
    """Places of the hopeless candidates."""
    keys = expectations.hopeless(CANDIDATES, records)
    return [index for index, one in enumerate(CANDIDATES) if one.key in keys]


# -- hopeless


def test_what_surely_exceeds_the_limit_is_hopeless_and_nothing_else():
    assert left_out(expected(5, 10, 18, 19.4, 30)) == [4]
    assert left_out(expected(5, 10, 21.5, 25, 30)) == [2, 3, 4]
    assert left_out(expected(5, 6, 7, 8, 9)) == []


@pytest.mark.parametrize("peaks", [(30, 40, 50, 60, 70), (70, 60, 30, 40, 50)])
def test_where_nothing_is_expected_to_fit_the_leanest_is_left(peaks):
    kept = set(range(5)) - set(left_out(expected(*peaks)))
    assert kept == {peaks.index(30)}


def test_a_space_without_candidates_has_none_that_are_hopeless():
    assert expected(30).hopeless((), ()) == frozenset()


def test_a_candidate_without_an_estimate_is_never_left_out():
    assert left_out(expected(30, 40)) == [0, 1]
    assert expected(30).probability_of_oom(CANDIDATES[1], PRIOR) is None


def test_a_measured_offset_makes_borderline_candidates_hopeless():
    borderline = expected(5, 10, 15, 18.5, 19)
    assert left_out(borderline) == []
    assert left_out(borderline, [probed(0, 5 + 2.5), probed(1, 10 + 2.5)]) == [3, 4]


def test_less_memory_than_expected_frees_candidates():
    above = expected(2, 4, 6, 20.8, 30)
    assert left_out(above) == [3, 4]
    assert left_out(above, [probed(0, 2 - 1.5), probed(1, 4 - 1.5), probed(2, 6 - 1.5)]) == [4]


@pytest.mark.parametrize(
    "record",
    [
        probed(0, 0, "oom"),
        probed(0, 0, "crash"),
        Record(number=0, candidate=CANDIDATES[0], measurement=None),
        Record(number=0, candidate=CANDIDATES[0], measurement=replace(ok(1.0), outcome="stopped")),
        Record(number=0, candidate=make_candidate(7, 7), measurement=ok(1.0, 9 * GIB)),
    ],
)
def test_only_complete_probes_of_estimated_candidates_teach(record):
    assert expected(5, 10).residual([record]) == PRIOR


def test_probes_of_guessed_estimates_do_not_teach():
    records = [probed(0, 15), probed(1, 20)]
    assert expected(5, 10, method="adjusted trace").residual(records) == PRIOR
    assert expected(5, 10, method="closed form").residual(records) == PRIOR
    assert expected(5, 10, method="scaled trace").residual(records).measurements == 2


def test_a_guess_is_less_easily_hopeless_than_a_trace():
    sure = expected(24)
    guess = expected(24, method="adjusted trace", sigma_bytes=round(24 * GUESSED_SIGMA * GIB))
    one = CANDIDATES[0]
    assert 0.5 < guess.probability_of_oom(one, PRIOR) < 0.95 < sure.probability_of_oom(one, PRIOR)


def test_what_follows_from_fewer_layers_is_less_easily_hopeless_however_many_probes_there_were():
    sure, continued = expected(21), expected(21, continued_sigma=0.1)
    exact = replace(PRIOR, relative_sigma=0.001, sigma_bytes=0.1 * GIB)
    one = CANDIDATES[0]
    likely = continued.probability_of_oom(one, exact)
    assert 0.5 < likely < 0.95 < sure.probability_of_oom(one, exact)


# -- JSON


def test_expectations_are_read_back_as_they_were():
    kept = expected(5, 10, 18, 19.4, 30, notes=("a note",), tokens_per_s=12.5, missing_bytes=7)
    plain = json.loads(json.dumps(kept.plain(), allow_nan=False))
    again = from_plain(Expectations, plain)
    assert (again.prior, again.limit_bytes) == (PRIOR, LIMIT)
    assert again.estimates.keys() == kept.estimates.keys()
    for key, estimate in kept.estimates.items():
        rounded = replace(estimate, p_oom=round(estimate.p_oom, 4))
        assert again.estimates[key] == rounded
    records = [probed(0, 7.5)]
    assert again.hopeless(CANDIDATES, records) == kept.hopeless(CANDIDATES, records)
    assert again.plain() == kept.plain()


def test_the_prior_is_that_of_the_largest_process():
    replies = [reply(process_bytes=size) for size in (3 * GIB, 5 * GIB, GIB)]
    offsets = [prior_of(some, make_facts(), 1).offset_bytes for some in (replies, replies[1:2])]
    assert offsets[0] == offsets[1] > 5 * GIB
    assert prior_of((), make_facts(), 1).offset_bytes < GIB


def test_several_gpus_have_channels_between_them():
    one, two = (prior_of((), make_facts("cuda"), devices).offset_bytes for devices in (1, 2))
    assert two > one


# -- estimates of replies


def tasks_of(job, facts, candidates, tmp_path):
    return variant_tasks(
        [settings(job, facts, one) for one in candidates], rows=tmp_path, limit=LIMIT, cache=None
    )


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_what_could_not_be_traced_is_estimated_by_formula(tmp_path, tuning):
    job, facts = make_job(tuning=tuning), make_facts("cuda")
    knobs = {"lora_r": 8, "lora_target_modules": "attention"} if tuning == "lora" else {}
    candidates = [make_candidate(size, **knobs) for size in SIZES]
    tasks = tasks_of(job, facts, candidates, tmp_path)
    failed = reply(problem="RuntimeError: no such operator", shapes=[])
    found = estimates_of(tasks, [failed] * len(tasks), LIMIT, ceilings=CEILINGS)
    assert found.keys() == {candidate.key for candidate in candidates}
    for estimate in found.values():
        assert (estimate.method, estimate.traced) == ("closed form", False)
        assert sum(estimate.parts.values()) == estimate.peak_memory_bytes
        assert "no such operator" in estimate.notes[0]
        assert estimate.tokens_per_s is None
    peaks = [found[candidate.key].peak_memory_bytes for candidate in candidates]
    assert peaks == sorted(set(peaks))


def test_by_formula_a_fused_head_holds_a_tile_of_the_logits():
    size = Dimensions(
        parameters=9,
        trained=9,
        layers=1,
        hidden=1,
        heads=1,
        vocabulary=50_000,
        tokens=9_000,
        length=9,
    )
    assert logits_held({"loss_type": "nll"}, size) == (9_000, 50_000)
    assert logits_held({"loss_type": "chunked_nll"}, size) == (256, 50_000)
    fused = replace(size, fused_head=True)
    assert logits_held({"loss_type": "nll"}, fused) == (4_096, 32_768)
    assert logits_held({}, replace(fused, tokens=100, vocabulary=509)) == (100, 509)


def test_each_candidate_gets_the_estimate_of_its_own_point(tmp_path):
    job, facts = make_job(), make_facts("cuda")
    tasks = tasks_of(job, facts, CANDIDATES, tmp_path)
    (task,) = tasks
    points = [
        point(request.batching["micro_batch"] * GIB, sample=[(800, 1600, 1)])
        for request in task.request.points
    ]
    found = estimates_of(tasks, [reply(points)], LIMIT)
    for candidate in CANDIDATES:
        assert found[candidate.key].parts[ACTIVATIONS] == candidate.micro_batch * GIB
        assert found[candidate.key].tokens_per_s is None


def test_offloading_is_traced_without_and_then_adjusted(tmp_path):
    job, facts = make_job(), make_facts("cuda")
    facts = replace(facts, model=replace(facts.model, layers=8))
    kept = make_candidate(1, 4, activation_offloading=False)
    moved = make_candidate(1, 4, activation_offloading=True)
    tasks = tasks_of(job, facts, [kept, moved], tmp_path)
    (task,) = tasks
    assert [member.replaced for member in task.members] == [(), ("activation_offloading",)]
    replies = [reply([point(sample=[(800, 1000, 1)])])]
    found = estimates_of(tasks, replies, LIMIT, ceilings=CEILINGS)
    here, there = found[kept.key], found[moved.key]
    assert (here.method, there.method) == ("trace", "adjusted trace")
    assert "activations are subtracted" in there.notes[0]
    assert there.parts[ACTIVATIONS] == here.parts[ACTIVATIONS] * 2 / 8 == GIB
    assert sum(there.parts.values()) == there.peak_memory_bytes == GIB + GIB + there.parts[CONTEXT]
    assert (here.offloaded_bytes, there.offloaded_bytes) == (0, 3 * GIB)
    # What goes to the host and back takes longer than anything else of this little model.
    copying = 4 * 2 * 3 * GIB / CEILINGS.host_bytes_per_s
    assert here.step_time_s < 1 < copying <= there.step_time_s < 1.01 * copying + here.step_time_s
    assert there.tokens_per_s == pytest.approx(4 * 800 / there.step_time_s)


def test_an_upper_bound_leaves_no_candidate_out():
    """Liger and compiled code are traced without: they need less, nobody knows how much."""
    hopeless = expected(5, 30)
    key = CANDIDATES[1].key
    bound = replace(hopeless.estimates[key], at_most=True)
    told = replace(hopeless, estimates={**hopeless.estimates, key: bound})
    assert left_out(hopeless) == [1]
    assert left_out(told) == []


@pytest.mark.parametrize(("kind", "slower"), [("cpu", 2), ("cuda", 1)])
def test_processes_on_a_cpu_share_its_cores_and_on_gpus_none(tmp_path, kind, slower):
    """The rates of a CPU are those of all cores: two processes together are as fast as one."""
    facts = make_facts(kind)
    strategy = {"distributed_type": "MULTI_CPU" if kind == "cpu" else "MULTI_GPU"}
    estimates = []
    for count, candidate in ((1, make_candidate(1, 8)), (2, make_candidate(1, 4, **strategy))):
        job = make_job(devices={"count": count})
        (task,) = tasks_of(job, facts, [candidate], tmp_path)
        found = estimates_of([task], [reply([point()])], LIMIT, ceilings=CEILINGS)
        estimates.append(found[candidate.key])
    alone, both = estimates
    own = both.time_parts
    assert own.memory_s == pytest.approx(slower * alone.time_parts.memory_s * 5 / 9)
    assert both.step_time_s == pytest.approx(own.total)
    # The rows of a step are as many; the device's work of an optimizer step comes on top of each.
    if kind == "cpu":
        assert both.tokens_per_s < 1.1 * alone.tokens_per_s
    else:
        assert own.exchange_s > 0
        assert own.total == pytest.approx(replace(own, exchange_s=0.0).total + own.exchange_s)
