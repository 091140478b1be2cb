"""A run that has ended, made of a run folder without probes: what its worker would send."""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.cli.views.events import RunEvents
from autotune.cli.views.json import result_plain
from autotune.report.content import Content
from autotune.report.gather import content_of
from autotune.report.html import html_report
from autotune.run.past_run import PastRun, reopen
from autotune.run.session import Result
from autotune.run.verdict import Verification, memory_limit_of
from autotune.search.recommend import Recommendation
from tests.unit.past_run import make_whole_run

VERIFIED = Verification(verified=True, reason="launched: 198 tokens/s of 200 promised")


class Heard:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def write(self, kind: str, **data: Any) -> None:
        """Keep one."""
        self.events.append((kind, data))


@dataclass(frozen=True)
class FinishedRun:
    """What comes out of a run.

    Attributes:
        content: of its report.
    """

    events: list[tuple[str, dict[str, Any]]]
    result: dict[str, Any]
    files: dict[str, bytes]
    content: Content


def finished_run(folder: Path) -> FinishedRun:
    """A run with a verified bundle, whose job has lengths in place of data."""
    run = make_whole_run(folder, dataset={"lengths": {"max": 64, "p50": 20}})
    past = reopen(run.path)
    recommendation = past.recommendation()
    result = Result(
        outcome="recommended",
        records=tuple(past.records),
        stop_reason="all probed",
        space_size=len(past.space.candidates),
        seconds=60.0,
        recommendation=recommendation,
        verification=VERIFIED,
    )
    content = content_of(past)
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for name, text in past.files(recommendation, VERIFIED).items():
            archive.writestr(f"bundle/{name}", text)
    return FinishedRun(
        events=_events(past, recommendation),
        result=result_plain(result, run.bundle),
        files={"bundle.zip": memory.getvalue(), "report.html": html_report(content).encode()},
        content=content,
    )


def _events(past: PastRun, recommendation: Recommendation) -> list[tuple[str, dict[str, Any]]]:
    heard = Heard()
    run = RunEvents(heard)
    run.surveyed(past.facts, past.space, memory_limit_of(past.job, past.facts))
    for record in past.records:
        run.probing(record.number, record.candidate)
        run.probed(record)
        heard.write("line", text=f"probe {record.number} has ended")
    run.stopped("all probed")
    run.verifying(recommendation)
    run.verified(VERIFIED)
    return heard.events
