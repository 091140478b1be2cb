"""Look at a run that was made before: its record, its recommendation, its bundle."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.bundle.bundle import AUTO_FILE, auto_deepspeed
from autotune.errors import user_error
from autotune.facts import Facts, devices, facts_from_plain
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.probe.measure import measure_candidate
from autotune.probe.survey import allowed_memory
from autotune.process.device_lock import devices_locked
from autotune.process.messages import ChildFolder, read_json
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.run.deadline import Deadline
from autotune.run.expectations import Expectations, expectations_from_plain
from autotune.run.launch_stages import Heard
from autotune.run.loop import reasons_against
from autotune.run.recipe_values import UnprobedValue, unprobed_values
from autotune.run.verdict import Verification
from autotune.run.verified_bundle import render
from autotune.run.verify import verify
from autotune.search.recommend import Recommendation, recommend
from autotune.search.record import Record, counts_as_probe
from autotune.search.study import Study
from autotune.space.bind import SearchSpace, bind
from autotune.space.job_file.load import load_job
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE


@dataclass(frozen=True, kw_only=True)
class PastRun:
    """A run on disk, its study opened."""

    run: RunFolder
    job: Job
    facts: Facts
    space: SearchSpace
    records: tuple[Record, ...]
    allowed_bytes: int

    @property
    def stored(self) -> Any | None:
        """What `recommendation.json` says; None before there was one."""
        return read_json(self.run.recommendation)

    @property
    def ending(self) -> Any | None:
        """How the run ended, why its search did, and what it saved; None where it was killed."""
        return read_json(self.run.ending)

    @property
    def expectations(self) -> Expectations | None:
        """What the run expected of its candidates; None where it did not get that far."""
        stored = read_json(self.run.estimates)
        return expectations_from_plain(stored) if isinstance(stored, dict) else None

    @property
    def skipped(self) -> dict[str, str]:
        """Keys of the candidates that need no probe, each with its reason."""
        return reasons_against(
            self.space.candidates, self.records, self.expectations, self.allowed_bytes
        )

    @property
    def unprobed(self) -> tuple[UnprobedValue, ...]:
        """What the job lists under `recipe:` and no probe has measured."""
        return unprobed_values(
            self.job,
            self.space,
            self.records,
            self.skipped,
            self.expectations,
            self.job.devices.memory or self.facts.device.free_bytes,
            otherwise=(self.ending or {}).get("stop_reason", "the run was cut short"),
        )

    def recommendation(self, pinned: int | None = None) -> Recommendation:
        """The run's recommendation, or the probe the user wants.

        Raises:
            UserError: nothing can be recommended, or not that probe.
        """
        passed_over = {int(n): why for n, why in (self.stored or {}).get("passed_over", {}).items()}
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
        """The bundle of a recommendation."""
        return render(
            recommendation,
            self.job,
            self.facts,
            self.run,
            space=self.space,
            probes=sum(counts_as_probe(record) for record in self.records),
            verification=verification,
        )

    def files_with_auto(
        self, recommendation: Recommendation, verification: Verification | None
    ) -> dict[str, str]:
        """The bundle, and DeepSpeed's file once more with `auto` where the trainer fills it in.

        Raises:
            UserError: the recommendation is not trained by DeepSpeed.
        """
        text = auto_deepspeed(self.job, self.facts, recommendation.chosen.candidate)
        if text is None:
            raise user_error(
                "the recommended configuration does not train with DeepSpeed",
                where="--auto",
                hint="leave --auto out, or name another probe with --probe",
            )
        return {**self.files(recommendation, verification), AUTO_FILE: text}

    def kept_verification(self, recommendation: Recommendation) -> Verification | None:
        """The stored verification, if it is of this probe and of files that would be the same."""
        stored = self.stored or {}
        if stored.get("chosen", {}).get("probe") != recommendation.chosen.number:
            return None
        if not stored.get("verification"):
            return None
        files = self.files(recommendation, None)
        method = METHODS[self.job.method]
        launched = (method.config_file, "accelerate.yaml", "launch.sh", DEEPSPEED_FILE)
        for name in (name for name in launched if name in files):
            file = self.run.bundle / name
            if not file.is_file() or file.read_text(encoding="utf-8") != files[name]:
                return None
        return Verification(**stored["verification"])


def reopen(path: Path, storage: str | None = None) -> PastRun:
    """The run in a folder.

    Raises:
        UserError: there is none, or it ended before its model and data were known.
    """
    run = RunFolder(path=path.absolute())
    run.check_storage(storage)
    name, facts = _stored(run)
    if storage is None and not run.database.is_file():
        raise user_error("the run has no study.db", where=str(run.path), hint="--resume it first")
    job, definition = load_job(run.job)
    space = bind(definition, job, facts)
    allowed = allowed_memory(job, facts.device)
    study = Study(
        space,
        storage or run.database,
        name,
        allowed_bytes=allowed,
    )
    return PastRun(
        run=run,
        job=job,
        facts=facts,
        space=space,
        records=tuple(study.records()),
        allowed_bytes=allowed,
    )


def _stored(run: RunFolder) -> tuple[str, Facts]:
    """The name of the study, and the facts the survey found."""
    file = run.run
    try:
        name = str(run.read(file)["study"])
        file = run.facts
        return name, facts_from_plain(run.read(file))
    except (KeyError, TypeError):
        raise user_error(
            f"{file.name} was not written by this version of autotune",
            where=str(run.path),
            hint="name a run folder that this version made",
        ) from None


def verify_again(past: PastRun, heard: Heard, waits: Callable[[str], None]) -> Verification:
    """Launch the run's recommended bundle again, and write what came out into it.

    Args:
        heard: hears of each stage of a launch when it is over.
        waits: hears who has the devices, where this has to wait for them.
    """
    pinned = (past.stored or {}).get("chosen", {}).get("probe")
    recommendation = past.recommendation(pinned)
    with (
        past.run.locked(),
        devices_locked(past.job.devices, past.run.path, waits),
        ChildServer(past.run.log) as server,
    ):
        if not past.run.launch.is_file():
            past.run.write_bundle(past.run.bundle, past.files(recommendation, None))
        facts = past.facts
        if facts.device.kind == "cuda":  # a scheduler may give another GPU each time
            device = devices.detect("cuda", past.job.devices.index, past.job.devices.count)
            facts = dataclasses.replace(facts, device=device)
        again = functools.partial(
            measure_candidate,
            server,
            ChildFolder(path=past.run.what_if / "again"),
            past.job,
            facts,
            recommendation.chosen.candidate,
            rows=past.run.rows,
            output_dir=past.run.output,
            limit=past.job.devices.memory or facts.device.free_bytes,
        )
        outcome = verify(
            past.run, past.job, facts, recommendation.chosen, server, again, Deadline(), heard
        )
    past.run.write_bundle(past.run.bundle, past.files(recommendation, outcome))
    return outcome
