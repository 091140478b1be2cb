"""What the rows of a run show: the state that follows from its events (`views/events.py`). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.job.methods import METHODS
from autotune.report.candidate_lines import describe
from autotune.run.rehearse import (
    DATA,
    EVALUATION,
    SAVE,
    STAGE_TEXTS,
    TIMED_STEPS,
    WORST_BATCH,
)
from autotune.space.knobs import from_knobs
from autotune.units import format_seconds

LAUNCH = (WORST_BATCH, TIMED_STEPS, EVALUATION, SAVE)
"""The stages of a launch, in their order, after the rows for it are written."""


@dataclass
class LiveState:
    """A run that goes on. Times are seconds of a clock that cannot be set.

    Attributes:
        doing: what goes on, in a word or two, and `detail`s of it, since `began`.
        standing: how the search stands, since `standing_since` (`Standing.plain`).
        promise: of the next probe (`Outlook`); None: it is made for something else.
        steps: of the running probe (`ProbeSteps`); None: no probe runs, or nobody tells of them.
        hears_steps: whether somebody tells of the steps of a probe.
        probing_since: when the running probe began.
        close: numbers of probes that are measured again, as they are too close to call.
        verifying: the bundle that is being launched, in words; empty: none is.
        stages: of the launch that are over, with their seconds; the next began at `stage_since`.
        ruled_out: reasons, and how many candidates each rules out.
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
                left_s = data["left_s"]
                left = f", about {format_seconds(left_s)} left" if left_s else ""
                self.detail = f"{data['done']} of {data['of']} candidates{left}"
            case "trying":
                self.steps = None
                self._begin("trying", data["text"], now)

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
        written, or where nobody said what method it is of."""
        if not self.stages or self.method not in METHODS:
            return []
        over = {stage for stage, _ in self.stages}
        evaluates = METHODS[self.method].evaluates
        stages = [stage for stage in LAUNCH if stage != EVALUATION or evaluates]
        last = max((n for n, stage in enumerate(stages) if stage in over), default=-1)
        return stages[last + 1 :]
