"""A job of flags alone: what they leave open, and what is assumed in its place. Pure."""

import math
from collections.abc import Sequence

from autotune.job.methods import METHODS, SFT
from autotune.space.knobs import ACCUMULATION, GLOBAL_BATCH, GROUP, MICRO_BATCH

LENGTH, PROMPT, ROWS, BATCH = 1024, 512, 10_000, 32
"""Tokens of the longest row, TRL's default; of the longest prompt, where answers are generated;
rows of an epoch; rows of an optimizer step."""


_CHOSEN = {"method": SFT.name, "tuning": "full"}


def completed(sets: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the `--set` values of a job without a file and those it needs besides, and what was
    assumed, as sentences."""
    given = dict(text.partition("=")[::2] for text in sets)
    method = METHODS.get(given.get("method", SFT.name), SFT)
    added: dict[str, str] = {}
    words = [f"`--{name} {value}`" for name, value in _CHOSEN.items() if name not in given]
    length = given.get("max_length", str(LENGTH))
    is_open = not any(name.startswith("dataset") for name in given)
    if method.online and is_open:
        length = given.pop("max_length", str(PROMPT))  # prompts are not cut
    elif not method.online and "max_length" not in given:
        added["max_length"] = length
    if is_open:
        what = "prompts" if method.online else "rows"
        length = length if length.isdigit() else str(LENGTH)
        added["dataset"] = f"{{lengths: {{max: {length}, rows: {ROWS}}}}}"
        words.append(f"{ROWS:,} {what} of {length} tokens (`--dataset`, `--max-length`)")
    elif "max_length" in added:
        words.append(f"rows cut at {length} tokens (`--max-length`)")
    if GLOBAL_BATCH not in given:
        added[GLOBAL_BATCH] = str(_batch(given, grouped=GROUP in method.knobs))
        words.append(f"{added[GLOBAL_BATCH]} to an optimizer step (`--global-batch-size`)")
    kept = [text for text in sets if text.partition("=")[0] in given]
    assumed = (f"{', '.join(words)}",) if words else ()
    return [*kept, *(f"{name}={value}" for name, value in added.items())], assumed


def _batch(given: dict[str, str], *, grouped: bool) -> int:
    """Return the smallest multiple of what a micro-batch of all devices and a group need that is
    no less than `BATCH`; where micro-batch and accumulation are given, their product."""

    def number(name: str, default: int) -> int:
        text = given.get(name, "")
        return int(text) if text.isdigit() and int(text) > 0 else default

    devices = number("devices.count", 1) * number("devices.nodes", 1)
    rows = devices * number(MICRO_BATCH, 1) * number(ACCUMULATION, 1)
    least = math.lcm(rows, number(GROUP, 8) if grouped else 1)
    return least if {MICRO_BATCH, ACCUMULATION} <= given.keys() else least * -(-BATCH // least)
