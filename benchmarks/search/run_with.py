"""`autotune run` by one of Optuna's samplers (tpe, gp, random, grid), to compare with ours:

    python -m benchmarks.search.run_with tpe job.yaml --out run --no-history

The sampler knows no estimates; what cannot fit is left out for it, too. The search ends by its
budget, because nobody expects anything of the next probe.
"""

import sys
from collections.abc import Sequence
from typing import Any

from autotune.cli import main
from autotune.job.job import KnobValue
from autotune.run import opening
from autotune.search.sampler.expected import Params
from autotune.search.sampler.params import distributions, params_of
from autotune.search.study import Study
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from benchmarks.search.feasible_sampler import FeasibleSampler, inner_sampler


def feasible_sampler(name: str, space: SearchSpace, seed: int) -> FeasibleSampler:
    """Return a sampler of Optuna's over a bound space."""

    def params(candidates: Sequence[Candidate]) -> list[Params]:
        return [params_of(space, candidate) for candidate in candidates]

    return FeasibleSampler(
        distributions(space),
        params(space.candidates),
        params(first_candidates(space)),
        params(sorted(space.candidates, key=expected_leanness)),
        seed,
        inner_sampler(name, seed),
    )


def first_candidates(space: SearchSpace) -> tuple[Candidate, ...]:
    """Return the start: the stack's defaults, then without checkpointing, then less padding."""
    default = space.default()
    changes: tuple[dict[str, KnobValue], ...] = (
        {"gradient_checkpointing": False},
        {"train_sampling_strategy": "group_by_length"},
    )
    return (default, *(space.nearest({**default.values, **change}) for change in changes))


def run_with(name: str, arguments: Sequence[str]) -> None:
    """Run the command with another sampler in the place of ours."""

    def sampler(space: SearchSpace, *_: Any, seed: int, **__: Any) -> Any:
        return feasible_sampler(name, space, seed)

    opening.guided_sampler = sampler
    Study.gain = lambda self: None  # type: ignore[method-assign]
    Study.expected_values = lambda self: {}  # type: ignore[method-assign]
    main(["run", *arguments], prog_name="autotune")


if __name__ == "__main__":
    run_with(sys.argv[1], sys.argv[2:])
