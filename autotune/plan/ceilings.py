"""The rates of a device: tabled for one that is not here, measured once on one that is."""

from pathlib import Path
from typing import Any

from autotune.estimate.speed.ceilings import Ceilings, ceilings_of_kind
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.plain_data import NONSENSE, from_plain
from autotune.plan.cache import PlanCache
from autotune.plan.children import LIMITS
from autotune.plan.progress import Progress
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.server import ChildServer
from autotune.space.settings import threads

CEILINGS_WORKER = "autotune.estimate.speed.measuring.worker:measure"
BUSY = 0.05
"""Rates that were measured while threads waited so much of the time are used once only."""
WORTH_MEASURING = 16
"""From so many candidates on, a device's rates are measured (once) to rank them."""


def ceilings_of(
    facts: Facts,
    kind: DeviceKind | None,
    cache: PlanCache,
    server: ChildServer,
    folder: Path,
    progress: Progress,
    *,
    worth_measuring: bool = True,
) -> Ceilings | None:
    """Return the ceilings of the device: tabled for one that is not here, else measured once.

    Args:
        folder: for the files of the measurement.
        worth_measuring: whether they are measured now, where they are not yet.
    """
    if kind is not None:
        return ceilings_of_kind(kind)
    stored = cache.ceilings(facts.device.name)
    if stored is not None or not worth_measuring:
        return stored
    progress.measuring()
    return _measured(facts, cache, server, ChildFolder(path=folder))


def _measured(
    facts: Facts, cache: PlanCache, server: ChildServer, folder: ChildFolder
) -> Ceilings | None:
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
