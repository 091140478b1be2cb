"""What a report of a run says: plain values, the same for every format. Pure.

Speeds are tokens per second, sizes bytes, times seconds. None: the run's folder does not hold it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Standing = Literal["recommended", "ok", "over headroom", "failed", "cut short"]
"""`cut short`: a probe that says nothing of its candidate, or still runs."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The estimate of a candidate before any probe."""

    tokens_per_s: float | None
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One probe.

    Attributes:
        outcome: as it was measured; `running` where there is none yet.
        least_bytes: what it needs at least, where it ran out of memory on the way: its peak is that
            of a part of it.
        began_s: seconds of the clock that the probes before it took together.
        seconds: that it had its devices.
        node: where it ran; None: where the run did.
    """

    number: int
    candidate: str
    standing: Standing
    outcome: str
    reason: str
    tokens_per_s: float | None
    uncertainty: float | None
    peak_memory_bytes: int | None
    least_bytes: int | None
    expected: Expected | None
    began_s: float
    seconds: float
    node: str | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A candidate that was probed, all its probes as one.

    Attributes:
        outcome: what a person has to know of it, in a word or two.
    """

    numbers: tuple[int, ...]
    candidate: str
    standing: Standing
    outcome: str
    tokens_per_s: float | None
    uncertainty: float | None
    peak_memory_bytes: int | None
    least_bytes: int | None
    expected: Expected | None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The recommended candidate, or the best so far.

    Attributes:
        text: the candidate in words; it and the figures are None where the study does not hold
            the probe.
        bundle: the folder of its files; None: there is none.
        knobs: (name, value) of all.
    """

    probe: int
    recommended: bool
    text: str | None
    tokens_per_s: float | None
    uncertainty: float | None
    peak_memory_bytes: int | None
    epoch_s: float | None
    reasons: tuple[str, ...]
    verified: bool
    verification: str
    bundle: str | None
    knobs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The estimated peak of a candidate by part.

    Attributes:
        what: `recommended`, `runner-up` or `default`.
        parts: as they stand in the estimate; they add up to `estimated_bytes`.
        at_least: whether more is needed, which was not traced.
        measured_bytes: its peak, where it was probed.
    """

    what: str
    candidate: str
    parts: Mapping[str, int]
    estimated_bytes: int
    at_least: bool
    measured_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The fastest with one value of a knob, everything else free, of what is within memory.

    Attributes:
        probes: how many measured speeds the first figure is the best of.
        estimates: the same of the second.
    """

    label: str
    is_default: bool
    measured: float | None
    probe: int | None
    probes: int
    estimated: float | None
    estimates: int


@dataclass(frozen=True, kw_only=True)
class KnobWorth:
    """The worth of each value of a knob."""

    name: str
    why: str
    values: tuple[Worth, ...]


@dataclass(frozen=True, kw_only=True)
class Content:
    """The report of a run.

    Attributes:
        headline: what the run came to, in a sentence.
        said: what else there is to say of the search: why it ended, what it saved, its noise.
        absent: what the folder does not hold, and so is not shown.
        damaged: what of its files could not be read.
        limit_bytes, allowed_bytes: what a probe may take; what may be recommended.
        compared: how far the estimates were off, in sentences.
        skipped: why candidates needed no probe, in sentences.
        excluded: why combinations never were candidates, and how many.
        unprobed: values that the job lists and no probe has measured, in sentences.
        about: (name, value) of the job, the machine and the versions.
        commands: (what for, command) to do it again.
    """

    title: str
    method: str
    headline: str
    chosen: Chosen | None
    said: tuple[str, ...]
    notes: tuple[str, ...]
    absent: tuple[str, ...]
    damaged: tuple[str, ...]
    limit_bytes: int
    allowed_bytes: int
    probes: tuple[Probe, ...]
    lines: tuple[Line, ...]
    shared: str
    """What all candidates of `lines` have in common, of the knobs that were searched."""
    memory: tuple[Memory, ...]
    compared: tuple[str, ...]
    speed_knobs: tuple[KnobWorth, ...]
    recipe_knobs: tuple[KnobWorth, ...]
    skipped: tuple[str, ...]
    excluded: tuple[tuple[str, int], ...]
    unprobed: tuple[str, ...]
    machine: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    about: tuple[tuple[str, str], ...]
    job: str
    commands: tuple[tuple[str, str], ...]
