"""The files of one run. This class owns every path; nothing else joins path names.

study.db          the Optuna study (unless a variable names another storage)
job.yaml          the job, resolved; of a script in its place script.json: its command, its limits
run.json          how the run was started: version, study name, whether study.db holds it, time
machine.json      device and stack at the start
facts.json        what the survey found
space.json        a fingerprint of the search space
estimates.json    what each candidate was expected to take; estimates/ what was traced for it
ending.json       why the search ended, and what it saved
data/             the tokenized rows (`rows`) and the rows they were made of (`raw`)
model/            only where the job named a bare config
probes/NNNN/      candidate, request, reply, progress, logs and measurement of each probe
verification/     the data, output and log of the verified launch
bundle/           what is emitted
tracking/         of each tracker what was sent and its log; the event files of TensorBoard
"""

import contextlib
import fcntl
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import user_error
from autotune.job.paths import why_not_literal
from autotune.process.files import (
    finish_replacement,
    make_executable,
    opener,
    put_in_place,
    refuse_links_out,
    refuse_used,
    write_whole,
)
from autotune.process.messages import ChildFolder, read_json, write_json

LOCK = ".lock"
_BEGUN = "run.begun.json"
_DRAFTS = ("job.yaml.draft", "script.json.draft", f"{_BEGUN}.draft", _BEGUN)
"""Files that a run may leave which is killed while it begins: beside the last of them a job,
too."""
_LINKED = {"output": True, "dataset": False, "tracking": False}
"""Where links may lead out of the folder of a run: a training's, the data, what trackers make."""
OUTPUT = "AUTOTUNE_OUTPUT"
"""Variable with the folder that bundles train into, where a service hands them out: they must not
train into the service's own folders."""
STORAGE = "AUTOTUNE_STORAGE"
"""Variable with the URL of the storage of a study, where it is not in the run's folder: a
service's."""
RESUMPTION = "AUTOTUNE_RESUMPTION"
"""Variable with the command that resumes a run, where a user cannot name its folder: a
service's."""


