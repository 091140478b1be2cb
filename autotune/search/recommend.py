"""From measurements to a recommendation, with its reasons. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from autotune.probe.protocol import Measurement
from autotune.search.record import Record, excess_bytes, host_shortfall
from autotune.search.repeats import pooled, repeatability
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.units import format_bytes, format_seconds

MAX_TIE = 0.05
"""However noisy the machine, the one that takes less memory is preferred only this near the
fastest."""


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
        """How many probes there were."""
        return max(len(self.numbers), 1)

    @property
    def tokens_per_s(self) -> float:
        """Real tokens per second, end to end."""
        assert self.measurement.tokens_per_s is not None
        return self.measurement.tokens_per_s

    @property
    def peak_memory_bytes(self) -> int:
        """Peak on the worst batch."""
        return self.measurement.peak_memory_bytes or 0


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The chosen candidate, why it, and what else was there."""

    chosen: Ranked
    reasons: tuple[str, ...]
    ties: tuple[Ranked, ...]
    runners_up: tuple[Ranked, ...]
    rejected: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    allowed_bytes: int | None = None
    passed_over: Mapping[int, str] = field(default_factory=dict)
    """Probes whose bundles failed verification, and why."""


@dataclass(frozen=True, kw_only=True)
class NothingFits:
    """No candidate may be recommended: the one that came nearest, and how far off; or `why`."""

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
    out = {number for numbers in rejected.values() for number in numbers}
    ranked = _standings([record for record in records if record.number not in out])
    if not ranked:
        return _nothing_fits(records, allowed_bytes, rejected)
    fastest = ranked[0]
    # Up to the first that is no tie: a noisy candidate must not win over one known to be faster.
    group = list(takewhile(lambda one: is_tie(fastest, one), ranked))
    near = [one for one in group if one.tokens_per_s >= (1 - MAX_TIE) * fastest.tokens_per_s]
    chosen = min(near, key=lambda one: (one.peak_memory_bytes, -one.tokens_per_s, one.number))
    if pinned is not None and pinned not in chosen.numbers:
        return _pinned(ranked, pinned, chosen, rejected, allowed_bytes, passed_over)
    ties = tuple(one for one in group if one is not chosen)
    rest = tuple(one for one in ranked if one not in group)
    return Recommendation(
        chosen=chosen,
        reasons=tuple(_reasons(chosen, fastest, ties, rest, allowed_bytes)),
        ties=ties,
        runners_up=rest,
        rejected=rejected,
        allowed_bytes=allowed_bytes,
        passed_over=passed_over,
    )


def _standings(records: Sequence[Record]) -> list[Ranked]:
    """The candidates that were measured, each once, the fastest first."""
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
    return sorted(ranked, key=lambda one: -one.tokens_per_s)


def _pinned(
    ranked: Sequence[Ranked],
    pinned: int,
    natural: Ranked,
    rejected: Mapping[str, tuple[int, ...]],
    allowed_bytes: int | None,
    passed_over: Mapping[int, str],
) -> Recommendation | NothingFits:
    wanted = next((one for one in ranked if pinned in one.numbers), None)
    if wanted is None:
        return NothingFits(
            nearest=None, short_bytes=None, short_is_lower_bound=True, rejected=rejected
        )
    share = 100 * (wanted.tokens_per_s / natural.tokens_per_s - 1)
    reason = (
        f"asked for; {share:+.0f}% tokens/s against probe {natural.number}, the recommended one"
    )
    return Recommendation(
        chosen=wanted,
        reasons=(reason,),
        ties=(),
        runners_up=tuple(one for one in ranked if one is not wanted),
        rejected=rejected,
        allowed_bytes=allowed_bytes,
        passed_over=passed_over,
    )


def is_tie(fastest: Ranked, other: Ranked) -> bool:
    """Whether the two differ by no more than their measured noise."""
    noise = math.hypot(
        fastest.measurement.relative_uncertainty or 0.0,
        other.measurement.relative_uncertainty or 0.0,
    )
    return other.tokens_per_s >= fastest.tokens_per_s * (1 - noise)


