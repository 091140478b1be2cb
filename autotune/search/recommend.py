"""The recommendation that follows from measurements, with its reasons. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from autotune.probe.outcome import busy_text, is_quiet
from autotune.probe.protocol import Measurement
from autotune.search.record import Record, excess_bytes, host_shortfall
from autotune.search.repeats import pooled, repeatability
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.units import format_bytes, format_seconds

MAX_TIE = 0.05
"""Relative distance to the fastest within which the one that takes less memory may be preferred,
however noisy the machine."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A measured candidate that may be recommended.

    Attributes:
        number: of its first probe.
        measurement: of all its probes as one.
        numbers: of all its probes.
    """

    number: int
    candidate: Candidate
    measurement: Measurement
    numbers: tuple[int, ...] = ()

    @property
    def readings(self) -> int:
        """The number of probes."""
        return max(len(self.numbers), 1)

    @property
    def tokens_per_s(self) -> float:
        """Real tokens per second, end to end."""
        assert self.measurement.tokens_per_s is not None
        return self.measurement.tokens_per_s

    @property
    def peak_memory_bytes(self) -> int:
        """Peak memory on the worst batch, in bytes."""
        return self.measurement.peak_memory_bytes or 0


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The chosen candidate, the reasons, and the alternatives."""

    chosen: Ranked
    reasons: tuple[str, ...]
    ties: tuple[Ranked, ...]
    runners_up: tuple[Ranked, ...]
    rejected: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    allowed_bytes: int | None = None
    passed_over: Mapping[int, str] = field(default_factory=dict)
    """Probes whose bundles failed verification, and why."""
    noise: float | None = None
    """Share of the time in which probes that count waited for cores that others had taken; None:
    hardly at all."""


@dataclass(frozen=True, kw_only=True)
class NothingFits:
    """The reason why no candidate may be recommended: the one that came nearest, and how far off;
    or `why`."""

    nearest: Record | None
    short_bytes: int | None
    short_is_lower_bound: bool
    rejected: Mapping[str, tuple[int, ...]]
    why: str | None = None


def recommend(
    records: Sequence[Record],
    allowed_bytes: int | None,
    passed_over: Mapping[int, str] | None = None,
    pinned: int | None = None,
) -> Recommendation | NothingFits:
    """Rank the candidates that are ok and within the headroom by tokens per second.

    Args:
        records: every probe.
        allowed_bytes: peak memory a recommended candidate may have; None: any.
        passed_over: numbers of probes whose bundles failed verification, with the reason.
        pinned: number of the probe the user wants, whatever its rank.
    """
    passed_over = passed_over or {}
    rejected = _rejected(records, allowed_bytes, passed_over)
    rejected_numbers = {number for numbers in rejected.values() for number in numbers}
    ranked = standings([record for record in records if record.number not in rejected_numbers])
    if not ranked:
        return _nothing_fits(records, allowed_bytes, rejected)
    fastest, noise = ranked[0], _noise(records)
    # Up to the first that is no tie: a noisy candidate must not win over one known to be faster.
    group = list(takewhile(lambda c: is_tie(fastest, c), ranked))
    near_fastest = [c for c in group if c.tokens_per_s >= (1 - MAX_TIE) * fastest.tokens_per_s]
    winner = min(near_fastest, key=lambda c: (c.peak_memory_bytes, -c.tokens_per_s, c.number))
    if pinned is not None and pinned not in winner.numbers:
        return _pinned(ranked, pinned, winner, rejected, allowed_bytes, passed_over, noise)
    ties = tuple(candidate for candidate in group if candidate is not winner)
    slower = tuple(candidate for candidate in ranked if candidate not in group)
    return Recommendation(
        chosen=winner,
        reasons=(
            *noise_reasons(noise),
            *_reasons(winner, fastest, ties, slower, allowed_bytes),
        ),
        ties=ties,
        runners_up=slower,
        rejected=rejected,
        allowed_bytes=allowed_bytes,
        passed_over=passed_over,
        noise=noise,
    )


