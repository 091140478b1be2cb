"""A run as its listener hears it, moment by moment, told to the real view.

    python live_script.py FIFO

A line that comes through the FIFO is the sign for the next moment.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autotune.cli.views.live.panel import run_view
from autotune.run.loop import CANNOT_FIT
from autotune.run.session import Listener
from autotune.run.standing import ProbeSteps, Standing
from autotune.run.verdict import Verification
from autotune.search.recommend import Recommendation, recommend
from autotune.search.record import Record
from autotune.search.rules.stopping import Outlook
from autotune.space.knobs import Candidate
from tests.unit.builders import GIB, make_facts, make_job, make_space, ok

MIB = 2**20
JOB = make_job(
    global_batch_size=16,
    fixed={"optim": "adamw_torch_fused", "padding_free": False},
    recipe={"lora_target_modules": ["attention", "all-linear"], "lora_r": [16, 32]},
    tuning="lora",
)
FACTS = make_facts()
FACTS = replace(FACTS, data=replace(FACTS.data, quantiles={"p50": 250, "p99": 900}))
SPACE = make_space(JOB, FACTS)
ALLOWED = 9 * GIB
SPEEDS = ((1478.2, 7 * GIB), (1996.4, 8 * GIB), (1516.0, 5 * GIB), (2001.7, 8 * GIB))
RECORDS = [
    Record(
        number=number,
        candidate=SPACE.candidates[7 * number],
        measurement=replace(ok(speed, peak, 0.074), step_time_s=0.5, seconds=9.0),
    )
    for number, (speed, peak) in enumerate(SPEEDS)
]
LEANER = "needs at least as much memory as probe 2, which ran out of memory"


def best_of(probes: int) -> Recommendation | None:
    """What would be recommended after so many probes."""
    found = recommend(RECORDS[:probes], ALLOWED)
    return found if isinstance(found, Recommendation) else None


BEST = best_of(len(RECORDS))
assert BEST is not None


def standing(probes: int, outlook: Outlook | None = None) -> Standing:
    """The search after so many probes."""
    found = best_of(probes)
    return Standing(
        probes=probes,
        most_probes=18,
        probing_s=9.0 * probes,
        most_probing_s=180.0,
        left_s=130.0 if probes else None,
        total_left_s=615.0,
        candidates_left=len(SPACE.candidates) - 26 - probes,
        best=None if found is None else found.chosen,
        allowed_bytes=ALLOWED,
        outlook=outlook,
    )


def probe(told: Listener, number: int, steps: ProbeSteps) -> None:
    """A probe begins and gets so far."""
    candidate: Candidate = RECORDS[number].candidate
    told.probing(number, candidate)
    told.stepping(steps)


def estimating(told: Listener) -> None:
    """Before the first probe."""
    told.surveying(JOB)
    told.surveyed(FACTS, SPACE, 10 * GIB)
    told.estimating(len(SPACE.candidates))
    told.estimated(0, len(SPACE.candidates))


def first_probe(told: Listener) -> None:
    """Nothing was measured yet."""
    told.ruled_out({str(number): CANNOT_FIT for number in range(22)})
    told.standing(standing(0))
    probe(told, 0, ProbeSteps(stage="build", most_micro_steps=34))


def third_probe(told: Listener) -> None:
    """Two were measured."""
    told.probed(RECORDS[0])
    told.probed(RECORDS[1])
    reasons = {str(number): CANNOT_FIT for number in range(22)}
    told.ruled_out(reasons | {f"{number}!": LEANER for number in range(4)})
    told.standing(standing(2, Outlook(gain=0.03, job_s=4200.0, cost_s=9.0)))
    peak = 4700 * MIB
    steps = ProbeSteps(stage="train", micro_steps=12, most_micro_steps=34, peak_memory_bytes=peak)
    probe(told, 2, replace(steps, tokens_per_s=1508.8, relative_uncertainty=0.121))


def settling(told: Listener) -> None:
    """The fastest are measured again."""
    told.probed(RECORDS[2])
    told.probed(RECORDS[3])
    told.standing(standing(4))
    told.stopped("another probe costs about 9.0 s and is expected to save 2.0 s")
    told.settling([BEST.chosen, *BEST.ties])
    probe(told, 1, ProbeSteps())


def verifying(told: Listener) -> None:
    """The bundle is launched."""
    told.probed(RECORDS[1])
    told.stopped("the order of the fastest is certain")
    told.verifying(BEST)
    told.verification_stage("data", 1.2)
    told.verification_stage("worst_batch", 9.1)


def ended(told: Listener) -> None:
    """The launch held."""
    told.verification_stage("timed_steps", 4.0)
    told.verified(Verification(verified=True, reason="launched through its worst batch"))


MOMENTS: tuple[Callable[[Listener], None], ...] = (
    estimating,
    first_probe,
    third_probe,
    settling,
    verifying,
    ended,
)
"""The last of them is not to be seen for long: the view closes."""


def main() -> None:
    """Tell the moments, one at each sign, and end as a run does."""
    with Path(sys.argv[1]).open(encoding="utf-8") as signs, run_view() as told:
        for moment in MOMENTS:
            signs.readline()
            moment(told)
    print("recommended: probe 1")


if __name__ == "__main__":
    main()
