"""Results as JSON data, and the last words of a run."""

import json
from dataclasses import asdict, replace

from autotune.cli.views.json import (
    probe_counts,
    probe_plain,
    report_plain,
    result_plain,
    space_plain,
)
from autotune.errors import Problem
from autotune.estimate.residual import Residual
from autotune.plan.questions.changes import TriedChange
from autotune.report.result_lines import result_lines
from autotune.run.expectations import Expectations
from autotune.run.recipe_values import UnprobedValue
from autotune.run.session import Result
from autotune.run.verdict import Verification
from autotune.search.recommend import recommend
from tests.unit.builders import (
    GIB,
    bad,
    make_candidate,
    make_estimate,
    make_facts,
    make_job,
    make_record,
    make_space,
    ok,
)

DOCUMENTED = {
    "schema",
    "outcome",
    "knobs",
    "measurement",
    "verified",
    "bundle",
    "probes",
    "seconds",
}
GOOD = replace(ok(200.0, GIB, 0.01), step_time_s=0.5, seconds=3.0)
RECORDS = (
    make_record(0, GOOD),
    make_record(1, replace(GOOD, tokens_per_s=100.0)),
    make_record(2, bad("oom", missing_bytes=3 * GIB)),
    make_record(3, bad("crash")),
    make_record(4, bad("interrupted")),
    make_record(5, None),
)
VERIFIED = Verification(verified=True, reason="launched", tokens_per_s=190.0)


def make_result(outcome="recommended", records=RECORDS, **fields) -> Result:
    known = {"stop_reason": "all probed", "space_size": 640, "seconds": 12.5, **fields}
    return Result(outcome=outcome, records=tuple(records), **known)


def recommended(**fields) -> Result:
    return make_result(recommendation=recommend(RECORDS, 2 * GIB), verification=VERIFIED, **fields)


def nothing_fits(*measurements, tried=()) -> Result:
    records = [make_record(number, one) for number, one in enumerate(measurements)]
    found = recommend(records, GIB)
    return make_result("nothing_fits", records, nothing_fits=found, tried=tried)


def test_a_recommendation_has_all_that_is_documented(tmp_path):
    plain = result_plain(recommended(), tmp_path)
    assert plain.keys() >= DOCUMENTED
    assert (plain["schema"], plain["outcome"], plain["verified"]) == (1, "recommended", True)
    assert plain["probes"] == {"total": 4, "ok": 2, "oom": 1, "other": 1}
    assert plain["measurement"] == asdict(GOOD)
    assert plain["measurement"].keys() >= {"tokens_per_s", "step_time_s", "peak_memory_bytes"}
    assert plain["knobs"] == RECORDS[0].candidate.knobs
    assert (plain["probe"], plain["bundle"], plain["seconds"]) == (0, str(tmp_path), 12.5)
    assert plain["verification"]["tokens_per_s"] == 190.0
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_an_unverified_recommendation_says_so(tmp_path):
    failed = Verification(verified=False, reason="it was too slow")
    assert result_plain(replace(recommended(), verification=failed), tmp_path)["verified"] is False
    assert result_plain(replace(recommended(), verification=None), tmp_path)["verified"] is False
    assert "NOT verified: it was too slow" in result_lines(
        replace(recommended(), verification=failed), "b"
    )


def test_where_nothing_fits_the_nearest_and_the_ways_out_are_told(tmp_path):
    change = TriedChange(text="`tuning: lora`", kind="recipe", fits=True, measurement=GOOD)
    result = nothing_fits(ok(5.0, 3 * GIB), bad("oom", missing_bytes=9 * GIB), tried=(change,))
    plain = result_plain(result, tmp_path)
    assert plain.keys() >= DOCUMENTED
    assert (plain["outcome"], plain["verified"]) == ("nothing_fits", False)
    assert plain["knobs"] is plain["measurement"] is plain["bundle"] is None
    nothing = plain["nothing_fits"]
    assert nothing["nearest"]["probe"] == 0
    assert (nothing["short_bytes"], nothing["short_is_lower_bound"]) == (2 * GIB, False)
    (tried,) = nothing["tried"]
    assert (tried["change"], tried["fits"]) == ("`tuning: lora`", True)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_nothing_fits_in_words():
    fits = TriedChange(text="`tuning: lora`", kind="recipe", fits=True, measurement=GOOD)
    fails = replace(fits, text="`max_length: 512`", fits=False)
    oom = bad("oom", missing_bytes=2 * GIB)
    assert result_lines(nothing_fits(oom, tried=(fits, fails)), "b") == [
        "nothing fits",
        "nearest: probe 0 (4x4), at least 2 GiB short",
        "- fits with `tuning: lora`: 200 tokens/s +-1.0%, peak 1 GiB",
    ]
    assert result_lines(nothing_fits(oom, tried=(fails,)), "b")[2:] == [
        "- no single change made it fit; tried: `max_length: 512`"
    ]
    assert result_lines(nothing_fits(bad("crash"), bad("crash")), "b") == [
        "nothing fits",
        "- crash: probe 0, 1",
    ]


def test_time_outs_are_not_said_to_be_a_lack_of_memory(tmp_path):
    problem = Problem(where="/log", what="all probes timed out", hint="raise it")
    result = make_result("nothing_measured", nothing_measured=problem)
    assert result_lines(result, "b") == [
        "nothing was measured: /log: all probes timed out",
        "  hint: raise it",
    ]
    plain = result_plain(result, tmp_path)
    assert (plain["outcome"], plain["nothing_measured"]["where"]) == ("nothing_measured", "/log")


