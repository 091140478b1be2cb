"""The content of a report, gathered from a run's folder."""

import contextlib
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import UserError
from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.text_file import readable_text
from autotune.plan.choices import choice_key
from autotune.process.messages import MOST_BYTES, read_json
from autotune.process.run_folder import RunFolder
from autotune.report.content import Chosen, Content, Line, Memory, Probe
from autotune.report.probes import knob_worths, lines_of, probe_list, shared_text, varying
from autotune.report.result_lines import (
    ending_lines,
    repeat_lines,
    skipped_lines,
    use_sentence,
    verification_line,
)
from autotune.report.words import candidate_text, describe
from autotune.run.expectations import compared
from autotune.run.past_run import PastRun
from autotune.run.verdict import memory_limit_of
from autotune.search.recommend import NothingFits, Ranked, Recommendation, recommend
from autotune.space.knobs import Candidate, value_label
from autotune.units import format_bytes, format_seconds

_OPTIONS = {
    "--no-history": ("history", False),
    "--no-verify": ("verify", False),
    "--accept-noise": ("accept_noise", True),
}
Pairs = tuple[tuple[str, str], ...]
_HEADLINES = {
    "nothing_fits": "Nothing fits.",
    "nothing_measured": "Nothing was measured.",
    "nothing_stable": "Nothing was measured that is stable.",
}


@dataclass(frozen=True, kw_only=True)
class _Gathered:
    """The data that the parts of a report are made of.

    Attributes:
        ranking: the recommendation as the probes give it; None: nothing can be recommended.
    """

    past: PastRun
    estimates: Mapping[str, Estimate]
    ranking: Recommendation | None
    nothing: NothingFits | None
    probes: Sequence[Probe]
    lines: Sequence[Line]
    names: Sequence[str]


def content_of(past: PastRun) -> Content:
    """Return the content of a run's report."""
    gathered, shared = _gathered(past)
    info = _run_info(past)
    comparison = past.expectations and compared(past.expectations, past.records)
    limit = memory_limit_of(past.job, past.facts)
    worths = (past.space, past.records, gathered.probes, gathered.estimates)
    return Content(
        title=past.facts.model.name,
        method=past.job.method,
        headline=_headline(gathered),
        chosen=_chosen(gathered),
        said=(*ending_lines(past.ending), *repeat_lines(past.records)),
        notes=past.space.notes,
        absent=tuple(_absent(gathered)),
        damaged=past.notes,
        limit_bytes=limit,
        allowed_bytes=past.allowed_bytes,
        probes=tuple(gathered.probes),
        lines=tuple(gathered.lines),
        shared=shared,
        memory=tuple(_memory(gathered)),
        compared=tuple(comparison.lines()) if comparison else (),
        speed_knobs=tuple(knob_worths(*worths, recipe=False)),
        recipe_knobs=tuple(knob_worths(*worths, recipe=True)),
        skipped=tuple(skipped_lines(past.skipped)),
        excluded=tuple((e.reason, e.count) for e in past.space.exclusions),
        unprobed=tuple(value.sentence() for value in past.unprobed),
        machine=about_machine(past.facts, limit),
        versions=about_versions(past.facts, info),
        about=about_job(past.job, past.facts),
        job=readable_text(past.run.job, MOST_BYTES) or "",
        commands=tuple(again(past.run, info, ended=_has_ended(past))),
    )


def _gathered(past: PastRun) -> tuple[_Gathered, str]:
    """Return the parts, and in what all probed candidates agree."""
    ranking, nothing = _ranking(past)
    free = [knob.name for knob in past.space.free_knobs]
    names, agreed = varying(past.records, free)
    estimates = {} if past.expectations is None else past.expectations.estimates
    recommended: Collection[int] = ()
    if ranking is not None and past.stored is not None:
        recommended = ranking.chosen.numbers
    passed_over = {} if past.stored is None else past.stored.passed_over
    probes = probe_list(
        past.records, names, estimates, past.allowed_bytes, recommended, passed_over
    )
    gathered = _Gathered(
        past=past,
        estimates=estimates,
        ranking=ranking,
        nothing=nothing,
        probes=probes,
        lines=lines_of(past.records, probes),
        names=names,
    )
    return gathered, shared_text(past.records, agreed)


def _ranking(past: PastRun) -> tuple[Recommendation | None, NothingFits | None]:
    """Return the stored recommendation, or what the probes would give now."""
    if past.stored is not None:
        with contextlib.suppress(UserError):
            return past.recommendation(past.stored.probe), None
        return None, None
    outcome = recommend(past.records, past.allowed_bytes)
    return (outcome, None) if isinstance(outcome, Recommendation) else (None, outcome)


