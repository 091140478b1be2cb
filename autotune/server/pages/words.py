"""Values as people read them on a page. Pure but for `when_text`, which knows the time."""

import datetime
import re
from collections.abc import Collection, Mapping
from typing import Any

from markupsafe import Markup, escape

from autotune.space.knobs import FLAG_WORDS
from autotune.units import format_bytes, format_seconds, format_speed

BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
CHECKPOINTING = "gradient_checkpointing"
_STATES = {
    "queued": "waiting",
    "running": "running",
    "done": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}
_OUTCOMES = {
    "fits": "fits",
    "nothing_fits": "nothing fits",
    "nothing_measured": "nothing measured",
    "recommended": "found",
}


def size_text(count: float | None) -> str:
    """`1.25 GiB`."""
    return "" if count is None else format_bytes(count)


def speed_text(tokens_per_s: float | None) -> str:
    """`45k tokens/s`."""
    return "" if tokens_per_s is None else format_speed(tokens_per_s)


def seconds_text(seconds: float | None) -> str:
    """`4 min 10 s`."""
    return "" if seconds is None else format_seconds(seconds)


def share_text(share: float | None) -> str:
    """`3%`, and never a rounded 0 or 100."""
    if share is None:
        return ""
    if 0 < share < 0.01:
        return "< 1%"
    if 0.99 < share < 1:
        return "> 99%"
    return f"{100 * share:.0f}%"


def count_text(count: int) -> str:
    """`7.62 B` parameters."""
    value, unit = float(count), ""
    for larger in ("k", "M", "B"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}".strip()


def when_text(utc: float | None) -> str:
    """`2026-11-23 14:05 UTC`; pages show it in the reader's own time."""
    if utc is None:
        return ""
    time = datetime.datetime.fromtimestamp(utc, datetime.UTC)
    return time.strftime("%Y-%m-%d %H:%M UTC")


def iso_time(utc: float) -> str:
    """For `<time datetime>`."""
    return datetime.datetime.fromtimestamp(utc, datetime.UTC).isoformat(timespec="seconds")


def device_text(device: str) -> str:
    """`memory=24GiB` -> `24 GiB`; a name as it is."""
    memory = re.fullmatch(r"memory=([0-9.]+)GiB", device)
    return f"{memory[1]} GiB" if memory else device


def state_text(state: str, outcome: str) -> str:
    """Return how a work stands, in a word or two."""
    if state == "done" and outcome:
        return _OUTCOMES.get(outcome, outcome.replace("_", " "))
    return _STATES[state]


def state_tone(state: str, outcome: str) -> str:
    """Return whether that is `good`, `bad`, `busy` or nothing of it (`calm`)."""
    if state == "failed" or outcome.startswith("nothing"):
        return "bad"
    if state == "done":
        return "good"
    return "busy" if state == "running" else "calm"


def said_text(text: str) -> Markup:
    """Return a line of ours: what stands in backticks as code, `+-` as one sign."""
    parts = re.split(r"`([^`]*)`", text.replace("+-", "\N{PLUS-MINUS SIGN}"))
    shown = (
        Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts)
    )
    return Markup("").join(shown)


def batch_text(knobs: Mapping[str, Any]) -> str:
    """Micro-batch x accumulation."""
    return " x ".join(str(knobs.get(name, "?")) for name in BATCH)


def knob_words(knobs: Mapping[str, Any], shown: Collection[str]) -> list[str]:
    """Return knobs in words, of those that are to be shown, but for the batch and checkpointing."""
    names = [name for name in knobs if name in shown and name not in (*BATCH, CHECKPOINTING)]
    return [word for name in names if (word := _word(name, knobs[name]))]


def value_text(value: Any) -> str:
    """Return a value of a knob."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _word(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return FLAG_WORDS.get(name, name.replace("_", " ")) if value else ""
    return value if isinstance(value, str) else f"{name} {value_text(value)}"
