"""What a trace of few decoder layers says of all of them: its peaks and its work. Pure.

An engine is traced at two depths. Where DeepSpeed's stages 1 and 2 divide the gradients of all
weights among the ranks, the cut goes through another weight at each depth, and whole weights are
kept on one side of it. With as many layers between the depths as there are ranks it goes through
the same one, so that the line through both has the right slope.

Peaks: a trace of few layers has the same stretches as one of many: before the layers, in the first
and the last of them, in those between, after them; forward, and backward. In each of them what is
live grows with each layer by the same number of bytes, once there are a few of them: weights,
gradients, states and activations of a layer. So with traces of depths a and b, for each part p of
each stretch s

    bytes[s, p](L) = bytes[s, p](a) + (L - a) / (b - a) x (bytes[s, p](b) - bytes[s, p](a))
    peak(L) = max over s of (sum over p of bytes[s, p](L))

and the highest stretch may be another one than in the traces. Known error: where one moment takes
the place of another as the highest of a stretch, up to that much too low
(`benchmarks/sharding_depths`).

Work: each layer does the same. What is done in all traces is done so many times more for each
further layer. What goes over all weights at once (a flat part, a list of tensors) is done as often,
and is larger.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.estimate.records.events import (
    ALLOCATE,
    COMMUNICATION,
    GRADIENTS,
    LASTING,
    MICRO_STEP,
    NOWHERE,
    PARTS,
    PHASE,
    STEP,
    TEMPORARIES,
    Event,
    Live,
    MemoryUse,
    Work,
    without_empty,
)
from autotune.estimate.records.layers import Irregular
from autotune.estimate.records.shapes import Weights, lagrange
from autotune.space.sharding.deepspeed import MAX_LIVE_PARAMETERS, SUB_GROUP
from autotune.space.sharding.sharding import Sharding

_ALL = 10**15
FEWEST, DISTANCE, MOST_DISTANCE = 6, 2, 8
"""Six layers have all kinds of stretches."""


def depths(layers: int, sharding: Sharding, *, adapters: bool, period: int = 1) -> tuple[int, ...]:
    """Return how many layers to trace; only the model's own number where two traces would cost as
    much.

    Args:
        period: after how many layers what is done with them repeats.
        adapters: whether only adapters are trained, whose gradients are too small to matter.
    """
    distance = DISTANCE
    parted = sharding.zero_stage in (1, 2) and sharding.offload_optimizer_device == "none"
    if parted and not adapters:
        distance = min(max(sharding.num_processes, DISTANCE), MOST_DISTANCE)
    fewest = FEWEST + (layers - FEWEST) % period
    shallow = (fewest, fewest + -(-distance // period) * period)
    return shallow if layers > sum(shallow) else (layers,)


def at_depth(traced_depths: tuple[int, ...], layers: int) -> Weights:
    """Return the weights of the traced depths at the model's own."""
    return lagrange(traced_depths, layers)


@dataclass(frozen=True, kw_only=True)
class LiveLimits:
    """Upper bounds of what DeepSpeed's stage 3 holds at once, for any number of layers. Bytes.

    Attributes:
        gathered: weights from which on none are fetched ahead. What is needed at once is gathered
            all the same, so that there may be a little more.
        stepped: gradients whose weights an optimizer's step updates together; the next come when
            these are done. A group may have one more weight than fits.
        widened: the same gradients in float32, as a step makes them.
    """

    gathered: int
    stepped: int
    widened: int


