"""The data of a job file, or of another tool's configuration that is read as a job."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError
from autotune.job.fields import MOST_DEVICES, MOST_NODES
from autotune.job.paths import exists
from autotune.job.text_file import text_of
from autotune.job.yaml_file import Path_, parse_scalar, parse_yaml
from autotune.space.foreign.fields import Imported
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from autotune.space.foreign.tool import refuse_part, tool_of

_WRITE = "`autotune init` writes a job"


def given_data(
    path: Path, sets: Sequence[str], imported: Callable[[Imported], None]
) -> tuple[dict[str, Any], dict[Path_, int]]:
    """Return the data of a job, and the line of each part.

    Args:
        sets: flags over it, which may say what another tool's file leaves open.
        imported: is told what became of another tool's fields.

    Raises:
        UserError: it cannot be read, or is a part of a configuration that makes no job.
    """
    twice: list[Problem] = []
    data, lines = read_mapping(path, twice)
    if tool_of(data) is None:
        refuse_part(data, str(path))
        if twice:
            raise UserError(*twice)
        return data, lines
    files = [GivenFile(name=str(path), data=data, twice=tuple(twice))]
    result = import_job(files, _wishes(sets), exists=exists, read=beside([path]))
    imported(result)
    return result.job, lines_of(result, lines)


def foreign_file(path: Path) -> GivenFile:
    """Return a file of another tool, and which keys it has twice.

    Raises:
        UserError: it cannot be read, or is no mapping.
    """
    twice: list[Problem] = []
    data, _ = read_mapping(path, twice)
    return GivenFile(name=str(path), data=data, twice=tuple(twice))


def beside(paths: Sequence[Path]) -> Callable[[str], Mapping[str, Any] | None]:
    """Return a reader of the files that these name: in the current folder, or beside them."""

    def read(name: str) -> Mapping[str, Any] | None:
        places = [Path(name), *(path.parent / name for path in paths)]
        if not name.lower().endswith((".json", ".yaml", ".yml")):
            return None
        here = next((place for place in places if place.is_file()), None)
        return None if here is None else read_mapping(here)[0]

    return read


def read_mapping(
    path: Path, twice: list[Problem] | None = None
) -> tuple[dict[str, Any], dict[Path_, int]]:
    """Return what a job file, or one of another tool, holds: YAML or JSON, and its lines.

    Args:
        twice: takes keys that are given twice, in place of a refusal.

    Raises:
        UserError: it cannot be read, or is no mapping.
    """
    text = text_of(path, "job file", hint=_WRITE)
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # JSON may be indented so, and YAML may not
    return parse_yaml(text, str(path), twice=twice)


def _wishes(sets: Sequence[str]) -> Wishes:
    """Return what flags say that another tool's file may leave open."""
    given: dict[str, Any] = {}
    for text in sets:
        key, _, value = text.partition("=")
        with contextlib.suppress(Exception):  # it is judged, and refused, as a flag
            read = parse_scalar(value)
            given |= (
                {f"devices.{k}": v for k, v in read.items()} if key == "devices" else {key: read}
            )
    count, nodes = (given.get(f"devices.{name}") for name in ("count", "nodes"))
    count = count if isinstance(count, int) and 0 < count < MOST_DEVICES else None
    nodes = nodes if isinstance(nodes, int) and 0 < nodes < MOST_NODES else None
    return Wishes(method=str(given.get("method") or ""), devices=count, nodes=nodes)


def lines_of(result: Imported, lines: Mapping[Path_, int]) -> dict[Path_, int]:
    """Return the lines of an imported job's fields, as those have them that they came from."""
    known = {path: tuple(field.split(".")) for path, field in result.origins.items()}
    return {
        path: lines.get(theirs, lines.get((".".join(theirs),), 0))
        for path, theirs in known.items()
        if theirs in lines or (".".join(theirs),) in lines
    }
