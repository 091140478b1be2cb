"""Simulated probes: the recorded speed, peak and time of a candidate, each times a draw of its
spread."""

import json
import math
import random
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from autotune.probe.protocol import Measurement
from autotune.search.repeats import SD_95
from benchmarks.search.grid import Problem, undisturbed

OOM_SHARE = 0.3
"""An out-of-memory tells this share of the bytes that are really missing (as in a replay)."""
REPORTS = (0.25, 0.5, 0.75)
"""Shares of a probe's training after which it reports a speed."""
LEAST_INTERVAL = 0.03
STRAGGLERS, SLOWER = 0.02, 1.5
"""The share of probes on a machine that is slow, and how much slower it is."""
MEAN_S = 14.5
"""The mean seconds of a probe on an H200 and on an H100 (benchmarks/README.md)."""


@dataclass(frozen=True)
class Recorded:
    """The time of a grid's probes.

    Attributes:
        stretch: from the seconds recorded on a CPU to those of a GPU.
        sd: of the logarithm of the seconds of one candidate.
        train_share: of a probe's seconds.
        uncertainty: half-width of a probe's own interval around its speed.
    """

    stretch: float
    sd: float
    train_share: float
    uncertainty: float


@cache
def recorded(file: Path) -> Recorded:
    """Return the time of a grid's probes."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    rows = [row for row in lines if row["row"] == "probe" and undisturbed(row)]
    found = [row["measurement"] for row in rows if row["measurement"]["outcome"] == "ok"]
    by_knobs = defaultdict(list)
    for row in rows:
        if row["measurement"]["outcome"] == "ok":
            by_knobs[str(row["knobs"])].append(math.log(row["measurement"]["seconds"]))
    repeated = [logs for logs in by_knobs.values() if len(logs) > 1]
    squares = sum((one - statistics.fmean(logs)) ** 2 for logs in repeated for one in logs)
    return Recorded(
        stretch=MEAN_S / statistics.fmean(one["seconds"] for one in found),
        sd=math.sqrt(squares / sum(len(logs) - 1 for logs in repeated)),
        train_share=statistics.median(one["stages_s"]["train"] / one["seconds"] for one in found),
        uncertainty=statistics.median(one["relative_uncertainty"] for one in found),
    )


@dataclass(frozen=True)
class Course:
    """One probe from its start to its end.

    Attributes:
        before_s, train_s: seconds before its training and of it, once the model is read.
        speed: tokens/s that it measures.
        job_tokens: of the whole job.
    """

    problem: Problem
    before_s: float
    train_s: float
    speed: float
    peak: int
    uncertainty: float
    job_tokens: float

    def steps(self, start_s: float) -> list[tuple[float, dict[str, Any] | Measurement]]:
        """Return its events and its end, each with the seconds since its start.

        Args:
            start_s: seconds before its start, which count in its own.
        """
        limit = self.problem.limit_bytes
        if self.peak > limit:
            at = self.before_s + REPORTS[0] * self.train_s
            missing = max(round(OOM_SHARE * (self.peak - limit)), 1)
            return [(at, self._ended("oom", at + start_s, missing_bytes=missing))]
        reports = [
            (
                self.before_s + share * self.train_s,
                {
                    "event": "estimate",
                    "step": number,
                    "optimistic_tokens_per_s": self.speed * (1 + self.interval(share)),
                },
            )
            for number, share in enumerate(REPORTS)
        ]
        at = self.before_s + self.train_s
        return [*reports, (at, self._ended("ok", at + start_s, **self._figures(1.0)))]

    def interval(self, share: float) -> float:
        """Return the relative half-width of its interval after a share of its training."""
        return max(self.uncertainty / math.sqrt(share), LEAST_INTERVAL)

    def stopped(self, reason: str, seconds: float, start_s: float) -> Measurement:
        """Return its end where it is asked to end, `seconds` after its start."""
        share = min(max((seconds - self.before_s) / self.train_s, REPORTS[0]), 1.0)
        return self._ended("stopped", seconds + start_s, **self._figures(share), why=reason)

    def _figures(self, share: float) -> dict[str, Any]:
        uncertainty = self.uncertainty / math.sqrt(share)
        return {"tokens_per_s": self.speed, "relative_uncertainty": uncertainty}

    def _ended(
        self, outcome: str, seconds: float, why: str = "simulated", **figures: Any
    ) -> Measurement:
        return Measurement(
            outcome=outcome,
            reason=why,
            seconds=round(seconds, 4),
            peak_memory_bytes=None if outcome == "oom" else self.peak,
            memory_limit_bytes=self.problem.limit_bytes,
            tokens_per_epoch=self.job_tokens,
            **figures,
        )


def course_of(
    problem: Problem,
    key: str,
    count: int,
    *,
    seed: int,
    about: Recorded,
    longer: float = 1.0,
    noise: float = 1.0,
    job_s: float,
) -> Course:
    """Return the course of a probe: the same whenever a candidate is probed for that time.

    Args:
        key: of the candidate, which is probed for the `count`th time.
        longer: than a probe on one GPU.
        noise: of a speed, in parts of the recorded.
        job_s: seconds of the whole job with the best candidate.
    """
    drawn = random.Random(f"{problem.name} {seed} {key} {count}")
    truth, (speed_sd, peak_sd) = problem.grid.truths[key], problem.grid.noise
    slower = SLOWER if drawn.random() < STRAGGLERS else 1.0
    seconds = truth.seconds * about.stretch * longer * math.exp(drawn.gauss(0, about.sd)) * slower
    uncertainty = about.uncertainty * noise
    return Course(
        problem=problem,
        before_s=seconds * (1 - about.train_share),
        train_s=seconds * about.train_share,
        speed=truth.tokens_per_s * math.exp(drawn.gauss(0, noise * speed_sd)) / slower,
        peak=round(truth.peak_bytes * math.exp(drawn.gauss(0, peak_sd))),
        uncertainty=max(uncertainty, 0.001 * SD_95),
        job_tokens=job_s * problem.best,
    )
