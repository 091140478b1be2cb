"""Advice for people and for programs. Pure."""

from collections.abc import Iterator
from typing import Any

from autotune.plan.questions.changes import Advice, Way
from autotune.report.words import checkpointing_phrase
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH
from autotune.space.sharding.sharding import sharding_of
from autotune.units import format_bytes, format_speed

SCHEMA = 1


def advice_plain(advice: Advice) -> dict[str, Any]:
    """Return the JSON data of `autotune advise --json`."""
    return {
        "schema": SCHEMA,
        "device": advice.device,
        "limit_bytes": advice.limit_bytes,
        "fits": advice.fits,
        "safe": advice.safe,
        "leanest": {"knobs": advice.nearest.knobs, "estimate": advice.estimate.plain()},
        "tried": advice.tried,
        "ruled_out": advice.ruled_out,
        "ways": [
            {
                "changes": [{"text": change.text, "kind": change.kind} for change in way.changes],
                "fields": dict(way.fields),
                "knobs": way.candidate.knobs,
                "estimate": way.estimate.plain(),
                "packages": list(way.packages),
            }
            for way in advice.ways
        ],
    }


def advice_lines(advice: Advice, wanted: str = "fit") -> Iterator[str]:
    """Yield each way out with its price, in their order.

    Args:
        wanted: the state that they make of the job: `fit` or `safe`.
    """
    if not advice.ways:
        yield f"No change was found that makes it {wanted} ({looked_at(advice)})."
        return
    yield f"What makes it {wanted}, by estimate, the cheapest first:"
    for number, way in enumerate(advice.ways, 1):
        yield f"  {number}. {' and '.join(change.text for change in way.changes)}"
        yield f"     {_price(way)}"


def looked_at(advice: Advice) -> str:
    """Return how many lists of changes were looked at."""
    count = f"{advice.tried} were estimated"
    if not advice.ruled_out:
        return count
    return f"{count}; of {advice.ruled_out} the weights and what trains them take more alone"


def _price(way: Way) -> str:
    knobs = way.candidate.knobs
    batch = f"{knobs[MICRO_BATCH]} x {knobs[ACCUMULATION]}"
    again = knobs.get(CHECKPOINTING)
    words = [checkpointing_phrase(again).removeprefix("with ")] if again else []
    words += ["activation offloading"] if knobs.get("activation_offloading") is True else []
    how = f"{batch}{' with ' if words else ''}{', '.join(words)}"
    parts = [f"{format_bytes(way.estimate.peak_memory_bytes)} at {how}"]
    if not way.estimate.traced:
        parts.append(f"{way.estimate.method}, +-{format_bytes(way.estimate.sigma_bytes)}")
    if way.estimate.tokens_per_s is not None:
        parts.append(format_speed(way.estimate.tokens_per_s))
    host = way.estimate.host_bytes
    if host is not None and sharding_of(way.candidate.values, 1).offloads:
        parts.append(f"{format_bytes(host)} of the host's memory")
    if way.learns_the_same:
        parts.append("what is learned stays the same")
    else:
        changed = [change.effect for change in way.changes if change.kind != "speed"]
        parts.append(f"changes what is learned: {', '.join(changed)}")
    if way.packages:
        parts.append(f"needs {', '.join(way.packages)} on the training machine")
    return "; ".join(parts)
