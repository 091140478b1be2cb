"""What a trace is: every allocation of a few training steps, in program order. Plain data; pure.

An event is a tuple:

    (ALLOCATE, id, bytes, part, operator, region)   a storage comes to life
    (FREE, id, region)                              it dies; a negative id: the allocator's cache
    (MOVE, id, part, region)                        it is now counted in another part
    (PHASE, name, 0)                                what the trainer does from here on

An id holds, in units of `STREAM`, on which stream the storage was made: 0 is the usual one.
Bytes are as asked for: an allocator rounds them. The region says in which repeated stretch of the
program an event happened: 0 none, `layer(i)`, or `chunk(j)` of a loss that is computed in chunks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

ALLOCATE, FREE, MOVE, PHASE = "a", "f", "m", "p"
LOADING, INIT = "loading", "init"
DATA, MICRO_STEP, STEP = "data", "micro-step", "step"
"""Phases of a training: its models are loaded, all is made, its batches are fetched, a micro-step,
the optimizer's step."""
NOWHERE = 0
STREAM = 1 << 48
FLASH_PACKAGE = "aten::_flash_attention"
"""Begins the names of flash-attn's own kernels, which never take a mask."""
SCRATCH = " scratch"
"""Ends the operator's name where a kernel allocates inside."""

Event = tuple[Any, ...]

WEIGHTS = "weights"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
ACTIVATIONS = "activations"
LOGITS = "logits"
CASTS = "cast weights"
"""Copies of weights in another precision, which autocast makes and keeps for a micro-step."""
TEMPORARIES = "temporaries"
WORKSPACES = "workspaces"
COMMUNICATION = "communication"
"""What is exchanged between devices: buckets, gathered weights."""
HOST = "host"
"""What lies in the host's memory where the rest is on a GPU: offloaded weights and states."""
VLLM = "vllm"
"""What vLLM has beside the training."""
LASTING = (WEIGHTS, GRADIENTS, OPTIMIZER)
PARTS = (
    WEIGHTS,
    GRADIENTS,
    OPTIMIZER,
    ACTIVATIONS,
    CASTS,
    LOGITS,
    TEMPORARIES,
    WORKSPACES,
    COMMUNICATION,
    VLLM,
    HOST,
)


def layer(index: int) -> int:
    """Return the region of decoder layer `index`."""
    return index + 1


def chunk(index: int) -> int:
    """Return the region of chunk `index` of a chunked loss."""
    return -index - 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """One dispatched operator of a micro-step, or of the optimizer step, as work to be done.

    Attributes:
        kind: `matmul`, `attention`, `attention_backward`, `memory` (bound by bandwidth), `view`.
        dtype: of its (first) output, as torch names it without the prefix.
        dims: matmul: (batch, m, k, n); attention: (batch, heads, queries, keys, head size).
        flops: floating point operations.
        moved_bytes: bytes read and written.
        region: as of an event.
    """

    operator: str
    kind: str
    dtype: str
    dims: tuple[int, ...]
    flops: int
    moved_bytes: int
    region: int

    @property
    def row(self) -> tuple[Any, ...]:
        """The values of its fields, in their order."""
        kind = self.operator, self.kind, self.dtype
        return *kind, self.dims, self.flops, self.moved_bytes, self.region

    @property
    def signature(self) -> tuple[Any, ...]:
        """The fields that do not change with the shape of the micro-batch."""
        return (self.operator, self.kind, self.dtype, len(self.dims), self.region)


def counted_rows(works: Iterable[tuple[Work, int]]) -> list[list[Any]]:
    """Return work as rows of JSON data, each piece followed by how often it is done."""
    return [[*work.row, times] for work, times in works]