def _run_info(past: PastRun) -> Mapping[str, Any]:
    info = read_json(past.run.run)
    return info if isinstance(info, dict) else {}


def _has_ended(past: PastRun) -> bool:
    return past.ending is not None and past.ending.outcome != "interrupted"


def _headline(gathered: _Gathered) -> str:
    past, ranking = gathered.past, gathered.ranking
    if ranking is not None:
        use = use_sentence(
            ranking.chosen,
            past.allowed_bytes,
            past.space,
            past.job.devices.total,
            None if past.stored is None else past.stored.verification,
        )
        return use if past.stored is not None else f"No recommendation yet. Best so far: {use}"
    if past.stored is not None:
        return f"Recommended: probe {past.stored.probe}."
    outcome = "" if past.ending is None else past.ending.outcome
    text = _HEADLINES.get(outcome, "No recommendation yet.")
    return f"{text}{_nearest(gathered.nothing)}" if outcome == "nothing_fits" else text


def _nearest(nothing: NothingFits | None) -> str:
    """Return the bytes that the nearest candidate is short of."""
    if nothing is None or nothing.nearest is None or nothing.short_bytes is None:
        return "" if nothing is None or nothing.why is None else f" {nothing.why}."
    least = "at least " if nothing.short_is_lower_bound else ""
    short = format_bytes(nothing.short_bytes)
    return f" The nearest is probe {nothing.nearest.number}: {least}{short} short."


def _chosen(gathered: _Gathered) -> Chosen | None:
    past, ranking = gathered.past, gathered.ranking
    stored = past.stored
    if stored is not None:
        number, reasons, verification = stored.probe, stored.reasons, stored.verification
    elif ranking is not None:
        number, reasons, verification = ranking.chosen.number, ranking.reasons, None
    else:
        return None
    ranked = None if ranking is None else ranking.chosen
    return Chosen(
        probe=number,
        recommended=stored is not None,
        reasons=reasons,
        verified=verification is not None and verification.verified,
        verification=verification_line(verification),
        bundle=None if stored is None else str(past.run.bundle),
        **_figures(past, ranked),
    )


def _figures(past: PastRun, ranked: Ranked | None) -> dict[str, Any]:
    """Return the measurement of the chosen candidate."""
    if ranked is None:
        names = ("text", "tokens_per_s", "uncertainty", "peak_memory_bytes", "epoch_s")
        return {**dict.fromkeys(names), "knobs": ()}
    measurement = ranked.measurement
    tokens, knobs = measurement.tokens_per_epoch, sorted(ranked.candidate.knobs.items())
    return {
        "text": candidate_text(ranked.candidate, past.space, past.job.devices.total),
        "tokens_per_s": ranked.tokens_per_s,
        "uncertainty": measurement.relative_uncertainty,
        "peak_memory_bytes": ranked.peak_memory_bytes,
        "epoch_s": tokens / ranked.tokens_per_s if tokens else None,
        "knobs": tuple((name, value_label(value)) for name, value in knobs),
    }


def runner_up(past: PastRun, ranking: Recommendation) -> Ranked | None:
    """Return the fastest that differs from the chosen one as a person tells candidates apart."""
    devices = past.job.devices.total
    key = choice_key(ranking.chosen.candidate, past.space, devices)
    others = sorted((*ranking.ties, *ranking.runners_up), key=lambda c: -c.tokens_per_s)
    return next((r for r in others if choice_key(r.candidate, past.space, devices) != key), None)


def _compared_candidates(gathered: _Gathered) -> dict[str, tuple[str, Candidate]]:
    """Map the keys of the candidates whose memory is shown to their words."""
    past, ranking = gathered.past, gathered.ranking
    wanted: list[tuple[str, Candidate]] = []
    if ranking is not None:
        first = "recommended" if past.stored is not None else "best so far"
        wanted.append((first, ranking.chosen.candidate))
        if (following := runner_up(past, ranking)) is not None:
            wanted.append(("runner-up", following.candidate))
    wanted.append(("default", past.space.default()))
    found: dict[str, tuple[str, Candidate]] = {}
    for what, candidate in wanted:
        before = found.get(candidate.key)
        text = what if before is None else f"{before[0]}, {what}"
        found[candidate.key] = text, candidate
    return found


