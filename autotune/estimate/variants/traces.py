"""The traces of one variant: made once, kept on disk, and scaled to any micro-batch and depth.

Runs in a child only.
"""

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autotune.estimate.formula.devices import on_devices
from autotune.estimate.protocol import EstimateRequest, MicroBatch, TraceReply, TraceRequest
from autotune.estimate.records.accumulation import (
    Accumulation,
    accumulation_of,
    with_accumulation,
)
from autotune.estimate.records.events import ALLOCATE, GRADIENTS, MOVE, Event, Work, work_from_plain
from autotune.estimate.records.first_step import with_first_step, with_smaller_batches
from autotune.estimate.records.layers import Irregular, fewest_layers
from autotune.estimate.records.shapes import (
    Shape,
    ShapeFamily,
    divide,
    whole_record,
    with_optimizer_step,
    without_accumulation,
)
from autotune.estimate.tracing.cache import TraceCache
from autotune.estimate.tracing.trace import trace_steps
from autotune.space.checkpointing import period_of


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Switch Python's collector off: it would look through the hundreds of thousands of tuples of a
    record again and again. Not for traces: there it frees what a program leaves behind, as in a
    real training."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass
class Traces:
    """Traced steps of one variant, by (size, padded)."""

    request: EstimateRequest
    optimizer_work: list[Work] = field(default_factory=list)
    _steps: dict[tuple[int, int, bool], Shape] = field(default_factory=dict)
    _opening: list[Event] = field(default_factory=list)
    _accumulation: Accumulation | None = None
    """What a second micro-step adds to a step; None: each step was traced with two."""
    traced_layers: int = 0

    def make(
        self,
        batches: dict[tuple[int, int, bool], MicroBatch],
        *,
        opening: MicroBatch,
        all_layers: bool,
    ) -> None:
        """Trace micro-batches, by (size, length, padded), in one run of one trainer.

        Each is traced once; what a second micro-step would add is learned from the first optimizer
        step. Where it cannot be, each is traced twice.

        Args:
            opening: the micro-batch of the first optimizer step, whatever follows.
            all_layers: with all of the model's layers, for models whose layers are not alike.
        """
        keys = sorted(batches)
        steps = [opening, *(batches[key] for key in keys)]
        fewest = fewest_layers(self.request.layers, self._period)
        layers = fewest if self.request.layers > fewest + 1 and not all_layers else None
        reply = self._traced(steps, layers, later=1)
        steps_of_trace = divide([tuple(event) for event in reply.events])
        try:
            first_step = steps_of_trace.steps[0]
            self._accumulation = accumulation_of(steps_of_trace.opening, first_step)
        except Irregular:
            reply, self._accumulation = self._traced(steps, layers, later=2), None
            steps_of_trace = divide([tuple(event) for event in reply.events])
        self.traced_layers = reply.layers
        self._steps = {}
        self.optimizer_work = [work_from_plain(row) for row in reply.optimizer_work]
        self._opening = steps_of_trace.opening
        works = [[work_from_plain(row) for row in rows] for rows in reply.micro_work]
        added = self._added_work([work_from_plain(row) for row in reply.first_work], works[0])
        for index, key in enumerate(keys):
            self._steps[key] = Shape(
                size=key[0],
                chunks=reply.chunks[index + 1],
                events=steps_of_trace.steps[index],
                work=[*works[index + 1], *added],
            )

    def _added_work(self, first: list[Work], second: list[Work]) -> list[Work]:
        """Return what a micro-step does to add its gradients to those that are there, if that was
        not traced."""
        if self._accumulation is None:
            return []
        return list((Counter(second) - Counter(first)).elements())

    def traced(self) -> list[tuple[int, int, bool]]:
        """Return (size, length, padded) of everything traced."""
        return list(self._steps)

    def first_step(self) -> list[Event]:
        """Return the events of the first shape that was traced."""
        return next(iter(self._steps.values())).events

    def shape(self, key: tuple[int, int, bool]) -> Shape:
        """Return a traced micro-batch."""
        return self._steps[key]

    def record(
        self,
        keys: list[tuple[int, int, bool]],
        size: int,
        chunks: int,
        *,
        accumulates: bool,
        optimizer: "Traces | None" = None,
        first_shares: Sequence[float] = (),
    ) -> list[Event]:
        """Return all events of a run whose micro-batches have this size, from the shapes of `keys`.

        Args:
            optimizer: traces whose optimizer is to take the place of this one's.
            first_shares: how large the micro-batches of the first step are beside the others; none:
                as large.

        Raises:
            Irregular: the traced shapes or layers do not fit each other.
        """
        family = ShapeFamily(shapes=tuple(self._steps[key] for key in keys))
        step = family.events(size, chunks)
        if self._accumulation is None:
            step = step if accumulates else without_accumulation(step)
        elif accumulates:
            step = with_accumulation(step, self._accumulation)
        opening = self._opening
        if optimizer is not None:
            opening = with_optimizer_step(opening, optimizer._opening)
            step = with_optimizer_step(step, optimizer.first_step())
        if self.request.cuda is not None:  # elsewhere nothing is cached
            first = with_smaller_batches(step, opening, first_shares) if first_shares else step
            opening = with_first_step(opening, first)
        record = whole_record(opening, step, self.traced_layers, self._layers(), self._period)
        return on_devices(record, self.request)

    def work(
        self, keys: list[tuple[int, int, bool]], size: int, chunks: int
    ) -> list[tuple[Work, int]]:
        """Return the work of one micro-step of the whole model."""
        family = ShapeFamily(shapes=tuple(self._steps[key] for key in keys))
        layers = self.traced_layers, self._layers()
        return list(family.work(size, chunks, *layers, self._period).items())

    def growth(self) -> float:
        """Return the trainable bytes of the whole model over those of the traced one."""
        deep_record = whole_record(
            self._opening, [], self.traced_layers, self._layers(), self._period
        )
        return gradient_bytes(deep_record) / gradient_bytes(self._opening)

    @property
    def _period(self) -> int:
        return period_of(self.request.config)

    def _layers(self) -> int:
        return self.request.layers if self.traced_layers else 0

    def _traced(self, steps: list[MicroBatch], layers: int | None, *, later: int) -> TraceReply:
        """Return a trace with two micro-steps in its first optimizer step, `later` in each other
        one."""
        trace_request = TraceRequest(
            method=self.request.method,
            config=self.request.config,
            model_path=self.request.model_path,
            layers=layers,
            cuda=self.request.cuda,
            steps=steps,
            micro_steps=[2, *[later] * (len(steps) - 1)],
            seed=self.request.seed,
        )
        return TraceCache(self.request).reply(trace_request, TraceReply, trace_steps)


def gradient_bytes(events: list[Event]) -> int:
    """Return the bytes of all gradients that a record holds."""
    sizes = {event[1]: event[2] for event in events if event[0] == ALLOCATE}
    gradients = {event[1] for event in events if event[0] == MOVE and event[2] == GRADIENTS}
    return sum(sizes.get(key, 0) for key in gradients)
