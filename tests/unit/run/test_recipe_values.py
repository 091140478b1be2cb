"""A listed value is probed, or told with its reason and its estimate."""

from dataclasses import replace

from autotune.estimate.residual import Residual
from autotune.run.expectations import Expectations
from autotune.run.recipe_values import NO_CANDIDATE, next_of_values, unprobed_values
from autotune.search.record import Record
from tests.unit.builders import GIB, bad, make_estimate, make_facts, make_job, make_space, ok

JOB = make_job(
    global_batch_size=8,
    recipe={"max_length": [256, 512], "dtype": ["float32", "bfloat16"]},
)
SPACE = make_space(JOB, make_facts("cuda"))


def having(length, dtype="float32"):
    return next(c for c in SPACE.candidates if (c["max_length"], c["dtype"]) == (length, dtype))


def told(records, ruled_out=(), job=JOB, space=SPACE):
    estimates = {c.key: make_estimate(c["max_length"] * 2**20) for c in space.candidates}
    expectations = Expectations(estimates=estimates, prior=Residual(), limit_bytes=GIB)
    reasons = dict.fromkeys(ruled_out, "too large")
    return unprobed_values(
        job, space, records, reasons, expectations, GIB, otherwise="the budget is used"
    )


def probed(candidate, measurement):
    return Record(number=0, candidate=candidate, measurement=measurement)


def test_a_value_counts_as_probed_however_its_probe_ended_but_not_where_it_was_cut():
    for measurement in (ok(1.0), bad("oom"), bad("timeout"), bad("crash")):
        left = told([probed(having(256), measurement)])
        assert [(v.knob, v.value) for v in left] == [("max_length", 512), ("dtype", "bfloat16")]
    for measurement in (bad("stopped"), bad("interrupted"), None):
        assert len(told([probed(having(256), measurement)])) == 4


def test_a_value_that_cannot_fit_is_told_with_the_estimate_of_its_leanest_candidate():
    out = [c.key for c in SPACE.candidates if c["max_length"] == 512]
    records = [probed(having(256), ok(1.0)), probed(having(256, "bfloat16"), ok(1.0))]
    (value,) = told(records, out)
    assert value.peak_memory_bytes == 512 * 2**20
    assert value.sentence() == (
        "`max_length: 512` was not probed: too large; it takes an estimated 512 MiB at least, and "
        "the limit is 1 GiB"
    )


def test_a_value_that_the_budget_had_no_room_for_says_so():
    (value,) = told([probed(having(256), ok(1.0)), probed(having(256, "bfloat16"), ok(1.0))])
    assert value.why == "the budget is used"


def test_a_value_that_a_rule_of_the_space_takes_out_is_told_too():
    longer = tuple(c for c in SPACE.candidates if c["max_length"] == 256)
    space = replace(SPACE, candidates=longer)
    records = [probed(having(256), ok(1.0)), probed(having(256, "bfloat16"), ok(1.0))]
    (value,) = told(records, space=space)
    assert (value.value, value.why, value.peak_memory_bytes) == (512, NO_CANDIDATE, None)


def test_the_fastest_candidate_of_each_value_is_next_unless_it_is_ruled_out():
    speeds = {c.key: float(c.micro_batch) for c in SPACE.candidates}
    first = next_of_values(JOB, SPACE, [], set(), speeds)
    assert {c.micro_batch for c in first} == {8}
    assert {c["max_length"] for c in first} == {256, 512}
    out = {c.key for c in SPACE.candidates if c.micro_batch == 8 or c["max_length"] == 512}
    assert {c["max_length"] for c in next_of_values(JOB, SPACE, [], out, speeds)} == {256}
