"""The rows as Markdown: how far estimates were off, which verdicts were wrong, how they ranked."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.gpu_memory.cases import PATH_KNOBS
from benchmarks.ranking import rank_correlation, top_k_regret

Row = dict[str, Any]
FIGURES = {
    # what: its name in an estimate, and in a measurement
    "Allocated bytes": ("peak_allocated_bytes", "allocated_peak_bytes"),
    "Reserved bytes": ("peak_reserved_bytes", "reserved_peak_bytes"),
    "The whole process": ("peak_memory_bytes", "peak_memory_bytes"),
}
MIB = 2**20
TOP = 3


def table(predicted: Row, rows: Sequence[Row], planned: int) -> str:
    """The whole page.

    Args:
        predicted: what the predictions say of themselves.
        planned: how many candidates were predicted.
    """
    abouts = [row["about"] for row in rows if "about" in row]
    probes = [row for row in rows if "measurement" in row]
    ok = [row for row in probes if row["measurement"]["outcome"] == "ok"]
    parts = [
        "# Memory and speed: estimates against probes",
        _about(predicted, abouts, probes, planned),
        *(_errors(name, *fields, ok) for name, fields in FIGURES.items()),
        _outside(ok),
        _verdicts(probes),
        _ranks(probes),
        _failures(probes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(predicted: Row, abouts: Sequence[Row], probes: Sequence[Row], planned: int) -> str:
    def versions(about: Row) -> str:
        return ", ".join(f"{name} {number}" for name, number in about["versions"].items())

    lines = [
        f"Predicted for `{predicted['device']}` on {predicted['date']}, commit "
        f"{predicted['commit']}{' with changes' if predicted['changed'] else ''}: "
        f"{versions(predicted)}.",
    ]
    for about in abouts:
        lines.append(
            f"Measured on {about['device']['name']} on {about['date']}, commit {about['commit']}"
            f"{' with changes' if about['changed'] else ''}: {versions(about)}."
        )
        if about["versions"] != predicted["versions"]:
            lines.append("**These are other versions than those of the predictions.**")
    counts = Counter(row["measurement"]["outcome"] for row in probes)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    seconds = sum(row["seconds"] for row in probes)
    lines.append(f"{len(probes)} probes of {planned} candidates ({told}), {seconds:.0f} s.")
    if predicted["left_out"]:
        lines.append(f"Left out, as nothing fits that device: {', '.join(predicted['left_out'])}.")
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


# -- memory


def _errors(name: str, expected: str, found: str, ok: Sequence[Row]) -> str:
    """Estimate over measurement, less 1, of the probes that were ok."""
    known = [row for row in ok if row["measurement"][found]]
    if not known:
        return f"## {name}\n\nNot measured on this device."
    lines = [
        f"## {name}",
        "",
        "Estimate / measurement - 1, in percent, of the probes that were ok.",
        "",
        "| probes that | number | least | median | most | size: median | p90 | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, some in groups(known).items():
        errors = [100 * (row["estimate"][expected] / row["measurement"][found] - 1) for row in some]
        sizes = sorted(map(abs, errors))
        signed = f"{min(errors):+.2f} | {median(errors):+.2f} | {max(errors):+.2f}"
        size = f"{median(sizes):.2f} | {p90(sizes):.2f} | {sizes[-1]:.2f}"
        lines.append(f"| {group} | {len(some)} | {signed} | {size} |")
    return "\n".join(lines)


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """All rows, and those of each job, of each way of estimating and of each value of a knob."""
    found: dict[str, list[Row]] = {"all": list(rows)}
    for kind in ("case", "method", *PATH_KNOBS, "expandable_segments"):
        for row in rows:
            told = {"case": row["case"], "method": row["estimate"]["method"], **row["knobs"]}
            label = told[kind] if kind == "case" else f"{kind}: {told[kind]}"
            found.setdefault(label, []).append(row)
    return found


def p90(sizes: Sequence[float]) -> float:
    """The value that nine in ten do not exceed; `sizes` in order."""
    return sizes[math.ceil(0.9 * len(sizes)) - 1]


def _outside(ok: Sequence[Row]) -> str:
    """What a process holds beside the allocator's memory: context and libraries."""
    sizes: dict[bool, list[float]] = {}
    for row in ok:
        found = row["measurement"]
        if found["reserved_peak_bytes"]:
            outside = (found["peak_memory_bytes"] - found["reserved_peak_bytes"]) / MIB
            sizes.setdefault(row["knobs"]["expandable_segments"], []).append(outside)
    if not sizes:
        return ""
    lines = ["## Outside the allocator", "", "The process less reserved, in MiB.", ""]
    lines += ["| expandable_segments | number | least | median | most |", "|---|---|---|---|---|"]
    for knob, some in sorted(sizes.items()):
        figures = f"{min(some):.0f} | {median(some):.0f} | {max(some):.0f}"
        lines.append(f"| {knob} | {len(some)} | {figures} |")
    return "\n".join(lines)


