"""How a job's GPUs may be divided between training and a vLLM server, and what fits. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import leanness
from autotune.space.knobs import NUM_PROCESSES, Candidate
from autotune.units import format_bytes

Pair = tuple[Candidate, Estimate]


@dataclass(frozen=True, kw_only=True)
class Division:
    """One way to divide the devices.

    Attributes:
        training: devices that train, one process on each.
        generating: those of the server.
        idle: the others.
        candidates: how many train so.
        fitting: how many of them fit, on both sides.
        shown: the fastest that fits, or the leanest.
        training_short_bytes: by how much the leanest is too large for each device that trains;
            None: some candidate fits there.
        server_short_bytes: the same of the server's.
    """

    training: int
    generating: int
    idle: int
    candidates: int
    fitting: int
    shown: Pair
    training_short_bytes: int | None
    server_short_bytes: int | None

    def plain(self) -> dict[str, Any]:
        """Return the division as JSON data."""
        candidate, estimate = self.shown
        assert estimate.server is not None
        return {
            "training": self.training,
            "generating": self.generating,
            "idle": self.idle,
            "candidates": self.candidates,
            "fit": self.fitting,
            "knobs": candidate.knobs,
            "peak_memory_bytes": estimate.peak_memory_bytes,
            "server": estimate.server.plain(),
            "training_short_bytes": self.training_short_bytes,
            "server_short_bytes": self.server_short_bytes,
        }


def divisions(pairs: Iterable[Pair], devices: int) -> list[Division]:
    """Return every division among candidates, those that train on most devices first.

    Args:
        pairs: every candidate with its estimate, the best first.
        devices: of the job.
    """
    groups: dict[tuple[int, int], list[Pair]] = {}
    for candidate, estimate in pairs:
        if estimate.server is not None:
            key = (int(candidate[NUM_PROCESSES]), estimate.server.devices)
            groups.setdefault(key, []).append((candidate, estimate))
    return [_division(*key, groups[key], devices) for key in sorted(groups, reverse=True)]


def _division(training: int, generating: int, members: list[Pair], devices: int) -> Division:
    fitting = [pair for pair in members if pair[1].fits]
    leanest = min(members, key=leanness)
    servers = [
        estimate.server.missing_bytes for _, estimate in members if estimate.server is not None
    ]
    return Division(
        training=training,
        generating=generating,
        idle=devices - training - generating,
        candidates=len(members),
        fitting=len(fitting),
        shown=fitting[0] if fitting else leanest,
        training_short_bytes=_least(estimate.missing_bytes for _, estimate in members),
        server_short_bytes=_least(servers),
    )


def _least(shortfalls: Iterable[int | None]) -> int | None:
    """Return the least of what is missing; None: to some nothing is."""
    values = list(shortfalls)
    return None if None in values else min(value for value in values if value is not None)


def divisions_table(divisions: Iterable[Division]) -> Table:
    """Return a line for each division: how many candidates fit, what each device takes, and why
    none fits."""
    table = Table(box=None, pad_edge=False)
    for name in ("train", "generate", "idle", "fit", "each that trains", "each that generates"):
        table.add_column(name, justify="right")
    table.add_column("why not")
    for division in divisions:
        _, estimate = division.shown
        assert estimate.server is not None
        needs = estimate.server
        table.add_row(
            str(division.training),
            str(division.generating),
            str(division.idle),
            f"{division.fitting} of {division.candidates}",
            format_bytes(estimate.peak_memory_bytes),
            f"{format_bytes(needs.needed_bytes)} of {format_bytes(needs.given_bytes)}",
            escape("; ".join(why_not(division))),
        )
    return table


def why_not(division: Division) -> Iterator[str]:
    """Yield which side does not fit, and by how much; nothing where something fits."""
    if division.training_short_bytes is not None:
        shortfall = format_bytes(division.training_short_bytes)
        yield f"training: the leanest is {shortfall} short on each GPU"
    if division.server_short_bytes is not None:
        _, estimate = division.shown
        assert estimate.server is not None
        weights = format_bytes(estimate.server.weights_bytes)
        cache = format_bytes(estimate.server.cache_bytes or 0)
        shortfall = format_bytes(division.server_short_bytes)
        yield f"server: {shortfall} short on each GPU (weights {weights}, caches {cache})"
    if (
        not division.fitting
        and division.training_short_bytes is None
        and division.server_short_bytes is None
    ):
        yield "what fits the training does not fit the server, and the other way round"
