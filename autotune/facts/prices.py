"""Prices of GPUs: a file of the user's, or a dated table that is used only on request."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts.device_kinds import find_kind
from autotune.job.text_file import text_of
from autotune.job.yaml_file import parse_yaml

LISTED = "listed"
"""What `--prices` takes in place of a file, for the table in the package."""
_FILE = "prices.yaml"
_EXAMPLE = "a line a kind: `h100: 2.50`"
_KEYS = ("currency", "prices", "date")


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The price of one GPU for an hour, by the name of its kind.

    Attributes:
        source: where they are from, as a sentence says it.
        listed: whether they are those of the package.
    """

    by_kind: Mapping[str, float]
    source: str
    listed: bool = False
    currency: str = "$"


def prices_of(name: str) -> Prices:
    """Return the prices of a file, or of the table in the package (`LISTED`).

    A file has a line a kind (`h100: 2.50`), or these under `prices:` beside `currency:`.

    Raises:
        UserError: the file cannot be read, or something in it is not a price; all problems at once.
    """
    if name == LISTED:
        return _listed()
    data, lines = parse_yaml(text_of(Path(name), "file with prices"), name)
    nested = "prices" in data
    problems = [
        _problem(name, lines, key, f"unknown key `{key}`", f"the keys are {', '.join(_KEYS)}")
        for key in data
        if nested and key not in _KEYS
    ]
    entries = data.get("prices") if nested else data
    if not isinstance(entries, Mapping) or not entries:
        raise UserError(Problem(where=name, what="it has no prices", hint=_EXAMPLE))
    by_kind: dict[str, float] = {}
    for key, value in entries.items():
        try:
            kind = find_kind(str(key))
        except UserError as error:
            hint = error.problems[0].hint
            problems.append(_problem(name, lines, key, error.problems[0].what, hint, nested=nested))
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            what = f"the price of `{key}` is `{value}`, not a number above 0"
            problems.append(_problem(name, lines, key, what, _EXAMPLE, nested=nested))
        elif kind.name in by_kind:
            what = f"`{key}` is priced twice: {kind.name}"
            problems.append(_problem(name, lines, key, what, None, nested=nested))
        else:
            by_kind[kind.name] = float(value)
    if problems:
        raise UserError(*problems)
    currency = str(data.get("currency", "$")) if nested else "$"
    return Prices(by_kind=by_kind, source=f"Prices: {name}", currency=currency)


def _problem(
    name: str, lines: Any, key: Any, what: str, hint: str | None, *, nested: bool = False
) -> Problem:
    line = lines.get(("prices", key) if nested else (key,))
    return Problem(where=name if line is None else f"{name}:{line}", what=what, hint=hint)


def _listed() -> Prices:
    file = resources.files("autotune").joinpath("facts", _FILE)
    data, _ = parse_yaml(file.read_text(encoding="utf-8"), _FILE, shipped=True)
    by_kind = {find_kind(name).name: entry["price"] for name, entry in data["prices"].items()}
    source = f"Prices: an hour of one GPU on demand, as listed up to {data['date']} (facts/{_FILE})"
    return Prices(by_kind=by_kind, source=source, listed=True)
