"""Look at a run that was made before: its record, its recommendation, its bundle."""

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.call import Call, Engine, result_of
from autotune.engine.launching import launcher_of
from autotune.engine.opening import engine_of
from autotune.errors import UserError, user_error
from autotune.facts import Facts, devices
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.job.text_file import readable_text
from autotune.plain_data import NONSENSE
from autotune.probe.measure import probe_task
from autotune.probe.protocol import Measurement
from autotune.probe.survey import allowed_memory
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.messages import MOST_BYTES
from autotune.process.run_folder import RunFolder
from autotune.run.bundle_launch import Heard, script_of
from autotune.run.deadline import Deadline
from autotune.run.expectations import Expectations, compared
from autotune.run.job_session import render
from autotune.run.loop import reasons_against
from autotune.run.opening import started
from autotune.run.recipe_values import UnprobedValue, unprobed_values
from autotune.run.stored import (
    RESUME,
    StoredChoice,
    StoredEnding,
    StoredFiles,
    needed,
    reason_of,
    refuse_script,
    stored_facts,
    stored_records,
    study_name,
)
from autotune.run.verdict import Verification, memory_limit_of
from autotune.run.verify import verify
from autotune.search.recommend import Recommendation, recommend
from autotune.search.record import Record
from autotune.search.storage import fault_of_file
from autotune.space.bind import SearchSpace, bind
from autotune.space.job_file.load import load_job
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.trl_config import Settings, settings


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run on disk, its study opened.

    Attributes:
        stored: what `recommendation.json` says; None before there was one.
        ending: how the run ended; None where it was killed.
        expectations: what the run expected of its candidates; None where it did not get that far.
        skipped: keys of the candidates that need no probe, each with its reason.
        notes: what of its files is damaged, and what is left out for that.
    """

    run: RunFolder
    job: Job
    facts: Facts
    space: SearchSpace
    records: tuple[Record, ...]
    allowed_bytes: int
    stored: StoredChoice | None
    ending: StoredEnding | None
    expectations: Expectations | None
    skipped: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def unprobed(self) -> tuple[UnprobedValue, ...]:
        """The values under `recipe:` that no probe has measured."""
        return unprobed_values(
            self.job,
            self.space,
            self.records,
            self.skipped,
            self.expectations,
            memory_limit_of(self.job, self.facts),
            otherwise=self.ending.stop_reason if self.ending else "the run was cut short",
        )

    def recommendation(self, pinned: int | None = None) -> Recommendation:
        """Return the run's recommendation, or the probe the user wants.

        Raises:
            UserError: nothing can be recommended, or not that probe.
        """
        passed_over = self.stored.passed_over if self.stored else {}
        outcome = recommend(self.records, self.allowed_bytes, passed_over, pinned)
        if isinstance(outcome, Recommendation):
            return outcome
        what = "nothing stable was measured in this run"
        if pinned is not None:
            what = f"probe {pinned} is not a stable candidate of this run"
        raise user_error(
            what, where=str(self.run.path), hint="`autotune report` shows all its probes"
        )

    def files(
        self, recommendation: Recommendation, verification: Verification | None
    ) -> dict[str, str]:
        """Return the bundle of a recommendation.

        Raises:
            UserError: what was found of model and data makes no bundle.
        """
        with needed(self.run, "facts.json", RESUME):
            return render(recommendation, self.run, self.space, self.records, verification)

    def kept_verification(self, recommendation: Recommendation) -> Verification | None:
        """Return the stored verification, if it is of this probe and of files that would be the
        same."""
        stored = self.stored
        if stored is None or stored.probe != recommendation.chosen.number:
            return None
        if stored.verification is None or self.changed_files(recommendation):
            return None
        return stored.verification

    def changed_files(self, recommendation: Recommendation) -> list[str]:
        """Return the files that a launch reads or runs, and that are not as the run emits them."""
        files, method = self.files(recommendation, None), METHODS[self.job.method]
        launched = (method.config_file, "accelerate.yaml", script_of(self.job), DEEPSPEED_FILE)
        return [
            name
            for name in (*launched, method.own_script)
            if name in files and readable_text(self.run.bundle / name, MOST_BYTES) != files[name]
        ]


def reopen(path: Path) -> PastRun:
    """Return the run in a folder; nothing in it is changed or made. Its model and data may have
    gone.

    Raises:
        UserError: there is none, or what it cannot do without is damaged.
    """
    run = RunFolder(path=path.absolute())
    storage = run.storage()
    refuse_script(run)
    facts = stored_facts(run)
    if storage is None and (fault := fault_of_file(run.database, study_name(run))) is not None:
        raise _without_study(run, fault)
    job, definition = load_job(run.job, elsewhere=True)
    with needed(run, "facts.json", RESUME):
        space = bind(definition, job, facts)
    return reopened(run, job, facts, space)


def reopened(
    run: RunFolder, job: Job, facts: Facts, space: SearchSpace, expected: Expectations | None = None
) -> PastRun:
    """Return the run of a job whose space is known; `expected` of its candidates: None: as stored.

    Raises:
        UserError: what it cannot do without is damaged.
    """
    with needed(run, "facts.json", RESUME):
        allowed = allowed_memory(job, facts.device)
    files = StoredFiles(run)
    storage = run.storage() or run.database
    records = stored_records(files, space, storage, study_name(run), allowed)
    stored, ending, expectations = files.choice(), files.ending(), expected or files.expectations()
    expectations, skipped = _usable(space, records, expectations, allowed, files)
    return PastRun(
        run=run,
        job=job,
        facts=facts,
        space=space,
        records=records,
        allowed_bytes=allowed,
        stored=stored,
        ending=ending,
        expectations=expectations,
        skipped=skipped,
        notes=tuple(files.notes),
    )


def _usable(
    space: SearchSpace,
    records: Sequence[Record],
    expectations: Expectations | None,
    allowed: int,
    files: StoredFiles,
) -> tuple[Expectations | None, dict[str, str]]:
    """Return the expectations, if they can be held against the probes, and what they leave out."""
    if expectations is not None:
        try:
            compared(expectations, records)
            return expectations, reasons_against(space.candidates, records, expectations, allowed)
        except NONSENSE as error:
            files.notes.append(
                f"estimates.json is left out: its figures make no sense: {reason_of(error)}"
            )
    with needed(files.run, "study.db", RESUME):
        return None, reasons_against(space.candidates, records, None, allowed)


def _without_study(run: RunFolder, fault: str) -> UserError:
    """Return the message about a run whose study.db cannot be used."""
    probes = len(run.probe_numbers())
    if not probes:
        return user_error(
            f"study.db: {fault}, and no probe has left files",
            where=str(run.path),
            hint="resume it first, with --resume",
        )
    return user_error(
        f"study.db: {fault}, and {probes} probe(s) have left their files",
        where=str(run.path),
        hint=f"`autotune run --resume {shlex.quote(str(run.path))}` rebuilds it from them",
    )


@contextlib.contextmanager
def _opened(past: PastRun, waits: Callable[[str], None]) -> Iterator[tuple[ChildServer, Engine]]:
    """Open a run's server, and the engine that it was started with."""
    name, options = started(past.run)
    with contextlib.ExitStack() as stack:
        stack.enter_context(past.run.locked())
        if options.engine.name == "local":
            stack.enter_context(devices_locked(past.job.devices, past.run.path, waits))
        server = stack.enter_context(ChildServer(past.run.log))
        one = dataclasses.replace(options.engine, at_once=1)
        opened = engine_of(one, past.job, past.run, f"{name}-verify", server)
        engine = stack.enter_context(opened)
        engine.abandon()  # a verification that was killed may have left a launch
        yield server, engine


