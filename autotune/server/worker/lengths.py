"""What a plan's answer takes at other lengths and micro-batches: more plans, of that alone. Pure.

A page moves sliders over its points. Nothing is estimated here: the plan's command does it.
"""

from collections.abc import Sequence
from typing import Any

from autotune.job.methods import METHODS
from autotune.job.yaml_file import parse_yaml, to_yaml
from autotune.space.knobs import ACCUMULATION, GLOBAL_BATCH, MICRO_BATCH

FILE = "lengths.json"
SCHEMA = 1
SHARES = (0.25, 0.5, 1.0, 2.0)
"""Lengths that are planned, over the job's own; beyond it only where the data are but lengths."""
LEAST = 16
_VARIED = (MICRO_BATCH, ACCUMULATION, GLOBAL_BATCH, "max_length")


def lengths_jobs(job: str, knobs: dict[str, Any]) -> list[str]:
    """Jobs with the knobs of an answer pinned, over lengths and micro-batches; none where no length
    could vary.

    Where rows are not padded TRL does not truncate: then each length is a job of its own, with data
    that are no longer, which only data that are but lengths can be.

    Args:
        job: the job file's text.
        knobs: of the answer.
    """
    data = parse_yaml(job, "job")[0]
    length, dataset = knobs.get("max_length"), data.get("dataset")
    if METHODS[data.get("method", "sft")].online or not isinstance(length, int):
        return []
    if isinstance(data.get("global_batch_size"), str):
        return []  # so many tokens make another batch at every length
    data["fixed"] = {name: value for name, value in knobs.items() if name not in _VARIED}
    data["global_batch_size"] = knobs[GLOBAL_BATCH]
    data.pop("recipe", None)
    if isinstance(dataset, dict):
        lengths = [max(round(share * length), LEAST) for share in SHARES]
        return [to_yaml({**data, **_cut(dataset["lengths"], at)}) for at in lengths]
    if knobs.get("padding_free"):
        return []
    lengths = [max(round(share * length), LEAST) for share in SHARES if share <= 1]
    return [to_yaml({**data, "recipe": {"max_length": sorted(set(lengths))}})]


def _cut(lengths: dict[str, int], at: int) -> dict[str, Any]:
    """Return data of these lengths, truncated: of a job whose longest rows are `at` tokens long."""
    cut = {name: min(value, at) for name, value in lengths.items() if name in ("p50", "p99")}
    rows = {"rows": lengths["rows"]} if "rows" in lengths else {}
    return {"max_length": at, "dataset": {"lengths": {**cut, **rows, "max": at}}}


def lengths_points(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the sliders need of those plans' results, of which there is at least one."""
    points = [
        {
            "max_length": candidate["knobs"]["max_length"],
            "micro_batch": candidate["knobs"][MICRO_BATCH],
            "peak_memory_bytes": candidate["estimate"]["peak_memory_bytes"],
            "p_oom": candidate["estimate"]["p_oom"],
            "tokens_per_s": candidate["estimate"]["tokens_per_s"],
            "parts": candidate["estimate"]["parts"],
        }
        for result in results
        for candidate in result["candidates"]
    ]
    return {
        "schema": SCHEMA,
        "limit_bytes": results[0]["device"]["limit_bytes"],
        "lengths": sorted({point["max_length"] for point in points}),
        "micro_batches": sorted({point["micro_batch"] for point in points}),
        "points": points,
    }
