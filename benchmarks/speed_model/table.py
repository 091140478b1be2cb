"""The rows of a run as Markdown: how well estimates ranked the candidates."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import geometric_mean, mean, median
from typing import Any

from autotune.estimate.speed.calibration import calibrated
from autotune.estimate.speed.step_time import TERMS, TimeParts
from benchmarks.ranking import rank_correlation, top_k_regret

Row = dict[str, Any]
CLOSE = 1.02
"""Times within this factor of the best are as good as the best."""
DRAWS = 100


class Candidates:
    """The candidates that could be measured, each with its estimate; seconds per real token."""

    def __init__(self, rows: Sequence[Row]) -> None:
        probes: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            if row["measurement"]["outcome"] == "ok":
                probes[row["candidate"]].append(row)
        self.probes = [probes[number] for number in sorted(probes)]
        self.rows = [some[0] for some in self.probes]
        self.measured = [
            1 / geometric_mean(row["measurement"]["tokens_per_s"] for row in some)
            for some in self.probes
        ]
        self.parts = [
            TimeParts(**row["parts"]).times(1 / row["tokens_per_step"]) for row in self.rows
        ]
        self.estimated = [parts.total for parts in self.parts]

    def scores(self) -> dict[str, list[float]]:
        """Ways to order the candidates; the least comes first."""
        return {
            "the whole estimate": self.estimated,
            "without overhead": [one.total - one.overhead_s for one in self.parts],
            "matmul and attention only": [one.matmul_s + one.attention_s for one in self.parts],
            "operations only": [row["flops"] / row["tokens_per_step"] for row in self.rows],
            "fewest padded tokens": [
                row["padded_tokens_per_step"] / row["tokens_per_step"] for row in self.rows
            ],
            "largest micro-batch first": [
                -float(row["levels"]["micro-batch"]) for row in self.rows
            ],
        }

    def first_close(self, order: Sequence[int]) -> int:
        """Probes in this order until one is as good as the best."""
        best = min(self.measured)
        return next(n for n, one in enumerate(order, 1) if self.measured[one] <= CLOSE * best)

    def guided(self) -> int:
        """The same where each probe calibrates the order of the rest."""
        order: list[int] = []
        while len(order) < len(self.rows):
            known = calibrated([self.parts[n] for n in order], [self.measured[n] for n in order])
            left = [n for n in range(len(self.rows)) if n not in order]
            order.append(min(left, key=lambda n: known.time_s(self.parts[n])))
        return self.first_close(order)


def in_order(score: Sequence[float]) -> list[int]:
    """Candidates by score."""
    return sorted(range(len(score)), key=score.__getitem__)


def error(estimated: Sequence[float], measured: Sequence[float], *, scaled: bool) -> float:
    """Median size of the relative error; `scaled`: after the one factor that suits all best."""
    off = [math.log(a / b) for a, b in zip(estimated, measured, strict=True)]
    middle = median(off) if scaled else 0.0
    return median(abs(math.exp(one - middle) - 1) for one in off)


def table(rows: Sequence[Row]) -> str:
    """The whole page."""
    about, probes = rows[0]["about"], rows[1:]
    found = Candidates(probes)
    if not found.rows:
        return f"No candidate was measured.\n\n{_failures(probes)}\n"
    parts = [
        "# Estimated against measured step times",
        "Made by `run.py --table` from `results.jsonl`.",
        _about(about, probes, found),
        _ranking(found),
        _calibration(found),
        _levels(found),
        _failures(probes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(about: Row, probes: Sequence[Row], found: Candidates) -> str:
    loads = sorted(max(row["load"]) for row in probes)
    waits = sorted(row["measurement"].get("processor_wait_share", 0.0) for row in probes)
    if about["clock"] == "processor":  # then it is a share of the time that they did not wait
        waits = [wait / (1 + wait) for wait in waits]
    seconds = sum(row["measurement"]["seconds"] for row in probes)
    times = sorted(found.measured)
    lines = [
        f"{about['device']}, {about['threads']} thread(s), {about['clock']} clock, "
        f"torch {about['torch']}, "
        f"trl {about['trl']}, {about['date']}.",
        f"{len(found.rows)} candidates, slowest / fastest {times[-1] / times[0]:.2f}, "
        f"within 2% of the fastest {sum(t <= CLOSE * times[0] for t in times)}, "
        f"within 5% {sum(t <= 1.05 * times[0] for t in times)}.",
        f"{len(probes)} probes, {seconds:.0f} s. Ceilings took {about['ceilings_s']} s, "
        f"a trace {median(row['trace_s'] for row in probes):.1f} s in the median.",
        f"Load average of a probe: {loads[0]} to {loads[-1]}, median {median(loads)}. Share of "
        f"the time that threads waited for a core: {median(waits):.1%} in the median, at most "
        f"{waits[-1]:.1%}.",
        _noise(found),
    ]
    return "\n".join(f"- {line}" for line in lines if line)


def _noise(found: Candidates) -> str:
    off = [
        abs(
            math.log(
                pair[0]["measurement"]["tokens_per_s"] / pair[1]["measurement"]["tokens_per_s"]
            )
        )
        for pair in found.probes
        if len(pair) == 2
    ]
    if not off:
        return ""
    # The median of |difference| is 0.954 standard deviations of one measurement.
    deviation = median(off) / 0.954
    return (
        f"{len(off)} candidates were probed twice: they differ by {median(off):.1%} in the "
        f"median, {max(off):.1%} at most; the standard deviation of one measurement is about "
        f"{deviation:.1%}."
    )


def _ranking(found: Candidates) -> str:
    text = (
        "## How orders rank\n\nNo probe has calibrated anything. Regret: how much slower than the "
    )
    text += (
        "fastest is the best of the first 1, 5, 10. Error: median, after one factor for all.\n\n"
    )
    text += "| order | Spearman | regret of 1 | of 5 | of 10 | probes to 2% | error |\n"
    text += "|---|---|---|---|---|---|---|\n"
    for name, score in found.scores().items():
        regrets = " | ".join(f"{top_k_regret(score, found.measured, k):.1%}" for k in (1, 5, 10))
        off = "" if min(score) < 0 else f"{error(score, found.measured, scaled=True):.1%}"
        rank = rank_correlation(score, found.measured)
        text += (
            f"| {name} | {rank:.3f} | {regrets} | {found.first_close(in_order(score))} | {off} |\n"
        )
    text += (
        f"\nCalibrated by each probe, the next one chosen by it: {found.guided()} probes to 2%. "
    )
    expected = (len(found.measured) + 1) / (
        1 + sum(one <= CLOSE * min(found.measured) for one in found.measured)
    )
    return text + f"At random: {expected:.1f} expected."


def _calibration(found: Candidates) -> str:
    text = "## Calibrated\n\nScored on all candidates; random draws: the median of "
    text += f"{DRAWS}, and the worst tenth.\n\n"
    text += "| calibrated by | Spearman | median error | stated uncertainty (95%) | within it |\n"
    text += "|---|---|---|---|---|\n"
    order = in_order(found.estimated)
    chance = random.Random(0)
    everyone = range(len(order))

    def scored(some: Sequence[int]) -> tuple[float, float, float, float]:
        known = calibrated([found.parts[n] for n in some], [found.measured[n] for n in some])
        times = [known.time_s(parts) for parts in found.parts]
        doubts = [known.relative_uncertainty(parts) for parts in found.parts]
        off = [abs(math.log(a / b)) for a, b in zip(times, found.measured, strict=True)]
        inside = mean(a <= b for a, b in zip(off, doubts, strict=True))
        wrong = error(times, found.measured, scaled=False)
        return rank_correlation(times, found.measured), wrong, median(doubts), inside

    def line(name: str, cells: tuple[float, float, float, float], worst: str = "") -> str:
        rank, wrong, doubt, inside = cells
        return f"| {name} | {rank:.3f}{worst} | {wrong:.1%} | {doubt:.1%} | {inside:.0%} |\n"

    text += line("nothing", scored([]))
    for count in (1, 3, 5, 10):
        text += line(f"the first {count} of the estimated order", scored(order[:count]))
    for count in (1, 3, 5, 10):
        draws = [scored(chance.sample(everyone, min(count, len(order)))) for _ in range(DRAWS)]
        cells = tuple(median(column) for column in zip(*draws, strict=True))
        worst = sorted(draw[0] for draw in draws)[DRAWS // 10]
        text += line(f"{count} at random", cells, f" ({worst:.3f})")
    text += line("all", scored(everyone))
    known = calibrated(found.parts, found.measured)
    text += "\nFactors, calibrated by all: "
    text += ", ".join(f"{term[:-2]} {factor:.2f}" for term, factor in known.factors.items())
    shares = {t: mean(getattr(p, t) / p.total for p in found.parts) for t in TERMS}
    text += ". Shares of the estimated time: "
    return text + ", ".join(f"{term[:-2]} {share:.0%}" for term, share in shares.items()) + "."


def _levels(found: Candidates) -> str:
    """Where estimates are off: measured over estimated, by level, against all."""
    off = [math.log(m / e) for m, e in zip(found.measured, found.estimated, strict=True)]
    text = "## Where estimates are off\n\nMeasured / estimated of each level, over that of all "
    text += f"({math.exp(mean(off)):.2f}).\n\n| knob | levels |\n|---|---|\n"
    for knob in found.rows[0]["levels"]:
        by_level: dict[Any, list[float]] = defaultdict(list)
        for row, one in zip(found.rows, off, strict=True):
            by_level[row["levels"][knob]].append(one - mean(off))
        cells = ", ".join(f"{k}: {mean(v):+.1%}" for k, v in sorted(by_level.items()))
        text += f"| {knob} | {cells} |\n"
    return text.rstrip()


def _failures(probes: Sequence[Row]) -> str:
    failed = [row for row in probes if row["measurement"]["outcome"] != "ok"]
    shown: Callable[[Row], str] = lambda row: f"{row['levels']}: {row['measurement']['reason']}"  # noqa: E731
    return "".join(f"Failed: {shown(row)}\n" for row in failed).rstrip()
