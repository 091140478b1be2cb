"""Candidates and estimates as Optuna's parameters; the sampler of a run is made here."""

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from autotune.estimate.estimate import Estimate
from autotune.estimate.residual import Residual
from autotune.estimate.speed.step_time import TERMS
from autotune.search.sampler.expected import NOTHING_KNOWN, Expected, Reading
from autotune.search.sampler.sampler import EstimateGuidedSampler
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate, value_label


def choice(value: Any) -> Any:
    """Return a knob's value as Optuna stores it."""
    return value_label(value) if isinstance(value, list) else value


def params_of(space: SearchSpace, candidate: Candidate) -> dict[str, Any]:
    """Return the free knobs of a candidate."""
    return {knob.name: choice(candidate[knob.name]) for knob in space.free_knobs}


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of all free knobs, by name."""
    return {
        knob.name: CategoricalDistribution([choice(value) for value in knob.values])
        for knob in space.free_knobs
    }


def expected_of(estimate: Estimate | None) -> Expected:
    """Return an estimate as the sampler takes it."""
    if estimate is None:
        return NOTHING_KNOWN
    shares: tuple[float, ...] = ()
    if estimate.time_parts is not None and estimate.time_parts.total > 0:
        parts = estimate.time_parts.exposed()
        shares = tuple(getattr(parts, term) / parts.total for term in TERMS)
    return Expected(
        speed=estimate.tokens_per_s,
        shares=shares,
        peak_bytes=float(estimate.peak_reserved_bytes),
        relative_sigma=0.0
        if estimate.traced
        else estimate.sigma_bytes / max(estimate.peak_memory_bytes, 1),
    )


def guided_sampler(
    space: SearchSpace,
    estimates: Mapping[str, Estimate],
    prior: Residual,
    *,
    allowed_bytes: int | None,
    history: Sequence[Reading] = (),
    seed: int = 0,
) -> EstimateGuidedSampler:
    """Return our sampler over a bound space, with its estimates by the candidates' keys."""
    # Of candidates that promise the same, the stack's defaults come first.
    default = space.default().key
    candidates = sorted(space.candidates, key=lambda candidate: candidate.key != default)
    return EstimateGuidedSampler(
        distributions(space),
        [params_of(space, candidate) for candidate in candidates],
        [expected_of(estimates.get(candidate.key)) for candidate in candidates],
        allowed_bytes=allowed_bytes,
        residual=prior,
        history=history,
        seed=seed,
    )
