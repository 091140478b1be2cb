"""The largest value that is safe. The estimates are made up."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.limits import largest_lines, largest_plain
from autotune.errors import UserError
from autotune.estimate.speed.ceilings import Ceilings
from autotune.plan.cache import PlanCache
from autotune.plan.estimator import Estimator
from autotune.plan.questions.largest import STEP, LargestSearch
from autotune.process.child_server import ChildServer
from autotune.space.memory_order import expected_leanness
from tests.unit.builders import GIB, make_estimate, make_facts, make_job, make_space

ROWS, LENGTH = "per_device_train_batch_size", "max_length"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imagined(Estimator):
    """Safe up to one value, and not far beyond it may fit; notes what it is asked."""

    knob: str
    safe: int
    asked_for: list
    ceilings: Ceilings | None = None

    def estimates(self, candidates):
        (candidate,) = candidates
        value = candidate[self.knob]
        self.asked_for.append(candidate)
        p_oom = 0.0 if value <= self.safe else 0.3 if value <= self.safe + 2 else 1.0
        estimate = make_estimate(value * GIB // 100)
        fits = p_oom < 0.5
        missing = None if fits else GIB
        return {
            candidate.key: dataclasses.replace(
                estimate, p_oom=p_oom, fits=fits, missing_bytes=missing
            )
        }


HERE = {"attn_implementation": "sdpa", "padding_free": False, "use_liger_kernel": False}
"""Pins that need no package."""


def elsewhere():
    """Facts of a machine on which every package is taken to be."""
    facts = make_facts("cuda")
    return dataclasses.replace(facts, stack=dataclasses.replace(facts.stack, assumed=True))


def answered(folder, knob, safe, **pins):
    job, facts = make_job(fixed=pins), elsewhere()
    estimator = Imagined(
        job=job,
        facts=facts,
        limit=max(safe, 1) * GIB // 100,
        server=ChildServer(folder / "log"),
        folder=folder,
        rows=folder,
        cache=PlanCache(path=folder),
        knob=knob,
        safe=safe,
        asked_for=[],
    )
    answer = LargestSearch(estimator, make_space(job, facts), knob).answer()
    return answer, estimator.asked_for


@given(st.integers(0, 3900))
def test_the_largest_safe_value_is_found(safe):
    from pathlib import Path

    answer, asked = answered(Path("unused"), ROWS, safe)
    assert answer.value == (safe or None)
    assert answer.too_large == safe + 1
    tried = [one[ROWS] for one in asked]
    assert len(tried) == len(set(tried)) < 30  # nothing is estimated twice


def test_larger_ones_than_are_tried_are_not_spoken_of(tmp_path):
    answer, _ = answered(tmp_path, ROWS, 10**6)
    assert (answer.value, answer.too_large) == (4096, None)
    assert "Larger ones were not tried." in list(largest_lines(answer, 1))


def test_lengths_are_told_to_the_next_step_and_no_further_than_the_model_has_positions(tmp_path):
    answer, _ = answered(tmp_path, LENGTH, 1000)
    assert answer.value % STEP[LENGTH] == 0
    assert answer.value <= 1000 < answer.value + STEP[LENGTH] == answer.too_large
    answer, asked = answered(tmp_path, LENGTH, 10**6)
    assert (answer.value, answer.too_large) == (2048, None)
    assert max(one[LENGTH] for one in asked) == 2048


@pytest.mark.parametrize("knob", [ROWS, LENGTH])
def test_it_is_that_of_the_leanest_configuration_and_of_what_is_pinned(knob, tmp_path):
    job = make_job(fixed={"gradient_checkpointing": False})
    cut = [one for one in make_space(job, elsewhere()).candidates if not one["padding_free"]]
    lean = min(cut, key=expected_leanness)
    answer, asked = answered(tmp_path, knob, 600, gradient_checkpointing=False)
    for candidate in (*asked, answer.candidate):
        assert candidate["gradient_checkpointing"] is False
        for name in ("optim", "loss_type", "attn_implementation", "padding_free"):
            assert candidate[name] == lean[name], name
    assert answer.candidate[knob] == answer.value


def test_without_padding_no_length_is_the_largest(tmp_path):
    pins = {"padding_free": True, "attn_implementation": "flash_attention_2"}
    with pytest.raises(UserError, match="without padding no row is cut to max_length"):
        answered(tmp_path, LENGTH, 600, **pins)
    answer, _ = answered(tmp_path, ROWS, 600, **pins)
    assert answer.candidate["padding_free"] is True


@pytest.mark.parametrize(
    ("safe", "said"),
    [
        (5, ["per_device_train_batch_size=5 is safe in", "6 is not."]),
        (99, ["99 is safe in", "100 is not.", "The job's global batch has"]),
    ],
)
def test_it_is_said_in_sentences(tmp_path, safe, said):
    answer, _ = answered(tmp_path, ROWS, safe, **HERE)
    *lines, of_which = largest_lines(answer, 1)
    assert of_which.startswith("That is the leanest configuration: ")
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert part in line
    plain = largest_plain(answer)
    assert (plain["value"], plain["too_large"]) == (safe, safe + 1)
    assert plain["knobs"][ROWS] == safe and plain["estimate"]["p_oom"] == 0


def test_where_nothing_is_safe_it_is_said_of_what(tmp_path):
    answer, _ = answered(tmp_path, ROWS, 0)
    (line,) = largest_lines(answer, 1)
    assert line.startswith("No per_device_train_batch_size is safe in ")
    assert "even with the leanest (1 x " in line
    plain = largest_plain(answer)
    assert (plain["value"], plain["too_large"], plain["estimate"]) == (None, 1, None)


def test_what_it_needs_that_is_not_here_is_said(tmp_path):
    pins = {**HERE, "attn_implementation": "flash_attention_2"}
    answer, _ = answered(tmp_path, ROWS, 10, **pins)
    assert "Install on the training machine: flash-attn." in list(largest_lines(answer, 1))
    assert largest_plain(answer)["packages"] == ["flash-attn"]
    plain, _ = answered(tmp_path, ROWS, 10, **HERE)
    assert largest_plain(plain)["packages"] == []
