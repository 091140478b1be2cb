"""Which traces a plan makes, and what they say of its candidates.

Where an engine spreads the training, each way through the program is traced with data parallelism
first: how a step's time grows with its shape, no engine changes much, and every engine is estimated
by formula from that. Few engines are then all traced. Of many those are that the formula does not
rule out: the fastest that may fit, and of each sharding the first, unless it is much slower. That
may put others first; it ends when the first ones are all traced.

Engines are traced with a few layers of a deep model. What an allocator loses between blocks does
not follow well from these, so that of the first candidate all layers are traced in the end.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import Ceilings
from autotune.plan.candidates import estimates_of
from autotune.plan.children import Servers, traced_in_children
from autotune.plan.choices import AS_FAST, is_safe
from autotune.plan.known import Known
from autotune.plan.progress import Progress
from autotune.plan.shared_traces import bases, shared_out
from autotune.plan.variants import Member, VariantTask
from autotune.space.sharding.sharding import heaviest_ranks

FIRST = 4
"""Of the tasks with the fastest candidates so many are traced. Chosen, not measured."""
SLOWER = 0.9
"""A sharding whose candidates reach less of the fastest one's speed is left to the formula, which
leaves out what an engine does besides: traced, it is slower still. Chosen, not measured."""
MUCH_LARGER = 1.7
"""Where nothing fits, one that takes so much more than the leanest is. Chosen, not measured."""
MOST_SETTLED = 3
"""So often all layers are traced, where that puts another candidate first."""
RULED_OUT = 0.95
"""What does not fit with this probability is not looked at more closely."""
Heard = Callable[[int, EstimateReply], None]
Rank = tuple[bool, float]
"""(does not fit, less tokens/s, or where it does not fit more bytes): the least comes first."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Of which tasks engines are traced.

    Attributes:
        first: of so many, the fastest first; 0: of none; None: of all.
        each_sharding: and of the first of every sharding.
        settled: and of the first candidate with all layers.
    """

    first: int | None
    each_sharding: bool = False
    settled: bool = False


PROMISING = Effort(first=FIRST, each_sharding=True, settled=True)
EVERY = Effort(first=None, settled=True)


@dataclass(frozen=True, kw_only=True)
class TraceBudget:
    """What traces are for, and of how many engines they may be.

    Attributes:
        limit: what a process may take on the device. Bytes.
        ceilings: of the device; None: speeds are not known, and every engine is traced.
    """

    limit: int
    ceilings: Ceilings | None
    effort: Effort = PROMISING


def answered(
    tasks: Sequence[VariantTask],
    budget: TraceBudget,
    servers: Servers,
    folder: Path,
    progress: Progress,
    known: Known | None = None,
) -> list[EstimateReply]:
    """The reply to each task.

    Args:
        known: hears of the replies as they come.
    """
    engines = [number for number, task in enumerate(tasks) if task.engine]
    answers = EngineEstimates(
        tasks,
        budget,
        lambda subset, name, heard: traced_in_children(
            subset, servers, folder / name, progress, heard
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

    def trace(self, numbers: Sequence[int]) -> None:
        """Trace these tasks, with their engines."""

        def heard(place: int, reply: EstimateReply) -> None:
            number = numbers[place]
            formula = self.replies.get(number)
            if formula is not None:
                reply = traced_or_not(formula, reply)
            self._known.add({number: reply})

        subset = [self._tasks[number] for number in numbers]
        self._children(subset, f"from-{min(numbers, default=0)}", heard)

    def trace_first(self) -> None:
        """Trace engines until those of the first tasks are."""
        ranks = self._ranks(list(self.replies))
        while numbers := to_trace(self._tasks, self.replies, ranks, self._budget.effort):
            self.trace(numbers)
            ranks |= self._ranks(numbers)

    def settle(self) -> None:
        """Trace all layers of the first candidate, until one is the first with all of them; of
        its processes the one that needs most counts."""
        settled: set[tuple[int, int]] = set()
        for _ in range(MOST_SETTLED):
            ranked = self._ranked(list(self.replies))
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

    def _ranks(self, numbers: Sequence[int]) -> dict[int, Rank]:
        """How each task ranks: as its first candidate does."""
        return {number: rank for number, (rank, _) in self._ranked(numbers).items()}

    def _ranked(self, numbers: Sequence[int]) -> dict[int, tuple[Rank, Member]]:
        """Each task's first candidate, and how that ranks."""
        subset = [representatives(self._tasks[number]) for number in numbers]
        replies = [self.replies[number] for number in numbers]
        estimates = estimates_of(
            subset, replies, self._budget.limit, ceilings=self._budget.ceilings
        )
        ranked: dict[int, tuple[Rank, Member]] = {}
        for number, task in zip(numbers, subset, strict=True):
            by_formula = self.replies[number].by_formula
            ranks = [
                rank(estimates[member.candidate.key], by_formula=by_formula)
                for member in task.members
            ]
            first = min(range(len(ranks)), key=lambda n: ranks[n])
            ranked[number] = ranks[first], task.members[first]
        return ranked