def _noise(records: Sequence[Record]) -> float | None:
    """Return the highest share of waiting of the probes that count; None: all were quiet."""
    measured = (record.measurement for record in records if record.measurement is not None)
    shares = (m.processor_wait_share or 0.0 for m in measured if m.outcome in ("ok", "timeout"))
    noise = max(shares, default=0.0)
    return None if is_quiet(noise) else noise


def noise_reasons(noise: float | None) -> tuple[str, ...]:
    """Return the caveat of a ranking whose noise was accepted; empty: it was quiet."""
    if noise is None:
        return ()
    return (
        f"--accept-noise: {busy_text(noise)} while speeds were measured, so the order holds within "
        "the measured errors alone, and nothing here is verified",
    )


def standings(records: Sequence[Record]) -> list[Ranked]:
    """Return the candidates that were measured, each once, the fastest first."""
    readings: dict[str, list[Record]] = {}
    for record in records:
        if record.measurement is not None and record.measurement.outcome == "ok":
            readings.setdefault(record.candidate.key, []).append(record)
    sd = repeatability(records).sd
    ranked = [
        Ranked(
            number=group[0].number,
            candidate=group[0].candidate,
            measurement=pooled([r.measurement for r in group if r.measurement is not None], sd),
            numbers=tuple(record.number for record in group),
        )
        for group in readings.values()
    ]
    return sorted(ranked, key=lambda candidate: -candidate.tokens_per_s)


def _pinned(
    ranked: Sequence[Ranked],
    pinned: int,
    natural: Ranked,
    rejected: Mapping[str, tuple[int, ...]],
    allowed_bytes: int | None,
    passed_over: Mapping[int, str],
    noise: float | None,
) -> Recommendation | NothingFits:
    winner = next((candidate for candidate in ranked if pinned in candidate.numbers), None)
    if winner is None:
        return NothingFits(
            nearest=None, short_bytes=None, short_is_lower_bound=True, rejected=rejected
        )
    share = 100 * (winner.tokens_per_s / natural.tokens_per_s - 1)
    reason = (
        f"asked for; {share:+.0f}% tokens/s against probe {natural.number}, the recommended one"
    )
    return Recommendation(
        chosen=winner,
        reasons=(*noise_reasons(noise), reason),
        ties=(),
        runners_up=tuple(candidate for candidate in ranked if candidate is not winner),
        rejected=rejected,
        allowed_bytes=allowed_bytes,
        passed_over=passed_over,
        noise=noise,
    )


def is_tie(fastest: Ranked, candidate: Ranked) -> bool:
    """True if the two differ by no more than their measured noise."""
    noise = math.hypot(
        fastest.measurement.relative_uncertainty or 0.0,
        candidate.measurement.relative_uncertainty or 0.0,
    )
    return candidate.tokens_per_s >= fastest.tokens_per_s * (1 - noise)


def _rejected(
    records: Sequence[Record], allowed_bytes: int | None, passed_over: Mapping[int, str]
) -> dict[str, tuple[int, ...]]:
    groups: dict[str, list[int]] = {}
    reasons = {r.number: _why_rejected(r, allowed_bytes, passed_over) for r in records}
    against: dict[str, str] = {}  # what holds for one probe of a candidate holds for all of them
    for record in records:
        reason = reasons[record.number]
        if reason is not None and reason not in _SAYS_NOTHING:
            against.setdefault(record.candidate.key, reason)
    for record in records:
        reason = reasons[record.number]
        if reason is None and record.measurement is not None and record.candidate.key in against:
            reason = f"measured again, it was not as good: {against[record.candidate.key]}"
        if reason is not None:
            groups.setdefault(reason, []).append(record.number)
    return {reason: tuple(numbers) for reason, numbers in groups.items()}


def _why_rejected(
    record: Record, allowed_bytes: int | None, passed_over: Mapping[int, str]
) -> str | None:
    measurement = record.measurement
    if measurement is None or measurement.outcome in _SAYS_NOTHING:
        return measurement.outcome if measurement is not None else None
    if record.number in passed_over:
        return f"its bundle failed verification: {passed_over[record.number]}"
    if measurement.outcome != "ok":
        return measurement.outcome
    if (excess_bytes(measurement, allowed_bytes) or 0) > 0:
        return "it leaves less memory free than the headroom asks for"
    return None


