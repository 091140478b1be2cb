"""A run as its listener hears it, moment by moment, for the real view to show.

    python live_script.py FIFO [remote]

A line that comes through the FIFO is the sign for the next moment. `remote`: its events come from a
service, as JSON.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.cli.views.events import RunEvents
from autotune.cli.views.live import EventListener, remote_view, run_view
from autotune.report.run_lines import RunLines
from autotune.run.listener import Listener, Listeners, ProbeSteps, Standing
from autotune.run.loop import CANNOT_FIT
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


def probe(listener: Listener, number: int, steps: ProbeSteps) -> None:
    """A probe begins and gets so far."""
    candidate: Candidate = RECORDS[number].candidate
    listener.probing(number, candidate)
    listener.stepping(steps)


def estimating(listener: Listener) -> None:
    """Before the first probe."""
    listener.surveying(JOB)
    listener.surveyed(FACTS, SPACE, 10 * GIB)
    listener.estimating(len(SPACE.candidates))
    listener.estimated(0, len(SPACE.candidates))


def first_probe(listener: Listener) -> None:
    """Nothing was measured yet."""
    listener.ruled_out({str(number): CANNOT_FIT for number in range(22)})
    listener.standing(standing(0))
    probe(listener, 0, ProbeSteps(stage="build", most_micro_steps=34))


def third_probe(listener: Listener) -> None:
    """Two were measured."""
    listener.probed(RECORDS[0])
    listener.probed(RECORDS[1])
    reasons = {str(number): CANNOT_FIT for number in range(22)}
    listener.ruled_out(reasons | {f"{number}!": LEANER for number in range(4)})
    listener.standing(standing(2, Outlook(gain=0.03, job_s=4200.0, cost_s=9.0)))
    peak = 4700 * MIB
    steps = ProbeSteps(stage="train", micro_steps=12, most_micro_steps=34, peak_memory_bytes=peak)
    probe(listener, 2, replace(steps, tokens_per_s=1508.8, relative_uncertainty=0.121))


def settling(listener: Listener) -> None:
    """The fastest are measured again."""
    listener.probed(RECORDS[2])
    listener.probed(RECORDS[3])
    listener.standing(standing(4))
    listener.stopped("another probe costs about 9.0 s and is expected to save 2.0 s")
    listener.settling([BEST.chosen, *BEST.ties])
    probe(listener, 1, ProbeSteps())


def verifying(listener: Listener) -> None:
    """The bundle is launched."""
    listener.probed(RECORDS[1])
    listener.stopped("the order of the fastest is certain")
    listener.verifying(BEST)
    listener.verification_stage("data", 1.2)
    listener.verification_stage("worst_batch", 9.1)


def ended(listener: Listener) -> None:
    """The launch held."""
    listener.verification_stage("timed_steps", 4.0)
    listener.verified(Verification(verified=True, reason="launched through its worst batch"))


MOMENTS: tuple[Callable[[Listener], None], ...] = (
    estimating,
    first_probe,
    third_probe,
    settling,
    verifying,
    ended,
)
"""The last of them is not to be seen for long: the view closes."""


class ServiceEvents:
    """Events as they arrive from a service."""

    def __init__(self, hear: EventListener) -> None:
        self._hear = hear

    def write(self, kind: str, **data: Any) -> None:
        """Take one event."""
        self._hear(json.loads(json.dumps({"utc": time.time(), "kind": kind, "data": data})))


@contextlib.contextmanager
def service_view() -> Iterator[Listener]:
    """As `run_view`, of what a service says of its run."""
    with remote_view(lambda _: None, quiet=False) as hear:
        events = ServiceEvents(hear)
        lines = RunLines(lambda text: events.write("line", text=text))
        yield Listeners(RunEvents(events), lines)


def main() -> None:
    """Tell the moments, one at each sign, and end as a run does."""
    view = service_view if sys.argv[2:] == ["remote"] else run_view
    with Path(sys.argv[1]).open(encoding="utf-8") as signs, view() as listener:
        for moment in MOMENTS:
            signs.readline()
            moment(listener)
    print("recommended: probe 1")


if __name__ == "__main__":
    main()
