"""The device that a plan is made for, of this machine or of another: its facts, its limit, and its
rates, taken from a table for another machine and measured once on this one."""

import dataclasses
from typing import Any

from autotune.errors import user_error
from autotune.estimate.estimate import prior_residual
from autotune.estimate.speed.ceilings import Ceilings
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind, facts_of, find_kind
from autotune.job.job import Job
from autotune.plain_data import NONSENSE, from_plain
from autotune.plan.cache import PlanCache
from autotune.plan.children import LIMITS
from autotune.probe.survey import memory_limit, survey
from autotune.process.child_server import ChildServer
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.space.trl_config import threads

CEILINGS_WORKER = "autotune.estimate.speed.measuring.worker:measure"
BUSY = 0.05
"""Share of waiting time above which measured rates are not kept: they are used once only."""
WORTH_MEASURING = 16
"""Number of candidates from which on a device's rates are measured (once) to rank them."""


def placed(job: Job, device: str | None) -> tuple[Job, DeviceKind | None]:
    """Return the job as it can be surveyed here, and the kind of device that takes the place of
    this one.

    Raises:
        UserError: no such kind.
    """
    if device is None:
        return job, None
    # What is looked at here is the model and the data; the device is put in afterwards.
    devices = job.devices.model_copy(update={"kind": "cpu"})
    job_here = job.model_copy(update={"devices": devices})
    return job_here, None if device.strip().lower() == "cpu" else find_kind(device)


def planned_facts(
    job: Job, run: RunFolder, server: ChildServer, kind: DeviceKind | None, *, assume: bool = True
) -> Facts:
    """Return the facts that a plan starts from: a survey, in which a model's shape is enough, for
    such a device.

    Args:
        assume: whether every package is taken to be on its machine, installed here or not.

    Raises:
        UserError: the model, the data or a training field cannot be used.
    """
    return device_facts(survey(job, run, server, planned=True), kind, assume=assume)


def device_facts(facts: Facts, kind: DeviceKind | None, *, assume: bool = True) -> Facts:
    """Return the facts with a device of `kind` in place of the one that is here.

    Args:
        assume: whether every package is taken to be on its machine, installed here or not.
    """
    if kind is None:
        return facts
    # Of the machine that such devices are in nothing is known.
    return dataclasses.replace(
        facts,
        device=facts_of(kind, facts.device.cores),
        stack=dataclasses.replace(facts.stack, assumed=assume),
        host=None,
    )


def planned_limit(job: Job, facts: Facts) -> int:
    """Return the bytes that a process may take on the device of the facts, here or not."""
    if facts.device.driver is not None:
        return memory_limit(job, facts.device)
    # A plan may be made while this machine is in use: all that it has counts. What a GPU has when
    # it is idle is in the table.
    on_cpu = facts.device.kind == "cpu"
    limit = job.devices.memory or (facts.device.total_bytes if on_cpu else facts.device.free_bytes)
    if limit > facts.device.total_bytes:
        raise user_error(
            f"devices.memory is more than this device has ({facts.device.name})",
            where="devices.memory",
            hint="lower it, or name another device",
        )
    return limit


def allocator_limit(job: Job, facts: Facts, limit: int) -> int:
    """Return the bytes that the caching allocator may reserve where the process may take
    `limit`."""
    if facts.device.kind != "cuda":
        return limit
    return max(limit - round(prior_residual(facts.device, 0, job.devices.total).offset_bytes), 1)


def measured_ceilings(
    facts: Facts, cache: PlanCache, server: ChildServer, folder: ChildFolder
) -> Ceilings | None:
    """Return the rates of the device that is here, measured now, and kept where that was not
    disturbed; None: the measurement failed."""
    folder.path.mkdir(parents=True, exist_ok=True)
    request = {
        "device_kind": facts.device.kind,
        "device_index": facts.device.index,
        "threads": threads(facts),
    }
    write_json(folder.request, request)
    server.run(folder, CEILINGS_WORKER, LIMITS)
    reply: Any = read_json(folder.reply)
    try:
        ceilings = from_plain(Ceilings, reply["ceilings"])
        is_quiet = (reply["processor_wait_share"] or 0.0) <= BUSY
    except NONSENSE:
        return None
    if is_quiet:  # others' load is not to be remembered
        cache.keep_ceilings(facts.device.name, ceilings)
    return ceilings
