"""What a run's folder says, read with suspicion: each file may be cut, or of somebody else.

What a run cannot do without is refused, with the file and what is wrong; what it can is left out,
and told of as a note.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import AutotuneError, user_error
from autotune.facts import Facts, facts_from_plain
from autotune.plain_data import NONSENSE, from_plain, is_storable
from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.verdict import Verification
from autotune.search.job_time import Saving
from autotune.search.record import Record
from autotune.search.storage import faults_of_storage
from autotune.search.study import Study
from autotune.space.bind import SearchSpace

_T = TypeVar("_T")
RESUME = "`autotune run --resume` looks at everything again"


@dataclass(frozen=True, kw_only=True)
class StoredChoice:
    """The part of `recommendation.json` that is read again.

    Attributes:
        probe: the recommended one.
        passed_over: probes whose bundles failed verification, and why.
        plain: the whole file.
    """

    probe: int
    reasons: tuple[str, ...]
    verification: Verification | None
    plain: dict[str, Any]
    passed_over: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StoredEnding:
    """The end of a run, the reason its search ended, and what it saved."""

    outcome: str
    stop_reason: str
    saving: Saving | None
    plain: dict[str, Any]


@dataclass
class StoredFiles:
    """The files that a run can do without; `notes` name what is left out, and why."""

    run: RunFolder
    notes: list[str] = field(default_factory=list)

    def choice(self) -> StoredChoice | None:
        """Return the recommendation; None before there was one."""
        return self._read(self.run.recommendation, _choice, "`autotune emit` writes it anew")

    def ending(self) -> StoredEnding | None:
        """Return how the run ended; None where it was killed."""
        return self._read(self.run.ending, _ending, "why the search ended is not shown")

    def expectations(self) -> Expectations | None:
        """Return the estimates of the run; None where it did not get that far."""
        return self._read(self.run.estimates, _expectations, "estimates are not shown")

    def _read(self, path: Path, read: Callable[[dict[str, Any]], _T], without: str) -> _T | None:
        if not path.exists():
            return None
        data = read_json(path)
        try:
            if not isinstance(data, dict) or not is_storable(data):
                raise ValueError("it does not hold a whole JSON object")
            return read(data)
        except NONSENSE as error:
            self.notes.append(f"{path.name} is left out: {reason_of(error)}; {without}")
            return None


@contextlib.contextmanager
def needed(run: RunFolder, name: str, hint: str) -> Iterator[None]:
    """Turn data of a run's file that make no sense within this block into a
    message.

    Raises:
        UserError: so it is.
    """
    try:
        yield
    except AutotuneError:
        raise
    except NONSENSE as error:
        what = f"{name} does not belong to this run, or was damaged: {reason_of(error)}"
        raise user_error(what, where=str(run.path), hint=hint) from error


def refuse_script(run: RunFolder) -> None:
    """Refuse the run of a script where a job's is read.

    Raises:
        UserError: it is one.
    """
    if run.script.is_file():
        what = "it is the run of a script, and this command reads runs of jobs"
        hint = "`autotune report` says what was found, and `autotune run --resume` goes on"
        raise user_error(what, where=str(run.path), hint=hint)


def stored_facts(run: RunFolder) -> Facts:
    """Return the facts of the survey.

    Raises:
        UserError: it is missing or damaged.
    """
    data, hint = read_json(run.facts), "`autotune run --resume` looks at model and data again"
    if not isinstance(data, dict):
        what = "facts.json is missing or unreadable"
        raise user_error(what, where=str(run.path), hint=hint)
    with needed(run, "facts.json", hint):
        return facts_from_plain(data)


def stored_records(
    files: StoredFiles, space: SearchSpace, storage: Path | str, study: str, allowed: int
) -> tuple[Record, ...]:
    """Return the records of the study; the notes of `files` name those that are left out.

    Args:
        study: its name.
        allowed: bytes that what is recommended may take.

    Raises:
        UserError: it is of another run, or damaged.
    """
    run = files.run
    with needed(run, "study.db", RESUME), faults_of_storage(str(run.path)):
        opened = Study(space, storage, study, allowed_bytes=allowed)
        records, unreadable = tuple(opened.records()), opened.unreadable()
    files.notes += [f"trial {n} of the study is left out: {why}" for n, why in unreadable.items()]
    return records


def study_name(run: RunFolder) -> str:
    """Return the name of the run's study.

    Raises:
        UserError: run.json does not say it.
    """
    name = run.read(run.run).get("study")
    if not isinstance(name, str) or not is_storable(name):
        raise user_error(
            "run.json does not name the run's study",
            where=str(run.path),
            hint="name a run folder that this version made",
        )
    return name


def reason_of(error: BaseException) -> str:
    """Return the reason of an error, in at most 200 characters."""
    words = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _choice(data: dict[str, Any]) -> StoredChoice:
    return from_plain(StoredChoice, {**data, "probe": data["chosen"]["probe"], "plain": data})


def _ending(data: dict[str, Any]) -> StoredEnding:
    return from_plain(StoredEnding, {**data, "plain": data})


def _expectations(data: dict[str, Any]) -> Expectations:
    return from_plain(Expectations, data)
