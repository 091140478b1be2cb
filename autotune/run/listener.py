"""What a run tells those who follow it: its events, how its search stands, how far a probe is."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

from autotune.facts import Facts
from autotune.plan.progress import Progress
from autotune.process.limits import Watcher
from autotune.run.expectations import Expectations
from autotune.run.verdict import Verification
from autotune.search.recommend import Ranked, Recommendation
from autotune.search.record import Record
from autotune.search.rules.stopping import Outlook
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate

_P = ParamSpec("_P")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A search between two probes.

    Attributes:
        probes: that the budget counts, of at most `most_probes`.
        probing_s: seconds that they took, of at most `most_probing_s`.
        left_s: seconds that the search goes on, by what probes took so far, if all of its budget is
            used; None: no probe yet.
        total_left_s: seconds of a total budget that are left; None: without one.
        candidates_left: neither probed nor ruled out.
        best: what would be recommended now; None: nothing fits yet.
        allowed_bytes: what a recommended candidate may take.
        outlook: of the next probe; None: nothing is expected of it.
    """

    probes: int
    most_probes: int
    probing_s: float
    most_probing_s: float
    left_s: float | None
    total_left_s: float | None
    candidates_left: int
    best: Ranked | None
    allowed_bytes: int
    outlook: Outlook | None

    def plain(self) -> dict[str, Any]:
        """Return the standing as JSON data, the best candidate by its figures."""
        best = self.best and {
            "probe": self.best.number,
            "knobs": self.best.candidate.knobs,
            "tokens_per_s": self.best.tokens_per_s,
            "relative_uncertainty": self.best.measurement.relative_uncertainty,
            "peak_memory_bytes": self.best.measurement.peak_memory_bytes,
        }
        return {**dataclasses.asdict(dataclasses.replace(self, best=None)), "best": best}


@dataclass(frozen=True, kw_only=True)
class ProbeSteps:
    """A running probe.

    Attributes:
        stage: `start`, `build` (of the trainer) or `train`.
        micro_steps: done, of at most `most_micro_steps`; None: not known.
        tokens_per_s: by the steps that were timed so far; None: too few.
        peak_memory_bytes: so far; of several ranks the first one's.
    """

    stage: str = "start"
    micro_steps: int = 0
    most_micro_steps: int | None = None
    tokens_per_s: float | None = None
    relative_uncertainty: float | None = None
    peak_memory_bytes: int | None = None

    def after(self, event: Mapping[str, Any]) -> "ProbeSteps":
        """Return where the probe is after an event of its child (`probe/step_meter.py`)."""
        peak = event.get("peak_memory_bytes", self.peak_memory_bytes)
        match event.get("event"):
            case "planned":
                most = event.get("micro_steps")
                return dataclasses.replace(self, stage="build", most_micro_steps=most)
            case "built":
                return dataclasses.replace(self, stage="train")
            case "micro_step":
                return dataclasses.replace(self, micro_steps=event["n"])
            case "warm_up":
                return dataclasses.replace(self, peak_memory_bytes=peak)
            case "estimate":
                return dataclasses.replace(
                    self,
                    tokens_per_s=event.get("tokens_per_s"),
                    relative_uncertainty=event.get("relative_uncertainty"),
                    peak_memory_bytes=peak,
                )
        return self


class Listener(Progress):
    """A follower of a run; this one says nothing."""

    def waiting(self, holder: str) -> None:
        """Note that another process has the devices and this one waits."""

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        """Note that the space is known and the search begins."""

    def ruled_out(self, reasons: Mapping[str, str]) -> None:
        """Note that these candidates, by key, need no probe now, each for its reason."""

    def restored(self, probes: int, fault: str) -> None:
        """Note that the study was gone and was made anew from this many probes."""

    def unestimated(self, seconds: float) -> None:
        """Note that traces did not end within their part of the budget: formulas stand for them."""

    def expecting(self, expectations: Expectations) -> None:
        """Note that each candidate has an estimate."""

    def standing(self, standing: Standing) -> None:
        """Note that the search is between two probes."""

    def probing(self, number: int, candidate: Candidate) -> None:
        """Note that a probe starts."""

    def stepping(self, steps: ProbeSteps) -> None:
        """Note how far the running probe is."""

    def probed(self, record: Record) -> None:
        """Note that a probe has ended."""

    def stopped(self, reason: str) -> None:
        """Note that the search has ended."""

    def settling(self, group: Sequence[Ranked]) -> None:
        """Note that the fastest are measured again, in turns."""

    def verifying(self, recommendation: Recommendation) -> None:
        """Note that a bundle is being launched."""

    def verification_stage(self, stage: str, seconds: float) -> None:
        """Note that a stage of a verification is over (`bundle_launch.py` has their names)."""

    def verified(self, verification: Verification) -> None:
        """Note that the launch has ended."""

    def trying(self, text: str) -> None:
        """Note that nothing fits and a change of the job is tried."""

    def remarked(self, text: str) -> None:
        """Note a remark that is no event of the run."""


def _each(event: Callable[Concatenate[Any, _P], None]) -> Callable[Concatenate[Any, _P], None]:
    """Return the method that passes an event on to each of several listeners."""

    def pass_on(self: "Listeners", /, *arguments: _P.args, **named: _P.kwargs) -> None:
        for listener in self.listeners:
            getattr(listener, event.__name__)(*arguments, **named)

    return pass_on


class Listeners(Listener):
    """Several followers of the same run, in this order."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    surveying = _each(Listener.surveying)
    starting_anew = _each(Listener.starting_anew)
    measuring = _each(Listener.measuring)
    looking_at = _each(Listener.looking_at)
    estimating = _each(Listener.estimating)
    estimated = _each(Listener.estimated)
    improved = _each(Listener.improved)
    by_formula = _each(Listener.by_formula)
    nothing_fits = _each(Listener.nothing_fits)
    waiting = _each(Listener.waiting)
    surveyed = _each(Listener.surveyed)
    ruled_out = _each(Listener.ruled_out)
    restored = _each(Listener.restored)
    unestimated = _each(Listener.unestimated)
    expecting = _each(Listener.expecting)
    standing = _each(Listener.standing)
    probing = _each(Listener.probing)
    stepping = _each(Listener.stepping)
    probed = _each(Listener.probed)
    stopped = _each(Listener.stopped)
    settling = _each(Listener.settling)
    verifying = _each(Listener.verifying)
    verification_stage = _each(Listener.verification_stage)
    verified = _each(Listener.verified)
    trying = _each(Listener.trying)
    remarked = _each(Listener.remarked)


def follow_probe(listener: Listener, watch: Watcher | None = None) -> Watcher:
    """Return a watcher that tells a listener how far a probe is, and asks `watch` to end it."""
    steps = ProbeSteps()

    def follow(event: dict[str, Any]) -> str | None:
        nonlocal steps
        steps = steps.after(event)
        listener.stepping(steps)
        return None if watch is None else watch(event)

    return follow