def _verdicts(probes: Sequence[Row]) -> str:
    told = [row for row in probes if row["measurement"]["outcome"] in {"ok", "oom"}]

    def fits(row: Row) -> bool:
        return bool(row["estimate"]["p_oom"] < 0.5)

    count = Counter((fits(row), row["measurement"]["outcome"]) for row in told)
    lines = [
        "## Verdicts",
        "",
        "| expected | ran | out of memory |",
        "|---|---|---|",
        f"| to fit (p(oom) below 0.5) | {count[True, 'ok']} | {count[True, 'oom']} |",
        f"| not to fit | {count[False, 'ok']} | {count[False, 'oom']} |",
    ]
    wrong = [row for row in told if fits(row) != (row["measurement"]["outcome"] == "ok")]
    near = sum(0.05 <= row["estimate"]["p_oom"] <= 0.95 for row in told)
    lines += ["", f"{len(wrong)} of {len(told)} wrong; {near} had a p(oom) of 0.05 to 0.95."]
    for row in wrong:
        measured = row["measurement"]
        by = (
            f", missed {measured['missing_bytes'] / MIB:.0f} MiB"
            if measured["missing_bytes"]
            else ""
        )
        lines.append(
            f"- p(oom) {row['estimate']['p_oom']:.2f}, {measured['outcome']}{by}: {_told(row)}"
        )
    return "\n".join(lines)


# -- speed


def _ranks(probes: Sequence[Row]) -> str:
    """By job, because candidates of different jobs are never chosen between."""
    lines = [
        "## Ranks of speed",
        "",
        "Regret: how much slower than the fastest measured is the best of the "
        f"{TOP} estimated fastest. Ratio: measured / estimated tokens/s, median.",
        "",
        "| job | probes that were ok | Spearman | regret | ratio |",
        "|---|---|---|---|---|",
    ]
    for case in sorted({row["case"] for row in probes}):
        some = [row for row in probes if row["case"] == case]
        speeds = [
            (row["estimate"]["tokens_per_s"], row["measurement"]["tokens_per_s"])
            for row in some
            if row["measurement"]["outcome"] == "ok" and row["estimate"]["tokens_per_s"]
        ]
        ratios = [measured / estimated for estimated, measured in speeds]
        ok = sum(row["measurement"]["outcome"] == "ok" for row in some)
        times = [[1 / speed for speed in each] for each in zip(*speeds, strict=True)]
        rank = f"{rank_correlation(*times):.2f}" if len(speeds) >= TOP else "-"
        regret = f"{top_k_regret(*times, TOP):.1%}" if len(speeds) > TOP else "-"
        ratio = f"{median(ratios):.2f}" if ratios else "-"
        lines.append(f"| {case} | {ok} | {rank} | {regret} | {ratio} |")
    return "\n".join(lines)


# -- what went wrong


def _failures(probes: Sequence[Row]) -> str:
    failed = [row for row in probes if row["measurement"]["outcome"] not in {"ok", "oom"}]
    if not failed:
        return ""
    return "## Other outcomes\n\n" + "\n".join(
        f"- {row['measurement']['outcome']}: {row['measurement']['reason']}: {_told(row)}"
        for row in failed
    )


def _told(row: Row) -> str:
    shown = ("per_device_train_batch_size", *PATH_KNOBS, "expandable_segments")
    return ", ".join([row["case"], *(f"{name}={row['knobs'][name]}" for name in shown)])
