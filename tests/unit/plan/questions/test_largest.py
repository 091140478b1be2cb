"""The largest value that is safe, and the largest that may fit. The estimates are made up."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.views.limits import largest_lines, largest_plain
from autotune.estimate.speed.ceilings import Ceilings
from autotune.plan.cache import PlanCache
from autotune.plan.estimator import Estimator
from autotune.plan.questions.largest import STEP, LargestSearch
from autotune.process.child_server import ChildServer
from tests.unit.builders import GIB, make_estimate, make_facts, make_job, make_space

ROWS, LENGTH = "per_device_train_batch_size", "max_length"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imagined(Estimator):
    """Safe up to one value, possible up to another; notes what it is asked."""

    knob: str
    safe: int
    possible: int
    asked_for: list
    ceilings: Ceilings | None = None

    def estimates(self, candidates):
        (candidate,) = candidates
        value = candidate[self.knob]
        self.asked_for.append(value)
        p_oom = 0.0 if value <= self.safe else 0.3 if value <= self.possible else 1.0
        fits = value <= self.possible
        estimate = make_estimate(value * GIB // 100)
        missing = None if fits else GIB
        return {
            candidate.key: dataclasses.replace(
                estimate, p_oom=p_oom, fits=fits, missing_bytes=missing
            )
        }


def answered(folder, knob, safe, possible, **pins):
    job, facts = make_job(fixed=pins), make_facts("cuda")
    facts = dataclasses.replace(facts, stack=dataclasses.replace(facts.stack, assumed=True))
    estimator = Imagined(
        job=job,
        facts=facts,
        limit=max(possible, 1) * GIB // 100,
        server=ChildServer(folder / "log"),
        folder=folder,
        rows=folder,
        cache=PlanCache(path=folder),
        knob=knob,
        safe=safe,
        possible=possible,
        asked_for=[],
    )
    answer = LargestSearch(estimator, make_space(job, facts).default(), knob).answer()
    return answer, estimator.asked_for


@given(st.integers(0, 3000), st.integers(0, 900))
def test_the_largest_safe_and_the_largest_possible_value_are_found(safe, more):
    from pathlib import Path

    answer, tried = answered(Path("unused"), ROWS, safe, safe + more)
    assert answer.value == (safe or None)
    assert answer.possible == (safe + more if more else None)
    assert answer.too_large == safe + more + 1 and not answer.bounded
    assert len(tried) == len(set(tried)) < 45  # nothing is estimated twice


def test_lengths_are_told_to_the_next_step_and_no_further_than_the_model_has_positions(tmp_path):
    answer, _ = answered(tmp_path, LENGTH, 1000, 1300)
    assert answer.value <= 1000 < answer.value + STEP[LENGTH]
    assert answer.possible <= 1300 < answer.possible + STEP[LENGTH]
    answer, tried = answered(tmp_path, LENGTH, 10**6, 10**6)
    assert (answer.value, answer.bounded) == (2048, True) and max(tried) == 2048


@pytest.mark.parametrize(
    ("safe", "possible", "said"),
    [
        (5, 5, ["per_device_train_batch_size=5 is safe in", "6 does not fit."]),
        (5, 7, ["5 is safe in", "7 may fit: 71.7 MiB, p(oom) 0.30.", "8 does not fit."]),
        (0, 2, ["No per_device_train_batch_size is safe in", "2 may fit", "3 does not fit."]),
        (0, 0, ["No per_device_train_batch_size is safe in", "1 does not fit."]),
        (99, 99, ["99 is safe in", "100 does not fit.", "The job's global batch has"]),
    ],
)
def test_it_is_said_in_sentences(tmp_path, safe, possible, said):
    answer, _ = answered(tmp_path, ROWS, safe, possible)
    *lines, of_which = largest_lines(answer)
    assert of_which.startswith("Looked at: TRL's defaults with what the job pins.")
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert part in line
    plain = largest_plain(answer)
    assert (plain["value"], plain["too_large"]) == (safe or None, possible + 1)
    assert (plain["possible"] or safe) == possible


def test_what_it_needs_that_is_not_here_is_said(tmp_path):
    kernel = {"attn_implementation": "flash_attention_2"}
    answer, _ = answered(tmp_path, ROWS, 10, 10, **kernel)
    assert "Install on the training machine: flash-attn." in list(largest_lines(answer))
    assert largest_plain(answer)["packages"] == ["flash-attn"]
    plain, _ = answered(tmp_path, ROWS, 10, 10)
    assert largest_plain(plain)["packages"] == []
