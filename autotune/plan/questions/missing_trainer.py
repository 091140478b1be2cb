"""The alternatives where the installed TRL has no such trainer any more, with their memory and
speed."""

import tempfile
from pathlib import Path

from autotune.errors import AutotuneError, user_error
from autotune.facts.stack import missing
from autotune.job.job import Job
from autotune.plan.plan import plan
from autotune.plan.questions.ppo_to_grpo import WITHOUT_A_VALUE_MODEL, in_place_of_ppo
from autotune.space.definition import load_definition
from autotune.units import format_bytes


def refuse_missing(job: Job, *, device: str | None, figures: bool) -> None:
    """Refuse a job whose trainer the installed TRL does not have. The arguments are those of
    `ways_out`.

    Raises:
        UserError: it has none of that name any more.
    """
    reason = missing(job.method)
    if reason is not None:
        raise user_error(reason, where="method", hint=ways_out(job, device=device, figures=figures))


def ways_out(job: Job, *, device: str | None, figures: bool) -> str:
    """Return the hint: pin TRL, or train by another method.

    Args:
        device: a kind of device to plan for; None: this machine's.
        figures: whether the other methods are planned.
    """
    lines = ["`pip install trl==1.12.0`, or another method, which needs no value model:"]
    for method in WITHOUT_A_VALUE_MODEL:
        alternative = in_place_of_ppo(job, method)
        if alternative is None:
            lines.append(f"  method: {method}  wants a batch that makes up groups")
        elif figures:
            lines.append(f"  method: {method}  {_figures(alternative, device)}")
        else:
            lines.append(f"  method: {method}")
    if figures:
        lines.append("(by `autotune plan`, with TRL's defaults)")
    return "\n".join(lines)


def _figures(job: Job, device: str | None) -> str:
    """Return peak and speed of TRL's defaults, as text."""
    definition = load_definition(job.method)
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-plan-") as scratch:
            figures = plan(job, definition, Path(scratch), device=device, only_default=True)
    except AutotuneError as error:
        return f"cannot be planned: {error.problems[0].what}"
    ((candidate, estimate),) = figures.ranked()
    speed = f", {estimate.tokens_per_s:.0f} tokens/s" if estimate.tokens_per_s else ""
    source = ", by formula" if estimate.method == "closed form" else ""
    word = "fits" if estimate.fits else "does not fit"
    batch = f"{candidate.micro_batch} x {candidate.gradient_accumulation_steps}"
    peak = format_bytes(estimate.peak_memory_bytes)
    return (
        f"{batch}: {peak}{speed}; "
        f"{word} in {format_bytes(figures.limit_bytes)} on {figures.facts.device.name}{source}"
    )