def _memory(gathered: _Gathered) -> Iterator[Memory]:
    by_number = {record.number: record.candidate.key for record in gathered.past.records}
    peaks = {by_number[line.numbers[0]]: line.peak_memory_bytes for line in gathered.lines}
    free = [knob.name for knob in gathered.past.space.free_knobs]
    for key, (what, candidate) in _compared_candidates(gathered).items():
        estimate = gathered.estimates.get(key)
        if estimate is not None:
            yield Memory(
                what=what,
                candidate=describe(candidate, gathered.names or free),
                parts=dict(estimate.parts),
                estimated_bytes=estimate.peak_memory_bytes,
                at_least=estimate.at_least,
                measured_bytes=peaks.get(key),
            )


def _absent(gathered: _Gathered) -> Iterator[str]:
    """Yield what is not shown, in sentences."""
    past, ranking = gathered.past, gathered.ranking
    if past.ending is None:
        yield "How the search ended is not known: the run was cut short, or still goes on."
    if past.stored is not None and ranking is None:
        yield f"Of probe {past.stored.probe}, which is recommended, the study holds no speed."
    if not past.records:
        yield "Nothing was probed."
    if past.expectations is None:
        yield "Estimates are missing: the run did not get that far, or their file is damaged."
        return
    for what, candidate in _compared_candidates(gathered).values():
        if candidate.key not in gathered.estimates:
            yield f"The memory of the {what} by part is not known: it was not estimated."
    if ranking is not None and runner_up(past, ranking) is None:
        yield "A runner-up is missing: no other choice was measured within memory."


def about_job(job: Job, facts: Facts) -> Pairs:
    """Return the job in a few lines."""
    model, data, budget = facts.model, facts.data, job.budget
    measured = f" ({data.rows_measured} measured)" if data.sampled else ""
    total = "" if budget.total is None else f", {format_seconds(budget.total)} for everything"
    return (
        (
            "model",
            f"{model.name} ({model.architecture}, {model.parameters / 1e6:.1f} M parameters)",
        ),
        ("weights", model.weights),
        ("method", job.method),
        ("tuning", job.tuning),
        ("data", data.source or "none, only lengths"),
        ("rows", f"{data.rows}{measured}; the longest has {data.longest} tokens"),
        ("global batch", str(job.global_batch_size)),
        ("devices", str(job.devices.total)),
        ("headroom", f"{job.headroom:.0%}"),
        ("budget", f"{budget.probes} probes, {budget.minutes:g} min of probing{total}"),
    )


def about_machine(facts: Facts, limit_bytes: int) -> Pairs:
    """Return the device and its host."""
    device, host = facts.device, facts.host
    pairs = [
        ("device", device.name),
        ("kind", device.kind),
        ("memory", f"{format_bytes(device.total_bytes)}, {format_bytes(device.free_bytes)} free"),
        ("limit of a probe", format_bytes(limit_bytes)),
        ("cores", str(device.cores)),
    ]
    if device.driver is not None:
        pairs.append(("driver", device.driver))
    if device.capability is not None:
        pairs.append(("compute capability", ".".join(map(str, device.capability))))
    if host is not None:
        pairs.append(("memory of the host", f"{format_bytes(host.free_bytes)} free"))
    return tuple(pairs)


def about_versions(facts: Facts, info: Mapping[str, Any]) -> Pairs:
    """Return the versions of autotune and of the stack, and when the run started.

    Args:
        info: run.json.
    """
    pairs = [("autotune", info.get("version")), ("started", info.get("started"))]
    found = [("python", facts.stack.python), *sorted(facts.stack.versions.items())]
    return tuple((name, value) for name, value in (*pairs, *found) if isinstance(value, str))


def again(run: RunFolder, info: Mapping[str, Any], *, ended: bool) -> Iterator[tuple[str, str]]:
    """Yield (what for, command) to train, to check and to repeat.

    Args:
        ended: whether the run came to its own end.
    """
    folder = shlex.quote(str(run.path))
    if run.launch.is_file():
        yield "train with it", f"bash {shlex.quote(str(run.launch))}"
        yield "launch and check it again", f"autotune verify {folder}"
    if not ended:
        yield "go on where it stopped", f"autotune run --resume {folder}"
    job = shlex.quote(str(run.job))
    yield "do the search again", f"autotune run {job} --out again{_flags(info)}"
    yield "write this report again", f"autotune report {folder} --html report.html"


def _flags(info: Mapping[str, Any]) -> str:
    """Return the options that the run was started with, as flags."""
    options = info.get("options")
    if not isinstance(options, dict):
        return ""
    given = (flag for flag, (name, value) in _OPTIONS.items() if options.get(name) is value)
    return "".join(f" {flag}" for flag in given)
