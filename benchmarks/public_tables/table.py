"""The rows of this benchmark as Markdown tables. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.public_tables.figures import (
    DOCUMENTED,
    ESTIMATORS,
    FIGURE_1,
    PAPER,
    T0_3B_LINES,
)

Rows = Sequence[dict[str, Any]]
GB, GIB = 1e9, 2**30
SHOWN = ("weights", "gradients", "optimizer")


def table(rows: Rows) -> str:
    """A section for each source, with the rows that it has."""
    text = "# Published figures of model states, and what a plan says of them\n"
    sections: dict[str, Callable[[Rows], str]] = {
        PAPER: _paper,
        ESTIMATORS: _estimators,
        DOCUMENTED: _documented,
    }
    for name, section in sections.items():
        own = [row for row in rows if row["case"]["table"] == name]
        text += section(own) if own else ""
    return text


def states(parts: dict[str, int]) -> int:
    """Weights, gradients and optimizer together. Bytes."""
    return sum(parts.get(part, 0) for part in SHOWN)


def lasting(row: dict[str, Any]) -> dict[str, int]:
    """What lasts, with gradients.

    Between micro-steps a trace of stage 2 has those that are added up among the temporaries; as
    the optimizer step begins they are the same bytes, told as gradients.
    """
    ours: dict[str, dict[str, int]] = row["ours"]
    return ours["before_step" if row["case"]["strategy"].startswith("ZeRO-2") else "between"]


def _paper(rows: Rows) -> str:
    text = (
        "\n## ZeRO, figure 1 and table 1\n\nGB (10^9) of one device, as the second of two "
        "micro-steps begins. `formula`: the paper's, for as many weights as the traced shape has."
        "\n\n| model | devices | strategy | figure 1 | formula | ours | of that weights | gradients"
        " | optimizer | ours / formula | buckets and the rest |\n" + "|---" * 11 + "|\n"
    )
    for row in rows:
        case, parts = row["case"], lasting(row)
        stage = 0 if case["strategy"] == "DDP" else int(case["strategy"][-1])
        headline = (case["model"], case["ranks"]) == ("7.5B", 64)
        own, formula = states(parts), row["told"]["device"]
        cells = [
            case["model"],
            str(case["ranks"]),
            case["strategy"],
            str(FIGURE_1[stage]) if headline else "",
            f"{formula / GB:.2f}",
            f"{own / GB:.2f}",
            *(f"{parts.get(part, 0) / GB:.2f}" for part in SHOWN),
            f"{own / formula:.3f}",
            f"{(sum(parts.values()) - own) / GB:.2f}",
        ]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def _estimators(rows: Rows) -> str:
    text = (
        "\n## DeepSpeed's estimators\n\nGiB. A device: theirs; ours as the second of two "
        "micro-steps begins (weights, gradients, states), in the optimizer step at its highest, "
        "and the peak of all, all parts. A machine's host: theirs with `zero_init` 1 and 0; ours "
        "is what offloading keeps there, without what pinning adds and what a process has anyway."
        "\n\n| model | devices (machines) | strategy | theirs | ours, states | ours, step "
        "| ours, peak | host: theirs | ours |\n" + "|---" * 9 + "|\n"
    )
    for row in rows:
        case, ours = row["case"], row["ours"]
        hosts = [row["told"][init]["host"] for init in ("True", "False")]
        peak = ours["peak"]
        cells = [
            case["model"],
            f"{case['ranks']} ({case['nodes']})",
            case["strategy"],
            f"{row['told']['True']['device'] / GIB:.2f}",
            f"{states(lasting(row)) / GIB:.2f}",
            f"{sum(ours['in_step'].values()) / GIB:.2f}",
            "-" if peak is None else f"{peak['bytes'] / GIB:.2f}",
            " / ".join(f"{host / GIB:.2f}" for host in hosts),
            f"{ours['host_bytes'] * case['ranks'] / case['nodes'] / GIB:.2f}",
        ]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def _documented(rows: Rows) -> str:
    text = (
        "\n## transformers' documentation: T0_3B on one GPU\n\nGiB. `now`: the installed "
        "estimator, for the traced shape (as many weights, the same largest layer).\n\n"
        "| strategy | documented: host, device | now: host, device | ours: host | ours, states "
        "| ours, peak |\n" + "|---" * 6 + "|\n"
    )
    for row in rows:
        strategy, ours, now = row["case"]["strategy"], row["ours"], row["told"]["True"]
        key = (strategy == "ZeRO-3, all off", strategy != "ZeRO-3", True)
        peak = ours["peak"]
        cells = [
            strategy,
            "{:.2f}, {:.2f}".format(*T0_3B_LINES[key]),
            f"{now['host'] / GIB:.2f}, {now['device'] / GIB:.2f}",
            f"{ours['host_bytes'] / GIB:.2f}",
            f"{states(lasting(row)) / GIB:.2f}",
            "-" if peak is None else f"{peak['bytes'] / GIB:.2f}",
        ]
        text += "| " + " | ".join(cells) + " |\n"
    return text
