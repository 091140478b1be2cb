"""What a report says, against what the run's folder holds."""

import json
from dataclasses import replace

import pytest

from autotune.process.messages import read_json, write_json
from autotune.report.gather import content_of, runner_up
from autotune.run.past_run import reopen
from tests.unit.builders import GIB, bad, ok
from tests.unit.calling import call
from tests.unit.past_run import make_run, make_whole_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run; tests must leave it as it is."""
    return make_whole_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def content(whole):
    return content_of(reopen(whole.path))


def test_its_figures_are_those_of_the_json(whole, content):
    plain = json.loads(call("report", whole.path, "--json").stdout)
    assert len(content.probes) == len(plain["probes"]) == 8
    began_s = 0.0
    for probe, said in zip(content.probes, plain["probes"], strict=True):
        measured, estimate = said["measurement"], said["estimate"]
        assert probe.number == said["probe"]
        assert probe.outcome == measured["outcome"]
        assert probe.tokens_per_s == measured["tokens_per_s"]
        assert probe.peak_memory_bytes == measured["peak_memory_bytes"]
        assert probe.expected.tokens_per_s == estimate["tokens_per_s"]
        assert probe.expected.peak_memory_bytes == estimate["peak_memory_bytes"]
        assert probe.began_s == began_s
        began_s += measured["seconds"]
    assert content.chosen.reasons == tuple(plain["recommendation"]["reasons"])


def test_a_candidate_has_one_line_and_its_standing(content):
    assert sum((line.numbers for line in content.lines), ()) != ()
    assert len({line.candidate for line in content.lines}) == len(content.lines)
    by_number = {number: line for line in content.lines for number in line.numbers}
    assert sorted(by_number) == list(range(8))
    chosen = by_number[1]
    assert (chosen.numbers, chosen.outcome) == ((1, 7), "recommended")
    assert 200.0 < chosen.tokens_per_s < 204.0, "the mean of both probes"
    assert by_number[4].outcome == "over headroom"
    oom = by_number[2]
    assert (oom.outcome, oom.tokens_per_s, oom.least_bytes) == ("oom", None, 75 * GIB)
    assert by_number[3].outcome == "crash"


def test_what_ran_well_and_was_refused_says_why(whole):
    stored = read_json(whole.recommendation)
    try:
        write_json(whole.recommendation, {**stored, "passed_over": {"0": "it diverged"}})
        content = content_of(reopen(whole.path))
    finally:
        write_json(whole.recommendation, stored)
    line = content.lines[0]
    assert (line.standing, line.outcome) == ("failed", "launch failed")
    assert content.probes[0].reason == "it diverged"


def test_memory_is_by_part_for_three_and_adds_up(whole, content):
    assert [memory.what for memory in content.memory] == ["recommended", "runner-up", "default"]
    for memory in content.memory:
        assert sum(memory.parts.values()) == memory.estimated_bytes
    past = reopen(whole.path)
    first, second, default = content.memory
    assert first.measured_bytes == 3 * GIB
    following = runner_up(past, past.recommendation())
    assert second.measured_bytes == following.peak_memory_bytes
    assert second.candidate != first.candidate
    estimate = past.expectations.estimates[past.space.default().key]
    assert default.parts == estimate.parts


def test_a_value_is_worth_its_fastest_probe_within_memory(whole, content):
    past = reopen(whole.path)
    ok_within = [
        record
        for record in past.records
        if record.measurement.outcome == "ok"
        and record.measurement.peak_memory_bytes <= past.allowed_bytes
    ]
    assert len(ok_within) == 4
    assert {knob.name for knob in content.recipe_knobs} == {"max_length"}
    for knob in (*content.speed_knobs, *content.recipe_knobs):
        assert sum(worth.is_default for worth in knob.values) == 1
        assert sum(worth.probes for worth in knob.values) == len(ok_within)
        assert sum(worth.estimates for worth in knob.values) == len(past.space.candidates)
        for worth in knob.values:
            speeds = [
                record.measurement.tokens_per_s
                for record in ok_within
                if str(record.candidate[knob.name]).lower() == worth.label.lower()
            ]
            assert worth.measured == max(speeds, default=None)
            assert (worth.probe is None) == (worth.measured is None)


def test_what_does_not_fit_by_estimate_is_not_what_a_value_is_worth(whole):
    stored = read_json(whole.estimates)
    changed = {
        key: {**fields, "fits": fields["tokens_per_s"] < 100}
        for key, fields in stored["estimates"].items()
    }
    try:
        write_json(whole.estimates, {**stored, "estimates": changed})
        content = content_of(reopen(whole.path))
    finally:
        write_json(whole.estimates, stored)
    best = {w.estimated for knob in content.speed_knobs for w in knob.values if w.estimated}
    assert best and max(best) < 100


def test_before_there_is_a_recommendation_the_best_so_far_is_shown(tmp_path):
    content = content_of(reopen(make_run(tmp_path).path))
    assert content.headline.startswith("No recommendation yet. Best so far: Use ")
    assert (content.chosen.probe, content.chosen.recommended) == (1, False)
    assert not content.memory and content.compared == ()
    assert "Estimates are missing" in " ".join(content.absent)
    assert "the run was cut short" in " ".join(content.absent)
    assert "recommended" not in {line.standing for line in content.lines}
    assert ("go on where it stopped" in dict(content.commands)) is True
    assert "train with it" not in dict(content.commands)


@pytest.mark.parametrize(
    ("outcome", "headline"),
    [
        ("nothing_fits", "Nothing fits. The nearest is probe 1: 7 GiB short."),
        ("nothing_measured", "Nothing was measured."),
        ("nothing_stable", "Nothing was measured that is stable."),
        ("interrupted", "No recommendation yet."),
    ],
)
def test_a_run_without_a_recommendation_says_what_it_came_to(tmp_path, outcome, headline):
    too_much = replace(ok(1.0, 70 * GIB))
    run = make_run(tmp_path, (bad("oom", missing_bytes=GIB), too_much))
    ending = {"outcome": outcome, "stop_reason": "all probed", "saving": None}
    write_json(run.ending, ending)
    content = content_of(reopen(run.path))
    assert content.headline == headline
    assert content.chosen is None
    assert "the search ended: all probed" in content.said


def test_a_run_without_probes_has_a_report(tmp_path):
    content = content_of(reopen(make_run(tmp_path, ()).path))
    assert (content.lines, content.probes, content.shared) == ((), (), "")
    assert "Nothing was probed." in content.absent


def test_a_recommended_probe_that_the_study_lacks_has_no_figures(tmp_path):
    run = make_whole_run(tmp_path)
    stored = read_json(run.recommendation)
    write_json(run.recommendation, {**stored, "chosen": {**stored["chosen"], "probe": 99}})
    content = content_of(reopen(run.path))
    assert content.headline == "Recommended: probe 99."
    assert (content.chosen.text, content.chosen.tokens_per_s) == (None, None)
    assert "Of probe 99, which is recommended, the study holds no speed." in content.absent
    assert [memory.what for memory in content.memory] == ["default"]


def test_the_commands_name_the_run_and_how_it_was_started(nasty_dir):
    run = make_whole_run(nasty_dir)
    info = read_json(run.run)
    options = {"history": False, "verify": True, "sampler": "tpe"}
    write_json(run.run, {**info, "options": options})
    commands = dict(content_of(reopen(run.path)).commands)
    assert commands["do the search again"].endswith(" --out again --no-history")
    assert "go on where it stopped" not in commands
    for command in commands.values():
        assert command.count("'") % 2 == 0 or '"' in command
