"""Estimates held against measurements."""

import json
from dataclasses import replace

import pytest

from autotune.estimate.residual import Residual
from autotune.estimate.speed.calibration import calibrated
from autotune.estimate.speed.step_time import TimeParts
from autotune.run.expectations import Comparison, Expectations, compared
from autotune.search.record import Record
from tests.unit.builders import GIB, bad, make_candidate, make_estimate, ok

SURE = Residual(sigma_bytes=1.0, relative_sigma=0.05)
"""A prior that no probe moves: what is off stays off."""
OPEN = Residual(sigma_bytes=100.0 * GIB, relative_sigma=0.05)


def held(pairs, prior=SURE) -> tuple[Expectations, list[Record]]:
    """Expectations and probes of ((estimated bytes, tokens/s), measurement or None) pairs."""
    candidates = [make_candidate(max_length=100 + n) for n in range(len(pairs))]
    estimates = {
        one.key: make_estimate(*pair[0])
        for one, pair in zip(candidates, pairs, strict=True)
        if pair[0]
    }
    records = [
        Record(number=n, candidate=one, measurement=pair[1])
        for n, (one, pair) in enumerate(zip(candidates, pairs, strict=True))
    ]
    return Expectations(estimates=estimates, prior=prior, limit_bytes=80 * GIB), records


def test_errors_of_memory_are_those_of_the_corrected_estimate():
    pairs = [((8 * GIB, None), ok(1.0, 10 * GIB)), ((12 * GIB, None), ok(1.0, 10 * GIB))]
    found = compared(*held(pairs))
    assert found.memory_errors == pytest.approx((-0.2, 0.2))
    plain = found.plain()
    assert plain["memory_error_median"] == pytest.approx(0.2)
    assert plain["memory_error_max"] == pytest.approx(0.2)


def test_an_offset_that_all_probes_share_is_no_error():
    pairs = [((n * GIB, None), ok(1.0, (n + 3) * GIB)) for n in (2, 4, 8)]
    found = compared(*held(pairs, OPEN))
    assert found.residual.offset_bytes == pytest.approx(3 * GIB, rel=0.01)
    assert found.residual.measurements == 3
    assert max(map(abs, found.memory_errors)) < 0.01
    uncorrected = compared(*held(pairs, SURE)).memory_errors
    assert min(map(abs, uncorrected)) > 0.25


def timed(candidates, factor):
    """Estimates made of two parts, and measurements of which one part takes `factor` times."""
    made, records = {}, []
    for n, candidate in enumerate(candidates):
        parts = TimeParts(matmul_s=1.0 + n, memory_s=6.0 - n)
        made[candidate.key] = replace(make_estimate(GIB, 1.0), time_parts=parts)
        seconds = parts.matmul_s + factor * parts.memory_s
        found = replace(ok(1.0), step_time_s=seconds)
        records.append(Record(number=n, candidate=candidate, measurement=found))
    return Expectations(estimates=made, prior=SURE, limit_bytes=80 * GIB), records


def test_step_times_are_corrected_part_by_part():
    expectations, records = timed([make_candidate(max_length=100 + n) for n in range(6)], 2.0)
    speed = expectations.speed(records)
    assert speed.measurements == 6
    assert speed.factors["memory_s"] / speed.factors["matmul_s"] > 1.4
    found = compared(expectations, records)
    assert max(map(abs, found.speed_errors)) < 0.05
    before = [expectations.speed([]).time_s(TimeParts(memory_s=1.0)), 2.0]
    assert before[0] == pytest.approx(1.0)
    assert speed.relative_uncertainty(TimeParts(memory_s=1.0)) < 0.5


def test_what_was_not_estimated_corrects_no_time():
    expectations, records = timed([make_candidate(max_length=100)], 2.0)
    stopped = replace(records[0], measurement=bad("stopped", tokens_per_s=3.0))
    assert expectations.speed([stopped]).measurements == 0
    assert compared(expectations, [stopped]).plain()["speed_factors"] is None


def test_before_any_probe_there_is_nothing_to_say():
    found = compared(*held([]))
    assert found.lines() == []
    assert found.plain()["memory_error_median"] is found.plain()["memory_error_max"] is None
    assert found.residual == SURE


def test_a_comparison_is_told_in_sentences_and_in_json():
    speed = calibrated([TimeParts(matmul_s=1.0)], [2.0])
    found = Comparison(
        residual=SURE,
        memory_errors=(0.01, -0.04, 0.02),
        speed=speed,
        speed_errors=(0.03, -0.05, 0.01),
    )
    memory, times = found.lines()
    assert memory.startswith("estimated peaks") and "2.0% (median) and 4.0% (most)" in memory
    assert times.startswith("estimated step times") and "3.0% (median) and 5.0% (most)" in times
    plain = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert set(plain.pop("speed_factors")) == {
        *("matmul_s", "attention_s", "memory_s", "overhead_s", "transfer_s"),
        "exchange_s",
    }
    assert plain.pop("speed_residual") == speed.residual
    assert plain == {
        "speed_measurements": 1,
        "speed_error_median": 0.03,
        "speed_error_max": 0.05,
        "residual": {
            "bias": 0.0,
            "offset_bytes": 0.0,
            "relative_sigma": 0.05,
            "sigma_bytes": 1.0,
            "bias_sigma": 0.0,
            "covariance": 0.0,
            "measurements": 0,
        },
        "memory_error_median": 0.02,
        "memory_error_max": 0.04,
    }