def test_a_machine_that_was_too_busy_is_told_as_that(tmp_path):
    problem = Problem(where="", what="the machine was busy 93% of the time", hint="end it")
    result = make_result("nothing_stable", nothing_measured=problem)
    assert result_lines(result, "b") == [
        "not stable: the machine was busy 93% of the time",
        "  hint: end it",
    ]
    assert result_plain(result, tmp_path)["bundle"] is None


def test_a_bundle_that_failed_its_verification_is_told_before_what_looks_like_an_answer():
    failed = Verification(verified=False, reason="the launch ended with exit code 1")
    result = replace(recommended(), verification=failed)
    first, *rest = result_lines(result, "b")
    assert first == "NOT verified: the launch ended with exit code 1"
    assert first not in rest and rest[-1] == "bundle: b"
    assert result_lines(recommended(), "b")[-2].startswith("verified: ")


def test_what_was_left_out_and_which_values_were_not_probed_is_told(tmp_path):
    value = UnprobedValue(
        knob="max_length", value=512, why="too large", peak_memory_bytes=3 * GIB, limit_bytes=GIB
    )
    result = recommended(unprobed=(value,), left_out=("a second look",))
    lines = result_lines(result, "b")
    assert "- left out for lack of budget: a second look" in lines
    sentence = "`max_length: 512` was not probed: too large"
    assert f"- {sentence}; it takes an estimated 3 GiB at least, and the limit is 1 GiB" in lines
    plain = result_plain(result, tmp_path)
    assert (plain["unprobed"][0]["value"], plain["left_out"]) == (512, ["a second look"])


def test_an_interrupted_run_reports_the_best_so_far(tmp_path):
    best = make_result("interrupted", recommendation=recommend(RECORDS, 2 * GIB))
    plain = result_plain(best, tmp_path)
    assert (plain["outcome"], plain["bundle"], plain["probe"]) == ("interrupted", None, 0)
    assert result_lines(best, "b")[0] == "best so far: probe 0"
    assert not [line for line in result_lines(best, "b") if line.startswith("bundle")]
    early = make_result("interrupted", records=())
    assert result_plain(early, tmp_path).keys() >= DOCUMENTED
    assert result_lines(early, "b") == ["no stable candidate has been measured yet"]


def test_a_recommendation_in_words_ends_with_its_bundle():
    lines = result_lines(recommended(), "/runs/a 0/bundle")
    assert lines[0] == "recommended: probe 0"
    assert "  per_device_train_batch_size: 4" in lines
    assert "  gradient_checkpointing: false" in lines
    assert lines[-2:] == ["verified: launched", "bundle: /runs/a 0/bundle"]


def test_it_begins_with_what_to_use_as_it_was_measured():
    space = make_space(make_job(global_batch_size=16), make_facts("cuda"))
    lines = result_lines(recommended(space=space), "b")
    assert lines[0].startswith("Use 4 x 4 without checkpointing")
    assert "tokens/s (measured" in lines[0] and "of 2 GiB" in lines[0]
    assert lines[1] == "recommended: probe 0"


def test_a_launch_at_another_speed_than_its_probe_is_told_with_the_epoch_that_follows():
    space = make_space(make_job(global_batch_size=16), make_facts("cuda"))
    measured = make_record(0, replace(GOOD, tokens_per_epoch=12_000.0))
    found = recommend([measured], 2 * GIB)

    def said(launched: float, promised: float = 200.0) -> str:
        kept = replace(VERIFIED, speed_against_promise=launched, promised_tokens_per_s=promised)
        result = make_result(recommendation=found, verification=kept, space=space)
        return result_lines(result, "b")[0]

    assert "(measured, +-1.0%; its launch ran at 80% of that)" in said(0.8)
    assert said(0.8).endswith("an epoch takes 60.0 s, 75.0 s as launched.")
    assert "ran at 50% of that" in said(1.0, promised=100.0)  # it was held against a later probe
    assert "launch" not in said(0.96)
    assert "launch" not in said(0.995) and said(0.995).endswith("an epoch takes 60.0 s.")


def test_probes_that_say_nothing_are_not_counted():
    assert probe_counts(RECORDS[4:]) == {"total": 0, "ok": 0, "oom": 0, "other": 0}
    plain = report_plain(list(RECORDS), None, None, {"a": "why", "b": "why"})
    assert len(plain["probes"]) == 6
    assert plain["probes"][5]["measurement"] is None
    assert plain["skipped"] == {"why": 2}


def test_a_report_shows_what_was_expected_beside_what_was_measured():
    first, second = RECORDS[0], RECORDS[1]
    expectations = Expectations(
        estimates={first.candidate.key: make_estimate(2 * GIB, tokens_per_s=150.0)},
        prior=Residual(offset_bytes=0.0),
        limit_bytes=4 * GIB,
    )
    plain = report_plain([first, second], None, expectations, {})
    known, unknown = (one["estimate"] for one in plain["probes"])
    assert (known["peak_memory_bytes"], known["tokens_per_s"]) == (2 * GIB, 150.0)
    assert unknown is None
    assert plain["estimates"]["residual"]["measurements"] == 1
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    without = report_plain([first], None, None, {})
    assert without["probes"][0]["estimate"] is without["estimates"] is None


def test_probe_and_space_are_json_with_a_schema():
    candidate, space = make_candidate(), make_space(make_job())
    plain = probe_plain(candidate, GOOD)
    assert plain == {"schema": 1, "knobs": candidate.knobs, "measurement": asdict(GOOD)}
    shown = json.loads(json.dumps(space_plain(space, make_facts()), allow_nan=False))
    assert (shown["schema"], shown["candidates"]) == (1, len(space.candidates))
    assert [knob["name"] for knob in shown["knobs"]] == [knob.name for knob in space.knobs]
    assert sum(one["count"] for one in shown["excluded"]) > 0
