"""The first line of a plan, which is by formula, against traces and against measured runs.

    python -m benchmarks.first_line.run                    # what results.jsonl lacks; a plan a case
    python -m benchmarks.first_line.run --only lora        # some of the cases
    python -m benchmarks.first_line.run --measured         # measured.jsonl anew, in seconds
    python -m benchmarks.first_line.run --table            # results.md again

Each case is planned whole, and the formula is asked for each candidate that was traced as it is.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts import Facts, devices
from autotune.facts.device_kinds import find_kind
from autotune.facts.model_shape import model_shape, shape_of
from autotune.facts.stack import installed
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.device import device_facts, placed
from autotune.plan.first_estimate import (
    by_arithmetic,
    data_of,
    first_estimate,
    is_known,
    lengths_of,
)
from autotune.plan.plan import plan
from autotune.space.bind import bind
from autotune.space.job_file.load import load_job
from autotune.space.knobs import from_knobs
from autotune.space.trl_config import settings
from benchmarks.command import Results, about_this_run, parser_of, run_and_tell
from benchmarks.first_line.cases import CASES, Case
from benchmarks.published_runs.models import MODELS
from benchmarks.published_runs.run import published, runs
from benchmarks.published_runs.settings import DEVICES, job_of

HERE = Path(__file__).parent
RESULTS, MEASURED = HERE / "results.jsonl", HERE / "measured.jsonl"
RECORDED = HERE.parent / "recorded"
TRACED = ("trace", "scaled trace")
Row = dict[str, Any]


def case_row(case: Case, scratch: Path) -> Row:
    """Plan a case; return what the formula says beside what the traces do."""
    job, definition = load_job(None, case.sets, elsewhere=True)
    kind = find_kind(case.device)
    began = time.monotonic()
    first = first_estimate(placed(job, case.device)[0], definition, kind, assume=True)
    first_s = time.monotonic() - began
    assert first is not None
    made = plan(job, definition, scratch, device=case.device)
    shape = model_shape(job.model, classifier=METHODS[job.method].classifier)
    lengths, rates = lengths_of(job), ceilings_of_kind(kind)
    assert shape is not None and lengths is not None
    ratios = []
    for candidate in made.space.candidates:
        traced = made.estimates[candidate.key]
        if traced.method in TRACED and is_known(candidate):
            chosen = settings(job, made.facts, candidate)
            formula = by_arithmetic(chosen, shape, lengths, rates, made.limit_bytes)
            ratios.append(compared(formula, traced))
    named = first.best
    same = made.estimates.get(named.candidate.key)
    best = made.choices[0]
    return {
        "name": case.name,
        "device": case.device,
        "job": case.job,
        "first_s": round(first_s, 3),
        "plan_s": made.seconds,
        "fits": [named.estimate.fits, best.estimate.fits],
        "named": named.candidate.knobs,
        "named_traced": None if same is None else same.method in TRACED,
        "named_over_traced": None if same is None else compared(named.estimate, same),
        "best": best.candidate.knobs,
        "first_over_best": compared(named.estimate, best.estimate),
        "named_speed_of_best": share(same and same.tokens_per_s, best.estimate.tokens_per_s),
        "candidates": ratios,
    }


def compared(formula: Estimate, truth: Estimate) -> list[float | None]:
    """Return memory and speed by formula over those of a trace."""
    memory = share(formula.peak_memory_bytes, truth.peak_memory_bytes)
    return [memory, share(formula.tokens_per_s, truth.tokens_per_s)]


def share(value: float | None, of: float | None) -> float | None:
    """Return value / of; None: one of them is not known."""
    return None if value is None or not of else round(value / of, 4)


def measured_rows() -> Iterator[Row]:
    """Yield what the formula says of runs that a GPU has measured, ours and published ones."""
    figures: dict[str, Row] = {}
    for row in published():
        kept = figures.setdefault(row["id"].removesuffix("_smi").removesuffix("_steady"), {})
        kept[row["measured_kind"]] = float(row["measured_bytes"] or 0)
        kept["speed"] = float(row["measured_tokens_per_s"] or 0) or kept.get("speed")
    for name, row in runs():
        sets = [f"{n}={json.dumps(v)}" for n, v in job_of(row).items()]
        sets += [f"dataset={{lengths: {{max: {row['seq_length']}}}}}", f"model={row['model']}"]
        shape = shape_of(MODELS[row["model"]], row["model"])
        if shape is not None and not row["gpu"].startswith(("A100 (", "RTX2070")):
            job, definition = load_job(None, sets, elsewhere=True)
            found = by_formula(job, shape, DEVICES[row["gpu"]], definition=definition)
            memory = figures[name].get("nvidia_smi")
            # Planned on one GPU, but run under ZeRO-3 on several (published_runs/README.md).
            source = "several GPUs" if name.startswith("qwen_full") else "published"
            yield measured_row(name, source, found, memory, figures[name]["speed"])
    for device in ("h100", "h200"):
        folder = RECORDED / f"gpu-memory-{device}-2026-11-26"
        text = (folder / "memory_rows.jsonl").read_text(encoding="utf-8")
        predictions = RECORDED / "predictions-memory-h100-2026-11-26.jsonl"
        jobs = json.loads(predictions.read_text(encoding="utf-8").splitlines()[0])["about"]
        for number, line in enumerate(text.splitlines()):
            row = json.loads(line)
            entry = jobs["jobs"].get(row.get("case"))
            if entry is None or row["measurement"]["outcome"] != "ok":
                continue
            if not is_known(from_knobs(row["knobs"])):
                continue
            shape = shape_of(jobs["models"][entry["model"]], entry["model"])
            sets = [f"{n}={json.dumps(v)}" for n, v in entry["job"].items()]
            job, _ = load_job(None, [*sets, f"model={entry['model']}"], elsewhere=True)
            if METHODS[job.method].reference:  # then there is no first line
                continue
            assert shape is not None
            found = by_formula(job, shape, device, knobs=row["knobs"])
            truth = row["measurement"]
            peak, speed = truth["peak_memory_bytes"], truth["tokens_per_s"]
            yield measured_row(f"{row['case']} {number}", device, found, peak, speed)


def by_formula(
    job: Job, shape: Any, device: str, *, knobs: Row | None = None, definition: Any = None
) -> Estimate:
    """Return the estimate of one candidate, by its knobs or as the job pins it."""
    here, kind = placed(job, device)
    lengths = lengths_of(job)
    assert lengths is not None
    facts = Facts(
        model=shape.facts,
        data=data_of(lengths),
        device=devices.detect("cpu", 0),
        stack=installed(job.method),
    )
    facts = device_facts(facts, kind)
    candidate = from_knobs(knobs) if knobs else bind(definition, here, facts).default()
    rates = None if kind is None else ceilings_of_kind(kind)
    return by_arithmetic(settings(here, facts, candidate), shape, lengths, rates, 2**60)


def measured_row(
    name: str, source: str, found: Estimate, memory: float | None, speed: float | None
) -> Row:
    """Return a run's figures by formula over those measured."""
    return {
        "name": name,
        "source": source,
        "memory": share(found.peak_memory_bytes, memory or None),
        "speed": share(found.tokens_per_s, speed),
        "by_formula": [found.peak_memory_bytes, found.tokens_per_s],
        "measured": [memory, speed],
    }


