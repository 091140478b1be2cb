"""Which traces a plan makes, and what they say of its candidates.

Where an engine spreads the training, each way through the program is traced with data parallelism
first: how a step's time grows with its shape, no engine changes much, and every engine is estimated
by formula from that. Few engines are then all traced. Of many those are that the formula does not
rule out: the fastest that may fit, and of each sharding the first, unless it is much slower
(`trace_choice.py`). What was traced says something of its like (`engine_kinds.py`). That may put
others first; it ends when the first ones are all traced.

Engines are traced with a few layers of a deep model. What an allocator loses between blocks does
not follow well from these, so that of the first candidate all layers are traced in the end.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import Ceilings
from autotune.plan.candidates import estimates_of
from autotune.plan.children import traced_in_children
from autotune.plan.engine_kinds import Kind, expectation, kinds_of, likes_of, with_work_of
from autotune.plan.known import Known
from autotune.plan.progress import Progress
from autotune.plan.shared_traces import bases, shared_out
from autotune.plan.speeds import Speeds
from autotune.plan.trace_choice import (
    LIKELY,
    PROMISING,
    RULED_OUT,
    Effort,
    Rank,
    first_of_kinds,
    rank,
    representatives,
    to_trace,
)
from autotune.plan.variants import Member, VariantTask
from autotune.process.server import ChildServer
from autotune.space.sharding.sharding import heaviest_ranks

MOST_SETTLED = 3
"""So often all layers are traced, where that puts another candidate first."""
Heard = Callable[[int, EstimateReply], None]


@dataclass(frozen=True, kw_only=True)
class TraceBudget:
    """What traces are for, and of how many engines they may be.

    Attributes:
        limit: what a process may take on the device. Bytes.
        ceilings: of the device; None: speeds are not known, and every engine is traced.
        speeds: what was worked out of them.
    """

    limit: int
    ceilings: Ceilings | None
    effort: Effort = PROMISING
    speeds: Speeds = field(default_factory=Speeds)


def answered(
    tasks: Sequence[VariantTask],
    budget: TraceBudget,
    server: ChildServer,
    folder: Path,
    progress: Progress,
    known: Known | None = None,
) -> list[EstimateReply]:
    """Return the reply to each task.

    Args:
        known: hears of the replies as they come.
    """
    engines = [number for number, task in enumerate(tasks) if task.engine]
    answers = EngineEstimates(
        tasks,
        budget,
        lambda subset, name, heard: traced_in_children(
            subset, server, folder / name, progress, heard
        ),
        known or Known(),
    )
    by_formula = budget.ceilings is not None or budget.effort.first == 0
    if not by_formula or not engines:
        answers.trace(range(len(tasks)))
    else:
        answers.adjust()
        if budget.effort.first is None or len(engines) <= budget.effort.first:
            answers.trace(engines)
        else:
            answers.trace_first()
    if engines and budget.effort.settled:
        answers.settle()
    return [answers.replies[number] for number in range(len(tasks))]


class EngineEstimates:
    """Replies to tasks, by their index."""

    def __init__(
        self,
        tasks: Sequence[VariantTask],
        budget: TraceBudget,
        children: Callable[[Sequence[VariantTask], str, Heard], list[EstimateReply]],
        known: Known,
    ) -> None:
        self._tasks, self._budget, self._children = tasks, budget, children
        self._known = known
        self._formulas: dict[int, EstimateReply] = {}
        self._kinds: dict[int, Kind] = {}

    @property
    def replies(self) -> Mapping[int, EstimateReply]:
        """The best reply to each task so far."""
        return self._known.replies

    def adjust(self) -> None:
        """Answer for all engines by formula, from traces without one."""
        shared = bases(self._tasks)
        self._children(
            [base.task for base in shared],
            "copies",
            lambda place, reply: self._known.add(
                dict(shared_out(shared[place], reply, self._tasks))
            ),
        )
        self._formulas, self._kinds = dict(self.replies), kinds_of(self._tasks, shared)

    def trace(self, numbers: Sequence[int]) -> None:
        """Trace these tasks, with their engines."""

        def heard(place: int, reply: EstimateReply) -> None:
            number = numbers[place]
            formula = self._formulas.get(number)
            if formula is not None:
                reply = traced_or_not(formula, reply)
            self._known.add({number: reply})

        subset = [self._tasks[number] for number in numbers]
        self._children(subset, f"from-{min(numbers, default=0)}", heard)

    def trace_first(self) -> None:
        """Trace engines until those of the first tasks are."""
        ranks = self._ranks(self.replies)
        while numbers := to_trace(self._tasks, self.replies, ranks, self._budget.effort):
            self.trace(first_of_kinds(numbers, self._kinds))
            likes = likes_of(self._tasks, self._kinds, self.replies)
            self._known.add(
                {n: with_work_of(self.replies[n], self.replies[m]) for n, m in likes.items()}
            )
            ranks = self._ranks(self.replies, likes)

    def settle(self) -> None:
        """Trace all layers of the first candidate, until one is the first with all of them; of
        its processes the one that needs most counts."""
        settled: set[tuple[int, int]] = set()
        for _ in range(MOST_SETTLED):
            ranked = self._ranked(self.replies, self.replies)
            number = min(ranked, key=lambda number: ranked[number][0])
            task, reply = self._tasks[number], self.replies[number]
            place = ranked[number][1].place
            if not task.engine or reply.problem is not None or reply.by_formula:
                return
            ranks = heaviest_ranks(task.request.parsed_sharding)
            is_whole = reply.points[place].method == "trace"
            if (number, place) in settled or (is_whole and len(ranks) == 1):
                return
            settled.add((number, place))
            tasks = [with_all_layers(task, place, rank) for rank in ranks]
            replies = self._children(tasks, f"whole-{number}-{place}", _unheard)
            if any(reply.problem is not None for reply in replies):
                return
            of_ranks = [reply.points[0] for reply in replies]
            fullest = max(of_ranks, key=lambda point: point.peak_reserved_bytes)
            host_bytes = max(point.host_bytes for point in of_ranks)
            fullest = dataclasses.replace(fullest, host_bytes=host_bytes)
            points = [*reply.points[:place], fullest, *reply.points[place + 1 :]]
            self._known.add({number: dataclasses.replace(reply, points=points)})

    def _ranks(
        self, replies: Mapping[int, EstimateReply], likes: Mapping[int, int] | None = None
    ) -> dict[int, Rank]:
        """Return how each task is expected to rank.

        Args:
            likes: of what is by formula, one like it that was traced.
        """
        likes = likes or {}
        alike = {
            n: expectation(n, m, self._tasks, self._formulas, replies[m])
            for n, m in likes.items()
            if self._kinds[n] == self._kinds[m]
        }
        known = self._ranked(replies, [n for n in replies if n not in alike])
        ranks = {n: rank for n, (rank, _) in known.items()}
        gain = self._gain(n for n in ranks if n in self._kinds and not replies[n].by_formula)
        for number, (none_fits, amount) in ranks.items():
            if not none_fits and replies[number].by_formula and number not in likes:
                ranks[number] = none_fits, gain * amount
        expectations = self._ranked(alike, alike, ruled_out=LIKELY)
        return ranks | {n: rank for n, (rank, _) in expectations.items()}

    def _gain(self, traced: Iterable[int]) -> float:
        """Return how much faster engines are than by formula, at most; 1 where none fits or was
        traced."""
        gains = [1.0]
        for number in traced:
            (none_fits, amount), member = self._ranked(self.replies, [number])[number]
            task = dataclasses.replace(self._tasks[number], members=(member,))
            formula = self._estimates([task], [self._formulas[number]])[member.candidate.key]
            if not none_fits and formula.tokens_per_s:
                gains.append(-amount / formula.tokens_per_s)
        return max(gains)

    def _estimates(
        self, tasks: Sequence[VariantTask], replies: Sequence[EstimateReply]
    ) -> dict[str, Estimate]:
        budget = self._budget
        return estimates_of(
            tasks, replies, budget.limit, ceilings=budget.ceilings, speeds=budget.speeds
        )

    def _ranked(
        self,
        replies: Mapping[int, EstimateReply],
        numbers: Iterable[int],
        *,
        ruled_out: float = RULED_OUT,
    ) -> dict[int, tuple[Rank, Member]]:
        """Return each task's first candidate, and how that ranks."""
        subset = {number: representatives(self._tasks[number]) for number in numbers}
        estimates = self._estimates(list(subset.values()), [replies[n] for n in subset])
        ranked: dict[int, tuple[Rank, Member]] = {}
        for number, task in subset.items():
            ranks = [
                rank(
                    estimates[member.candidate.key],
                    by_formula=replies[number].by_formula,
                    ruled_out=ruled_out,
                )
                for member in task.members
            ]
            first = min(range(len(ranks)), key=lambda n: ranks[n])
            ranked[number] = ranks[first], task.members[first]
        return ranked


def _unheard(place: int, reply: EstimateReply) -> None:
    """A reply that counts only with others."""


def with_all_layers(task: VariantTask, place: int, rank: int) -> VariantTask:
    """Return the task of one point of a task, to be traced with all layers, as this process."""
    request = task.request
    point = dataclasses.replace(request, points=[request.points[place]], all_layers=True, rank=rank)
    return dataclasses.replace(task, request=point, members=())


def traced_or_not(formula: EstimateReply, traced: EstimateReply) -> EstimateReply:
    """Return an engine's reply, its times on the curves of copies; by formula still, where it
    cannot be traced."""
    if traced.problem is not None and formula.problem is None:
        return dataclasses.replace(formula, engine_problem=traced.problem)
    return dataclasses.replace(traced, copied_shapes=formula.shapes)
