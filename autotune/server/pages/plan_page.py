"""The page of a plan: live while it is made, then its whole answer; memory by part as bars, and the
points that sliders move between."""

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from autotune.errors import AutotuneError
from autotune.facts.device_kinds import find_kind
from autotune.job.yaml_file import parse_yaml
from autotune.report.parts import ordered, tone_of
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.problems import Refusal
from autotune.server.api.work import After, Id, cancel, details, resume, room_for
from autotune.server.pages.follow import FromEvent, fold, updates
from autotune.server.pages.render import bundle_files, fragment, launch_command, page, refresh
from autotune.server.service import Service
from autotune.server.store.values import ENDED, Details, Event
from autotune.server.store.works import Filter
from autotune.server.submission import Submission, accepted
from autotune.units import format_bytes, parse_bytes

WIDTH = 1000.0
MICRO_BATCH, MAX_LENGTH = "per_device_train_batch_size", "max_length"
router = APIRouter(prefix="/plans", include_in_schema=False)
LENGTHS = "lengths.json"
SHOWN = 20
"""Choices of the table."""
WAIT_S = 900.0
"""Time after a plan's end in which its estimates by length are waited for."""


@dataclass
class PlanProgress:
    """A plan that is being made.

    Attributes:
        doing: the present activity, in words.
        done, of: candidates that are estimated.
        first: what is best by formula, in words.
        best: the data of the last `improved` event.
        last: the number of the last event.
    """

    doing: str = ""
    done: int = 0
    of: int = 0
    left_s: float | None = None
    first: str = ""
    best: dict[str, Any] | None = None
    improvements: int = 0
    last: int = 0

    def take(self, event: Event) -> None:
        """Go on by one event."""
        data, self.last = event.data, event.number
        match event.kind:
            case "surveying":
                self.doing = "Looking at the model and the data"
            case "by_formula":
                self.first = data["text"]
            case "measuring":
                self.doing = "Measuring how fast the device is"
            case "looking_at":
                self.doing = f"Looking at {data['what']}"
            case "starting_anew":
                self.doing = f"Starting anew: {data['reason']}"
            case "estimating":
                self.doing, self.done, self.of = "Estimating", 0, data["candidates"]
            case "estimated":
                self.done, self.of, self.left_s = data["done"], data["of"], data["left_s"]
                self.doing = self.doing or "Estimating"
            case "nothing_fits":
                limit = format_bytes(data["limit_bytes"])
                self.doing = f"Nothing fits in {limit}: looking for what would"
            case "improved":
                self.best, self.improvements = data, self.improvements + 1


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of a bar.

    Attributes:
        x, width: of `WIDTH`.
        tone: the number of its colour.
    """

    name: str
    bytes: int
    x: float
    width: float
    tone: int


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The parts of a peak, against a limit.

    Attributes:
        scale_bytes: bytes of the whole width.
        mark: where the limit is; None: it is not known.
    """

    segments: tuple[Segment, ...]
    total_bytes: int
    limit_bytes: int | None
    scale_bytes: float
    mark: float | None

    @property
    def fits(self) -> bool:
        """True if it is within the limit."""
        return self.limit_bytes is None or self.total_bytes <= self.limit_bytes


def memory_bar(
    parts: Mapping[str, int], total: int, limit: int | None, most: Iterable[int] = ()
) -> Bar:
    """Return the bar of an estimate.

    Args:
        most: other peaks that the scale must have room for.
    """
    scale = max(total, limit or 0, 1, *most) * (1.0 if limit and limit >= total else 1.04)
    segments, x = [], 0.0
    for name in ordered(parts):
        width = WIDTH * max(parts[name], 0) / scale
        segments.append(
            Segment(
                name=name,
                bytes=parts[name],
                x=round(x, 2),
                width=round(width, 2),
                tone=tone_of(name),
            )
        )
        x += width
    mark = None if limit is None else round(WIDTH * limit / scale, 2)
    return Bar(
        segments=tuple(segments), total_bytes=total, limit_bytes=limit, scale_bytes=scale, mark=mark
    )


