"""The table of an outcome: `outcome_table.md`."""

import json
import statistics
from pathlib import Path
from typing import Any

from autotune.units import format_bytes


def table(rows_file: Path, machine: dict[str, Any]) -> str:
    """All picks of all cases, against autotune's.

    Args:
        rows_file: `outcome_rows.jsonl`.
        machine: what `outcome_machine.json` holds.
    """
    rows = [json.loads(line) for line in rows_file.read_text(encoding="utf-8").splitlines()]
    gpus = ", ".join(machine["torch"].get("gpus") or ["CPU"])
    lines = [f"# Outcome on {gpus}, {machine['date'][:10]}", "", f"`{machine['command']}`"]
    for case in dict.fromkeys(row["case"] for row in rows):
        lines += ["", *_case([row for row in rows if row["case"] == case], case)]
    return "\n".join(lines) + "\n"


def _case(rows: list[dict[str, Any]], case: str) -> list[str]:
    searches = {row["pick"]: row["seconds"] for row in rows if row["row"] == "search"}
    said = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in searches.items())
    lines = [
        f"## {case}",
        "",
        f"Searches: {said}.",
        "",
        "| pick | micro-batch x accumulation | batch kept | tokens/s (range) | against autotune "
        "| reserved peak | ran out of memory |",
        "|---" * 7 + "|",
    ]
    trainings: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["row"] == "training":
            trainings.setdefault(row["pick"], []).append(row)
    base = _speed(trainings.get("autotune", []))
    return [*lines, *(_line(name, runs, base) for name, runs in trainings.items())]


def _speed(trainings: list[dict[str, Any]]) -> float | None:
    speeds = [row["tokens_per_s"] for row in trainings if row["outcome"] == "ok"]
    return statistics.median(speeds) if speeds else None


def _line(name: str, trainings: list[dict[str, Any]], base: float | None) -> str:
    fields = trainings[0]["fields"]
    size = fields.get("per_device_train_batch_size", 8)
    steps = fields.get("gradient_accumulation_steps", 1)
    kept = "yes" if size * steps == trainings[0]["batch"] else f"no: {size * steps}"
    ended = [row for row in trainings if row["outcome"] == "ok"]
    failed = f"{sum(row['outcome'] == 'oom' for row in trainings)} of {len(trainings)}"
    speed = _speed(trainings)
    if speed is None:
        return f"| {name} | {size} x {steps} | {kept} | | | | {failed} |"
    speeds = [row["tokens_per_s"] for row in ended]
    ratio = "" if base is None else f"{speed / base:.2f}"
    peaks = [row["reserved_peak_bytes"] for row in ended if row["reserved_peak_bytes"]]
    peak = format_bytes(max(peaks)) if peaks else ""
    return (
        f"| {name} | {size} x {steps} | {kept} | {speed:.0f} ({min(speeds):.0f} to "
        f"{max(speeds):.0f}) | {ratio} | {peak} | {failed} |"
    )
