"""The values that a job lists under `recipe:`: each is probed, or told with the reason. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.job.job import Job, KnobValue
from autotune.run.expectations import Expectations
from autotune.search.record import Record, counts_as_probe
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate, value_label
from autotune.units import format_bytes

NO_CANDIDATE = "no candidate of the space can have it (`autotune validate --space` says why)"


@dataclass(frozen=True, kw_only=True)
class UnprobedValue:
    """A value that the job lists and no probe has measured.

    Attributes:
        why: the reason.
        peak_memory_bytes: estimate of the candidate with it that takes least; None: there is none.
        limit_bytes: what a probe may take.
    """

    knob: str
    value: KnobValue
    why: str
    peak_memory_bytes: int | None
    limit_bytes: int

    def sentence(self) -> str:
        """Return the value, the reason and the estimate."""
        text = f"`{self.knob}: {value_label(self.value)}` was not probed: {self.why}"
        if self.peak_memory_bytes is None:
            return text
        peak, limit = format_bytes(self.peak_memory_bytes), format_bytes(self.limit_bytes)
        return f"{text}; it takes an estimated {peak} at least, and the limit is {limit}"


def measured_labels(knob: str, records: Sequence[Record]) -> set[str]:
    """Return the labels of the values of a knob that a probe has come to its own end with, good or
    bad."""
    return {
        value_label(record.candidate[knob])
        for record in records
        if counts_as_probe(record)
        and record.measurement is not None
        and record.measurement.outcome != "stopped"
    }


def _unmeasured(
    job: Job, space: SearchSpace, records: Sequence[Record]
) -> Iterator[tuple[str, KnobValue, list[Candidate]]]:
    """Yield (knob, value, its candidates) of each listed value that no probe has measured."""
    for knob, values in job.recipe.items():
        if not any(knob in candidate.values for candidate in space.candidates):
            continue
        measured = measured_labels(knob, records)
        for value in values:
            if (label := value_label(value)) not in measured:
                having = [c for c in space.candidates if value_label(c[knob]) == label]
                yield knob, value, having


def next_of_values(
    job: Job,
    space: SearchSpace,
    records: Sequence[Record],
    ruled_out: Collection[str],
    speeds: Mapping[str, float],
) -> list[Candidate]:
    """Return the fastest expected candidate of each listed value that no probe has measured, where
    one is not ruled out. Two values may share it.

    Args:
        ruled_out: keys of candidates that need no probe.
        speeds: expected tokens per second, by key.
    """
    chosen: dict[str, Candidate] = {}
    for _, _, candidates in _unmeasured(job, space, records):
        left = [candidate for candidate in candidates if candidate.key not in ruled_out]
        if left:
            fastest = max(left, key=lambda candidate: speeds.get(candidate.key, 0.0))
            chosen[fastest.key] = fastest
    return list(chosen.values())


def unprobed_values(
    job: Job,
    space: SearchSpace,
    records: Sequence[Record],
    ruled_out: Mapping[str, str],
    expectations: Expectations | None,
    limit_bytes: int,
    *,
    otherwise: str,
) -> tuple[UnprobedValue, ...]:
    """Return the listed values that no probe has measured, each with its reason.

    Args:
        ruled_out: why candidates need no probe, by key.
        limit_bytes: what a probe may take.
        otherwise: the reason where a candidate with the value was still to be probed.
    """
    estimates = expectations.estimates if expectations is not None else {}
    found = []
    for knob, value, candidates in _unmeasured(job, space, records):
        peaks = {
            candidate.key: estimates[candidate.key].peak_memory_bytes
            for candidate in candidates
            if candidate.key in estimates
        }
        leanest = min(peaks, key=lambda key: peaks[key]) if peaks else None
        keys = [candidate.key for candidate in candidates]
        why = NO_CANDIDATE if not keys else otherwise
        if keys and all(key in ruled_out for key in keys):
            why = ruled_out[leanest or keys[0]]
        found.append(
            UnprobedValue(
                knob=knob,
                value=value,
                why=why,
                peak_memory_bytes=peaks[leanest] if leanest is not None else None,
                limit_bytes=limit_bytes,
            )
        )
    return tuple(found)