def _rejected(
    records: Sequence[Record], allowed_bytes: int | None, passed_over: Mapping[int, str]
) -> dict[str, tuple[int, ...]]:
    groups: dict[str, list[int]] = {}
    reasons = {r.number: _why_rejected(r, allowed_bytes, passed_over) for r in records}
    against: dict[str, str] = {}  # what holds for one probe of a candidate holds for all of them
    for record in records:
        why = reasons[record.number]
        if why is not None and why not in _SAYS_NOTHING:
            against.setdefault(record.candidate.key, why)
    for record in records:
        why = reasons[record.number]
        if why is None and record.measurement is not None and record.candidate.key in against:
            why = f"measured again, it was not as good: {against[record.candidate.key]}"
        if why is not None:
            groups.setdefault(why, []).append(record.number)
    return {why: tuple(numbers) for why, numbers in groups.items()}


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
    chosen: Ranked,
    fastest: Ranked,
    ties: Collection[Ranked],
    rest: Sequence[Ranked],
    allowed_bytes: int | None,
) -> list[str]:
    noise = chosen.measurement.relative_uncertainty
    known = f" (+-{100 * noise:.1f}%)" if noise is not None else ""
    if chosen.readings > 1:
        known = f" ({known[2:-1]}, {chosen.readings} probes)"
    reasons = []
    if chosen is fastest:
        reasons.append(f"fastest stable candidate: {chosen.tokens_per_s:.0f} tokens/s{known}")
    else:
        reasons.append(
            f"{chosen.tokens_per_s:.0f} tokens/s{known} is within the noise of the fastest, "
            f"{fastest.tokens_per_s:.0f} tokens/s (probe {fastest.number}), and takes "
            f"{format_bytes(fastest.peak_memory_bytes - chosen.peak_memory_bytes)} less memory"
        )
    reasons += _phases(chosen.measurement)
    if ties and chosen is fastest:
        what = f"{len(ties)} other candidate(s) are within the noise of it"
        leaner = min(one.peak_memory_bytes for one in ties) < chosen.peak_memory_bytes
        reasons.append(what if leaner else f"{what}, but take more memory")
    if rest:
        gain = chosen.tokens_per_s / rest[0].tokens_per_s - 1
        reasons.append(f"{100 * gain:.0f}% faster than the next best (probe {rest[0].number})")
    if allowed_bytes is not None:
        reasons.append(
            f"its peak of {format_bytes(chosen.peak_memory_bytes)} is within the "
            f"{format_bytes(allowed_bytes)} that the headroom leaves"
        )
    return reasons


def _phases(m: Measurement) -> list[str]:
    """Where the time of a step goes, where completions are generated."""
    if m.generation_s is None or m.completions_per_s is None:
        return []
    phases = {"generation": m.generation_s, "scoring": m.scoring_s, "update": m.update_s}
    phases["the optimizer"] = m.optimizer_step_time_s
    each = ", ".join(f"{name} {format_seconds(seconds or 0)}" for name, seconds in phases.items())
    peaks = {"generation": m.generation_peak_bytes, "scoring": m.scoring_peak_bytes}
    peaks["update"] = m.update_peak_bytes
    highest = ", ".join(f"{name} {format_bytes(size or 0)}" for name, size in peaks.items())
    return [
        f"{m.completions_per_s:.3g} completions/s, all of full length (those that end early take "
        f"less); of a step {each}",
        f"peaks: {highest}",
    ]


def _nothing_fits(
    records: Sequence[Record], allowed_bytes: int | None, rejected: Mapping[str, tuple[int, ...]]
) -> NothingFits:
    """The candidate that came nearest: one that ran but took too much; else the leanest refused."""
    short = [
        (record.measurement.outcome == "oom", excess, record)
        for record in records
        if record.measurement is not None
        and (excess := excess_bytes(record.measurement, allowed_bytes)) is not None
        and excess > 0
    ]
    ran = [one for one in short if not one[0]]
    if ran:
        _, excess, nearest = min(ran, key=lambda one: (one[1], one[2].number))
    elif short:
        _, excess, nearest = min(short, key=lambda one: expected_leanness(one[2].candidate))
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
        short_is_lower_bound=not ran,
        rejected=rejected,
    )