def run(results: Results) -> None:
    """Plan the cases that have no row yet."""
    about = {**about_this_run(), "command": "python -m benchmarks.first_line.run"}
    for case in results.waiting(CASES):
        with tempfile.TemporaryDirectory(prefix="first-line-") as scratch:
            results.add({**case_row(case, Path(scratch)), "about": about})
        print(case.name, flush=True)


def spread(ratios: Sequence[float | None]) -> str:
    """Return number, least, median, most and the 90% quantile of the error as cells."""
    known = sorted(ratio for ratio in ratios if ratio is not None)
    if len(known) < 2:
        return "| | | | |"
    errors = [abs(ratio - 1) for ratio in known]
    most = quantiles(errors, n=10, method="inclusive")[-1]
    return f"{known[0]:.2f} | {known[len(known) // 2]:.2f} | {known[-1]:.2f} | {most:.0%} |"


def table(rows: Sequence[Row]) -> str:
    """Return the tables."""
    lines = ["Figures by formula over those of traces, or measured.", ""]
    lines += ["| of | number | least | median | most | 90% within |", "|---|---|---|---|---|---|"]
    groups: dict[str, list[float | None]] = {}
    for place, what in enumerate(("memory", "speed")):
        named = [row["named_over_traced"] for row in rows if row["named_traced"] and row["fits"][0]]
        groups[f"named candidates, {what}"] = [one and one[place] for one in named]
        groups[f"all candidates, {what}"] = [one[place] for r in rows for one in r["candidates"]]
        groups[f"the line over the plan's answer, {what}"] = [
            row["first_over_best"][place] for row in rows if all(row["fits"])
        ]
    for row in map(json.loads, MEASURED.read_text(encoding="utf-8").splitlines()):
        groups.setdefault(f"measured, {row['source']}, memory", []).append(row["memory"])
        groups.setdefault(f"measured, {row['source']}, speed", []).append(row["speed"])
    for name, ratios in groups.items():
        count = sum(ratio is not None for ratio in ratios)
        lines.append(f"| {name} | {count} | {spread(ratios)}")
    lines += ["", "| case | device | named: memory, speed | its speed over the best's | fits |"]
    lines += ["|---|---|---|---|---|"]
    for row in rows:
        memory, speed = row["named_over_traced"] if row["named_traced"] else (None, None)
        fits = " / ".join("yes" if one else "no" for one in row["fits"])
        cells = (row["name"], row["device"], f"{memory}, {speed}", row["named_speed_of_best"], fits)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing, then write the table."""
    parser = parser_of(__doc__, RESULTS)
    parser.add_argument("--measured", action="store_true", help="compare with measured runs only")
    options = parser.parse_args()
    if options.measured:
        text = "".join(json.dumps(row) + "\n" for row in measured_rows())
        MEASURED.write_text(text, encoding="utf-8")
        options.table = True
    run_and_tell(options, run, table)


if __name__ == "__main__":
    main()