def live_limits(
    deepspeed: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> LiveLimits | None:
    """Return the limits that DeepSpeed's file sets; None: not stage 3."""
    zero = (deepspeed or {}).get("zero_optimization", {})
    if zero.get("stage") != 3:
        return None
    width = 2 if config.get("bf16") or config.get("fp16") else 4
    group = int(zero.get("sub_group_size", SUB_GROUP))
    return LiveLimits(
        gathered=int(zero.get("stage3_max_live_parameters", MAX_LIVE_PARAMETERS)) * width,
        stepped=group * width,
        widened=group * 4,
    )


def with_one_sub_group(deepspeed: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return DeepSpeed's file with one group for an optimizer's step on this device: then the
    memory of the step grows by as much with each layer."""
    zero = (deepspeed or {}).get("zero_optimization", {})
    if deepspeed is None or zero.get("stage") != 3 or "offload_optimizer" in zero:
        return None if deepspeed is None else dict(deepspeed)
    return {**deepspeed, "zero_optimization": {**zero, "sub_group_size": _ALL}}


def work_at_depth(works_of_traces: Sequence[Sequence[Work]], weights: Weights) -> Counter[Work]:
    """Return each operator, and how often it is run; without regions.

    Args:
        works_of_traces: the operators of each trace.
        weights: of these traces at the depth that is wanted.
    """
    counts = [Counter(replace(work, region=NOWHERE) for work in works) for works in works_of_traces]
    total: Counter[Work] = Counter()
    for work in set.intersection(*(set(count) for count in counts)):
        total[work] = weights.interpolate([count[work] for count in counts])
    remainders = [_by_kind((w, n) for w, n in count.items() if w not in total) for count in counts]
    for kind in dict.fromkeys(kind for remainder in remainders for kind in remainder):
        total += _mean_sized([remainder.get(kind, []) for remainder in remainders], weights)
    return +total


def _by_kind(works: Iterable[tuple[Work, int]]) -> dict[object, list[tuple[Work, int]]]:
    by_kind: dict[object, list[tuple[Work, int]]] = defaultdict(list)
    for work, times in works:
        by_kind[work.signature].append((work, times))
    return by_kind


def _mean_sized(
    counterparts: Sequence[Sequence[tuple[Work, int]]], weights: Weights
) -> Counter[Work]:
    """Return operators of one kind, of another size in each trace, as operators of the mean
    size."""
    times = weights.interpolate([sum(n for _, n in works) for works in counterparts])
    if not times:
        return Counter()
    flops = weights.interpolate([sum(w.flops * n for w, n in works) for works in counterparts])
    moved_bytes = weights.interpolate(
        [sum(w.moved_bytes * n for w, n in works) for works in counterparts]
    )
    largest = max(
        (w for works in counterparts for w, _ in works), key=lambda work: work.moved_bytes
    )
    return Counter(
        {replace(largest, flops=flops // times, moved_bytes=moved_bytes // times): times}
    )


Place = tuple[str | int, ...]
Key = tuple[int, Place]
"""(phase index, position in the phase)."""
_OUTSIDE, _TOP, _END, _INSIDE, _BETWEEN = "outside", "top", "end", "inside", "between"
_ENDS = 2
"""The layers at each end that have stretches of their own."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The most that is live in one stretch of a program. Bytes, by part."""

    parts: Mapping[str, int]
    phase: str
    operator: str

    @property
    def live_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def passing_bytes(self) -> int:
        """Bytes that are in no lasting part."""
        return self.live_bytes - sum(self.parts[part] for part in LASTING)


Peaks = dict[Key, Peak]


def peaks_of(events: Sequence[Event], granule: int = 1) -> Peaks:
    """Return the peak of each stretch of a record, each storage rounded up to `granule` bytes."""
    live, totals = Live(granule), dict[Key, int]()
    highest: Peaks = {}
    for event, key in zip(events, _keys(events), strict=True):
        if live.take(event) and live.total > totals.get(key, -1):
            totals[key] = live.total
            highest[key] = Peak(parts=dict(live.parts), phase=live.phase, operator=event[4])
    return highest


def _keys(events: Sequence[Event]) -> list[Key]:
    """Return the stretch that each event belongs to."""
    runs: list[list[int]] = [[]]
    where: list[tuple[int, int]] = []
    for event in events:
        if event[0] == PHASE:
            runs.append([])
        elif event[0] == ALLOCATE:
            layer = max(event[-1], 0)
            if not runs[-1] or runs[-1][-1] != layer:
                runs[-1].append(layer)
        where.append((len(runs) - 1, len(runs[-1]) - 1))
    places = [_places(run) for run in runs]
    nowhere: Place = (_OUTSIDE, 0)
    return [(phase, places[phase][n] if n >= 0 else nowhere) for phase, n in where]


def _places(runs: Sequence[int]) -> list[Place]:
    """Return the position in the phase of each run of one layer (0: of none)."""
    places: list[Place | None] = [None] * len(runs)
    for number, sweep in enumerate(_sweeps(runs)):
        order = list(dict.fromkeys(runs[n] for n in sweep))
        for n in range(sweep[0], sweep[-1] + 1):
            places[n] = (_BETWEEN, number)
        for n in sweep:
            index = order.index(runs[n])
            to_end = len(order) - 1 - index
            if index < _ENDS:
                places[n] = (_TOP, number, index)
            elif to_end < _ENDS:
                places[n] = (_END, number, to_end)
            else:
                places[n] = (_INSIDE, number)
    places_of_runs: list[Place] = []
    outside = 0
    for place in places:
        if place is None:
            places_of_runs.append((_OUTSIDE, outside))
        else:
            places_of_runs.append(place)
            outside = int(place[1]) + 1
    return places_of_runs


def _sweeps(runs: Sequence[int]) -> list[list[int]]:
    """Return the runs in layers, divided where the program turns around; indices."""
    sweeps: list[list[int]] = []
    direction, last = 0, 0
    for n, layer in enumerate(runs):
        if not layer:
            continue
        if last and layer != last:
            turn = 1 if layer > last else -1
            if direction and turn != direction:
                sweeps.append([])
                direction = 0
            else:
                direction = turn
        if not sweeps:
            sweeps.append([])
        sweeps[-1].append(n)
        last = layer
    return sweeps


def peaks_at(traced: Sequence[Peaks], weights: Weights, limits: LiveLimits | None = None) -> Peaks:
    """Return the peaks at another size or depth than the traced ones.

    Args:
        limits: what there is at most, whatever the lines say.

    Raises:
        Irregular: the traces do not have the same stretches.
    """
    if len(traced) == 1:
        return traced[0]
    if any(peaks.keys() != traced[0].keys() for peaks in traced[1:]):
        raise Irregular("the traces do not have the same stretches")
    return {
        key: _interpolate_peak([peaks[key] for peaks in traced], weights, limits)
        for key in traced[-1]
    }


def _interpolate_peak(peaks: Sequence[Peak], weights: Weights, limits: LiveLimits | None) -> Peak:
    total = weights.interpolate([peak.live_bytes for peak in peaks])
    parts = {part: weights.interpolate([peak.parts[part] for peak in peaks]) for part in PARTS}
    if limits is not None:
        traced_bytes = max(peak.parts[COMMUNICATION] for peak in peaks)
        limited = {COMMUNICATION: min(parts[COMMUNICATION], max(traced_bytes, limits.gathered))}
        if peaks[-1].phase == STEP and parts[GRADIENTS] > limits.stepped:
            limited[TEMPORARIES] = _made_by_a_group(parts, peaks[0].parts, limits.stepped)
        total -= sum(parts[part] - size for part, size in limited.items())
        parts |= limited
    return Peak(parts=_adding_up(parts, total), phase=peaks[-1].phase, operator=peaks[-1].operator)


def _made_by_a_group(deep: Mapping[str, int], shallow: Mapping[str, int], stepped: int) -> int:
    """Return the temporaries T of a step beside the gradients of one group, g = `stepped`.

    On the line through few layers (G_f, T_f) and all of them (G, T):

        T(g) = T - (T - T_f) / (G - G_f) x (G - g), at least 0

    Known error: a first step makes the states too, which this takes for less than they are; it is
    below a later one, which has them from the start.
    """
    further_gradients = deep[GRADIENTS] - shallow[GRADIENTS]
    slope = (
        (deep[TEMPORARIES] - shallow[TEMPORARIES]) / further_gradients if further_gradients else 0.0
    )
    return max(round(deep[TEMPORARIES] - slope * (deep[GRADIENTS] - stepped)), 0)


def _adding_up(parts: dict[str, int], total: int) -> dict[str, int]:
    """Return the parts, of which none can be less than nothing, with the largest making up the
    rest."""
    largest = max(parts, key=lambda part: parts[part])
    remainder = total - sum(size for part, size in parts.items() if part != largest)
    return {**parts, largest: max(remainder, 0)}


def with_room_between_groups(peaks: Peaks, limits: LiveLimits) -> int:
    """Return what an optimizer's step in several groups of weights holds at most, free room
    included.

        bytes = max over the step's peaks of live + widened; 0 where there is one group

    The place that a group's gradient had is too small for that of a larger group, and the states of
    the last one go into it. How much stays free hangs on the sizes of the groups: at most one
    group's gradient in float32 (`widened`), which is taken. Known error: too high by what does not
    stay free (`benchmarks/sharding_depths`).
    """
    steps = [peak for peak in peaks.values() if peak.phase == STEP]
    in_groups = [peak.live_bytes for peak in steps if peak.parts[GRADIENTS] > limits.stepped]
    return max(in_groups) + limits.widened if in_groups else 0


def highest_part(peaks: Peaks, part: str) -> int:
    """Return the most of one part in any stretch. Bytes."""
    return max((peak.parts[part] for peak in peaks.values()), default=0)


def highest_peak(peaks: Peaks) -> MemoryUse:
    """Return the highest of the peaks."""
    if not peaks:
        return MemoryUse(peak_bytes=0, parts={}, operator="", phase="", phases={})
    highest = max(peaks.values(), key=lambda peak: peak.live_bytes)
    in_micro_steps = [peak for peak in peaks.values() if peak.phase == MICRO_STEP]
    orders = (lambda peak: peak.live_bytes, lambda peak: peak.passing_bytes)
    micro_peaks = [max(in_micro_steps, key=order).parts for order in orders if in_micro_steps]
    phases: dict[str, int] = {}
    for peak in peaks.values():
        phases[peak.phase] = max(phases.get(peak.phase, 0), peak.live_bytes)
    return MemoryUse(
        peak_bytes=highest.live_bytes,
        parts=without_empty(highest.parts),
        operator=highest.operator,
        phase=highest.phase,
        phases=phases,
        micro_peaks=[without_empty(parts) for parts in micro_peaks],
    )
