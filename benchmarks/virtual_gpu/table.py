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
VERDICTS = ("fits", "retries", "out of memory")


def table(truths: Sequence[Row], plans: Sequence[Row]) -> str:
    """Errors of the plan by group, verdicts under a limit, then a row a combination, the worst
    reserved bytes first."""
    real = {row["name"]: row for row in truths if not row.get("oom") and "failure" not in row}
    planned = {row["name"]: row for row in plans if "failure" not in row}
    both = [(real[name], planned[name]) for name in real if name in planned]
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
            lines.append(f"| {name} | {len(some)} | {_spread(requested)} | {_spread(reserved)} |")
    lines += ["", *_verdicts(both)]
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


def _verdicts(both: Sequence[tuple[Row, Row]]) -> list[str]:
    """What the plan says under a limit within 10% of the real reserved peak, beside the truth."""
    limited = [(truth, plan) for truth, plan in both if "limited" in truth and "limited" in plan]
    lines = [
        "Under a limit drawn within 10% of what was reserved:",
        "",
        f"| real | {' | '.join(f'planned {verdict}' for verdict in VERDICTS)} |",
        "|---|---|---|---|",
    ]
    for verdict in VERDICTS:
        some = [plan["limited"] for truth, plan in limited if _verdict(truth["limited"]) == verdict]
        counts = (str(sum(_verdict(plan) == other for plan in some)) for other in VERDICTS)
        lines.append(f"| {verdict} | {' | '.join(counts)} |")
    for truth, plan in limited:
        real, said = _verdict(truth["limited"]), _verdict(plan["limited"])
        if real != said:
            share = truth["limited"]["limit_bytes"] / truth["reserved_bytes"]
            lines.append(f"\n{real}, planned {said}, at {share:.3f} of the peak: {truth['name']}")
    return lines


def _verdict(row: Row) -> str:
    if row["oom"]:
        return "out of memory"
    return "retries" if row["retries"] else "fits"


def _count(rows: Sequence[Row], what: str) -> int:
    return sum(bool(row.get(what)) for row in rows)


def _requested(truth: Row, plan: Row) -> float:
    return float(plan["allocated_bytes"] / truth["requested_bytes"] - 1)


def _reserved(truth: Row, plan: Row) -> float:
    return float(plan["reserved_bytes"] / truth["reserved_bytes"] - 1)


def _spread(errors: list[float]) -> str:
    middle = statistics.median(map(abs, errors))
    return f"{middle:.3%} | {min(errors):+.3%} | {max(errors):+.3%}"
