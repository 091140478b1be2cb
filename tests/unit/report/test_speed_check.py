"""The doctor's answer to a measured speed."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from autotune.cli import main
from autotune.errors import UserError
from autotune.facts.device_kinds import facts_of, find_kind
from autotune.report.speed_check import SpeedCheck, parsed_speed
from tests.unit.builders import make_facts
from tests.unit.cli.views.test_answer import estimated, made


def checked(speed, estimate_of=estimated):
    facts = make_facts("cuda")
    model = replace(facts.model, parameters=10**9, layers=10, hidden_size=100)
    best = made(
        estimate_of, facts=replace(facts, model=model, device=facts_of(find_kind("a100"), 16))
    )
    space = replace(best.space, candidates=(best.space.default(),))
    return SpeedCheck(tokens_per_s=speed, plain=replace(best, space=space), best=best)


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.69, "slow"), (0.71, "normal"), (1.29, "normal"), (1.31, "fast")]
)
def test_a_speed_is_judged_by_the_error_of_its_estimate(share, verdict):
    expected = checked(1.0).plain.ranked()[0][1].tokens_per_s
    check = checked(share * expected)
    assert check.verdict == check.data()["verdict"] == verdict
    assert f" are {verdict}: the plan expects " in next(check.lines())


def test_it_says_what_is_usual_and_what_would_be_faster():
    check = checked(18_000.0)
    first, unfit, usual, best = check.lines()
    assert first.startswith("18k tokens/s are ") and "(+-30%) for the job as it stands" in first
    assert unfit == "By estimate that does not fit in 24 GiB."
    # (6e9 + 12 * 10 * 100 * 300) * 18000 / 312e12 = 0.3464
    assert usual.startswith("MFU 35% of 312 TFLOP/s, the dense peak in bfloat16; 4 published")
    assert "The best by estimate: 4 x 2 without checkpointing" in best
    assert "36k tokens/s (+-30%), 2.0 times yours" in best
    data = check.data()
    assert data["usual"]["runs"] == 4 and data["mfu"] == pytest.approx(0.34636, abs=1e-4)
    assert data["best"]["tokens_per_s"] == 36_000.0


def test_a_speed_of_unknown_cost_is_not_judged():
    check = checked(18_000.0, lambda c: replace(estimated(c), left_out=("exchange",)))
    assert check.verdict == "unknown"
    assert "18k tokens/s cannot be judged: the plan expects at most" in next(check.lines())


@pytest.mark.parametrize(
    ("text", "speed"), [("2900", 2900.0), ("2,900", 2900.0), ("2.9k", 2900.0), ("12.5", 12.5)]
)
def test_speeds_are_read_as_they_are_printed(text, speed):
    assert parsed_speed(text) == pytest.approx(speed)


@pytest.mark.parametrize("text", ["0", "-5", "fast", "", "nan", "1e5", "2900 tokens", "0k"])
def test_what_is_not_a_speed_is_refused(text):
    with pytest.raises(UserError, match="is not a speed above 0"):
        parsed_speed(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speed", "fast", "job.yaml"], "`fast` is not a speed above 0"),
        (["--speed", "5"], "a job is needed"),
        (["job.yaml"], "JOB: a job is looked at beside its speed only"),
        (["--max-length", "5"], "--max-length: a job is looked at beside its speed only"),
    ],
)
def test_a_speed_needs_a_job_and_a_job_a_speed(words, said):
    result = CliRunner().invoke(main, ["doctor", *words])
    assert result.exit_code == 2 and said in result.output
