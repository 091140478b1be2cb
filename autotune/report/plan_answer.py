"""The answer of a plan in sentences, and its choices in words and as data. Pure."""

from collections.abc import Iterator
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.records.events import LOADING
from autotune.facts import Facts
from autotune.facts.utilisation import Peak, mfu_of, peak_of, reached_on
from autotune.job.job import Job
from autotune.plan.answer import Answer, OtherDtype, speed_error
from autotune.plan.choices import Choice, is_safe, leanness
from autotune.plan.least_memory import LOWER_BOUND
from autotune.plan.plan import Plan
from autotune.plan.questions.changes import Advice, Way
from autotune.report.words import (
    batch_text,
    candidate_text,
    checkpointing_phrase,
    install_text,
    other_words,
    tuning_text,
)
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.knobs import ACCUMULATION, DTYPE, MICRO_BATCH, Candidate
from autotune.space.quantization import loading_note
from autotune.space.sharding.sharding import engine_name, sharding_of
from autotune.space.trl_config import resolve_dtype
from autotune.units import format_bytes, format_seconds, format_speed

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


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield what to use; where nothing fits, by how much, and what would."""
    answer = plan.answer
    yield from nothing_fits_lines(plan) if answer is None else answer_lines(plan, answer)


def answer_lines(plan: Plan, answer: Answer) -> Iterator[str]:
    """Yield what to use, why, and what is assumed."""
    yield _sentence(plan, answer)
    yield from _reasons(plan, answer)
    yield from _assumptions(plan, answer)
    if plan.advice is not None:
        yield from ways_out_lines(plan)


def _sentence(plan: Plan, answer: Answer) -> str:
    use = "Stopped early; so far use" if plan.stopped else "Use"
    return f"{use} {_text(plan, answer.choice)}: {_figures(plan, answer)}."


def next_line(plan: Plan, command: str) -> str:
    """Return how to go on from an answer.

    Args:
        command: what measures and verifies it.
    """
    maker = plan.facts.device.maker
    if maker == "NVIDIA":
        return f"Next: {command}"
    return f"Next: try it by hand: `autotune run` knows no GPUs of {maker}."


def _text(plan: Plan, choice: Choice) -> str:
    return candidate_text(choice.candidate, plan.space, plan.devices)


def _figures(plan: Plan, answer: Answer) -> str:
    estimate = answer.choice.estimate
    peak = f"{format_bytes(estimate.peak_memory_bytes)} of {format_bytes(plan.limit_bytes)}"
    peak += ", its peak while loading" if estimate.peak_phase == LOADING else ""
    sharding = sharding_of(answer.choice.candidate.values, plan.devices)
    loads = estimate.host_bytes == estimate.host_peak_while_loading_bytes
    if sharding.offloads and estimate.host_bytes:
        peak += f" and {format_bytes(estimate.host_bytes)} of the host"
        peak += " while loading" if loads else ""
    if estimate.tokens_per_s is None:
        return f"{peak} (estimated)"
    error = error_text(speed_error(estimate, plan.facts))
    most = "at most " if estimate.left_out else ""
    speed = f"{most}{format_speed(estimate.tokens_per_s)} (estimated, {error})"
    if (mfu := plan_mfu(plan, estimate)) is not None:
        speed += f", {mfu_text(mfu)}"
    epoch = "" if answer.epoch_s is None else f"; an epoch takes {format_seconds(answer.epoch_s)}"
    return f"{speed}, {peak}{epoch}"


def error_text(error: float | None) -> str:
    """Return how far a speed may be off: `+-20%`, `within a factor of 3.1`."""
    if error is None:
        return "error unknown"
    return f"+-{error:.0%}" if error < 1 else f"within a factor of {1 + error:.2g}"


def _reasons(plan: Plan, answer: Answer) -> Iterator[str]:
    estimate = answer.choice.estimate
    if not answer.choice.safe:
        yield f"Nothing is safe: this runs out of memory with probability {estimate.p_oom:.0%}."
    speed = estimate.tokens_per_s
    if speed is None:
        yield (
            "The rates of this device are not known: of what is safe, the fewest micro-steps come "
            "first, and offloading last."
        )
        yield "Speeds are estimated for a GPU by its name: `--device rtx-4090`."
    elif answer.faster is not None and answer.faster.estimate.tokens_per_s is not None:
        faster = answer.faster.estimate
        yield (
            f"Memory is the limit: {_text(plan, answer.faster)} would be "
            f"{100 * (answer.faster.estimate.tokens_per_s / speed - 1):.0f}% faster, but needs "
            f"{format_bytes(faster.peak_memory_bytes)}."
        )
    else:
        among = ""
        if plan.stopped or any(one.method == LOWER_BOUND for one in plan.estimates.values()):
            among = " among what was traced"
        yield (
            f"Memory is not the limit{among}: nothing that needs more of it is estimated to be "
            "faster."
        )
    if answer.next_best is not None:
        following = answer.next_best.estimate
        slower = _slower(following.tokens_per_s, estimate.tokens_per_s)
        yield (
            f"Next best: {_text(plan, answer.next_best)}, {slower}"
            f"{format_bytes(following.peak_memory_bytes)}."
        )
    if (usual := mfu_line(plan.space.shape.job, plan.facts, speed)) is not None:
        yield usual


def plan_mfu(plan: Plan, estimate: Estimate) -> float | None:
    """Return the model FLOPs utilisation of an estimated speed; None: not known."""
    return mfu_of(plan.space.shape.job, plan.facts, estimate.tokens_per_s)


def _peak(estimate: Estimate) -> str:
    """Return a peak in a sentence."""
    return f"{'at least ' if estimate.at_least else ''}{format_bytes(estimate.peak_memory_bytes)}"


def _slower(speed: float | None, than: float | None) -> str:
    return f"{100 * (1 - (speed or 0.0) / than):.1f}% slower, " if than else ""


def _assumptions(plan: Plan, answer: Answer) -> Iterator[str]:
    if answer.alternative is not None:
        yield _dtype_text(plan, answer.choice, answer.alternative)
    yield from _assumed_lines(plan)
    if answer.packages:
        yield install_text(answer.packages)
    for note in (*answer.choice.estimate.notes, *plan.space.notes):
        yield f"Note: {note}."


def _assumed_lines(plan: Plan) -> Iterator[str]:
    return (f"Assumed: {assumption}." for assumption in plan.assumed)


def _dtype_text(plan: Plan, choice: Choice, other: OtherDtype) -> str:
    """Return as what weights are held, and what the same needs with the other type."""
    speed, held = other.estimate.tokens_per_s, choice.candidate.values[DTYPE]
    needs = f"the same needs {format_bytes(other.estimate.peak_memory_bytes)}"
    needs += "" if speed is None else f", at {format_speed(speed)}"
    if held == "float32":
        return (
            "Assumed: weights in float32, which is TRL's default. In bfloat16 "
            f"(`recipe: {{dtype: [bfloat16]}}`) {needs}; it learns otherwise."
        )
    _, why = resolve_dtype(plan.space.job, plan.facts)
    return f"Assumed: the base in {held}, {why}; in {other.dtype}, TRL's default, {needs}."


def nothing_fits_lines(plan: Plan) -> Iterator[str]:
    """Return the lines that say that nothing fits, by how much, and what would."""
    candidate, estimate = min(plan.ranked(), key=leanness)
    choice = Choice(candidate=candidate, estimate=estimate, folded=1)
    limit = format_bytes(plan.limit_bytes)
    yield f"Nothing fits in {limit}. The smallest is {_text(plan, choice)}."
    yield shortfall_text(plan, candidate, estimate)
    values = [one.values for one in plan.space.candidates]
    if (note := loading_note(plan.space.shape.job, plan.facts, values)) is not None:
        yield f"Note: {note}."
    yield from _assumed_lines(plan)
    yield from ways_out_lines(plan)


def ways_out_lines(plan: Plan) -> Iterator[str]:
    """Yield the shortest changes that make a job fit, or safe, each with its price; where there are
    none, what else can be asked."""
    wanted, advice = "fit" if plan.answer is None else "safe", plan.advice
    if advice is None:
        yield "Next: `autotune advise` with the same options looks for changes that make it fit."
        return
    yield from advice_lines(advice, wanted)
    if not advice.ways:
        yield (
            "What several GPUs keep on the host was not traced: `autotune advise` traces it. "
            "`autotune plan --device all` says which machines hold it."
        )


def other_tuning_line(tuning: str, plan: Plan) -> str:
    """Return what a plan by the tuning that nobody asked for comes to, in a line."""
    name = tuning_text(tuning)
    if plan.answer is not None and plan.answer.choice.safe:
        text = _text(plan, plan.answer.choice)
        return f"{name}: {text}: {_figures(plan, plan.answer)}."
    candidate, estimate = min(plan.ranked(), key=leanness)
    word = "fits" if is_safe(estimate) else "is not safe" if estimate.fits else "does not fit"
    return f"{name} {word}. {shortfall_text(plan, candidate, estimate)}"


def other_tuning_plain(tuning: str, plan: Plan) -> dict[str, Any]:
    """Return the same as JSON data."""
    answer = None if plan.answer is None else answer_plain(plan, plan.answer)
    return {"tuning": tuning, "text": other_tuning_line(tuning, plan), "answer": answer}


def shortfall_text(plan: Plan, candidate: Candidate, estimate: Estimate) -> str:
    """Return the shortfall of a candidate that does not fit, and its largest part."""
    if estimate.missing_bytes is None and estimate.host_missing_bytes is not None:
        return f"It is {format_bytes(estimate.host_missing_bytes)} of the host's memory short."
    if estimate.missing_bytes is None and estimate.server is not None:
        return f"Its server is {format_bytes(estimate.server.missing_bytes or 0)} short."
    largest = max(estimate.parts, key=lambda name: estimate.parts[name])
    needs = f"It needs {_peak(estimate)} of {format_bytes(plan.limit_bytes)}"
    if estimate.method == LOWER_BOUND:
        return f"{needs} for weights, gradients and the optimizer's states alone."
    return (
        f"{needs}, {format_bytes(estimate.parts[largest])} of that for {largest}; "
        f"its peak is in {estimate.peak_operator or 'no one place'}."
    )


def answer_plain(plan: Plan, answer: Answer) -> dict[str, Any]:
    """Return the answer as JSON data."""
    estimate = answer.choice.estimate
    return {
        "text": _sentence(plan, answer),
        "knobs": answer.choice.candidate.knobs,
        "tokens_per_s": estimate.tokens_per_s,
        "mfu": plan_mfu(plan, estimate),
        "speed_error": speed_error(estimate, plan.facts),
        "left_out": list(estimate.left_out),
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "limit_bytes": plan.limit_bytes,
        "p_oom": round(estimate.p_oom, 4),
        "safe": answer.choice.safe,
        "epoch_s": answer.epoch_s,
        "job_s": answer.job_s,
        "next_best": _choice_plain(answer.next_best),
        "limited_by": _choice_plain(answer.faster),
        "other_dtype": _other_plain(answer.alternative),
        "assumed": list(plan.assumed),
        "packages": list(answer.packages),
    }


def _other_plain(other: OtherDtype | None) -> dict[str, Any] | None:
    if other is None:
        return None
    return {"dtype": other.dtype, "estimate": other.estimate.plain()}


def _choice_plain(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    estimate = choice.estimate
    return {
        "knobs": choice.candidate.knobs,
        "tokens_per_s": estimate.tokens_per_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "p_oom": round(estimate.p_oom, 4),
    }


def choice_row(plan: Plan, choice: Choice) -> dict[str, Any]:
    """Return a row of the table of choices as JSON data, its words as a person reads them."""
    candidate, estimate = choice.candidate, choice.estimate
    return {
        "batch": batch_text(candidate),
        "processes": sharding_of(candidate.values, plan.devices).num_processes,
        "sharding": engine_name(sharding_of(candidate.values, plan.devices)),
        "words": other_words(candidate, plan.space),
        "knobs": candidate.knobs,
        "tokens_per_s": estimate.tokens_per_s,
        "mfu": plan_mfu(plan, estimate),
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "at_least": estimate.at_least,
        "parts": dict(estimate.parts),
        "p_oom": round(estimate.p_oom, 4),
        "fits": estimate.fits,
        "safe": choice.safe,
        "folded": choice.folded,
    }


def mfu_line(job: Job, facts: Facts, tokens_per_s: float | None) -> str | None:
    """Return the sentence on the MFU of a speed, and on what is usual; None: it is not known."""
    mfu, peak = mfu_of(job, facts, tokens_per_s), peak_of(facts)
    if mfu is None or peak is None:
        return None
    devices = f"{job.devices.total} x " if job.devices.total > 1 else ""
    of = f"{devices}{peak.flops_per_s / 1e12:.4g} TFLOP/s, the dense peak in {peak.dtype}"
    return f"{mfu_text(mfu)} of {of}; {usual_text(job, facts, peak, mfu)}."


def mfu_text(mfu: float) -> str:
    """Return a share of the peak: `MFU 41%`."""
    return f"MFU {mfu:.0%}" if mfu >= 0.01 else "MFU below 1%"


def usual_text(job: Job, facts: Facts, peak: Peak, mfu: float) -> str:
    """Return what runs like a job reached on its kind of device, or on the nearest, and whether an
    MFU is outside of that."""
    usual = reached_on(peak.kind, job, facts.model)
    if usual is None:
        return f"no run like it is recorded on {peak.kind.name} or its architecture"
    near = "" if usual.kind == peak.kind.name else ", the nearest kind that is recorded,"
    tuning = "full tuning" if usual.tuning == "full" else "adapters"
    outside = ": this is more than any of them" if mfu > usual.high else ""
    outside = ": this is less than any of them" if mfu < usual.low else outside
    return (
        f"{usual.runs} published and recorded runs on one {usual.kind}{near} ({tuning}, models of "
        f"{usual.size}) reached {100 * usual.low:.0f} to {usual.high:.0%}"
        f"{outside}"
    ).replace("models of below", "models below")
