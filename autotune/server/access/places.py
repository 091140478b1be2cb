"""Where a job that comes over HTTP may take models and data from."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts.data_card import check_card
from autotune.facts.known_models import known_model
from autotune.server.settings import Allowed

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_MOST_ENTRIES = 50_000
_MOST_CARD = 2**18
"""Bytes: what a data set says of itself is read while somebody waits."""


def refused_place(value: Any, field: str, allowed: Allowed, *, plan: bool) -> Iterator[Problem]:
    """Yield what is against a name: it has to be a file in an allowed folder, on the hub where that
    is allowed, or of a built-in model where it is only planned."""
    if not isinstance(value, str) or not value:
        return  # missing or of another type, which the job's own rules say
    if plan and field != "dataset" and known_model(value) is not None:
        return
    shown = value[:200]
    if value.startswith(("/", ".", "~")) or value.endswith((".json", ".jsonl")):
        if (why := _outside(value, allowed.folders)) is not None:
            yield Problem(where=field, what=f"`{field}: {shown}` {why}", hint=_hint(allowed))
    elif not allowed.hub:
        what = f"`{field}: {shown}` would be looked for on the hub, which is not allowed here"
        hint = "the operator allows it by `allowed: {hub: true}` in server.yaml"
        if field == "dataset":
            hint = "give its lengths: `{lengths: {max: 2048, p50: 300, p99: 1500}}`"
        yield Problem(where=field, what=what, hint=hint)
    elif not _HUB_ID.fullmatch(value) or ".." in value:
        yield Problem(where=field, what=f"`{field}: {shown}` is not a hub id")
    elif field == "dataset" and "/" not in value:  # `json` and `text` mean files of the worker's
        what = f"`{field}: {shown}` is not the whole id of a data set"
        yield Problem(where=field, what=what, hint="write `owner/name`")


def _hint(allowed: Allowed) -> str:
    if not allowed.folders:
        return "the operator lists folders under `allowed.folders` of server.yaml"
    return f"give an absolute path under one of these folders: {', '.join(allowed.folders)}"


def _outside(value: str, folders: list[str]) -> str | None:
    """Return why a path is not one in the folders; None: it is, with all that lies below it."""
    no = "is not under a folder that jobs over HTTP may name"
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts:
        return no
    try:
        roots = [Path(folder).resolve() for folder in folders]
        real = path.resolve()
        if not _is_below(real, roots):
            return no
        if not (real.is_file() or real.is_dir()):
            return "is not there"
        return _leads_out(real, roots) if real.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return no


def _is_below(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _leads_out(folder: Path, roots: list[Path]) -> str | None:
    """Return why a folder's content is not its own; None: it is. Links that stay inside are
    fine."""
    count = 0
    for here, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > _MOST_ENTRIES:
            return f"has more than {_MOST_ENTRIES} files, too many to be looked through"
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not _is_below(path.resolve(), roots):
                return f"has a link that leads out of the allowed folders: {name}"
    try:
        check_card(folder, _MOST_CARD)
    except UserError as error:
        (problem,) = error.problems
        return f"has a {Path(problem.where).name} that is not taken: {problem.what}"
    return None
