"""The traces that a plan makes, and what they imply for its candidates.

Where an engine spreads the training, each way through the program is traced with data parallelism
first: how a step's time grows with its shape, no engine changes much, and every engine is estimated
by formula from that (`estimate/formula/devices.py`). Few engines are then all traced. Of many those
are that the formula does not rule out: the fastest that may fit, and of each sharding the first,
unless it is much slower (`trace_choice.py`). What was traced says something of the most similar
others (`engine_tasks.py`). That may put others first; it ends when the first ones are all traced.

Engines are traced with a few layers of a deep model. What an allocator loses between blocks does
not follow well from these, so that of the first candidate all layers are traced in the end.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.estimate.formula.devices import sharded_point, zero_of_request
from autotune.estimate.protocol import EstimateReply, EstimateRequest, Point
from autotune.plan.engine_tasks import (
    Rank,
    TaskRecord,
    first_of_kinds,
    nearest_traced,
    with_work_of,
)
from autotune.plan.exchange import trained_parameters
from autotune.plan.grid import Estimates, Trace, most_traced, traced_where_promising
from autotune.plan.trace_choice import (
    LIKELY,
    RULED_OUT,
    Effort,
    rank,
    representatives,
    to_trace,
)
from autotune.plan.variants import Member, VariantTask
from autotune.space.quantization import trains_wide
from autotune.space.sharding.sharding import Sharding, heaviest_ranks

MOST_SETTLED = 3
"""Number of times that all layers are traced, where that puts another candidate first."""
_OWN = ("points", "sharding", "deepspeed", "config")
"""Fields that differ between tasks of one base; of the configuration, only the variant counts."""
Report = Callable[[Mapping[int, EstimateReply]], None]
"""A function that receives replies, by the place of their task, in place of earlier ones."""


def answered(
    tasks: Sequence[VariantTask],
    effort: Effort,
    estimates: Estimates,
    trace: Trace,
    report: Report | None = None,
    *,
    with_speeds: bool,
) -> list[EstimateReply]:
    """Return the reply to each task.

    Args:
        effort: how many engines are traced.
        estimates: returns those of a task's candidates by its reply.
        report: receives the replies as they come.
        with_speeds: whether speeds are known; else every engine is traced.
    """
    if with_speeds:
        trace = traced_where_promising(trace, estimates, most_traced(effort))
    traces = EngineTraces(tasks, effort, estimates, trace, report)
    engines = [record for record in traces.records if record.task.engine]
    by_formula = with_speeds or effort.first == 0
    if not by_formula or not engines:
        traces.trace(traces.records)
    else:
        traces.trace_without_engines()
        if effort.first is None or len(engines) <= effort.first:
            traces.trace(engines)
        else:
            traces.trace_first()
    if engines and effort.settled:
        traces.settle()
    return [record.reply for record in traces.records]


class EngineTraces:
    """The tasks of a plan, and what their traces say so far."""

    def __init__(
        self,
        tasks: Sequence[VariantTask],
        effort: Effort,
        estimates: Estimates,
        trace: Trace,
        report: Report | None = None,
    ) -> None:
        self.records = [TaskRecord(number=n, task=task) for n, task in enumerate(tasks)]
        self._effort, self._estimates = effort, estimates
        self._trace, self._report = trace, report

    def _tell(self, records: Sequence[TaskRecord]) -> None:
        if self._report is not None:
            self._report({record.number: record.reply for record in records})

    def trace_without_engines(self) -> None:
        """Answer for all engines by formula, from traces without an engine."""
        tasks = [record.task for record in self.records]
        shared = bases(tasks)

        def receive(place: int, reply: EstimateReply) -> None:
            answered_records = []
            for number, formula in formula_replies(shared[place], reply, tasks):
                record = self.records[number]
                record.reply = record.formula = formula
                record.program = place
                answered_records.append(record)
            self._tell(answered_records)

        self._trace([base.task for base in shared], "copies", receive)

    def trace(self, records: Sequence[TaskRecord]) -> None:
        """Trace these tasks, with their engines."""

        def receive(place: int, reply: EstimateReply) -> None:
            records[place].receive(reply)
            self._tell([records[place]])

        first = min((record.number for record in records), default=0)
        self._trace([record.task for record in records], f"from-{first}", receive)

    def trace_first(self) -> None:
        """Trace engines until those of the first tasks are traced."""
        self._rank()
        while chosen := to_trace(self.records, self._effort):
            self.trace(first_of_kinds(chosen))
            for record in self.records:
                record.nearest = nearest_traced(record, self.records)
            similar = [record for record in self.records if record.nearest is not None]
            for record in similar:
                assert record.nearest is not None
                record.reply = with_work_of(record.reply, record.nearest.reply)
            self._tell(similar)
            self._rank()

    def settle(self) -> None:
        """Trace all layers of the first candidate, until the first one has all of them traced;
        among its processes the one that needs most counts."""
        settled: set[tuple[int, int]] = set()
        for _ in range(MOST_SETTLED):
            first_candidates = [
                (record, *self._first(record, record.reply)) for record in self.records
            ]
            record, _, member = min(first_candidates, key=lambda first: first[1])
            task, reply, place = record.task, record.reply, member.place
            if not task.engine or reply.problem is not None or reply.by_formula:
                return
            ranks = heaviest_ranks(record.sharding)
            is_whole = reply.points[place].method == "trace"
            if (record.number, place) in settled or (is_whole and len(ranks) == 1):
                return
            settled.add((record.number, place))
            tasks = [with_all_layers(task, place, rank) for rank in ranks]
            replies = self._trace(tasks, f"whole-{record.number}-{place}", None)
            if any(reply.problem is not None for reply in replies):
                return
            of_ranks = [reply.points[0] for reply in replies]
            fullest = max(of_ranks, key=lambda point: point.peak_reserved_bytes)
            host_bytes = max(point.host_bytes for point in of_ranks)
            fullest = dataclasses.replace(fullest, host_bytes=host_bytes)
            points = [*reply.points[:place], fullest, *reply.points[place + 1 :]]
            record.reply = dataclasses.replace(reply, points=points)
            self._tell([record])

    def _rank(self) -> None:
        """Work out how each task is expected to rank."""
        for record in self.records:
            expected = record.expected()
            if expected is None:
                record.rank, _ = self._first(record, record.reply)
            else:
                record.rank, _ = self._first(record, expected, ruled_out=LIKELY)
        gain = max((self._gain(record) for record in self.records), default=1.0)
        for record in self.records:
            none_fits, amount = record.rank
            if record.reply.by_formula and record.nearest is None and not none_fits:
                record.rank = none_fits, gain * amount

    def _gain(self, record: TaskRecord) -> float:
        """Return how much faster a task's engine is than by formula; at least 1, and 1 where none
        fits or was traced."""
        none_fits, amount = record.rank
        if not record.task.engine or record.reply.by_formula or none_fits:
            return 1.0
        assert record.formula is not None
        _, member = self._first(record, record.reply)
        task = dataclasses.replace(record.task, members=(member,))
        formula = self._estimates(task, record.formula)[member.candidate.key]
        return max(1.0, -amount / formula.tokens_per_s) if formula.tokens_per_s else 1.0

    def _first(
        self, record: TaskRecord, reply: EstimateReply, *, ruled_out: float = RULED_OUT
    ) -> tuple[Rank, Member]:
        """Return (the rank of a task's first candidate by this reply, that candidate)."""
        task = representatives(record.task)
        estimates = self._estimates(task, reply)
        ranked = [
            (
                rank(
                    estimates[member.candidate.key],
                    by_formula=reply.by_formula,
                    ruled_out=ruled_out,
                ),
                member,
            )
            for member in task.members
        ]
        return min(ranked, key=lambda pair: pair[0])


def with_all_layers(task: VariantTask, place: int, rank: int) -> VariantTask:
    """Return the task of one point of a task, to be traced with all layers, as this process."""
    request = task.request
    point = dataclasses.replace(request, points=[request.points[place]], all_layers=True, rank=rank)
    return dataclasses.replace(task, request=point, members=())


@dataclass(frozen=True, kw_only=True)
class Base:
    """The trace without an engine that serves several tasks.

    Attributes:
        task: the trace, with the candidates of all of them.
        members: number of each of them, and for each of its points that of the same point here.
    """

    task: VariantTask
    members: Mapping[int, tuple[int, ...]]


def bases(tasks: Sequence[VariantTask]) -> list[Base]:
    """Return the fewest traces from which every task can be answered, if only by formula."""
    groups: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        groups.setdefault(_key(task), []).append(number)
    return [_base(tasks, numbers) for numbers in groups.values()]


def _key(task: VariantTask) -> str:
    """Return the same text for tasks that differ in their engine and their points only."""
    plain = task.request.plain()
    identity = {name: value for name, value in plain.items() if name not in _OWN}
    return json.dumps([identity, task.traced.key], sort_keys=True)


def _base(tasks: Sequence[VariantTask], numbers: Sequence[int]) -> Base:
    points: list[Point] = []
    members: dict[int, tuple[int, ...]] = {}
    among: list[Member] = []
    for number in numbers:
        task_points = tasks[number].request.points
        points += [point for point in task_points if point not in points]
        members[number] = tuple(points.index(point) for point in task_points)
        among += [
            dataclasses.replace(member, place=members[number][member.place])
            for member in tasks[number].members
        ]
    first = next((tasks[n] for n in numbers if not tasks[n].engine), None)
    request = first.request if first is not None else _without_engine(tasks[numbers[0]].request)
    task = VariantTask(
        request=dataclasses.replace(request, points=points),
        traced=tasks[numbers[0]].traced,
        members=tuple(among),
    )
    return Base(task=task, members=members)


def _without_engine(request: EstimateRequest) -> EstimateRequest:
    """Return the same training with a whole copy on each device."""
    kind = "MULTI_CPU" if request.cuda is None else "MULTI_GPU"
    copies = Sharding()
    if request.devices > 1:
        copies = Sharding(distributed_type=kind, num_processes=request.devices)
    return dataclasses.replace(request, sharding=copies.plain(), deepspeed=None)


def formula_replies(
    base: Base, reply: EstimateReply, tasks: Sequence[VariantTask]
) -> Iterator[tuple[int, EstimateReply]]:
    """Yield (number of a task, its reply) for all members of a base: an engine's by formula."""
    for number, places in base.members.items():
        task = tasks[number]
        if reply.problem is not None:
            yield number, dataclasses.replace(reply, by_formula=task.engine)
            continue
        task_reply = dataclasses.replace(reply, points=[reply.points[place] for place in places])
        yield number, _by_formula(task_reply, task) if task.engine else task_reply


def _by_formula(reply: EstimateReply, task: VariantTask) -> EstimateReply:
    request, settings = task.request, task.members[0].settings
    zero = zero_of_request(request)
    width = 4 if trains_wide(request.config) else 2
    gradients = width * trained_parameters(settings.job, settings.facts, request.config)
    points = [
        sharded_point(answer, zero, gradients=gradients, accumulates=point.accumulates)
        for point, answer in zip(request.points, reply.points, strict=True)
    ]
    return dataclasses.replace(reply, points=points, by_formula=True)