def verify_again(
    past: PastRun, heard: Heard, waits: Callable[[str], None], soak_s: float = 0.0
) -> Verification:
    """Launch the run's recommended bundle again, and write what came out into it.

    Args:
        heard: hears of each stage of a launch when it is over.
        waits: hears who has the devices, where this has to wait for them.
        soak_s: how long a bundle that holds is trained once more, in seconds.

    Raises:
        UserError: the bundle is not what the run emits, or what its job names has gone; nothing
            was launched.
    """
    load_job(past.run.job)
    recommendation = past.recommendation(past.stored.probe if past.stored else None)
    changed = past.changed_files(recommendation) if past.run.bundle.exists() else []
    if changed:
        raise user_error(
            f"{', '.join(changed)}: not what this run emits, so it is not launched",
            where=str(past.run.bundle),
            hint=f"`autotune emit {shlex.quote(str(past.run.path))}` writes the bundle anew; put "
            "fields of the training into `training:` of the job",
        )
    facts = past.facts
    with _opened(past, waits) as (server, engine):
        if facts.device.kind == "cuda":  # a scheduler may give another GPU each time
            asked, there = past.job.devices, engine.machine
            device = there.device if there else devices.detect("cuda", asked.index, asked.count)
            facts = dataclasses.replace(facts, device=device)
        # Whole, so that nothing else lies beside the script that is run.
        kept = past.kept_verification(recommendation)
        past.run.write_bundle(past.run.bundle, past.files(recommendation, kept))
        ranked = recommendation.chosen
        chosen = settings(past.job, facts, ranked.candidate, str(past.run.output))
        outcome = verify(
            past.run,
            chosen,
            ranked,
            server,
            lambda: _probed_again(past.run, chosen, engine),
            Deadline(),
            heard,
            soak_s,
            launcher=launcher_of(engine),
        ).among_noise(recommendation.noise)
        past.run.write_bundle(past.run.bundle, past.files(recommendation, outcome))
    return outcome


def _probed_again(run: RunFolder, chosen: Settings, engine: Engine) -> Measurement:
    """Return a probe of the candidate that is launched."""
    limit = memory_limit_of(chosen.job, chosen.facts)
    task = probe_task(chosen, rows=run.rows, limit=limit, elsewhere=engine.is_remote)
    key, folder = f"again-{time.monotonic_ns()}", str(run.what_if / "again")
    call = Call(key=key, folder=folder, request=task.plain(), alone=True)
    return result_of(engine, call).measurement()
