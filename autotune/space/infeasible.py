"""Why a job leaves no candidate, and what of it to let go of. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from autotune.errors import Problem
from autotune.space.knobs import Rule


def nothing_left(
    rules: Sequence[Rule],
    context: Mapping[str, Any],
    knob_names: Collection[str],
    reasons: Sequence[str],
) -> Problem:
    """Return the problem of a space without candidates.

    A rule that the context meets takes all of them out by itself: such rules alone are named,
    not what else was taken out on the way. Where there is none, it was all reasons together.

    Args:
        context: facts, and knobs of one value.
        knob_names: names of the knobs that the job pins or lists.
        reasons: of everything that was taken out.
    """
    decisive = [rule for rule in rules if rule.excludes(context)]
    unique_reasons = dict.fromkeys(rule.reason for rule in decisive) if decisive else reasons
    text = "; ".join(reason.removesuffix(".") for reason in unique_reasons)
    pins = dict.fromkeys(name for rule in decisive for name in rule.forbid if name in knob_names)
    pin_list = " or ".join(f"`{name}`" for name in pins) or "a pinned knob"
    return Problem(
        where="job",
        what=f"no configuration is possible: {text}",
        hint=f"remove {pin_list} from the job",
    )