@dataclass(frozen=True, kw_only=True)
class Slides:
    """The points that the sliders move between.

    Attributes:
        whole: whether there are estimates by length, not by micro-batch alone.
        points: each as the script reads it.
    """

    lengths: tuple[int, ...]
    micro_batches: tuple[int, ...]
    limit_bytes: int
    points: tuple[Mapping[str, Any], ...]
    length: int
    micro_batch: int
    whole: bool

    @property
    def bar(self) -> Bar:
        """The bar to begin with, with all parts that any point has."""
        start = self._start()
        names = {name for point in self.points for name in point["parts"]}
        parts = {name: start["parts"].get(name, 0) for name in names}
        most = max(point["peak_memory_bytes"] for point in self.points)
        return memory_bar(parts, start["peak_memory_bytes"], self.limit_bytes, [most])

    def _start(self) -> Mapping[str, Any]:
        def distance(point: Mapping[str, Any]) -> tuple[int, int]:
            length, size = point["max_length"], point["micro_batch"]
            return abs(size - self.micro_batch), abs(length - self.length)

        return min(self.points, key=distance)


def slides_of(result: Mapping[str, Any], lengths: Mapping[str, Any] | None) -> Slides | None:
    """Return the sliders of a plan's result; None: there are no points."""
    choices: Sequence[Mapping[str, Any]] = result["choices"]
    chosen = result["answer"] or (choices[0] if choices else None)
    if chosen is None:
        return None
    if lengths and lengths.get("schema") == 1 and lengths["points"]:
        points, limit = lengths["points"], lengths["limit_bytes"]
    else:
        lengths = None
        points, limit = _by_micro_batch(choices), result["device"]["limit_bytes"]
    if not points:
        return None
    sizes = sorted({point["micro_batch"] for point in points})
    wanted = chosen["knobs"].get(MAX_LENGTH) or max(point["max_length"] for point in points)
    size = chosen["knobs"].get(MICRO_BATCH)
    return Slides(
        lengths=tuple(sorted({point["max_length"] for point in points})),
        micro_batches=tuple(sizes),
        limit_bytes=limit,
        points=tuple(points),
        length=wanted,
        micro_batch=size if size in sizes else sizes[0],
        whole=lengths is not None,
    )


