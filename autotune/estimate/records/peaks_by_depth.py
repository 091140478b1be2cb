"""The moments of a record that its peak can be at, and where they are at another depth. Pure.

A trace of few decoder layers has the same moments as one of many: before the layers, in the first
and the last of them, in those between, after them; forward, and backward. At each of them what is
live grows with each layer by the same number of bytes, once there are a few of them: weights,
gradients, states and activations of a layer. So each moment is continued by itself, part by part,
and the highest of them is the peak, which may be another moment than in the traces. Each moment is
the highest of its stretch; where one takes the place of another inside a stretch, what is continued
is up to that much too low (`benchmarks/sharding_depths`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.estimate.records.depths import Most
from autotune.estimate.records.events import (
    ALLOCATE,
    COMMUNICATION,
    GRADIENTS,
    PARTS,
    PHASE,
    STEP,
    TEMPORARIES,
    Event,
    Live,
    MemoryUse,
)
from autotune.estimate.records.interpolation import Weights
from autotune.estimate.records.layers import ENDS, Irregular

Place = tuple[str | int, ...]
Key = tuple[int, Place]
"""The how-many-th phase, and where in it."""
_OUTSIDE, _TOP, _END, _INSIDE, _BETWEEN = "outside", "top", "end", "inside", "between"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The most that is live in one stretch of a program. Bytes, by part."""

    parts: Mapping[str, int]
    phase: str
    operator: str

    @property
    def live_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())


Moments = dict[Key, Moment]


def moments(events: Sequence[Event], granule: int = 1) -> Moments:
    """The moments of a record, each storage rounded up to `granule` bytes."""
    live, most = Live(granule), dict[Key, int]()
    found: Moments = {}
    for event, key in zip(events, _keys(events), strict=True):
        if live.take(event) and live.total > most.get(key, -1):
            most[key] = live.total
            found[key] = Moment(parts=dict(live.parts), phase=live.phase, operator=event[4])
    return found


def _keys(events: Sequence[Event]) -> list[Key]:
    """Of each event the moment that it belongs to."""
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
    places = [_places(one) for one in runs]
    nowhere: Place = (_OUTSIDE, 0)
    return [(phase, places[phase][n] if n >= 0 else nowhere) for phase, n in where]


def _places(runs: Sequence[int]) -> list[Place]:
    """Of each run of one layer (0: of none) where in the phase it is."""
    places: list[Place | None] = [None] * len(runs)
    for number, sweep in enumerate(_sweeps(runs)):
        order = list(dict.fromkeys(runs[n] for n in sweep))
        for n in range(sweep[0], sweep[-1] + 1):
            places[n] = (_BETWEEN, number)
        for n in sweep:
            index = order.index(runs[n])
            left = len(order) - 1 - index
            if index < ENDS:
                places[n] = (_TOP, number, index)
            elif left < ENDS:
                places[n] = (_END, number, left)
            else:
                places[n] = (_INSIDE, number)
    found: list[Place] = []
    outside = 0
    for place in places:
        if place is None:
            found.append((_OUTSIDE, outside))
        else:
            found.append(place)
            outside = int(place[1]) + 1
    return found


def _sweeps(runs: Sequence[int]) -> list[list[int]]:
    """The runs in layers, divided where the program turns around; indices."""
    sweeps: list[list[int]] = []
    direction, last = 0, 0
    for n, layer in enumerate(runs):
        if not layer:
            continue
        if last and layer != last:
            turned = 1 if layer > last else -1
            if direction and turned != direction:
                sweeps.append([])
                direction = 0
            else:
                direction = turned
        if not sweeps:
            sweeps.append([])
        sweeps[-1].append(n)
        last = layer
    return sweeps


def between(known: Sequence[Moments], weights: Weights, most: Most | None = None) -> Moments:
    """The moments at another size or depth than those that are known.

    Args:
        most: what there is at most, whatever the lines say.

    Raises:
        Irregular: the known ones do not have the same moments.
    """
    if len(known) == 1:
        return known[0]
    if any(one.keys() != known[0].keys() for one in known[1:]):
        raise Irregular("the traces do not have the same moments")
    return {key: _mixed([one[key] for one in known], weights, most) for key in known[-1]}


def _mixed(same: Sequence[Moment], weights: Weights, most: Most | None) -> Moment:
    total = weights.between([one.live_bytes for one in same])
    parts = {part: weights.between([one.parts[part] for one in same]) for part in PARTS}
    if most is not None:
        seen = max(one.parts[COMMUNICATION] for one in same)
        held = {COMMUNICATION: min(parts[COMMUNICATION], max(seen, most.gathered))}
        if same[-1].phase == STEP and parts[GRADIENTS] > most.stepped:
            held[TEMPORARIES] = _made_by_a_group(parts, same[0].parts, most.stepped)
        total -= sum(parts[part] - size for part, size in held.items())
        parts |= held
    return Moment(parts=_adding_up(parts, total), phase=same[-1].phase, operator=same[-1].operator)


def _made_by_a_group(whole: Mapping[str, int], few: Mapping[str, int], stepped: int) -> int:
    """What a step makes beside so many gradients: on the line through few layers and all of them.

    A first step makes the states too, which this takes for less than they are; it is below a later
    one, which has them from the start.
    """
    more = whole[GRADIENTS] - few[GRADIENTS]
    slope = (whole[TEMPORARIES] - few[TEMPORARIES]) / more if more else 0.0
    return max(round(whole[TEMPORARIES] - slope * (whole[GRADIENTS] - stepped)), 0)


def _adding_up(parts: dict[str, int], total: int) -> dict[str, int]:
    """The parts, of which none can be less than nothing, with the largest making up the rest."""
    largest = max(parts, key=lambda part: parts[part])
    rest = total - sum(size for part, size in parts.items() if part != largest)
    return {**parts, largest: max(rest, 0)}


def with_room_between_groups(known: Moments, most: Most) -> int:
    """What an optimizer's step in several groups of weights holds at most, free room included.

    The place that a group's gradient had is too small for that of a larger group, and the states of
    the last one go into it. How much stays free hangs on the sizes of the groups, up to a gradient
    of one, which is taken (`benchmarks/sharding_depths`). Bytes; 0 where there is one group.
    """
    steps = [one for one in known.values() if one.phase == STEP]
    in_groups = [one.live_bytes for one in steps if one.parts[GRADIENTS] > most.stepped]
    return max(in_groups) + most.widened if in_groups else 0


def most_of(known: Moments, part: str) -> int:
    """The most of one part at any moment. Bytes."""
    return max((one.parts[part] for one in known.values()), default=0)


def peak_of(known: Moments) -> MemoryUse:
    """The highest of the moments."""
    if not known:
        return MemoryUse(peak_bytes=0, parts={}, operator="", phase="", phases={})
    highest = max(known.values(), key=lambda one: one.live_bytes)
    phases: dict[str, int] = {}
    for one in known.values():
        phases[one.phase] = max(phases.get(one.phase, 0), one.live_bytes)
    return MemoryUse(
        peak_bytes=highest.live_bytes,
        parts={part: size for part, size in highest.parts.items() if size},
        operator=highest.operator,
        phase=highest.phase,
        phases=phases,
    )
