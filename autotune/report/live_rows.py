"""The rows of a plan or a run that goes on, and the state behind them, which follows from its
events (`cli/views/events.py`): what is done, how far it is, what is best, what is left. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import visible
from autotune.job.methods import METHODS
from autotune.report.words import describe
from autotune.run.bundle_launch import (
    DATA,
    EVALUATION,
    SAVE,
    STAGE_TEXTS,
    TIMED_STEPS,
    WORST_BATCH,
)
from autotune.space.knobs import from_knobs
from autotune.units import format_bytes, format_seconds, format_speed

LABEL = 9
"""Columns of a row's name."""
CELLS = 20
"""Columns of the bar of memory."""
STAGES = {
    DATA: "rows",
    WORST_BATCH: "worst batch",
    TIMED_STEPS: "timed steps",
    EVALUATION: "evaluation",
    SAVE: "save",
}
_STEPS = {"start": "a process starts", "build": "the trainer is built"}
LAUNCH = (WORST_BATCH, TIMED_STEPS, EVALUATION, SAVE)
"""The stages of a launch, in their order, after the rows for it are written."""


@dataclass
class LiveState:
    """A plan or a run that goes on. Times are seconds of one clock.

    Attributes:
        doing: what goes on, in a word or two, and `detail`s of it, since `began`.
        standing: how the search stands, since `standing_since` (`Standing.plain`).
        promise: of the next probe (`Outlook`); None: it is made for something else.
        steps: of the running probe (`ProbeSteps`); None: no probe runs, or its steps are not known.
        hears_steps: whether the steps of a probe are reported.
        probing_since: when the running probe began.
        close: numbers of probes that are measured again, as they are too close to call.
        verifying: the bundle that is being launched, in words; empty: none is.
        stages: of the launch that are over, with their seconds; the next began at `stage_since`.
        ruled_out: reasons, and how many candidates each rules out.
        estimated: the best by formula or estimate, before anything is measured, in words.
    """

    began: float
    doing: str = "starting"
    detail: str = "the training stack is imported"
    method: str | None = None
    hears_steps: bool = True
    free_knobs: Sequence[str] = ()
    limit_bytes: int | None = None
    candidates: int = 0
    ruled_out: Mapping[str, int] = field(default_factory=dict)
    standing: Mapping[str, Any] | None = None
    standing_since: float = 0.0
    promise: Mapping[str, Any] | None = None
    steps: Mapping[str, Any] | None = None
    probing_since: float | None = None
    close: Sequence[int] = ()
    verifying: str = ""
    stages: list[tuple[str, float]] = field(default_factory=list)
    stage_since: float = 0.0
    estimated: str = ""

    def take(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        """Go on by one event."""
        match kind:
            case "surveyed":
                self.limit_bytes, self.candidates = data["limit_bytes"], data["candidates"]
                self.free_knobs = data["free_knobs"]
            case "standing":
                self.standing, self.standing_since, self.promise = data, now, data["outlook"]
                if self.promise is not None:  # one of those that were close has failed
                    self.close = ()
            case "ruled_out":
                self.ruled_out = data["reasons"]
            case "probing" | "stepping" | "probed" | "settling" | "stopped":
                self._search(kind, data, now)
            case "verifying" | "verification_stage" | "verified":
                self._verify(kind, data, now)
            case _:
                self._prepare(kind, data, now)

    def _forget(self) -> None:
        """Begin anew: what an attempt that was cut off has left says nothing of the next one."""
        self.standing = self.promise = self.steps = self.probing_since = None
        self.ruled_out, self.close, self.verifying, self.stages = {}, (), "", []

    def _begin(self, doing: str, detail: str, now: float) -> None:
        self.doing, self.detail, self.began = doing, detail, now

    def _prepare(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        match kind:
            case "surveying":
                self._forget()
                self.method = data.get("method", self.method)
                self._begin("surveying", "the training stack, the model and the data", now)
            case "waiting":
                self._begin("waiting", data["holder"], now)
            case "measuring":
                self._begin("measuring", "what this device can do", now)
            case "estimating":
                self._begin("estimating", f"{data['candidates']} candidates", now)
            case "estimated":
                if self.doing != "estimating":
                    self._begin("estimating", "", now)
                left_s = data["left_s"]
                left = f", about {format_seconds(left_s)} left" if left_s else ""
                self.detail = f"{data['done']} of {data['of']} candidates{left}"
            case "trying":
                self.steps = None
                self._begin("trying", data["text"], now)
            case "looking_at":
                self._begin("looking at", data["what"], now)
            case "starting_anew":
                self._begin("starting anew", data["reason"], now)
            case "nothing_fits":
                limit = format_bytes(data["limit_bytes"])
                self._begin("searching", f"nothing fits in {limit}; what would", now)
            case "by_formula":
                self.estimated = data["text"]
            case "improved":
                peak, speed = format_bytes(data["peak_memory_bytes"]), data["tokens_per_s"]
                figures = peak if speed is None else f"{format_speed(speed)}, {peak}"
                self.estimated = f"{data['text']}: {figures}, by estimate"

    def _search(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        match kind:
            case "probing":
                candidate = from_knobs(data["knobs"])
                words = describe(candidate, self.free_knobs)
                self._begin(f"probe {data['probe']}", words, now)
                self.probing_since, self.steps = now, {} if self.hears_steps else None
            case "stepping":
                self.steps = data
            case "probed":
                self.probing_since = self.steps = None
                doing = "verifying" if self.verifying else "searching"
                self._begin(doing, self.verifying or "for the next probe", now)
            case "settling":
                self.close = data["probes"]
            case "stopped":
                self.close, self.promise = (), None
                self._begin("search ended", data["reason"], now)

    def _verify(self, kind: str, data: Mapping[str, Any], now: float) -> None:
        match kind:
            case "verifying":
                self.verifying = f"the bundle of probe {data['probe']} is launched"
                self.stages, self.stage_since, self.close = [], now, ()
                self._begin("verifying", self.verifying, now)
            case "verification_stage" if data["stage"] in (DATA, *LAUNCH):
                self.stages.append((data["stage"], data["seconds"]))
                self.stage_since = now
            case "verification_stage" if data["stage"] in STAGE_TEXTS:  # the launch is over
                self.stage_since = now
            case "verification_stage":  # a sentence: it is launched once more
                self.stages, self.stage_since = self.stages[:1], now
            case "verified":
                self.verifying = ""
                self._begin("verified" if data["verified"] else "not verified", data["reason"], now)

    @property
    def stages_to_come(self) -> list[str]:
        """Stages of the launch that goes on, the running one first; none before its rows are
        written, or where its method is not known."""
        if not self.stages or self.method not in METHODS:
            return []
        over = {stage for stage, _ in self.stages}
        evaluates = METHODS[self.method].evaluates
        stages = [stage for stage in LAUNCH if stage != EVALUATION or evaluates]
        last = max((n for n, stage in enumerate(stages) if stage in over), default=-1)
        return stages[last + 1 :]


def rows(state: LiveState, now: float) -> list[tuple[str, str]]:
    """Return the name and the text of each row, the most important first. A terminal cuts off what
    does not fit."""
    since = whole_seconds(now - state.began)
    parts: dict[str, list[str]] = {
        "now": [f"{state.doing}, {since}: {state.detail}"],
        "steps": list(_steps(state, now)),
        "memory": list(_memory(state)),
        "best": list(_best(state)),
        "gain": list(_gain(state)),
        "time": list(_time(state, now)),
        "budget": list(_budget(state, now)),
        "left": list(_left(state)),
        "out": _reasons(state),
    }
    return [(name, visible("; ".join(texts))) for name, texts in parts.items() if texts]


def whole_seconds(seconds: float) -> str:
    """Return a time that runs: `12 s`, `4 min 10 s`, `5 min`."""
    whole = max(int(seconds), 0)
    return f"{whole} s" if whole < 120 else format_seconds(whole).removesuffix(" 0 s")


def _steps(state: LiveState, now: float) -> Iterator[str]:
    """Yield how far the running probe is, or the launch."""
    if state.steps is not None:
        stage = state.steps.get("stage", "start")
        if stage != "train":
            yield _STEPS[stage]
            return
        done, most = state.steps["micro_steps"], state.steps["most_micro_steps"]
        yield f"{done} of at most {most} micro-steps" if most else f"{done} micro-steps"
        if speed := state.steps["tokens_per_s"]:
            yield f"{_speed(speed, state.steps['relative_uncertainty'])}"
    elif state.verifying and state.stages:
        to_come = state.stages_to_come
        if to_come:
            yield f"now {STAGES[to_come[0]]}, {whole_seconds(now - state.stage_since)}"
        done = [f"{STAGES[stage]} {format_seconds(seconds)}" for stage, seconds in state.stages]
        yield f"done {', '.join(done)}"
        if to_come[1:]:
            yield f"then {', '.join(STAGES[stage] for stage in to_come[1:])}"


def _memory(state: LiveState) -> Iterator[str]:
    """Yield the memory of the running probe, against the limit."""
    peak, limit = (state.steps or {}).get("peak_memory_bytes"), state.limit_bytes
    if peak is None or not limit:
        return
    filled = min(round(CELLS * peak / limit), CELLS)
    bar = f"[{'#' * filled}{'.' * (CELLS - filled)}]"
    yield f"{bar} peak {format_bytes(peak)} of {format_bytes(limit)}"
    if state.standing is not None:
        yield f"at most {format_bytes(state.standing['allowed_bytes'])} to be recommended"


def _best(state: LiveState) -> Iterator[str]:
    if state.standing is None:
        if state.estimated:
            yield state.estimated
        return
    best = state.standing["best"]
    if best is None:
        if state.standing["probes"]:
            yield "none yet: nothing that was probed fits"
        return
    speed = _speed(best["tokens_per_s"], best["relative_uncertainty"])
    peak = best["peak_memory_bytes"]
    yield f"probe {best['probe']}, {speed}" + (f", {format_bytes(peak)}" if peak else "")
    yield describe(from_knobs(best["knobs"]), state.free_knobs)


def _gain(state: LiveState) -> Iterator[str]:
    """Yield what the running probe is made for."""
    outlook = state.promise
    if state.close:
        yield f"probes {', '.join(map(str, state.close))} are too close to call"
    elif outlook is not None and outlook["job_s"] is None:
        yield f"this probe is expected to be {100 * outlook['gain']:.1f}% faster"
    elif outlook is not None:
        saved = whole_seconds(outlook["gain"] * outlook["job_s"])
        job, cost = whole_seconds(outlook["job_s"]), whole_seconds(outlook["cost_s"])
        yield f"this probe is expected to save {saved} of a job of {job}; it costs about {cost}"


def _budget(state: LiveState, now: float) -> Iterator[str]:
    """Yield what is used; a probe that runs counts."""
    standing = state.standing
    if standing is None:
        return
    running_s = 0.0 if state.probing_since is None else now - state.probing_since
    yield f"{standing['probes']} of {standing['most_probes']} probes"
    used_s = standing["probing_s"] + running_s
    yield f"{whole_seconds(used_s)} of {whole_seconds(standing['most_probing_s'])}"


def _time(state: LiveState, now: float) -> Iterator[str]:
    """Yield what is left of it, counted from when that was reported."""
    standing, since_s = state.standing, now - state.standing_since
    if standing is None:
        return
    if standing["total_left_s"] is not None:
        yield f"{whole_seconds(standing['total_left_s'] - since_s)} left of the total"
    if standing["left_s"] is not None and not (state.verifying or state.close):
        yield f"the search takes up to about {whole_seconds(standing['left_s'] - since_s)} more"


def _left(state: LiveState) -> Iterator[str]:
    if state.standing is None:
        return
    out = sum(state.ruled_out.values())
    yield f"{state.standing['candidates_left']} of {state.candidates} candidates"
    if state.standing["probes"]:
        yield f"{state.standing['probes']} probed"
    if out:
        yield f"{out} need no probe"


def _reasons(state: LiveState) -> list[str]:
    """Return why candidates went without a probe, the most frequent reason first."""
    if state.standing is None:
        return []
    pairs = sorted(state.ruled_out.items(), key=lambda pair: -pair[1])
    return [f"{count}: {why}" for why, count in pairs]


def _speed(tokens_per_s: float, uncertainty: float | None) -> str:
    if uncertainty is None:
        return f"{tokens_per_s:.0f} tokens/s"
    percent = 100 * uncertainty
    return f"{tokens_per_s:.0f} tokens/s +-{percent:.{0 if percent >= 10 else 1}f}%"
