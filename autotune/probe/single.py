"""One probe of a job, or its space, without a run."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.probe.measure import probe_task, probed
from autotune.probe.protocol import Measurement
from autotune.probe.survey import check_host_memory, memory_limit, refuse_untried, survey
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate


def probe_alone(
    job: Job, definition: SpaceDefinition, waits: Callable[[str], None]
) -> tuple[Candidate, Measurement]:
    """Measure the job's default candidate (pinned knobs as pinned) while no other run of this user
    has its devices. Nothing is left of it; where something goes wrong its folder stays, as the
    message names a log in it.

    Args:
        waits: called with a text that names the holder of the devices, before this waits for them.

    Raises:
        UserError: the job cannot be.
        MachineError: the machine cannot do it.
    """
    folder = Path(tempfile.mkdtemp(prefix="autotune-probe-"))
    with devices_locked(job.devices, folder, waits):
        found = probe_once(job, definition, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def probe_once(
    job: Job, definition: SpaceDefinition, scratch: Path
) -> tuple[Candidate, Measurement]:
    """Measure the job's default candidate (pinned knobs as pinned)."""
    refuse_untried(job)
    run = RunFolder(path=scratch)
    with ChildServer(run.log) as server:
        facts = survey(job, run, server)
        limit = memory_limit(job, facts.device)
        check_host_memory(job, facts)
        space = bind(definition, job, facts)
        candidate = space.default()
        chosen = space.settings(candidate, str(run.output))
        task = probe_task(chosen, rows=run.rows, limit=limit)
        return candidate, probed(server, run.probe(0), task.plain())


def bound_space(job: Job, definition: SpaceDefinition, scratch: Path) -> tuple[SearchSpace, Facts]:
    """Return the space of a job on this machine, and the facts it is bound to."""
    run = RunFolder(path=scratch)
    with ChildServer(run.log) as server:
        facts = survey(job, run, server, planned=True)
    return bind(definition, job, facts), facts
