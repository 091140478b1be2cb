"""The probes of a run, one by one, as one line a candidate, and what they make the values of a knob
worth. Pure."""

from collections.abc import Collection, Mapping, Sequence

from autotune.estimate.estimate import Estimate
from autotune.probe.protocol import Measurement
from autotune.report.content import Expected, KnobWorth, Line, Probe, Standing, Worth
from autotune.report.words import describe
from autotune.search.recommend import standings
from autotune.search.record import Record, excess_bytes
from autotune.space.bind import SearchSpace
from autotune.space.knobs import BoundKnob, Candidate, value_label

WITHIN = ("recommended", "ok")
"""Standings of probes that ran within what may be recommended."""
CUT_SHORT = ("busy", "interrupted", "stopped")
_FIRST: tuple[Standing, ...] = ("recommended", "over headroom", "failed", "ok", "cut short")
"""Of a candidate whose probes ended in several ways, the first of these stands for it."""


def varying(records: Sequence[Record], free: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return names of the knobs that tell probed candidates apart, and of those in which they
    agree."""
    labels = {
        name: {value_label(record.candidate.values.get(name)) for record in records}
        for name in free
    }
    return [n for n in free if len(labels[n]) > 1], [n for n in free if len(labels[n]) == 1]


def shared_text(records: Sequence[Record], names: Sequence[str]) -> str:
    """Return the values in which all probed candidates agree: `dtype: float32, optim:
    adamw_torch`."""
    if not records:
        return ""
    values = records[0].candidate.values
    return ", ".join(f"{name}: {value_label(values.get(name))}" for name in names)


def probe_list(
    records: Sequence[Record],
    names: Sequence[str],
    estimates: Mapping[str, Estimate],
    allowed_bytes: int,
    recommended: Collection[int],
    passed_over: Mapping[int, str],
) -> list[Probe]:
    """Return every probe, in order.

    Args:
        names: knobs that tell the candidates apart.
        recommended: numbers of the recommended candidate's probes.
        passed_over: numbers of probes whose bundles failed their verification, and why.
    """
    began_s, probes = 0.0, []
    for record in records:
        m = record.measurement
        seconds = 0.0 if m is None else m.seconds
        probes.append(
            Probe(
                number=record.number,
                candidate=describe(record.candidate, names),
                standing=_standing(record, allowed_bytes, recommended, passed_over),
                outcome="running" if m is None else m.outcome,
                reason=passed_over.get(record.number) or ("" if m is None else m.reason),
                tokens_per_s=None if m is None else m.tokens_per_s,
                uncertainty=None if m is None else m.relative_uncertainty,
                peak_memory_bytes=None if m is None else m.peak_memory_bytes,
                least_bytes=least_bytes(m),
                expected=_expected(estimates.get(record.candidate.key)),
                began_s=began_s,
                seconds=seconds,
                node=None if m is None else m.node,
            )
        )
        began_s += seconds if m is None or m.wall_s is None else m.wall_s
    return probes


def lines_of(records: Sequence[Record], probes: Sequence[Probe]) -> list[Line]:
    """Return a line for each candidate, in the order of their first probes.

    Args:
        probes: those of `records`.
    """
    pooled = {ranked.candidate.key: ranked.measurement for ranked in standings(records)}
    groups: dict[str, list[tuple[Candidate, Probe]]] = {}
    for record, probe in zip(records, probes, strict=True):
        groups.setdefault(record.candidate.key, []).append((record.candidate, probe))
    return [_line(pooled.get(key), [probe for _, probe in group]) for key, group in groups.items()]


def _line(pooled: Measurement | None, probes: Sequence[Probe]) -> Line:
    standing = next(s for s in _FIRST if any(probe.standing == s for probe in probes))
    first = next(probe for probe in probes if probe.standing == standing)
    measured = next((p for p in reversed(probes) if p.tokens_per_s is not None), first)
    peak = max((probe.peak_memory_bytes or 0 for probe in probes), default=0)
    return Line(
        numbers=tuple(probe.number for probe in probes),
        candidate=first.candidate,
        standing=standing,
        outcome=_outcome(first),
        tokens_per_s=measured.tokens_per_s if pooled is None else pooled.tokens_per_s,
        uncertainty=measured.uncertainty if pooled is None else pooled.relative_uncertainty,
        peak_memory_bytes=(peak if pooled is None else pooled.peak_memory_bytes) or None,
        least_bytes=max((p.least_bytes or 0 for p in probes), default=0) or None,
        expected=first.expected,
    )


def _outcome(probe: Probe) -> str:
    if probe.standing in ("recommended", "over headroom"):
        return probe.standing
    return "launch failed" if (probe.standing, probe.outcome) == ("failed", "ok") else probe.outcome


def _standing(
    record: Record, allowed_bytes: int, recommended: Collection[int], passed_over: Collection[int]
) -> Standing:
    m = record.measurement
    if m is None or m.outcome in CUT_SHORT:
        return "cut short"
    if m.outcome != "ok" or record.number in passed_over:
        return "failed"
    if (excess_bytes(m, allowed_bytes) or 0) > 0:
        return "over headroom"
    return "recommended" if record.number in recommended else "ok"


def least_bytes(m: Measurement | None) -> int | None:
    """Return a lower bound on the memory that an OOM probe needs, in bytes; None: it
    did not, or nothing is known of that."""
    if m is None or m.outcome != "oom" or m.tokens_per_s is not None:
        return None
    limit, missing = m.memory_limit_bytes, m.missing_bytes
    needed = 0 if limit is None or missing is None else limit + missing
    return max(needed, m.peak_memory_bytes or 0) or None


def _expected(estimate: Estimate | None) -> Expected | None:
    if estimate is None:
        return None
    return Expected(
        tokens_per_s=estimate.tokens_per_s, peak_memory_bytes=estimate.peak_memory_bytes
    )


def knob_worths(
    space: SearchSpace,
    records: Sequence[Record],
    probes: Sequence[Probe],
    estimates: Mapping[str, Estimate],
    *,
    recipe: bool,
) -> list[KnobWorth]:
    """Return the knobs that were searched: those of the recipe, or all others.

    Args:
        probes: those of `records`.
        estimates: by the candidate's key; those that do not fit do not count.
    """
    measured = [
        (record.candidate, probe)
        for record, probe in zip(records, probes, strict=True)
        if probe.standing in WITHIN and probe.tokens_per_s
    ]
    estimated = [
        (candidate, estimate.tokens_per_s)
        for candidate in space.candidates
        if (estimate := estimates.get(candidate.key)) is not None
        and estimate.fits
        and estimate.tokens_per_s
    ]
    return [
        KnobWorth(
            name=knob.name,
            why=knob.why,
            values=tuple(_worth(knob, value_label(v), measured, estimated) for v in knob.values),
        )
        for knob in space.free_knobs
        if (knob.kind == "recipe") == recipe
    ]


def _worth(
    knob: BoundKnob,
    label: str,
    measured: Sequence[tuple[Candidate, Probe]],
    estimated: Sequence[tuple[Candidate, float]],
) -> Worth:
    def has(candidate: Candidate) -> bool:
        return value_label(candidate.values.get(knob.name)) == label

    probes = [probe for candidate, probe in measured if has(candidate)]
    speeds = [speed for candidate, speed in estimated if has(candidate)]
    best = max(probes, key=lambda probe: probe.tokens_per_s or 0.0, default=None)
    return Worth(
        label=label,
        is_default=value_label(knob.default) == label,
        measured=None if best is None else best.tokens_per_s,
        probe=None if best is None else best.number,
        probes=len(probes),
        estimated=max(speeds, default=None),
        estimates=len(speeds),
    )
