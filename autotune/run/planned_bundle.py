"""The bundle of a plan: written without a device, verified later on the machine that trains.

What it needs beside its files is in its folder `run`: the job, a folder around a data set that is
one file, the model's around a bare config, the logs of its verification.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from autotune.bundle.bundle import RECOMMENDATION, launched_files
from autotune.bundle.planned import JOB_FILE, Planned, digests, planned_files, verified_files
from autotune.errors import machine_error, user_error
from autotune.facts import Facts, devices
from autotune.job.job import Job
from autotune.job.text_file import readable_text
from autotune.plain_data import NONSENSE, from_plain
from autotune.plan.plan import Plan
from autotune.plan.progress import Progress
from autotune.probe.extensions import compiled_folder
from autotune.probe.measure import probe_task, probed
from autotune.probe.protocol import Measurement
from autotune.probe.survey import memory_limit, named_dataset
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.process.files import finish_replacement, refuse_link_out
from autotune.process.messages import MOST_BYTES, read_json
from autotune.process.run_folder import OUTPUT, RunFolder
from autotune.run.bundle_launch import Heard
from autotune.run.deadline import Deadline
from autotune.run.opening import facts_of
from autotune.run.verdict import Verification
from autotune.run.verify import AGAIN, verify
from autotune.search.recommend import Ranked
from autotune.space.bind import bind
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.load import load_job
from autotune.space.knobs import Candidate
from autotune.space.packages import packages_to_install
from autotune.space.trl_config import Settings, settings


def unsafe_reason(plan: Plan) -> str | None:
    """Return why a plan has no configuration that may be written; None: it has one."""
    if not plan.choices or not plan.choices[0].estimate.fits:
        return "nothing fits"
    best = plan.choices[0].estimate
    if plan.choices[0].safe:
        return None
    p_oom = max(best.p_oom, best.p_host_oom or 0.0)
    return f"nothing is safe, the best runs out of memory with probability {p_oom:.0%}"


def is_elsewhere(plan: Plan) -> bool:
    """True if a plan is for a GPU that is not here."""
    return plan.facts.device.kind == "cuda" and plan.facts.device.driver is None


def trained_facts(plan: Plan, job: Job, dataset: str | None) -> Facts:
    """Return the facts of a plan as its training has them: the model and the data by the names of
    the job, and all the devices.

    Args:
        dataset: what the data are loaded by; None: there are none.
    """
    device, model = plan.facts.device, Path(job.model)
    if is_elsewhere(plan):
        device = dataclasses.replace(device, peers=tuple(range(1, job.devices.count)))
    path = str(model.parent if model.is_file() else job.model)
    return dataclasses.replace(
        plan.facts,
        model=dataclasses.replace(plan.facts.model, path=path),
        data=dataclasses.replace(plan.facts.data, source=dataset or ""),
        device=device,
    )


def emit_plan(plan: Plan, job: Job, folder: Path) -> Path:
    """Write the bundle of a plan's best configuration, which must be safe, with its mark; say where
    it is.

    Raises:
        UserError: what is asked for makes files that contradict each other.
    """
    folder = folder.absolute()
    choice, device, run = plan.choices[0], plan.facts.device, _run_of(folder)
    facts = trained_facts(plan, job, named_dataset(job, run))
    planned = Planned(
        candidate=choice.candidate,
        estimate=choice.estimate,
        device=device.name,
        candidates=len(plan.space.candidates),
        limit_bytes=plan.limit_bytes,
    )
    named = job.devices.model_copy(update={"kind": device.kind})
    job = job.model_copy(update={"devices": named})
    output = os.environ.get(OUTPUT) or str(folder / "output")
    chosen = settings(job, facts, choice.candidate, output)
    python = "python3" if is_elsewhere(plan) else sys.executable
    run.write_files(folder, planned_files(planned, chosen, python=python))
    return folder


def is_planned(folder: Path) -> bool:
    """True if a folder is the bundle of a plan."""
    stored = read_json(folder / RECOMMENDATION)
    return isinstance(stored, dict) and "planned" in stored


def verify_planned(
    folder: Path, heard: Heard, waits: Callable[[str], None], soak_s: float = 0.0
) -> Verification:
    """Measure the configuration of a plan's bundle here, launch it as a run does in the end, and
    write the bundle anew: without its mark where that went well, else with the reason.

    Args:
        heard: hears of each stage of a launch when it is over.
        waits: hears who has the devices, where this has to wait for them.
        soak_s: how long a bundle that holds is trained once more, in seconds.

    Raises:
        UserError: the folder was changed, or its job cannot be.
        MachineError: this machine cannot train it.
    """
    folder = folder.absolute()
    planned = _stored(folder)
    job, definition = load_job(folder / JOB_FILE)
    run = _run_of(folder)
    refuse_link_out(run.path, folder.resolve() / run.path.name)
    if job.devices.kind == "cuda" and not devices.visible_gpus():
        raise machine_error(
            f"it is for {planned.device}, and this machine shows no NVIDIA GPU",
            where=str(folder),
            hint="verify it on the machine that trains: copy the folder there",
        )
    with (
        run.locked(),
        devices_locked(job.devices, folder, waits),
        ChildServer(run.log) as server,
    ):
        finish_replacement(run.bundle)
        run.facts.unlink(missing_ok=True)  # an earlier verification's
        facts = facts_of(job, run, server, Progress())
        _check_candidate(planned.candidate, definition, job, facts)
        launching = functools.partial(verify, heard=heard, soak_s=soak_s)
        chosen = settings(job, facts, planned.candidate, str(folder / "output"))
        outcome, measured = _launched(chosen, run, server, launching)
    data = run.rows.parent
    for made in (run.rows, run.raw, compiled_folder(run.rows), data / "scratch", run.bundle):
        shutil.rmtree(made, ignore_errors=True)
    with contextlib.suppress(OSError):  # else it has something of another's
        data.rmdir()
    python, plain = sys.executable, outcome.plain()
    if outcome.verified and measured is not None:
        files = verified_files(planned, measured, chosen, python=python, verification=plain)
    else:
        files = planned_files(planned, chosen, python=python, verification=plain)
    run.write_files(folder, files)
    return outcome


def _run_of(folder: Path) -> RunFolder:
    return RunFolder(path=folder / "run")


def _stored(folder: Path) -> Planned:
    """Return the plan of a bundle.

    Raises:
        UserError: files are not as they were written, or by another version.
    """
    stored = read_json(folder / RECOMMENDATION) or {}
    try:
        planned = Planned.from_plain(stored["planned"])
        written = from_plain(dict[str, str], stored["files"])
        texts = {
            name: text
            for name in written
            if (text := readable_text(folder / name, MOST_BYTES)) is not None
        }
    except NONSENSE:
        raise user_error(
            f"{RECOMMENDATION} was not written by this version of autotune",
            where=str(folder),
            hint="plan the job again with `--emit`",
        ) from None
    edited = [name for name, digest in written.items() if digests(texts).get(name) != digest]
    if edited:
        raise user_error(
            f"{', '.join(edited)} changed since it was written, and a verification writes it anew",
            where=str(folder),
            hint=f"put fields of the training into `training:` of {JOB_FILE}; move the changed "
            "file away and plan again with `--emit`, or undo the change",
        )
    return planned


def _check_candidate(
    candidate: Candidate, definition: SpaceDefinition, job: Job, facts: Facts
) -> None:
    """Refuse a plan whose candidate is none here.

    Raises:
        MachineError: it is none.
    """
    what = "this machine cannot train what was planned"
    hint = "plan the job for this machine: `autotune plan`"
    missing = packages_to_install(job, facts, candidate)
    if missing:
        raise machine_error(what, hint=f"install {', '.join(missing)}")
    space = bind(definition, job, facts)
    if any(one.key == candidate.key for one in space.candidates):
        return
    nearest = space.nearest(candidate.values).differences(candidate)
    values = ", ".join(f"{name}: {value}" for name, value in sorted(nearest.items()))
    raise machine_error(f"{what}; the nearest that it can has {values}", hint=hint)


def _launched(
    chosen: Settings,
    run: RunFolder,
    server: ChildServer,
    launching: Callable[..., Verification],
) -> tuple[Verification, Ranked | None]:
    """Return what a launch shows, and what probes measured that it is held against; None: no probe
    ended well."""
    limit = memory_limit(chosen.job, chosen.facts.device)
    run.write_bundle(run.bundle, launched_files(chosen, sys.executable))
    task = probe_task(chosen, rows=run.rows, limit=limit)
    probes: list[Measurement] = []

    def probe() -> Measurement:
        probes.append(probed(server, run.probe(len(probes)), task.plain()))
        return probes[-1]

    first = probe()
    if first.processes:
        raise machine_error(first.reason, where="devices", hint=AGAIN)
    if first.outcome != "ok":
        reason = f"its probe ended as `{first.outcome}`: {first.reason}"
        return Verification(verified=False, reason=reason, log=str(run.probe(0).stderr)), None
    now = _ranked(chosen.candidate, probes)
    outcome = launching(run, chosen, now, server, probe, Deadline())
    return outcome, _ranked(chosen.candidate, [one for one in probes if one.outcome == "ok"])


def _ranked(candidate: Candidate, probes: list[Measurement]) -> Ranked:
    """Return the candidate by the last of its probes."""
    numbers = tuple(range(len(probes)))
    return Ranked(number=0, candidate=candidate, measurement=probes[-1], numbers=numbers)
