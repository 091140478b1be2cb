"""What the values of a knob are worth: the fastest with each, everything else free. Pure."""

from collections.abc import Mapping, Sequence

from autotune.estimate.estimate import Estimate
from autotune.report.content import KnobWorth, Probe, Worth
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.space.knobs import BoundKnob, Candidate, value_label

WITHIN = ("recommended", "ok")
"""Standings of probes that ran within what may be recommended."""


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
