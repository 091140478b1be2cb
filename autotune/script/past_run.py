"""A script's run that was made before, as reports read it."""

import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import user_error
from autotune.plain_data import NONSENSE, from_plain
from autotune.probe.survey import memory_limit
from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from autotune.report.content import Chosen, Content
from autotune.report.gather import content_of
from autotune.run.past_run import PastRun, reopened
from autotune.run.stored import RESUME, needed, stored_facts, study_name
from autotune.script.protocol import Look
from autotune.script.session import unestimated
from autotune.script.space import job_of, space_of
from autotune.search.storage import fault_of_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class PastScriptRun:
    """A script's run on disk.

    Attributes:
        past: as of every run; its job is what the search made of the script.
        words: of the command.
        folder: where the command is started.
        limits: `budget`, `headroom`, `devices` and `fixed` of the search.
    """

    past: PastRun
    look: Look
    words: tuple[str, ...]
    folder: str
    limits: Mapping[str, Any]

    def content(self) -> Content:
        """Return the content of its report."""
        look, content = self.look, content_of(self.past)
        of_job = ("weights", "method", "tuning", "data", "global batch")
        about = [pair for pair in content.about if pair[0] not in of_job]
        return dataclasses.replace(
            content,
            method=look.trainer.rpartition(".")[2],
            chosen=self._chosen(content),
            about=(
                ("script", shlex.join(self.words)),
                *about,
                ("rows of an optimizer step", str(look.global_batch)),
            ),
            absent=("A script is not traced, so there are no estimates.", *self._absent(content)),
            job="",
            commands=tuple(self._commands(content)),
        )

    def _chosen(self, content: Content) -> Chosen | None:
        """Refuse another candidate: `launch.sh` of a script is started by `--resume`."""
        chosen, stored = content.chosen, self.past.stored
        if chosen is None or (stored is not None and stored.verification is not None):
            return chosen
        return dataclasses.replace(chosen, verification="NOT verified: launch.sh was not started")

    def _absent(self, content: Content) -> list[str]:
        return [text for text in content.absent if "was not estimated" not in text]

    def _commands(self, content: Content) -> list[tuple[str, str]]:
        """Return what is as of a job's run, and how this search was begun."""
        others = ("launch and check it again", "do the search again")
        commands = [pair for pair in content.commands if pair[0] not in others]
        search = ["autotune", "run", "--command", *_flags(self.limits), "--", *self.words]
        again = f"cd {shlex.quote(self.folder)} && {shlex.join(search)}"
        return [*commands, (others[1], again)]


def _flags(limits: Mapping[str, Any]) -> list[str]:
    """Return the limits of a search as flags."""
    flags: list[str] = []
    for room, value in sorted(limits.items()):
        fields = {f"{room}.{n}": v for n, v in value.items()} if isinstance(value, dict) else None
        for name, limit in (fields or {room: value}).items():
            flags += ["--set", f"{name}={limit if isinstance(limit, str) else json.dumps(limit)}"]
    return flags


def reopen_script(path: Path) -> PastScriptRun:
    """Return the script's run in a folder; nothing in it is changed or made.

    Raises:
        UserError: there is none, or what it cannot do without is damaged.
    """
    run = RunFolder(path=path.absolute())
    kept = run.read(run.script)
    look, facts = look_of_run(run), stored_facts(run)
    limits = kept.get("limits") or {}
    if (fault := fault_of_file(run.database, study_name(run))) is not None:
        raise user_error(f"study.db: {fault}", where=str(run.path), hint=RESUME)
    with needed(run, run.script.name, RESUME):
        words = from_plain(tuple[str, ...], kept["words"])
        job = job_of(look, limits)
        space = space_of(look, job, facts)
        nothing = unestimated(look, facts, memory_limit(job, facts.device))
    past = reopened(run, job, facts, space, nothing)
    folder = str(kept.get("folder"))
    return PastScriptRun(past=past, look=look, words=words, folder=folder, limits=limits)


def look_of_run(run: RunFolder) -> Look:
    """Return the stored look at a run's script.

    Raises:
        UserError: it is missing, or damaged.
    """
    file = run.survey.path / "look.json"
    try:
        return Look.from_plain(read_json(file))
    except NONSENSE:
        what = "the record of the look at the script is missing or damaged"
        raise user_error(what, where=str(file), hint=RESUME) from None
