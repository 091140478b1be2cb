"""Recorded grids as problems to replay: a limit, perhaps a part of the space, and the truth."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.residual import Residual
from autotune.plain_data import from_plain
from autotune.run.expectations import Expectations
from autotune.search.sampler.expected import Expected, Params
from autotune.search.sampler.params import choice, expected_of
from autotune.space.knobs import Candidate, from_knobs
from benchmarks.search.smoothing import smoothed

HEADROOM = 0.1
DISTURBED = 0.03
"""Share of the time that threads waited for a core, beyond which a probe is left out."""
LEAST_CANDIDATES, LEAST_FITTING = 12, 4


@dataclass(frozen=True)
class Truth:
    """What a candidate's probes came to: the smoothed speed, the mean peak, the mean seconds."""

    tokens_per_s: float
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Grid:
    """All candidates of one recorded space.

    Attributes:
        noise: relative standard deviation of one probe against another (speed, peak).
        error: relative standard error of a smoothed speed.
        left_out: relative error of a reading by the fit of all the others.
    """

    name: str
    about: Mapping[str, Any]
    prior: Residual
    candidates: Sequence[Candidate]
    estimates: Mapping[str, Estimate]
    truths: Mapping[str, Truth]
    noise: tuple[float, float]
    error: float
    left_out: float

    @cached_property
    def free(self) -> list[str]:
        """Knobs that vary, without the accumulation, which follows."""
        names = self.candidates[0].values
        return [n for n in names if len({repr(c[n]) for c in self.candidates}) > 1]

    @cached_property
    def params(self) -> dict[str, Params]:
        """Of each candidate, by its key."""
        return {c.key: {name: choice(c[name]) for name in self.free} for c in self.candidates}


@dataclass(frozen=True)
class Problem:
    """A grid, or a part of it, under a limit. Everything that a sampler may know, and the truth."""

    grid: Grid
    name: str
    candidates: Sequence[Candidate]
    limit_bytes: int

    @property
    def allowed_bytes(self) -> int:
        """Memory that a recommended candidate may take."""
        return int(self.limit_bytes * (1 - HEADROOM))

    def params(self, candidate: Candidate) -> Params:
        """As Optuna has them."""
        return self.grid.params[candidate.key]

    def expected(self, candidate: Candidate) -> Expected:
        """What our sampler is told."""
        return expected_of(self.grid.estimates.get(candidate.key))

    def expectations(self) -> Expectations:
        """What a run would expect under this limit."""
        return Expectations(
            estimates=self.grid.estimates, prior=self.grid.prior, limit_bytes=self.limit_bytes
        )

    def truth(self, candidate: Candidate) -> Truth:
        """What it really does."""
        return self.grid.truths[candidate.key]

    def fits(self, candidate: Candidate) -> bool:
        """Whether it leaves the headroom free in all but one of 40 probes."""
        return self.truth(candidate).peak_bytes * (1 + 2 * self.grid.noise[1]) <= self.allowed_bytes

    @cached_property
    def best(self) -> float:
        """Tokens/s of the fastest that leaves the headroom free."""
        return max(self.truth(c).tokens_per_s for c in self.candidates if self.fits(c))


def undisturbed(row: dict[str, Any]) -> bool:
    """Whether nobody else took the cores while this probe was timed."""
    return (row.get("measurement", {}).get("processor_wait_share") or 0.0) <= DISTURBED


def read_grid(file: Path) -> Grid:
    """The grid of a recording."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["row"]].append(row)
    estimates = {
        from_knobs(row["knobs"]).key: from_plain(Estimate, row["estimate"])
        for row in rows["estimate"]
    }
    readings: dict[str, list[dict[str, Any]]] = defaultdict(list)
    rows["probe"] = [row for row in rows["probe"] if undisturbed(row)]
    for row in rows["probe"]:
        if row["measurement"]["outcome"] == "ok":
            readings[from_knobs(row["knobs"]).key].append(row["measurement"])
    candidates = [from_knobs(row["knobs"]) for row in rows["estimate"]]
    measured = [one for one in candidates if one.key in readings]
    order = [row for row in rows["probe"] if row["measurement"]["outcome"] == "ok"]
    values = {one.key: tuple(repr(one[name]) for name in one.values) for one in measured}
    fit = smoothed(
        [values[from_knobs(row["knobs"]).key] for row in order],
        [math.log(row["measurement"]["tokens_per_s"]) for row in order],
    )
    return Grid(
        name=file.stem,
        about=rows["about"][0],
        prior=Residual(**rows["prior"][0]["prior"]),
        candidates=measured,
        estimates=estimates,
        truths={
            key: _truth(some, math.exp(fit.truths[values[key]])) for key, some in readings.items()
        },
        noise=(_noise(readings, "tokens_per_s"), _noise(readings, "peak_memory_bytes")),
        error=fit.error,
        left_out=fit.left_out,
    )


def _truth(readings: Sequence[Mapping[str, Any]], speed: float) -> Truth:
    return Truth(
        tokens_per_s=speed,
        peak_bytes=round(statistics.fmean(one["peak_memory_bytes"] for one in readings)),
        seconds=statistics.fmean(one["seconds"] for one in readings),
    )


def _noise(readings: Mapping[str, Sequence[Mapping[str, Any]]], figure: str) -> float:
    """Standard deviation of one reading around its candidate's mean, relative."""
    squares, freedom = 0.0, 0
    for some in readings.values():
        logs = [math.log(one[figure]) for one in some]
        squares += sum((one - statistics.fmean(logs)) ** 2 for one in logs)
        freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def problems(grid: Grid) -> Iterator[Problem]:
    """The whole grid and its parts with one knob pinned, each on machines that all of the grid's
    candidates fit on, or 75, 50 or 25% of them."""
    parts = [("all", list(grid.candidates))]
    for name in grid.free:
        for label in sorted({repr(c[name]) for c in grid.candidates}):
            part = [c for c in grid.candidates if repr(c[name]) == label]
            parts.append((f"{name}={label}", part))
    peaks = sorted(grid.truths[c.key].peak_bytes for c in grid.candidates)
    limits = {"roomy": 2.0 * peaks[-1]}
    for share in (0.75, 0.5, 0.25):
        limits[f"{100 * share:.0f}% fit"] = peaks[int(share * len(peaks))] / (1 - HEADROOM)
    for name, part in parts:
        for word, limit in limits.items():
            problem = Problem(grid, f"{name}, {word}", part, int(limit) + 1)
            fitting = sum(problem.fits(c) for c in part)
            if fitting >= LEAST_FITTING and len(part) >= LEAST_CANDIDATES:
                yield problem


def knobs_of_default(grid: Grid) -> dict[str, Any]:
    """The stack's default for every knob that the grid has, its micro-batch aside."""
    wanted = {
        "gradient_checkpointing": True,
        "attn_implementation": "sdpa",
        "loss_type": "chunked_nll",
        "padding_free": False,
        "train_sampling_strategy": "random",
        "optim": "adamw_torch_fused",
    }
    return {name: value for name, value in wanted.items() if name in grid.free}
