"""The operator's settings: `server.yaml`, as strict as a job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from autotune.errors import Problem, UserError, nearest
from autotune.job.fields import Strict, as_bytes, as_duration
from autotune.job.paths import absolute_path
from autotune.job.text_file import text_of
from autotune.job.yaml_file import parse_yaml
from autotune.server.store.values import Kind
from autotune.space.job_file.problems import explain

Bytes = Annotated[int, BeforeValidator(as_bytes)]
Seconds = Annotated[float, BeforeValidator(as_duration)]
LOCAL = ("127.0.0.1", "localhost", "::1")


class Allowed(Strict):
    """Names that a job over HTTP may use."""

    folders: list[str] = []
    """Folders that models, data and reward models may lie under. None: only lengths in place of
    data, built-in models, and a config.json that comes with the job."""
    hub: bool = False
    """Hub ids of models and data sets, which workers download."""
    minutes: float = Field(default=120.0, gt=0)
    """Minutes that the probes of a run may take together, and so many again for all the rest: then
    it is ended."""
    plan_minutes: float = Field(default=60.0, gt=0)
    """Minutes that a plan may take: then it is ended."""
    reward_functions: list[str] = []
    """Import paths of reward functions (`my_rewards.by_length`) that jobs may name. They are code
    of the worker's machine."""
    training: list[str] = []
    """Training fields and knobs that jobs may set to any value, besides those that are known to
    name no file, host or code. `trust_remote_code` here lets a job run a stranger's code."""

    def seconds(self, kind: Kind) -> float:
        """Return how long a work may take."""
        return 60.0 * (self.plan_minutes if kind == "plan" else 2 * self.minutes)


class Limits(Strict):
    """Limits of the service's load."""

    body: Bytes = 2 * 2**20
    """Bytes of a request."""
    queued: int = Field(default=200, gt=0)
    """Works that may wait, of all users."""
    queued_each: int = Field(default=50, gt=0)
    """Works that may wait, of one user."""
    live: int = Field(default=400, gt=0)
    """Pages that may follow events at once."""


class Retention(Strict):
    """Limits of the works that are kept."""

    age: Seconds = 90 * 86400.0
    """Such as `720h`: older plans and runs are deleted, with their folders."""
    size: Bytes = 20 * 2**30
    """Bytes of all run folders of the local worker: beyond it the oldest that have ended are
    deleted, and a run that takes more by itself is ended."""
    database: Bytes = 4 * 2**30
    """Bytes of all jobs, results and bundles in the database: beyond it the oldest that have ended
    are deleted."""
    works: int = Field(default=10_000, gt=0)
    """Plans and runs: beyond it the oldest that have ended are deleted."""


class Settings(Strict):
    """The service's own file, `server.yaml`."""

    host: str = "127.0.0.1"
    """Address to listen at; any but this machine's own needs tokens (`autotune serve --add-token`).
    """
    port: int = Field(default=8642, ge=0, le=65535)
    """Port to listen at; 0: a free one."""
    names: list[str] = []
    """Host names that browsers and clients use for it, besides `host` and this machine's own."""
    https: bool = False
    """Whether a proxy in front of it speaks HTTPS: cookies are then sent over HTTPS only."""
    database: str | None = None
    """PostgreSQL by URL; default: `service.db` (SQLite) in the folder of `--runs`."""
    local_worker: bool = True
    """Whether a worker for this machine's devices is started with it."""
    plans_at_once: int = Field(default=1, ge=0, le=60)
    """Plans that the local worker makes beside a run."""
    plan_memory: Bytes = 8 * 2**30
    """Bytes of memory that all processes of a plan may take together."""
    allowed: Allowed = Allowed()
    """What jobs may name."""
    limits: Limits = Limits()
    """How much it takes on."""
    keep: Retention = Retention()
    """How long what has ended is kept."""

    @property
    def is_local(self) -> bool:
        """True if nobody but this machine reaches it."""
        return self.host in LOCAL

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that a request may call it by."""
        return tuple(name.lower() for name in (*LOCAL, self.host, *self.names))


def load_settings(path: Path | None, changes: Mapping[str, Any] | None = None) -> Settings:
    """Return the settings of a file, or the defaults, with `changes` in place of what they say.

    Raises:
        UserError: every problem at once, each with its line.
    """
    data: dict[str, Any] = {}
    lines: dict[tuple[str | int, ...], int] = {}
    base = Path.cwd() if path is None else path.parent
    if path is not None:
        data, lines = parse_yaml(text_of(path, "file of settings"), str(path))
    data |= changes or {}
    where = "settings" if path is None else str(path)
    problems: list[Problem] = []
    settings = Settings()
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        problems += [_problem(detail, where, lines) for detail in error.errors()]
    named = data.get("allowed", {}).get("folders") if isinstance(data.get("allowed"), dict) else []
    folders = [absolute_path(str(one), base) for one in (named if isinstance(named, list) else [])]
    for index, folder in enumerate(folders):
        if not Path(folder).is_dir():
            line = _line(("allowed", "folders", index), where, lines)
            problems.append(Problem(where=line, what=f"there is no folder {folder}"))
    if problems:
        raise UserError(*problems)
    allowed = settings.allowed.model_copy(update={"folders": folders})
    return settings.model_copy(update={"allowed": allowed})


Lines = dict[tuple[str | int, ...], int]
_SECTIONS: dict[tuple[str | int, ...], type[Strict]] = {
    (): Settings,
    ("allowed",): Allowed,
    ("limits",): Limits,
    ("keep",): Retention,
}


def _problem(detail: Any, file: str, lines: Lines) -> Problem:
    place = tuple(detail["loc"])
    where = _line(place, file, lines)
    if detail["type"] != "extra_forbidden":
        what, hint = explain(detail, place)
        return Problem(where=where, what=what, hint=hint)
    name = str(place[-1])
    hint = nearest(name, _SECTIONS[place[:-1]].model_fields)
    for section, fields in _SECTIONS.items():
        if name in fields.model_fields:
            hint = f"write it under `{section[0]}`" if section else "write it at the left margin"
    field = ".".join(map(str, place))
    return Problem(where=where, what=f"unknown field `{field}`", hint=hint)


def _line(place: tuple[str | int, ...], file: str, lines: Lines) -> str:
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return f"{file}:{lines[place[:length]]}"
    return file