def grown(works: Iterable[Work], growth: float) -> list[list[Any]]:
    """Return the rows of the work of an optimizer's step over `growth` times as many weights."""
    grown_works = (replace(work, moved_bytes=round(work.moved_bytes * growth)) for work in works)
    return counted_rows(Counter(grown_works).items())


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The sums of live storages at the peak. Bytes as asked for.

    `parts` is what was live at the peak, by part; they add up to `peak_bytes`.
    """

    peak_bytes: int
    parts: dict[str, int]
    operator: str
    phase: str
    phases: dict[str, int] = field(default_factory=dict)
    """Peak of each phase."""
    micro_peaks: list[dict[str, int]] = field(default_factory=list)
    """By part, what was live in the micro-steps where most was, and where most was that passes (is
    neither weights nor gradients nor states)."""


def work_from_plain(row: Sequence[Any]) -> Work:
    """Return the work that a row of JSON data holds."""
    names = [column.name for column in fields(Work)]
    values = dict(zip(names, row, strict=True))
    return Work(**{**values, "dims": tuple(values["dims"])})


class Live:
    """The live bytes of a record as it goes on, by part; storages rounded up to `granule` bytes."""

    def __init__(self, granule: int = 1) -> None:
        self.total = 0
        self.parts = dict.fromkeys(PARTS, 0)
        self.phase = ""
        self._granule = granule
        self._storages: dict[int, tuple[int, str]] = {}

    @property
    def passing(self) -> int:
        """Bytes that are of no lasting part."""
        parts = self.parts  # not by a loop over LASTING: it is asked at each allocation
        return self.total - parts[WEIGHTS] - parts[GRADIENTS] - parts[OPTIMIZER]

    def take(self, event: Event) -> bool:
        """Go on by one event; return True if a storage came to life."""
        kind, key = event[0], event[1]
        if kind == ALLOCATE:
            size, part = -(-event[2] // self._granule) * self._granule, event[3]
            self._storages[key] = size, part
            self.parts[part] += size
            self.total += size
            return True
        if kind == FREE:
            size, part = self._storages.pop(key, (0, TEMPORARIES))
            self.total -= size
            self.parts[part] -= size
        elif kind == MOVE:
            size, part = self._storages.get(key, (0, TEMPORARIES))
            self.parts[part] -= size
            self.parts[event[2]] += size
            self._storages[key] = size, event[2]
        else:
            self.phase = key
        return False


def live_bytes(events: Iterable[Event], granule: int = 1) -> MemoryUse:
    """Return the peak of the live bytes over a record, each storage rounded up to `granule`
    bytes."""
    live, peak, passing = Live(granule), 0, 0
    phases: dict[str, int] = {}
    operator, at = "", ""
    at_peak: dict[str, int] = {}
    highest: dict[str, int] = {}
    most_passing: dict[str, int] = {}
    for event in events:
        if not live.take(event):
            continue
        in_micro_step = live.phase == MICRO_STEP
        if live.total > phases.get(live.phase, 0):
            phases[live.phase] = live.total
            if in_micro_step:
                highest = dict(live.parts)
        if in_micro_step and live.passing > passing:
            passing, most_passing = live.passing, dict(live.parts)
        if live.total > peak:
            peak, operator, at, at_peak = live.total, event[4], live.phase, dict(live.parts)
    return MemoryUse(
        peak_bytes=peak,
        parts=without_empty(at_peak),
        operator=operator,
        phase=at,
        phases=phases,
        micro_peaks=[without_empty(parts) for parts in (highest, most_passing) if parts],
    )


def without_empty(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts that are not empty."""
    return {name: size for name, size in parts.items() if size}


def live_at(events: Iterable[Event], phase: str) -> int:
    """Return the most that is live where a phase begins. Bytes."""
    live, highest = Live(), 0
    for event in events:
        if event[0] == PHASE and event[1] == phase:
            highest = max(highest, live.total)
        live.take(event)
    return highest


def live_after(events: Iterable[Event], live_before: Mapping[int, Event]) -> dict[int, Event]:
    """Return what is live after the events, as allocations with the part that they are in by then.

    Args:
        live_before: what is live before them, by storage.
    """
    live = dict(live_before)
    for event in events:
        if event[0] == ALLOCATE:
            live[event[1]] = event
        elif event[0] == FREE:
            live.pop(event[1], None)
        elif event[0] == MOVE and event[1] in live:
            allocation = live[event[1]]
            live[event[1]] = (*allocation[:3], event[2], *allocation[4:])
    return live


def training_start(events: Iterable[Event]) -> int:
    """Return the index where the first batch is fetched; before it the models are put together."""
    return next((n for n, e in enumerate(events) if e[0] == PHASE and e[1] == DATA), 0)
