"""A study that is gone, made anew from what its probes left in the run's folder."""

from pathlib import Path
from typing import Any

from autotune.errors import machine_error
from autotune.probe.outcome import disturbed, measurement_of_reply
from autotune.probe.protocol import Measurement
from autotune.process.messages import ChildFolder, read_json
from autotune.process.run_folder import RunFolder
from autotune.search.storage import fault_of_file
from autotune.search.study import Study, candidate_of
from autotune.space.bind import SearchSpace


def set_aside(run: RunFolder, name: str) -> str | None:
    """Move a study.db out of the way that cannot be used, so that one is made anew; what was wrong
    with it. None: it can be used, or no probe has been kept in it yet.

    Raises:
        MachineError: nobody can tell.
    """
    if not run.probe_numbers():
        return None
    fault = fault_of_file(run.database, name)
    if fault is not None and run.database.exists():
        broken = _free_name(run.database)
        try:
            run.database.rename(broken)
        except OSError as error:
            what = f"{fault}, and it cannot be moved away: {error.strerror}"
            raise machine_error(what, where=str(run.database)) from None
        return f"{fault} (kept as {broken.name})"
    return fault


def rebuild(study: Study, space: SearchSpace, run: RunFolder) -> int:
    """Tell a study what the probes in the run's folder came to that it does not know, under their
    numbers; how many those are."""
    numbers, first = run.probe_numbers(), study.trials
    restored = 0
    for number in range(first, max(numbers, default=-1) + 1):
        try:
            candidate = candidate_of(read_json(run.candidate(number)), space)
            trial, _ = study.ask_for(candidate)
        except (TypeError, StopIteration):
            study.skip()
            continue
        study.tell(trial, left_by(run.probe(number)))
        restored += 1
    return restored


def left_by(folder: ChildFolder) -> Measurement:
    """Return how a probe ended of which its run was not told, by its files."""
    for file in (folder.measurement, folder.reply):
        plain: Any = read_json(file)
        if isinstance(plain, dict):
            return disturbed(measurement_of_reply(plain))
    return Measurement(outcome="interrupted", reason="the run was killed while it ran")


def _free_name(database: Path) -> Path:
    names = (database.with_name(f"{database.name}.broken{n}") for n in ("", *range(2, 100)))
    return next(name for name in names if not name.exists())
