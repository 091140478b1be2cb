"""The rows of a run that goes on: what is done, how far it is, what is best, what is left. Pure."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from autotune.cli.views.live.state import LiveState
from autotune.errors import visible
from autotune.report.candidate_lines import describe
from autotune.run.rehearse import DATA, EVALUATION, SAVE, TIMED_STEPS, WORST_BATCH
from autotune.space.knobs import from_knobs
from autotune.units import format_bytes, format_seconds

LABEL = 9
"""Columns of a row's name."""
CUT = 24
"""A part that does not fit is cut where so many columns of it are left, else left out."""
STAGES = {
    DATA: "rows",
    WORST_BATCH: "worst batch",
    TIMED_STEPS: "timed steps",
    EVALUATION: "evaluation",
    SAVE: "save",
}
_STEPS = {"start": "a process starts", "build": "the trainer is built"}


def rows(state: LiveState, now: float, width: int) -> list[tuple[str, str]]:
    """Return the name and the text of each row, the most important first; together they fit
    `width`."""
    room = width - LABEL
    found = {
        "now": _doing(state, now, room),
        "steps": fit(list(_steps(state, now)), room),
        "memory": fit(list(_memory(state, room)), room),
        "best": fit(list(_best(state)), room),
        "gain": fit(list(_gain(state, room)), room),
        "time": fit(list(_time(state, now)), room),
        "budget": fit(list(_budget(state, now)), room),
        "left": fit(list(_left(state)), room),
        "out": fit([f"{count}: {why}" for why, count in _reasons(state)], room),
    }
    return [(name, text) for name, text in found.items() if text]


def fit(parts: Sequence[str], room: int) -> str:
    """As many parts as there is room for, one after the other; the last of them may be cut."""
    text = ""
    for part in map(visible, parts):
        longer = f"{text}; {part}" if text else part
        if cell_len(longer) > room:
            left = room - cell_len(text)
            return cut(longer, room) if not text or left >= CUT else text
        text = longer
    return text


def cut(text: str, room: int) -> str:
    """Return a text that fits: as many of its words as there is room for, and a sign that some are
    missing."""
    if cell_len(text) <= room:
        return text
    words, _, _ = set_cell_size(text, room - 3).rpartition(" ")
    return f"{words} ..." if words else set_cell_size(text, room - 3) + "..."


def whole_seconds(seconds: float) -> str:
    """Return a time that runs: `12 s`, `4 min 10 s`, `5 min`."""
    whole = max(int(seconds), 0)
    return f"{whole} s" if whole < 120 else format_seconds(whole).removesuffix(" 0 s")


def _doing(state: LiveState, now: float, room: int) -> str:
    since = whole_seconds(now - state.began)
    return cut(visible(f"{state.doing}, {since}: {state.detail}"), room)


def _steps(state: LiveState, now: float) -> Iterator[str]:
    """Of the running probe, or of the launch."""
    if state.steps is not None:
        stage = state.steps.get("stage", "start")
        if stage != "train":
            yield _STEPS[stage]
            return
        done, most = state.steps["micro_steps"], state.steps["most_micro_steps"]
        yield f"{done} of at most {most} micro-steps" if most else f"{done} micro-steps"
        if speed := state.steps["tokens_per_s"]:
            yield f"{_speed(speed, state.steps['relative_uncertainty'])}"
    elif state.verifying and state.stages:
        to_come = state.stages_to_come
        if to_come:
            yield f"now {STAGES[to_come[0]]}, {whole_seconds(now - state.stage_since)}"
        done = [f"{STAGES[stage]} {format_seconds(seconds)}" for stage, seconds in state.stages]
        yield f"done {', '.join(done)}"
        if to_come[1:]:
            yield f"then {', '.join(STAGES[stage] for stage in to_come[1:])}"


def _memory(state: LiveState, room: int) -> Iterator[str]:
    """Of the running probe against the limit."""
    peak, limit = (state.steps or {}).get("peak_memory_bytes"), state.limit_bytes
    if peak is None or not limit:
        return
    cells = 20 if room >= 70 else 10
    filled = min(round(cells * peak / limit), cells)
    bar = f"[{'#' * filled}{'.' * (cells - filled)}]"
    yield f"{bar} peak {format_bytes(peak)} of {format_bytes(limit)}"
    if state.standing is not None:
        yield f"at most {format_bytes(state.standing['allowed_bytes'])} to be recommended"


def _best(state: LiveState) -> Iterator[str]:
    if state.standing is None:
        return
    best = state.standing["best"]
    if best is None:
        if state.standing["probes"]:
            yield "none yet: nothing that was probed fits"
        return
    speed = _speed(best["tokens_per_s"], best["relative_uncertainty"])
    peak = best["peak_memory_bytes"]
    yield f"probe {best['probe']}, {speed}" + (f", {format_bytes(peak)}" if peak else "")
    yield describe(from_knobs(best["knobs"]), state.free_knobs)


def _gain(state: LiveState, room: int) -> Iterator[str]:
    """Yield what the running probe is made for."""
    outlook = state.promise
    if state.close:
        yield f"probes {', '.join(map(str, state.close))} are too close to call"
    elif outlook is not None and outlook["job_s"] is None:
        yield f"this probe is expected to be {100 * outlook['gain']:.1f}% faster"
    elif outlook is not None:
        saved = whole_seconds(outlook["gain"] * outlook["job_s"])
        job, cost = whole_seconds(outlook["job_s"]), whole_seconds(outlook["cost_s"])
        text = f"this probe is expected to save {saved} of a job of {job}; it costs about {cost}"
        yield text if cell_len(text) <= room else f"expected to save {saved} of {job}; costs {cost}"


def _budget(state: LiveState, now: float) -> Iterator[str]:
    """Yield what is used; a probe that runs counts."""
    standing = state.standing
    if standing is None:
        return
    running_s = 0.0 if state.probing_since is None else now - state.probing_since
    yield f"{standing['probes']} of {standing['most_probes']} probes"
    used_s = standing["probing_s"] + running_s
    yield f"{whole_seconds(used_s)} of {whole_seconds(standing['most_probing_s'])}"


def _time(state: LiveState, now: float) -> Iterator[str]:
    """Yield what is left of it, counted from when that was told."""
    standing, since_s = state.standing, now - state.standing_since
    if standing is None:
        return
    if standing["total_left_s"] is not None:
        yield f"{whole_seconds(standing['total_left_s'] - since_s)} left of the total"
    if standing["left_s"] is not None and not (state.verifying or state.close):
        yield f"the search takes up to about {whole_seconds(standing['left_s'] - since_s)} more"


def _left(state: LiveState) -> Iterator[str]:
    if state.standing is None:
        return
    out = sum(state.ruled_out.values())
    yield f"{state.standing['candidates_left']} of {state.candidates} candidates"
    if state.standing["probes"]:
        yield f"{state.standing['probes']} probed"
    if out:
        yield f"{out} need no probe"


def _reasons(state: LiveState) -> list[tuple[str, int]]:
    """Return why candidates went without a probe, the most frequent first."""
    if state.standing is None:
        return []
    return sorted(state.ruled_out.items(), key=lambda pair: -pair[1])


def _speed(tokens_per_s: float, uncertainty: float | None) -> str:
    if uncertainty is None:
        return f"{tokens_per_s:.0f} tokens/s"
    percent = 100 * uncertainty
    return f"{tokens_per_s:.0f} tokens/s +-{percent:.{0 if percent >= 10 else 1}f}%"
