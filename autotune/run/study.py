"""The study of a run: as it was left, or made anew from what its probes left in the folder."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from autotune.engine.call import Call
from autotune.errors import machine_error
from autotune.probe.outcome import disturbed, measurement_of_reply
from autotune.probe.protocol import Measurement
from autotune.process.messages import ChildFolder, read_json
from autotune.process.run_folder import RunFolder
from autotune.search.sampler.sampler import EstimateGuidedSampler
from autotune.search.storage import fault_of_file
from autotune.search.study import Study, candidate_of
from autotune.space.bind import SearchSpace


def study_of(
    run: RunFolder,
    name: str,
    space: SearchSpace,
    sampler: EstimateGuidedSampler,
    allowed: int,
    restored: Callable[[int, str], None],
    storage: str | None = None,
    flying: Sequence[Call] = (),
) -> Study:
    """Return the study of a run. One that is gone is made anew of what its probes left.

    Args:
        flying: the calls of its probes that are still at work.
        allowed: bytes that what is recommended may take.
        restored: is called with the number of probes that were told anew, and why.
        storage: where it is; None: in the run's own file.
    """
    fault = set_aside(run, name) if storage is None else None
    study = Study(space, storage or run.database, name, allowed_bytes=allowed, sampler=sampler)
    if probes := rebuild(study, space, run):
        restored(probes, fault or "it lacks probes of this run")
    recover(study, run, [call.key for call in flying])
    return study


def set_aside(run: RunFolder, name: str) -> str | None:
    """Move a study.db away that cannot be used, and return what is wrong with it; None: it can be
    used, or no probe has been kept in it yet.

    Raises:
        MachineError: it cannot be moved.
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


def _free_name(database: Path) -> Path:
    names = (database.with_name(f"{database.name}.broken{n}") for n in ("", *range(2, 100)))
    return next(name for name in names if not name.exists())


def rebuild(study: Study, space: SearchSpace, run: RunFolder) -> int:
    """Tell a study the probes in the run's folder that it does not know, under their numbers, and
    return how many those are."""
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


def recover(study: Study, run: RunFolder, flying: Collection[str] = ()) -> None:
    """Close the trials that a killed process left running: with their reply, where it is whole.
    Those that still fly stay open."""
    study.drop_waiting()
    numbers = {record.number for record in study.records()}
    for trial in study.running():
        if trial.number not in numbers:
            study.abandon(trial)
            continue
        if f"{trial.number:04d}" in flying:
            continue
        study.tell(trial, left_by(run.probe(trial.number)))


def left_by(folder: ChildFolder) -> Measurement:
    """Return by its files how a probe ended that its run was not told of."""
    request: Any = read_json(folder.request)
    part = request.get("part") if isinstance(request, dict) else None
    is_whole = not isinstance(part, dict) or part.get("nodes", 1) == 1
    for file in (folder.measurement, folder.reply) if is_whole else (folder.measurement,):
        plain: Any = read_json(file)
        if isinstance(plain, dict):
            measurement = measurement_of_reply(plain)
            return disturbed(measurement) if file == folder.reply else measurement
    return Measurement(outcome="interrupted", reason="the run was killed while it ran")