def _by_micro_batch(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the best choice of each micro-batch, as points of one length."""
    points: dict[int, dict[str, Any]] = {}
    for choice in choices:
        size = choice["knobs"].get(MICRO_BATCH)
        if size is not None and not choice["at_least"] and size not in points:
            points[size] = {
                "max_length": choice["knobs"].get(MAX_LENGTH) or 0,
                "micro_batch": size,
                **{name: choice[name] for name in ("peak_memory_bytes", "p_oom", "parts")},
                "tokens_per_s": choice["tokens_per_s"],
            }
    return list(points.values())


@router.get("/{id}")
def plan_page(request: Request, service: ServiceOf, holder: Caller, id: Id) -> Response:
    """Show a plan."""
    work = details(service, id, "plan")
    state = PlanProgress()
    fold(service, id, state)
    values = ended_values(service, work) if work.state in ENDED else live_values(work, state)
    follows = not service.live.is_full
    return page(request, holder, "plan_page.html", **values, oob=False, follows=follows)


@router.get(
    "/{id}/events", response_class=EventSourceResponse, dependencies=[Depends(room_for("plan"))]
)
async def follow_plan(
    service: ServiceOf, _: Caller, id: Id, last_event_id: After = None, after: FromEvent = 0
) -> AsyncIterator[ServerSentEvent]:
    """Stream the changes of a plan's page."""
    state = PlanProgress()

    def render(work: Details, _: Sequence[Event]) -> str:
        return fragment("plan_update.html", **live_values(work, state))

    def ended(work: Details) -> str:
        return fragment("plan_work.html", **ended_values(service, work), oob=True, follows=True)

    async for event in updates(service, id, int(last_event_id or after), state, render, ended):
        yield event


@router.get("/{id}/sliders")
def sliders(service: ServiceOf, _: Caller, id: Id) -> Response:
    """Show the sliders over length once they are estimated; nothing while they may still come."""
    work = details(service, id, "plan")
    slides = slides_of(work.result, _lengths(service, id)) if work.result else None
    if slides is None or (_is_new(work) and not slides.whole):
        return Response(status_code=204)
    return HTMLResponse(fragment("sliders.html", work=work, slides=slides, waits=False))


@router.post("/{id}/cancel")
def cancel_plan(service: ServiceOf, _: Caller, id: Id) -> Response:
    """End a plan."""
    cancel(service, details(service, id, "plan"))
    return refresh()


@router.post("/{id}/resume")
def resume_plan(service: ServiceOf, _: Caller, id: Id) -> Response:
    """Make a plan that was cancelled or has failed again."""
    resume(service, details(service, id, "plan"))
    return refresh()


def live_values(work: Details, state: PlanProgress) -> dict[str, Any]:
    """Return the values of the page of a plan that is being made."""
    bar = None
    if state.best is not None:
        best = state.best
        bar = memory_bar(best["parts"], best["peak_memory_bytes"], limit_of(work))
    return {"work": work, "state": state, "bar": bar, "ended": False}


def ended_values(service: Service, work: Details) -> dict[str, Any]:
    """Return the values of the page of a plan that has ended."""
    result = work.result
    slides = None if result is None else slides_of(result, _lengths(service, work.id))
    files = bundle_files(service.works.file(work.id, "bundle.zip"))
    return {
        "work": work,
        "ended": True,
        "result": result,
        "lines": [] if result is None else answer_lines(result),
        "slides": slides,
        "waits": slides is not None and not slides.whole and _is_new(work),
        "choices": [] if result is None else result["choices"][:SHOWN],
        "files": files,
        "launch": launch_command(work.id, files),
        "no_run": _why_no_run(service, work),
        "runs": _runs_like(service, work),
    }


def answer_lines(result: dict[str, Any]) -> list[str]:
    """Return the lines of the answer, without the ways out, which the page shows elsewhere."""
    lines: list[str] = result["lines"]
    if result["advice"] is None:
        return lines
    until = next((n for n, line in enumerate(lines) if line.startswith("What ")), len(lines))
    return lines[:until]


def limit_of(work: Details) -> int | None:
    """Return the memory that a process may take, if it is known before the plan ends."""
    try:
        devices = parse_yaml(work.job, "job")[0].get("devices")
        memory = devices.get("memory") if isinstance(devices, dict) else None
        if memory is not None:
            return parse_bytes(memory)
        kind = find_kind(work.device) if work.device not in ("", "cpu") else None
    except (AutotuneError, ValueError):
        return None
    return None if kind is None else kind.usable_bytes


def _is_new(work: Details) -> bool:
    """True if its sliders may still come."""
    return work.state == "done" and time.time() - (work.ended or 0.0) < WAIT_S


def _lengths(service: Service, id: str) -> dict[str, Any] | None:
    content = service.works.file(id, LENGTHS)
    if content is None:
        return None
    data = json.loads(content)
    return data if isinstance(data, dict) else None


def _why_no_run(service: Service, work: Details) -> str | None:
    """Return why this job cannot be run here; None: it can."""
    config = service.works.model_config_json(work.id)
    submission = Submission(job=work.job, model_config_json=config)
    try:
        accepted("run", submission, service.settings.allowed, work.submitter)
    except AutotuneError as error:
        return error.problems[0].what
    except Refusal as refusal:
        return refusal.item.what
    return None


def _runs_like(service: Service, work: Details) -> list[Any]:
    """Return runs of the same model."""
    wanted = Filter(kind="run", state="done", text=work.model.rpartition("/")[2][:100])
    return service.works.search(wanted, per_page=3)