def _unheard(place: int, reply: EstimateReply) -> None:
    """A reply that counts only with others."""


def with_all_layers(task: VariantTask, place: int, rank: int) -> VariantTask:
    """The task of one point of a task, to be traced with all layers, as this process."""
    request = task.request
    point = dataclasses.replace(request, points=[request.points[place]], all_layers=True, rank=rank)
    return dataclasses.replace(task, request=point, members=())


def traced_or_not(formula: EstimateReply, traced: EstimateReply) -> EstimateReply:
    """An engine's reply, its times on the curves of copies; by formula still, where it cannot be
    traced."""
    if traced.problem is not None and formula.problem is None:
        return dataclasses.replace(formula, engine_problem=traced.problem)
    return dataclasses.replace(traced, copied_shapes=formula.shapes)


def representatives(task: VariantTask) -> VariantTask:
    """A task with one candidate for each of its points, and for each way to adjust what is traced
    there."""
    firsts = {(member.place, member.replaced): member for member in reversed(task.members)}
    return dataclasses.replace(task, members=tuple(firsts.values()))


def to_trace(
    tasks: Sequence[VariantTask],
    replies: Mapping[int, EstimateReply],
    ranks: Mapping[int, Rank],
    effort: Effort = PROMISING,
) -> list[int]:
    """Indices of the engines to trace next, of those that are by formula and were not tried."""
    order = sorted(ranks, key=lambda number: ranks[number])
    none_fits, best = ranks[order[0]]
    enough = (none_fits, best * (MUCH_LARGER if none_fits else SLOWER))
    free = {n for n, reply in replies.items() if reply.by_formula and reply.engine_problem is None}
    traced = {_sharding_key(task) for n, task in enumerate(tasks) if n not in free}
    needless = {number for number in ranks if _offloads_needlessly(tasks, ranks, number)}
    numbers = [number for number in order if number not in needless][: effort.first]
    for number in order if effort.each_sharding else ():
        sharding = _sharding_key(tasks[number])
        if number not in needless and sharding not in traced and ranks[number] <= enough:
            traced.add(sharding)
            numbers.append(number)
    return [number for number in dict.fromkeys(numbers) if number in free]


def _offloads_needlessly(
    tasks: Sequence[VariantTask], ranks: Mapping[int, Rank], number: int
) -> bool:
    """Whether a task offloads, and does no better than one that is alike and does not."""
    sharding = tasks[number].request.parsed_sharding
    if not sharding.offloads:
        return False
    kept = dataclasses.replace(
        sharding, offload_optimizer_device="none", offload_param_device="none"
    )
    return any(
        tasks[other].request.parsed_sharding == kept and _about_as_good(rank, ranks[number])
        for other, rank in ranks.items()
    )


def _about_as_good(rank: Rank, other: Rank) -> bool:
    """Whether the first of two ranks is the better one, or speeds are about the same."""
    return rank <= other or (not rank[0] and rank[1] <= (1 - AS_FAST) * other[1])


def _sharding_key(task: VariantTask) -> str:
    return repr(task.request.sharding)


def rank(estimate: Estimate, *, by_formula: bool) -> Rank:
    """What may fit comes first, the fastest of it before the others; else the leanest.

    Args:
        by_formula: whether its engine is; of what was traced counts whether it is safe.
    """
    if _may_fit(estimate) if by_formula else is_safe(estimate):
        return False, -(estimate.tokens_per_s or 0.0)
    return True, float(estimate.peak_memory_bytes)


def _may_fit(estimate: Estimate) -> bool:
    device = 0.0 if estimate.at_most else estimate.p_oom
    return max(device, estimate.p_host_oom or 0.0) < RULED_OUT
