"""How a run begins, or goes on where it was: its folder, its facts, its space, its study."""

import dataclasses
import hashlib
import itertools
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune import __version__
from autotune.errors import machine_error, user_error
from autotune.facts import Facts
from autotune.job.job import Job, KnobValue
from autotune.job.yaml_file import to_yaml
from autotune.plan.progress import Progress
from autotune.probe.survey import check_host_memory, refuse_untried, survey
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import OUTPUT, RunFolder
from autotune.process.server import ChildServer
from autotune.run.expectations import Expectations
from autotune.run.history import History
from autotune.run.rebuilt_study import left_by, rebuild, set_aside
from autotune.run.stored import needed
from autotune.search import SAMPLERS
from autotune.search.sampler.params import Sampler, compared_sampler, guided_sampler
from autotune.search.study import Study
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.packages import QUANTISER
from autotune.space.quantization import not_installed
from autotune.value_types import checked


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run goes, beside its job.

    Attributes:
        sampler: one of `search.SAMPLERS`.
        history: whether measurements of earlier runs order the first guesses.
        verify: whether the bundle is launched in the end.
    """

    sampler: str = SAMPLERS[0]
    history: bool = True
    verify: bool = True


def new_folder(name: str) -> Path:
    """Return the folder of a run that nobody named one for: `runs/NAME-TIME`, which nobody has
    yet."""
    path = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([path], others) if not folder.exists())


def begin(
    job: Job, run: RunFolder, storage: str | None = None, options: Options | None = None
) -> None:
    """Start a run in a folder that is new or empty: its job, its name and how it searches are
    kept there.

    Raises:
        UserError: something is there already.
    """
    info = {
        "schema": 1,
        "version": __version__,
        "study": f"autotune-{uuid.uuid4().hex[:12]}",
        "own_storage": storage is None,
        "options": dataclasses.asdict(options or Options()),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "output": os.environ.get(OUTPUT),
    }
    run.begin(to_yaml(job.plain()), info)


def facts_of(job: Job, run: RunFolder, server: ChildServer, progress: Progress) -> Facts:
    """Return what is true of model, data, machine and stack before any probe.

    Raises:
        UserError: the job cannot be.
        MachineError: the machine or its packages cannot do it.
    """
    refuse_untried(job)
    progress.surveying(job)
    if server.fresh:
        progress.starting_anew(server.fresh)
    facts = survey(job, run, server)
    if missing := not_installed(job, facts):
        raise machine_error(missing, where="job", hint=f"pip install {QUANTISER}")
    check_host_memory(job, facts)
    return facts


def space_of(definition: SpaceDefinition, job: Job, facts: Facts, run: RunFolder) -> SearchSpace:
    """Return the candidates of the job. The space of a run that starts is remembered; that of one
    that goes on is held against it.

    Raises:
        UserError: the search space file has changed since.
    """
    space = bind(definition, job, facts)
    keys = "\n".join(candidate.key for candidate in space.candidates)
    now = {"candidates": len(space.candidates), "sha256": hashlib.sha256(keys.encode()).hexdigest()}
    earlier = read_json(run.space)
    if earlier is None:
        write_json(run.space, now)
    elif earlier != now:
        raise user_error(
            "the search space has changed since this run started",
            where=str(run.path),
            hint="restore the search space file, or start a new run",
        )
    return space


def study_of(
    job: Job,
    facts: Facts,
    space: SearchSpace,
    run: RunFolder,
    storage: str | None,
    expectations: Expectations,
    allowed: int,
    restored: Callable[[int, str], None],
) -> tuple[Study, Options]:
    """Return the run's study, and how it searches: as it was started. A study that is gone is made
    anew of what its probes left.

    Args:
        restored: hears of how many, and why.

    Raises:
        UserError: there is no sampler of that name.
    """
    info = run.read(run.run)
    with needed(run, run.run.name, "start a new run"):
        name = checked(info["study"], str)
        options = checked(Options(**info.get("options", {})), Options)
    sampler = sampler_of(options, job, facts, space, expectations, allowed, name)
    fault = set_aside(run, name) if storage is None else None
    study = Study(space, storage or run.database, name, allowed_bytes=allowed, sampler=sampler)
    if probes := rebuild(study, space, run):
        restored(probes, fault or "it lacks probes of this run")
    return study, options


def sampler_of(
    options: Options,
    job: Job,
    facts: Facts,
    space: SearchSpace,
    expectations: Expectations,
    allowed: int,
    study: str,
) -> Sampler:
    """Return our sampler, or the one to compare it with.

    Raises:
        UserError: there is no sampler of that name.
    """
    if options.sampler not in SAMPLERS:
        what = f"there is no sampler `{options.sampler}`"
        raise user_error(what, where="sampler", hint=f"choose from {', '.join(SAMPLERS)}")
    if options.sampler != SAMPLERS[0]:
        return compared_sampler(options.sampler, space, first_candidates(space), job.seed)
    history = []
    if options.history:
        history = History.of_user().readings(job, facts, space, study)
    return guided_sampler(
        space,
        expectations.estimates,
        expectations.prior,
        allowed_bytes=allowed,
        history=history,
        seed=job.seed,
    )


def first_candidates(space: SearchSpace) -> tuple[Candidate, ...]:
    """Return what samplers without estimates begin with: the stack's defaults, then without
    checkpointing, then less padding."""
    default = space.default()
    changes: tuple[dict[str, KnobValue], ...] = (
        {"gradient_checkpointing": False},
        {"train_sampling_strategy": "group_by_length"},
    )
    return (default, *(space.nearest({**default.values, **change}) for change in changes))


def recover(study: Study, run: RunFolder) -> None:
    """Close the trials that a killed process left running: with their reply, where it is whole."""
    study.drop_waiting()
    numbers = {record.number for record in study.records()}
    for trial in study.running():
        if trial.number not in numbers:
            study.abandon(trial)
            continue
        study.tell(trial, left_by(run.probe(trial.number)))
