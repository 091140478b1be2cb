"""How a search stands: what of its budget is used, the best so far, what the next probe promises;
and how far a running probe is. Plain data, for whoever listens."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.search.recommend import Ranked
from autotune.search.rules.stopping import Outlook


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A search between two probes.

    Attributes:
        probes: that the budget counts, of at most `most_probes`.
        probing_s: what they took, in seconds, of at most `most_probing_s`.
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
        """JSON-ready data."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        best, outlook = self.best, self.outlook
        return {
            **fields,
            "best": None if best is None else _best_plain(best),
            "outlook": None if outlook is None else dataclasses.asdict(outlook),
        }


def _best_plain(best: Ranked) -> dict[str, Any]:
    return {
        "probe": best.number,
        "knobs": best.candidate.knobs,
        "tokens_per_s": best.tokens_per_s,
        "relative_uncertainty": best.measurement.relative_uncertainty,
        "peak_memory_bytes": best.measurement.peak_memory_bytes,
    }


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
        """Return where it is after an event that its child told (`probe/step_meter.py`)."""
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
