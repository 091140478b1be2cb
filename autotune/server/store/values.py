"""Values of the store: works, events, workers. The API prints them as they are."""

import functools
import json
import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from autotune.errors import EXIT_NOTHING_MEASURED

NAME = r"^[\w.:@-]+$"
"""A worker: its machine, and an id."""
Kind = Literal["plan", "run"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
ENDS = (0, 1, 4)
"""Exit codes of commands that came to their end: done, nothing fits, nothing was measured."""
STOPS = (130, 137, 143)
"""Exit codes of commands that ended on request: by Ctrl-C, by force, or before they could react."""
MOST_UPLOAD = 64 * 2**20
"""Bytes of a worker's request: a bundle and a report."""
ALIVE_S = 60.0
"""A worker counts as gone after so long without a report, which it makes every second."""


class Value(BaseModel):
    """Plain data; times are seconds since 1970 (UTC), sizes bytes."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def kept_text(text: str) -> str:
    """Return a text as every database keeps it: without NUL and halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


Printed = Annotated[str, AfterValidator(kept_text)]
"""Output of a command."""


def as_json(data: Any) -> str:
    """Return data as JSON in ASCII, which every database keeps; numbers that are not finite become
    null, and texts are kept as `kept_text` has them."""
    try:
        json.dumps(data, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except ValueError:
        data = _kept(data)
    return json.dumps(data)


def _kept(data: Any) -> Any:
    if isinstance(data, dict):
        return {kept_text(name): _kept(one) for name, one in data.items()}
    if isinstance(data, list):
        return [_kept(one) for one in data]
    if isinstance(data, str):
        return kept_text(data)
    return None if isinstance(data, float) and not math.isfinite(data) else data


class NewWork(Value):
    """A plan or a run that was asked for, and found to be allowed."""

    kind: Kind
    job: str
    model_config_json: str | None = None
    arguments: list[str] = []
    method: str
    model: str
    device: str = ""
    device_kind: str = "auto"
    device_count: int = 1
    submitter: str = ""
    parent: str | None = None
    first_line: str | None = None
    """Of a plan: the best by formula, known before it begins; null: not known."""


class Work(Value):
    """A plan or a run."""

    id: str
    kind: Kind
    state: State
    outcome: str
    """The result in a word: a plan `fits` or not, a run has `recommended` something or not."""
    method: str
    model: str
    device: str
    """The device that was asked for; of a run that began, the one that it has."""
    submitter: str
    parent: str | None
    """The work that this is a variation of."""
    created: float
    started: float | None
    ended: float | None
    attempt: int
    """The number of times that a worker has taken it: several where one died or was stopped."""
    worker: str | None
    stop_wanted: bool
    exit_code: int | None
    """Of the command: 0 done, 1 nothing fits, 2 the job, 3 the machine, 4 nothing was measured."""
    tokens_per_s: float | None
    peak_memory_bytes: int | None
    error: str | None
    """Why it failed."""
    events: int
    """The number of the last event."""

    @property
    def resumable(self) -> bool:
        """True if it can be taken up again: it was cancelled, failed, or measured nothing."""
        nothing = self.state == "done" and self.exit_code == EXIT_NOTHING_MEASURED
        return self.state in ("cancelled", "failed") or nothing


class Details(Work):
    """A plan or a run, with its result."""

    job: str
    arguments: list[str]
    ahead: int | None
    """The number of works before it in the queue; null: it does not wait."""
    takers: int | None
    """The number of present workers that can take it, busy or not; null: it does not wait."""
    result: dict[str, Any] | None
    """The command's output with `--json`; null until it has ended."""
    text: str | None
    """The command's output."""
    files: list[str]


class Event(Value):
    """An event of a work."""

    number: int = Field(ge=1)
    """From 1 on, without gaps: a reader that was cut off goes on after the last it has."""
    utc: float
    kind: str
    """`line`: `data.text` is a line of the command's output; else as in `events.jsonl`."""
    data: dict[str, Any]

    @functools.cached_property
    def json_text(self) -> str:
        """The event as JSON, made once for all readers."""
        return as_json(self.model_dump())


class WorkerInfo(Value):
    """A worker and its devices."""

    name: str = Field(min_length=1, max_length=128, pattern=NAME)
    device_kind: Literal["cpu", "cuda"]
    devices: int = Field(ge=1, le=2**20)
    """The most that a run may have there, on all its nodes."""
    device_name: str = Field(max_length=128, pattern=r"^[^\x00]*$")


class Lease(Value):
    """A work that a worker is to do now."""

    id: str = Field(pattern=r"^[\w-]+$")
    """It names a folder of the worker."""
    kind: Kind
    job: str
    model_config_json: str | None
    arguments: list[str]
    devices: int = 1
    """The number of devices that a run wants, on all its nodes."""
    attempt: int
    limit_s: float | None = None
    """Its limit of time; null: none."""
    study: str | None
    """Optuna storage for its study; null: a file in the run's folder."""


class Beat(Value):
    """The answer of the service about a work that a worker does."""

    id: str
    stop: bool
    """True if it was cancelled, or belongs to another worker now."""
    lost: bool
    """True if it belongs to another worker now: nothing more of it is taken."""


class Beats(Value):
    """The answer to a beat."""

    works: list[Beat]
    forget: list[str]
    """The works that it keeps folders of, and that were deleted."""


class Arrived(Value):
    """The number of lines of the file that have arrived."""

    lines: int


class Ending(Value):
    """The end of a command."""

    attempt: int
    exit_code: int = Field(ge=-255, le=255)
    result: dict[str, Any] | None = None
    text: Printed = ""
    error: Printed = ""
    interrupted: bool = False
    """True if it was stopped with its worker, and is to go on later."""
