"""The record of each task of a plan, and what the trace of one engine implies for the most similar
others. Pure.

By formula an engine computes as copies do. Traced, it does not: DeepSpeed and FSDP2 hold weights
of 16 bits, which copies cast from 32 bits in each step. What one of them computes, another computes
too that runs the same program. Memory is much the same within a library alone.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.estimate.protocol import EstimateReply, PointReply
from autotune.plan.variants import VariantTask
from autotune.space.sharding.sharding import Sharding

Rank = tuple[bool, float]
"""The rank of a task: (does not fit, less tokens/s, or where it does not fit more bytes); the least
is first."""


@dataclass(eq=False, kw_only=True)
class TaskRecord:
    """One task of a plan, and what is known of it so far.

    Attributes:
        number: its place in the plan.
        reply: the best reply so far.
        formula: the reply that follows by formula from a trace without its engine.
        program: number of that trace; tasks of one program differ in their engines only.
        nearest: the most similar task whose engine was traced, while its own was not.
        rank: how it is expected to rank.
    """

    number: int
    task: VariantTask
    reply: EstimateReply = dataclasses.field(default_factory=lambda: EstimateReply(process_bytes=0))
    formula: EstimateReply | None = None
    program: int = 0
    nearest: "TaskRecord | None" = None
    rank: Rank = (True, 0.0)

    @functools.cached_property
    def sharding(self) -> Sharding:
        """The sharding of the training among its devices."""
        return self.task.request.parsed_sharding

    @property
    def kind(self) -> tuple[int, str]:
        """Its program, and the library that divides the training."""
        return self.program, self.sharding.distributed_type

    @property
    def has_traced_engine(self) -> bool:
        """True if its own engine was traced, and could be."""
        reply = self.reply
        return self.task.engine and not reply.by_formula and reply.problem is None

    def receive(self, traced: EstimateReply) -> None:
        """Take the reply of its trace."""
        self.reply = traced if self.formula is None else best_reply(self.formula, traced)

    def expected(self) -> EstimateReply | None:
        """Return the reply that the trace of its nearest task lets expect: the same work, and
        memory that is as far from its formula; None: no task of its library was traced."""
        if self.nearest is None or self.nearest.kind != self.kind:
            return None
        assert self.formula is not None and self.nearest.formula is not None
        traced, request = self.nearest.reply, self.nearest.task.request
        known = {
            repr(point): (answer, by_formula)
            for point, answer, by_formula in zip(
                request.points, traced.points, self.nearest.formula.points, strict=True
            )
        }
        points = [
            _corrected(answer, *known[repr(point)]) if repr(point) in known else answer
            for point, answer in zip(self.task.request.points, self.formula.points, strict=True)
        ]
        return dataclasses.replace(with_work_of(self.formula, traced), points=points)


def best_reply(formula: EstimateReply, traced: EstimateReply) -> EstimateReply:
    """Return an engine's reply with its times on the curves of copies; still by formula where it
    cannot be traced."""
    if traced.problem is not None and formula.problem is None:
        return dataclasses.replace(formula, engine_problem=traced.problem)
    return dataclasses.replace(traced, copied_shapes=formula.shapes)


def nearest_traced(record: TaskRecord, records: Iterable[TaskRecord]) -> TaskRecord | None:
    """Return the most similar traced task of an untraced one: of the same program, and of the same
    library and stage where there is such a one. Failed traces are skipped."""
    if not (record.task.engine and record.reply.by_formula and record.reply.problem is None):
        return None
    library, stage = record.sharding.distributed_type, record.sharding.zero_stage

    def distance(other: TaskRecord) -> tuple[bool, bool]:
        sharding = other.sharding
        return sharding.distributed_type != library, sharding.zero_stage != stage

    traced = (r for r in records if r.has_traced_engine and r.program == record.program)
    return min(traced, key=distance, default=None)


def first_of_kinds(records: Sequence[TaskRecord]) -> list[TaskRecord]:
    """Return the first task of each kind: the others can wait for what its trace implies for
    them."""
    first: dict[object, TaskRecord] = {}
    for record in records:
        first.setdefault(record.kind, record)
    return list(first.values())


def with_work_of(formula: EstimateReply, traced: EstimateReply) -> EstimateReply:
    """Return an engine's reply by formula with the work of a similar one, which was traced."""
    return dataclasses.replace(
        formula,
        shapes=traced.shapes,
        copied_shapes=formula.copied_shapes or formula.shapes,
        optimizer_work=traced.optimizer_work,
    )


def _corrected(answer: PointReply, traced: PointReply, by_formula: PointReply) -> PointReply:
    """Return an answer by formula, corrected by how far the trace of another differs from its
    formula."""
    if traced.at_least:
        return answer
    excess = traced.peak_reserved_bytes - by_formula.peak_reserved_bytes
    return dataclasses.replace(
        answer,
        peak_allocated_bytes=max(answer.peak_allocated_bytes + excess, 0),
        peak_reserved_bytes=max(answer.peak_reserved_bytes + excess, 0),
        oom=traced.oom,
        missing_bytes=traced.missing_bytes,
    )