class _Place:
    """A path in the folder of a run, by its names there."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, run: "RunFolder", _: object = None) -> Path:
        return run.path.joinpath(*self._names)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """One run on disk."""

    path: Path
    database = _Place("study.db")
    job = _Place("job.yaml")
    script = _Place("script.json")
    run = _Place("run.json")
    machine = _Place("machine.json")
    facts = _Place("facts.json")
    space = _Place("space.json")
    estimates = _Place("estimates.json")
    ending = _Place("ending.json")
    rows = _Place("data", "rows")
    raw = _Place("data", "raw")
    dataset = _Place("dataset")
    """A folder around a data set that is one file, so that it has a name to be loaded by."""
    log = _Place("server.log")
    bundle = _Place("bundle")
    recommendation = _Place("bundle", "recommendation.json")
    launch = _Place("bundle", "launch.sh")
    verification = _Place("verification")
    tracking = _Place("tracking")
    what_if = _Place("what_if")
    output = _Place("output")
    """The folder that the real training writes to unless the job says otherwise."""

    @property
    def resumption(self) -> str:
        """The command that resumes the run, for a message."""
        command = f"autotune run --resume {shlex.quote(str(self.path))}"
        return os.environ.get(RESUMPTION) or command

    @property
    def interruption(self) -> str:
        """The message for a run that was interrupted."""
        return f"interrupted; go on with: {self.resumption}"

    @property
    def survey(self) -> ChildFolder:
        return ChildFolder(path=self.path / "survey")

    @property
    def bundle_output(self) -> str:
        """`output` as its bundle names it: another folder where the bundle is handed out."""
        info = read_json(self.run)
        elsewhere = info.get("output") if isinstance(info, dict) else None
        return elsewhere if isinstance(elsewhere, str) and elsewhere else str(self.output)

    def probe(self, number: int) -> ChildFolder:
        """Return the folder of probe `number`."""
        return ChildFolder(path=self.path / "probes" / f"{number:04d}")

    def candidate(self, number: int) -> Path:
        """Return the candidate of probe `number`: with its reply the study can be made anew."""
        return self.probe(number).path / "candidate.json"

    def keep_candidate(self, number: int, knobs: Mapping[str, Any]) -> None:
        """Write down what probe `number` is a probe of."""
        file = self.candidate(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, dict(knobs))

    def probe_numbers(self) -> list[int]:
        """Return the numbers of the probes that have left something here."""
        folders = (self.path / "probes").glob("*/candidate.json")
        return sorted(int(file.parent.name) for file in folders if file.parent.name.isdecimal())

    def write_text(self, path: Path, text: str) -> None:
        """Write a file of this run whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".draft")
        write_whole(draft, text)
        draft.replace(path)

    def write_bundle(self, target: Path, files: Mapping[str, str]) -> None:
        """Put a bundle in place of the one before it, in one step: a reader sees the one or the
        other, whatever kills us."""
        put_in_place(target, files)

    def write_files(self, target: Path, files: Mapping[str, str]) -> None:
        """Put files into a folder that may hold others, each whole."""
        for name, text in files.items():
            self.write_text(target / name, text)
            if name.endswith(".sh"):
                make_executable(target / name)

    def exists(self) -> bool:
        """True if a run was started here."""
        return self.run.is_file()

    def begin(self, text: str, info: Mapping[str, Any], file: Path | None = None) -> None:
        """Start a run in this folder, which must be new or empty.

        Args:
            text: of the job, or of what is searched in its place.
            file: that keeps it; None: the job's.

        Raises:
            UserError: something is there already.
        """
        self.refuse_used()
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)  # what a job names, and what its data hold, is its owner's
        write_json(self.path / _BEGUN, dict(info))
        kept = file or self.job
        self.write_text(kept, text)
        kept.chmod(0o600)
        (self.path / _BEGUN).replace(self.run)

    def refuse_used(self) -> None:
        """Refuse a folder that is neither new nor empty: no run begins there.

        Raises:
            UserError: something is there already, or data in it would be read elsewhere.
        """
        self.check_name()
        if os.path.lexists(self.path) and self.path.is_dir():
            names = {entry.name for entry in self.path.iterdir()} - {LOCK}
            if names <= {*_DRAFTS, *([self.job.name, self.script.name] if _BEGUN in names else [])}:
                return
            if self.exists():
                path = shlex.quote(str(self.path))
                hint = f"go on with it by `autotune run --resume {path}`, or choose another folder"
                raise user_error("the folder is not empty", where=str(self.path), hint=hint)
        refuse_used(self.path)

    def storage(self) -> str | None:
        """Return the URL of the storage of this run's study; None: it is in `study.db`. The URL is
        not kept: it may hold a password.

        Raises:
            UserError: there is no run here, or the variable does not name its storage.
        """
        url = os.environ.get(STORAGE)
        if self.read(self.run).get("own_storage", True):
            return None
        if not url:
            raise user_error(
                "the run keeps its study in a storage of its own",
                where=str(self.path),
                hint=f"set {STORAGE} to its URL again",
            )
        return url

    def check_name(self) -> None:
        """Refuse a folder whose path libraries would take for another."""
        if (what := why_not_literal(str(self.path))) is not None:
            raise user_error(what, hint="choose another folder, or rename it")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from working on the same run; what a killed one left half-done is
        cleared away.

        Raises:
            UserError: another process does, or a link leads out of the folder.
        """
        refuse_links_out(self.path, _LINKED)
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = opener(str(self.path / LOCK), os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise user_error(
                    "another autotune process is working on this run",
                    where=str(self.path),
                    hint="wait for it, or end it first",
                ) from None
            if self.exists():
                finish_replacement(self.bundle)
            yield
        finally:
            os.close(descriptor)

    def read(self, path: Path) -> dict[str, Any]:
        """Return a JSON object of this run.

        Raises:
            UserError: it is missing or broken.
        """
        data = read_json(path)
        if not isinstance(data, dict):
            raise user_error(
                f"{path.name} is missing or unreadable",
                where=str(self.path),
                hint="name a folder that `autotune run` or `autotune plan --emit` wrote",
            )
        return data
