"""The searches that are compared: ours, Optuna's samplers, and the walks of other tuners.

Each is a function (problem, seed) -> iterator of candidates to probe, which is sent what came out.
The walks move the micro-batch alone, with every other knob at the stack's default, as their tools
do; their order follows the tools' documentation and source:

    accelerate   `find_executable_batch_size`: start at the global batch, after each OOM 0.9 of it
    lightning    `BatchSizeFinder`: `power` doubles from 2 until OOM; `binsearch` then bisects
    deepspeed    its autotuner's walk of one ZeRO stage: the largest micro-batch that fits, then
                 three sizes up to it; the space has no other stages

Sizes that do not divide the global batch do not exist here: they are rounded down (the tools would
have run them, and changed the global batch).
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autotune.probe.protocol import Measurement
from autotune.search.record import Record, excess_bytes
from autotune.search.rules.dominance import dominated
from autotune.search.sampler.sampler import EstimateGuidedSampler
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from benchmarks.search.feasible_sampler import FeasibleSampler, inner_sampler
from benchmarks.search.grid import Problem, knobs_of_default

DEFAULT_MICRO_BATCH = 8
"""TRL's."""
Search = Generator[Candidate, Measurement, None]


def distributions(problem: Problem) -> dict[str, CategoricalDistribution]:
    """Of the knobs that the grid varies."""
    params = problem.grid.params.values()
    return {
        name: CategoricalDistribution(list({repr(p[name]): p[name] for p in params}.values()))
        for name in problem.grid.free
    }


def ours(problem: Problem, seed: int, *, guided: bool = True) -> Search:
    """As `autotune run` searches: estimates, dominance, what cannot fit left out."""
    sampler = EstimateGuidedSampler(
        distributions(problem),
        [problem.params(c) for c in problem.candidates],
        [problem.expected(c) for c in problem.candidates] if guided else None,
        allowed_bytes=problem.allowed_bytes,
        residual=problem.grid.prior,
        seed=seed,
    )
    yield from _study(problem, sampler, constrained=True, rules=True, hopeless=guided)


def optunas(problem: Problem, seed: int, *, name: str, constrained: bool = True) -> Search:
    """One of Optuna's samplers, kept to feasible candidates, opened with the stack's default."""
    default = [c for c in default_walk(problem) if c.micro_batch <= DEFAULT_MICRO_BATCH]
    sampler = FeasibleSampler(
        distributions(problem),
        [problem.params(c) for c in problem.candidates],
        [problem.params(c) for c in default[-1:]],
        [problem.params(c) for c in sorted(problem.candidates, key=expected_leanness)],
        seed,
        inner_sampler(name, seed),
    )
    yield from _study(problem, sampler, constrained=constrained, rules=False)


def _study(
    problem: Problem,
    sampler: BaseSampler,
    *,
    constrained: bool,
    rules: bool,
    hopeless: bool = False,
) -> Search:
    study = optuna.create_study(direction="maximize", sampler=sampler)
    by_params = {str(problem.params(c)): c for c in problem.candidates}
    space, records = distributions(problem), []
    expectations, beaten = problem.expectations(), set[str]()
    while True:
        if rules:
            beaten |= set(dominated(problem.candidates, records[-1:], problem.allowed_bytes))
            out = set(beaten)
            out |= expectations.hopeless(problem.candidates, records) if hopeless else frozenset()
            sampler.leave_out([problem.params(c) for c in problem.candidates if c.key in out])
        try:
            trial = study.ask(space)
        except RuntimeError:
            return  # all have been probed, or ruled out
        candidate = by_params[str({name: trial.params[name] for name in problem.grid.free})]
        measurement = yield candidate
        records.append(Record(number=trial.number, candidate=candidate, measurement=measurement))
        excess = excess_bytes(measurement, problem.allowed_bytes)
        if constrained and excess is not None:
            trial.set_constraint("memory", excess)
        if measurement.outcome == "ok":
            study.tell(trial, measurement.tokens_per_s)
        else:
            study.tell(trial, state=TrialState.PRUNED)


# -- walks over the micro-batch


def default_walk(problem: Problem) -> list[Candidate]:
    """The stack's defaults at every micro-batch, the smallest first."""
    wanted = {
        name: value
        for name, value in knobs_of_default(problem.grid).items()
        if len({repr(c[name]) for c in problem.candidates}) > 1  # what is pinned stays
    }
    fitting = [c for c in problem.candidates if all(c[n] == v for n, v in wanted.items())]
    return sorted(fitting, key=lambda c: c.micro_batch)


def accelerate(problem: Problem, seed: int) -> Search:
    """0.9 of the size after each OOM; the first that fits is the answer."""
    walk = default_walk(problem)
    size = float(walk[-1].micro_batch) if walk else 0.0
    last = None
    while size >= 1:
        at = _at_most(walk, size)
        if at is not None and at is not last:
            last = at
            measurement = yield at
            if measurement.outcome == "ok":
                return
        size = math.floor(size * 0.9)


def lightning(problem: Problem, seed: int, *, bisect: bool) -> Search:
    """Doubling from 2 until it does not fit."""
    walk = default_walk(problem)
    low, high, size = 0, 0, 2
    while walk and size <= walk[-1].micro_batch:
        at = _at_most(walk, size)
        if at is None:
            return
        measurement = yield at
        if measurement.outcome != "ok":
            high = size
            break
        low, size = size, 2 * size
    while bisect and high - low > 1:
        middle = (low + high) // 2
        at = _at_most(walk, middle)
        if at is None or at.micro_batch <= low:
            return
        measurement = yield at
        if measurement.outcome == "ok":
            low = middle
        else:
            high = middle


def deepspeed(problem: Problem, seed: int) -> Search:
    """The largest micro-batch that fits, then three sizes up to it."""
    fits: list[Candidate] = []
    for candidate in default_walk(problem):
        measurement = yield candidate
        if measurement.outcome != "ok":
            break
        fits.append(candidate)
    for candidate in fits[-3:]:
        yield candidate


def _at_most(walk: Sequence[Candidate], size: float) -> Candidate | None:
    return next((c for c in reversed(walk) if c.micro_batch <= size), None)


@dataclass(frozen=True)
class Searcher:
    """A search under its name; `random`: whether seeds make it differ even without noise."""

    name: str
    begin: Callable[[Problem, int], Search]

    def __call__(self, problem: Problem, seed: int) -> Search:
        return self.begin(problem, seed)


SEARCHERS: Sequence[Searcher] = (
    Searcher("autotune", ours),
    Searcher("autotune, no estimates of its own", lambda p, s: ours(p, s, guided=False)),
    Searcher("TPE, constrained", lambda p, s: optunas(p, s, name="tpe")),
    Searcher("TPE", lambda p, s: optunas(p, s, name="tpe", constrained=False)),
    Searcher("GP", lambda p, s: optunas(p, s, name="gp")),
    Searcher("random", lambda p, s: optunas(p, s, name="random")),
    Searcher("grid in order", lambda p, s: optunas(p, s, name="grid")),
    Searcher("accelerate, 0.9 ladder", accelerate),
    Searcher("Lightning, power", lambda p, s: lightning(p, s, bisect=False)),
    Searcher("Lightning, binsearch", lambda p, s: lightning(p, s, bisect=True)),
    Searcher("DeepSpeed, one stage", deepspeed),
)
