"""Recorded grids as problems to replay: a memory limit, perhaps a part of the space, and the truth."""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.estimates import Estimate, estimate_from_plain
from autotune.estimate.memory import Residual
from autotune.expectations import Expectations
from autotune.search.expected import Expected, Params
from autotune.search.params import choice, expected_of
from autotune.space.knobs import Candidate, from_knobs

HEADROOM = 0.1
LEAST_CANDIDATES = 12


@dataclass(frozen=True)
class Truth:
    """What a candidate's probes came to: the median speed, the highest peak, the mean seconds."""

    tokens_per_s: float
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Grid:
    """All candidates of one recorded space; `noise`: relative, of one probe (speed, peak)."""

    name: str
    about: Mapping[str, Any]
    prior: Residual
    candidates: Sequence[Candidate]
    estimates: Mapping[str, Estimate]
    truths: Mapping[str, Truth]
    noise: tuple[float, float]

    @property
    def free(self) -> list[str]:
        """Knobs that vary, without the accumulation, which follows."""
        names = self.candidates[0].values
        return [n for n in names if len({repr(c[n]) for c in self.candidates}) > 1]


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
        return {name: choice(candidate[name]) for name in self.grid.free}

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

    @property
    def best(self) -> float:
        """Tokens/s of the fastest that leaves the headroom free; 0 where none does."""
        fitting = (self.truth(c) for c in self.candidates)
        return max(
            (t.tokens_per_s for t in fitting if t.peak_bytes <= self.allowed_bytes), default=0.0
        )


def read_grid(file: Path) -> Grid:
    """The grid of a recording."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["row"]].append(row)
    estimates = {
        from_knobs(row["knobs"]).key: estimate_from_plain(row["estimate"])
        for row in rows["estimate"]
    }
    readings: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows["probe"]:
        if row["measurement"]["outcome"] == "ok":
            readings[from_knobs(row["knobs"]).key].append(row["measurement"])
    candidates = [from_knobs(row["knobs"]) for row in rows["estimate"]]
    measured = [one for one in candidates if one.key in readings]
    return Grid(
        name=file.stem,
        about=rows["about"][0],
        prior=Residual(**rows["prior"][0]["prior"]),
        candidates=measured,
        estimates=estimates,
        truths={key: _truth(some) for key, some in readings.items()},
        noise=(_noise(readings, "tokens_per_s"), _noise(readings, "peak_memory_bytes")),
    )


def _truth(readings: Sequence[Mapping[str, Any]]) -> Truth:
    return Truth(
        tokens_per_s=statistics.median(one["tokens_per_s"] for one in readings),
        peak_bytes=max(one["peak_memory_bytes"] for one in readings),
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
    """The whole grid and its parts with one knob pinned, each under several limits."""
    parts = [("all", grid.candidates)]
    for name in grid.free:
        for label in sorted({repr(c[name]) for c in grid.candidates}):
            part = [c for c in grid.candidates if repr(c[name]) == label]
            parts.append((f"{name}={label}", part))
    for name, part in parts:
        if len(part) < LEAST_CANDIDATES:
            continue
        peaks = sorted(grid.truths[c.key].peak_bytes for c in part)
        limits = {"roomy": 2.0 * peaks[-1]}
        for share in (0.75, 0.5, 0.25):
            limits[f"{100 * share:.0f}% fit"] = peaks[int(share * len(peaks))] / (1 - HEADROOM)
        for word, limit in limits.items():
            problem = Problem(grid, f"{name}, {word}", part, int(limit) + 1)
            if problem.best:
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
