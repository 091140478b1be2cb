"""The table of plans beside the real allocator's figures. Pure."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
GROUPS: dict[str, Callable[[Row], bool]] = {
    "all": lambda case: True,
    "without dropout": lambda case: not case["dropout"],
    "fixed segments": lambda case: not case["expandable"],
    "expandable segments": lambda case: case["expandable"],
    "full": lambda case: case["tuning"] == "full",
    "LoRA": lambda case: case["tuning"] == "lora",
    "rows of many lengths": lambda case: case["ragged"],
}


def table(truths: Sequence[Row], plans: Sequence[Row]) -> str:
    """Errors of the plan by group, then a row a combination, the worst reserved bytes first."""
    real = {row["name"]: row for row in truths if not row.get("oom") and "failure" not in row}
    told = {row["name"]: row for row in plans if "failure" not in row}
    both = [(real[name], told[name]) for name in real if name in told]
    lines = [
        f"{len(both)} combinations ({len(truths)} drawn; {_count(truths, 'oom')} out of memory on"
        f" the device, {_count(truths, 'failure')} failed there, {_count(plans, 'failure')} not"
        " planned). Errors: plan / real - 1.",
        "",
        "| combinations | n | requested, abs. median | lowest | highest"
        " | reserved, abs. median | lowest | highest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, chosen in GROUPS.items():
        some = [pair for pair in both if chosen(pair[0]["case"])]
        if some:
            requested, reserved = [_requested(*p) for p in some], [_reserved(*p) for p in some]
            lines.append(f"| {name} | {len(some)} | {_said(requested)} | {_said(reserved)} |")
    lines += ["", "| combination | real reserved, GB | requested | reserved |", "|---|---|---|---|"]
    for truth, plan in sorted(both, key=lambda pair: -abs(_reserved(*pair))):
        lines.append(
            f"| {truth['name']} | {truth['reserved_bytes'] / 1e9:.2f}"
            f" | {_requested(truth, plan):+.4%} | {_reserved(truth, plan):+.2%} |"
        )
    failed = [(row, "on the device") for row in truths if "failure" in row]
    failed += [(row, "planned") for row in plans if "failure" in row]
    for row, where in failed:
        lines.append(f"\nFailed ({where}): {row['name']}: {row['failure'].splitlines()[-1:]}")
    return "\n".join(lines) + "\n"


def _count(rows: Sequence[Row], what: str) -> int:
    return sum(bool(row.get(what)) for row in rows)


def _requested(truth: Row, plan: Row) -> float:
    return float(plan["allocated_bytes"] / truth["requested_bytes"] - 1)


def _reserved(truth: Row, plan: Row) -> float:
    return float(plan["reserved_bytes"] / truth["reserved_bytes"] - 1)


def _said(errors: list[float]) -> str:
    middle = statistics.median(map(abs, errors))
    return f"{middle:.3%} | {min(errors):+.3%} | {max(errors):+.3%}"