_SAYS_NOTHING = ("busy", "interrupted", "stopped")
"""Outcomes that do not speak against another probe of the same candidate."""


def _reasons(
    winner: Ranked,
    fastest: Ranked,
    ties: Collection[Ranked],
    slower: Sequence[Ranked],
    allowed_bytes: int | None,
) -> list[str]:
    noise = winner.measurement.relative_uncertainty
    precision = f" (+-{100 * noise:.1f}%)" if noise is not None else ""
    if winner.readings > 1:
        precision = f" ({precision[2:-1]}, {winner.readings} probes)"
    reasons = []
    if winner is fastest:
        reasons.append(f"fastest stable candidate: {winner.tokens_per_s:.0f} tokens/s{precision}")
    else:
        reasons.append(
            f"{winner.tokens_per_s:.0f} tokens/s{precision} is within the noise of the fastest, "
            f"{fastest.tokens_per_s:.0f} tokens/s (probe {fastest.number}), and takes "
            f"{format_bytes(fastest.peak_memory_bytes - winner.peak_memory_bytes)} less memory"
        )
    reasons += _phases(winner.measurement)
    if ties and winner is fastest:
        what = f"{len(ties)} other candidate(s) are within the noise of it"
        leaner = min(candidate.peak_memory_bytes for candidate in ties) < winner.peak_memory_bytes
        reasons.append(what if leaner else f"{what}, but take more memory")
    if slower:
        gain = winner.tokens_per_s / slower[0].tokens_per_s - 1
        reasons.append(f"{100 * gain:.0f}% faster than the next best (probe {slower[0].number})")
    if allowed_bytes is not None:
        reasons.append(
            f"its peak of {format_bytes(winner.peak_memory_bytes)} is within the "
            f"{format_bytes(allowed_bytes)} that the headroom leaves"
        )
    return reasons


def _phases(m: Measurement) -> list[str]:
    """Return the shares of a step's time, where completions are generated."""
    if m.generation_s is None or m.completions_per_s is None:
        return []
    phases = {"generation": m.generation_s, "scoring": m.scoring_s, "update": m.update_s}
    phases["the optimizer"] = m.optimizer_step_time_s
    parts = ", ".join(f"{name} {format_seconds(seconds or 0)}" for name, seconds in phases.items())
    peaks = {"generation": m.generation_peak_bytes, "scoring": m.scoring_peak_bytes}
    peaks["update"] = m.update_peak_bytes
    highest = ", ".join(f"{name} {format_bytes(size or 0)}" for name, size in peaks.items())
    return [
        f"{m.completions_per_s:.3g} completions/s, all of full length (those that end early take "
        f"less); of a step {parts}",
        f"peaks: {highest}",
    ]


def _nothing_fits(
    records: Sequence[Record], allowed_bytes: int | None, rejected: Mapping[str, tuple[int, ...]]
) -> NothingFits:
    """Return the candidate that came nearest: one that ran but took too much; else the leanest
    refused."""
    failures = [
        (record.measurement.outcome == "oom", excess, record)
        for record in records
        if record.measurement is not None
        and (excess := excess_bytes(record.measurement, allowed_bytes)) is not None
        and excess > 0
    ]
    too_large = [failure for failure in failures if not failure[0]]
    if too_large:
        _, excess, nearest = min(too_large, key=lambda f: (f[1], f[2].number))
    elif failures:
        _, excess, nearest = min(failures, key=lambda f: expected_leanness(f[2].candidate))
    else:
        return NothingFits(
            nearest=None,
            short_bytes=None,
            short_is_lower_bound=True,
            rejected=rejected,
            why=host_shortfall(records),
        )
    return NothingFits(
        nearest=nearest,
        short_bytes=int(excess),
        short_is_lower_bound=not too_large,
        rejected=rejected,
    )
