"""The results of plans, kept in the user's cache folder: the second plan is instant.

`ceilings/` holds what was measured of this machine's devices; `traces/` traced variants, by the
shape of the model, the knobs that matter and the versions; `plans/` whole plans. Everything in it
may be deleted at any time.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.estimate.protocol import EstimateReply, ShapeWork
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts, facts_from_plain, stack
from autotune.facts.host import cores
from autotune.facts.known_models import known_shape
from autotune.facts.model_files import MOST_BYTES
from autotune.job.job import Job, NoData
from autotune.job.text_file import is_readable
from autotune.plain_data import NONSENSE, from_plain, to_plain
from autotune.process.files import user_cache
from autotune.process.messages import read_json, write_json
from autotune.space.definition import SpaceDefinition

SCHEMA = 4
NO_ANSWER = "the trace ended without an answer"
"""Start of the problem text of a trace that may succeed another time."""
_MACHINE = ("OSError", "PermissionError", "FileNotFoundError")
"""Starts of the problem texts of traces that failed because of the machine."""
_SHARED = ("shapes", "copied_shapes", "optimizer_work")
"""Fields of a reply that engines by formula take from one and the same trace."""
_TEXTS = {".json", ".jinja", ".model", ".py", ".tiktoken", ".txt"}
_WORDS = ("added_tokens", "chat_template", "merges", "special_tokens", "tokenizer", "vocab")
"""Suffixes of the texts that describe a model, and starts of the names of those that lie beside a
single file."""


@functools.cache
def code_version() -> str:
    """Return the version, and a digest of the code that decides about estimates: other code, other
    plans."""
    return f"{__version__}+{_digest('estimate', 'training', 'facts', 'space')}"


def _digest(*folders: str) -> str:
    """Return a digest of the code in some folders of the package."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((Path(__file__).parents[1] / folder).rglob("*")):
            if file.suffix in {".py", ".yaml"}:
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class PlanCache:
    """A folder of plans and traces."""

    path: Path

    @classmethod
    def of_user(cls) -> "PlanCache":
        """Return the cache of plans in the user's cache folder (`process/files.py`)."""
        return cls(path=user_cache())

    def make(self, name: str = "") -> None:
        """Make a folder of the cache, for its owner alone; one that is there stays as it is.

        Raises:
            OSError: it cannot be made.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.path / name).mkdir(exist_ok=True)

    @property
    def traces(self) -> Path:
        """The folder in which children keep traces."""
        return self.path / "traces"

    def key(self, job: Job, definition: SpaceDefinition, device: str | None) -> str | None:
        """Return what a plan depends on; None where that is not known (a hub's files, a device of
        this machine).

        A device of this machine is looked at each time: its free memory is never remembered.
        """
        data = None if isinstance(job.dataset, NoData) else Path(job.dataset)
        model = _model(job)
        if device is None or model is None or (data is not None and not data.exists()):
            return None
        identity = {
            "schema": SCHEMA,
            "autotune": f"{code_version()}+{_digest('.')}",  # how asked, too
            "job": job.plain(),
            "space": repr(definition),
            "device": device,
            "stack": dataclasses.asdict(stack.installed()),
            "model": model,
            "data": list(_listing(job)),
        }
        text = json.dumps(identity, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def read(self, key: str) -> tuple[Facts, list[EstimateReply]] | None:
        """Return a plan that was made before; None where no readable one exists."""
        data: Any = read_json(self.path / "plans" / f"{key}.json")
        with contextlib.suppress(*NONSENSE):
            shared = [
                _shapes(value) if isinstance(value, list) else value for value in data["shared"]
            ]
            replies = [
                _reply(fields, {name: shared[fields[name]] for name in _SHARED})
                for fields in data["replies"]
            ]
            return facts_from_plain(data["facts"]), replies
        return None

    def write(self, key: str, facts: Facts, replies: Sequence[EstimateReply]) -> None:
        """Keep a plan, unless a trace of it failed because of the machine or was ended from
        outside. A full or read-only disk only costs the next plan its speed."""
        problems = [reply.problem or reply.engine_problem or "" for reply in replies]
        if any(NO_ANSWER in problem or problem.startswith(_MACHINE) for problem in problems):
            return
        file = self.path / "plans" / f"{key}.json"
        with contextlib.suppress(OSError):
            self.make("plans")
            write_json(file, {"facts": facts.plain(), **_plain_replies(replies)})

    def rows(self, key: str, kind: Any) -> Any | None:
        """Return rows, of this type, of a plan for several machines; None where none are kept."""
        with contextlib.suppress(*NONSENSE):
            return from_plain(kind, read_json(self.path / "plans" / f"{key}.rows.json"))
        return None

    def keep_rows(self, key: str, rows: Any, kind: Any) -> None:
        """Keep the rows, of this type, of a plan for several machines."""
        file = self.path / "plans" / f"{key}.rows.json"
        with contextlib.suppress(OSError):
            self.make("plans")
            write_json(file, to_plain(rows, kind))

    def ceilings(self, device: str) -> Ceilings | None:
        """Return the measured rates of a device of this machine."""
        data: Any = read_json(self._ceilings_file(device))
        with contextlib.suppress(*NONSENSE):
            return from_plain(Ceilings, data)
        return None

    def keep_ceilings(self, device: str, measured: Ceilings) -> None:
        """Remember what was measured of a device of this machine."""
        file = self._ceilings_file(device)
        with contextlib.suppress(OSError):
            self.make("ceilings")
            write_json(file, to_plain(measured))

    def _ceilings_file(self, device: str) -> Path:
        """Return the file of ceilings of a device with these cores and this torch: they decide its
        rates."""
        torch = stack.installed().versions.get("torch")
        identity = (SCHEMA, device, cores(), torch)
        name = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        return self.path / "ceilings" / f"{name}.json"


def _plain_replies(replies: Sequence[EstimateReply]) -> dict[str, Any]:
    """Return replies as JSON data: what several share is written once, and each refers to it."""
    places: dict[int, int] = {}
    shared: list[Any] = []
    plain = []
    for reply in replies:
        places_of_shared: dict[str, Any] = {}
        for name in _SHARED:
            value = getattr(reply, name)
            if id(value) not in places:
                places[id(value)] = len(shared)
                shared.append(
                    [shape.plain() for shape in value] if isinstance(value, list) else value
                )
            places_of_shared[name] = places[id(value)]
        unshared = dataclasses.replace(reply, shapes=[], copied_shapes=[], optimizer_work={})
        plain.append({**unshared.plain(), **places_of_shared})
    return {"replies": plain, "shared": shared}


def _reply(data: dict[str, Any], works: Mapping[str, Any]) -> EstimateReply:
    unshared = {name: value for name, value in data.items() if name not in _SHARED}
    return dataclasses.replace(EstimateReply.from_plain(unshared), **works)


def _shapes(plain: Sequence[Any]) -> list[ShapeWork]:
    return [ShapeWork.from_plain(shape) for shape in plain]


def _model(job: Job) -> list[str] | None:
    """Return what identifies a model: digests of its files, or a built-in shape where no tokenizer
    is needed; None: a model of a hub, or files that are not read (pipes, or too large)."""
    if Path(job.model).exists():
        return _contents(Path(job.model))
    known = known_shape(job.model) if isinstance(job.dataset, NoData) else None
    return None if known is None else [json.dumps(known.config, sort_keys=True)]


def _contents(model: Path) -> list[str] | None:
    """Return digests of the texts that describe a model (its weights do not matter); None: not
    read."""
    is_file = model.is_file()  # the tokenizer may lie beside it
    folder = model.parent if is_file else model
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    texts = [f for f in files if f.suffix in _TEXTS and (not is_file or f.name.startswith(_WORDS))]
    read = [model, *texts] if is_file else texts
    if not read or not all(is_readable(file, MOST_BYTES) for file in read):
        return None
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in read]


def _listing(job: Job) -> Iterator[tuple[str | int, ...]]:
    """Yield name, size, times and number of each file of the data: a copy may keep the first
    time."""
    if isinstance(job.dataset, NoData):
        return
    root = Path(job.dataset)
    files = [root] if root.is_file() else sorted(root.rglob("*"))
    for file in files:
        if file.is_file():
            status = file.stat()
            times = status.st_mtime_ns, status.st_ctime_ns
            yield str(file), status.st_size, *times, status.st_ino
