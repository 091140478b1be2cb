"""What happens in a plan or a run, as events of plain data: as JSON lines for programs, and for
what shows it to people."""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from autotune.cli.views.json import record_plain
from autotune.errors import user_error
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plan.choices import Choice
from autotune.plan.progress import MEMORY_ERROR, SPEED_ERROR, FirstEstimate
from autotune.process.files import refuse_link_out, writing
from autotune.report.progress_lines import first_text
from autotune.report.words import candidate_text
from autotune.run.listener import Listener, Listeners, Standing
from autotune.run.verdict import Verification
from autotune.search.recommend import Ranked, Recommendation
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate

EVENTS = "events.jsonl"
RESULT = "result.json"
KEPT = RESULT, "bundle"
"""What a record has in the end."""
COUNT_S = 0.5
"""Counts of estimates are written at most so often, but for the first and the last."""


class Events(Protocol):
    """Takes events."""

    def write(self, kind: str, **data: Any) -> None:
        """Take one event, of JSON-ready data."""


class EventFile:
    """Appends events to a file, each a line: {"utc": seconds, "kind": ..., "data": {...}}."""

    def __init__(self, path: Path) -> None:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **data: Any) -> None:
        """Append one event, whole."""
        event = {"utc": round(time.time(), 3), "kind": kind, "data": data}
        self._file.write(json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()


class RunEvents(Listener):
    """Makes events of what happens in a plan or a run; of the steps of a probe, several a second,
    it makes none."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._counted = self._began = time.monotonic()

    def surveying(self, job: Job) -> None:
        self._events.write("surveying", method=job.method)

    def starting_anew(self, reason: str) -> None:
        self._events.write("starting_anew", reason=reason)

    def measuring(self) -> None:
        self._events.write("measuring")

    def looking_at(self, what: str) -> None:
        self._events.write("looking_at", what=what)

    def estimating(self, candidates: int) -> None:
        self._events.write("estimating", candidates=candidates)

    def estimated(self, done: int, of: int) -> None:
        now = time.monotonic()
        if done == 0:
            self._began = now
        if done in (0, of) or now - self._counted >= COUNT_S:
            self._counted = now
            known = 10 * done >= of  # the first ones wait for what all need
            left_s = (now - self._began) * (of - done) / done if done and known else None
            self._events.write("estimated", done=done, of=of, left_s=left_s)

    def by_formula(self, first: FirstEstimate) -> None:
        estimate = first.best.estimate
        self._events.write(
            "by_formula",
            text=first_text(first),
            knobs=first.best.candidate.knobs,
            tokens_per_s=estimate.tokens_per_s,
            peak_memory_bytes=estimate.peak_memory_bytes,
            fits=estimate.fits,
            memory_error=MEMORY_ERROR,
            speed_error=SPEED_ERROR,
        )

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        estimate = best.estimate
        self._events.write(
            "improved",
            text=candidate_text(best.candidate, space, devices),
            knobs=best.candidate.knobs,
            tokens_per_s=estimate.tokens_per_s,
            peak_memory_bytes=estimate.peak_memory_bytes,
            p_oom=round(estimate.p_oom, 4),
            safe=best.safe,
            parts=dict(estimate.parts),
        )

    def nothing_fits(self, limit_bytes: int) -> None:
        self._events.write("nothing_fits", limit_bytes=limit_bytes)

    def waiting(self, holder: str) -> None:
        self._events.write("waiting", holder=holder)

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        self._events.write(
            "surveyed",
            model={
                "name": facts.model.name,
                "architecture": facts.model.architecture,
                "parameters": facts.model.parameters,
            },
            rows=facts.data.rows,
            longest=facts.data.longest,
            device=facts.device.name,
            limit_bytes=limit_bytes,
            candidates=len(space.candidates),
            free_knobs=[knob.name for knob in space.free_knobs],
            notes=list(space.notes),
        )

    def ruled_out(self, reasons: Mapping[str, str]) -> None:
        self._events.write("ruled_out", reasons=dict(Counter(reasons.values())))

    def restored(self, probes: int, fault: str) -> None:
        self._events.write("restored", probes=probes, fault=fault)

    def unestimated(self, seconds: float) -> None:
        self._events.write("unestimated", seconds=seconds)

    def standing(self, standing: Standing) -> None:
        self._events.write("standing", **standing.plain())

    def probing(self, number: int, candidate: Candidate) -> None:
        self._events.write("probing", probe=number, knobs=candidate.knobs)

    def probed(self, record: Record) -> None:
        self._events.write("probed", **record_plain(record))

    def stopped(self, reason: str) -> None:
        self._events.write("stopped", reason=reason)

    def settling(self, group: Sequence[Ranked]) -> None:
        self._events.write("settling", probes=[ranked.number for ranked in group])

    def verifying(self, recommendation: Recommendation) -> None:
        self._events.write("verifying", probe=recommendation.chosen.number)

    def verification_stage(self, stage: str, seconds: float) -> None:
        self._events.write("verification_stage", stage=stage, seconds=round(seconds, 3))

    def verified(self, verification: Verification) -> None:
        self._events.write("verified", **verification.plain())

    def trying(self, text: str) -> None:
        self._events.write("trying", text=text)


def recorded(record: Path | None, view: Listener) -> Listener:
    """Return who hears of a run: what is kept in the folder `record`, where there is one, and then
    `view`.

    Raises:
        UserError: what would be written over there is of no earlier record.
    """
    if record is None:
        return view
    found = [name for name in KEPT if os.path.lexists(record / name)]
    if found and not (record / EVENTS).is_file():
        what = f"there is a `{found[0]}` that no `--record` has made"
        raise user_error(what, where=str(record), hint="choose another folder")
    for name in found:
        refuse_link_out(record / name, record.resolve())
    return Listeners(RunEvents(EventFile(record / EVENTS)), view)
