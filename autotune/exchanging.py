"""What a candidate's processes exchange, on the links of its devices. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.estimate.communication import Exchanged, exchange_s
from autotune.estimate.estimates import Estimate
from autotune.facts import Facts
from autotune.facts.device_kinds import Interconnect, kind_of
from autotune.job import Job
from autotune.space.knobs import Candidate
from autotune.space.processes import processes_of
from autotune.space.settings import settings
from autotune.space.sharding import DATA_PARALLEL, NONE, sharding_of

UNKNOWN_LINK = 2e10
"""Bytes/s between two devices, or device and host, where the table has none: PCIe 4.0 x16, less a
fifth."""
UNKNOWN_NETWORK = 12.5e9
"""Bytes/s between machines, of each machine, where the table has none: 100 Gb/s Ethernet."""
NOT_COUNTED = "the time to exchange gradients and weights is not counted"
NOT_MOVED = "the time to move and update what is offloaded is not counted"


def trained_parameters(job: Job, facts: Facts, config: Mapping[str, Any]) -> int:
    """How many parameters of the policy have gradients; of adapters a rough count."""
    if job.tuning == "full":
        return facts.model.parameters
    hidden, layers = facts.model.hidden_size or 1024, facts.model.layers or 1
    return 2 * layers * hidden * 8 * int(config.get("lora_r") or 16)


def with_exchange(estimate: Estimate, job: Job, facts: Facts, candidate: Candidate) -> Estimate:
    """An estimate with the time that several devices need for one another, or one to move what is
    offloaded; where nothing is known of their links, with a note that it is not counted."""
    count = processes_of(candidate.values, job)
    sharding = sharding_of(candidate.values, count)
    if not sharding.in_group:
        return estimate
    if facts.device.kind != "cuda" or estimate.step_time_s is None:
        note = f"{count} devices: {NOT_COUNTED}" if count > 1 else NOT_MOVED
        notes = (*estimate.notes, note)
        return dataclasses.replace(estimate, notes=notes)
    what = exchanged(job, facts, candidate)
    seconds = exchange_s(sharding, what, candidate.gradient_accumulation_steps)
    step = estimate.step_time_s + seconds
    where = f" on {job.devices.nodes} machines" if job.devices.nodes > 1 else ""
    who, link = f"{count} devices{where}", what.link_bytes_per_s
    if count == 1:
        who, link = "what is offloaded", what.host_bytes_per_s
    share = f"{100 * seconds / step:.0f}% of a step are exchange"
    note = f"{who}: {share}, at {link / 1e9:.0f} GB/s, none of it hidden"
    tokens, parts = estimate.tokens_per_s, estimate.time_parts
    return dataclasses.replace(
        estimate,
        step_time_s=step,
        time_parts=None if parts is None else dataclasses.replace(parts, exchange_s=seconds),
        tokens_per_s=None if tokens is None else tokens * estimate.step_time_s / step,
        notes=(*estimate.notes, note),
    )


def is_wide(config: Mapping[str, Any]) -> bool:
    """Whether weights are in float32."""
    return bool(config.get("dtype", "float32") == "float32")


def computed_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of a weight in the type that is computed in."""
    half = bool(config.get("bf16") or config.get("fp16"))
    return 4 if is_wide(config) and not half else 2


def exchanged(job: Job, facts: Facts, candidate: Candidate) -> Exchanged:
    """What is exchanged for a candidate."""
    config = settings(job, facts, candidate, "out").config
    wide, narrow = is_wide(config), computed_bytes(config)
    trained = trained_parameters(job, facts, config)
    copies = sharding_of(candidate.values, job.devices.total).distributed_type in (
        *DATA_PARALLEL,
        NONE,
    )
    kind = kind_of(facts.device.name, facts.device.total_bytes)
    links = kind.interconnect if kind is not None else None
    return Exchanged(
        weights=narrow * facts.model.parameters,
        gradients=(4 if wide and copies else narrow) * trained,
        trained=trained,
        link_bytes_per_s=_between_devices(links, job, processes_of(candidate.values, job)),
        host_bytes_per_s=(links and links.pcie_bytes_per_s) or UNKNOWN_LINK,
    )


def _between_devices(links: Interconnect | None, job: Job, processes: int) -> float:
    """Bytes per second that each device sends to the next one, in one direction.

    Over several machines as many rings are laid as a machine has network cards, each through
    another one (NCCL's channels), so that all of a machine's cards together are what its devices'
    own links are held against; the slower of the two counts.
    """
    inside = links and (links.nvlink_bytes_per_s or links.pcie_bytes_per_s)
    inside = inside or UNKNOWN_LINK
    if job.devices.nodes == 1:
        return inside
    own = links and links.network_bytes_per_s
    machine = own * processes / job.devices.nodes if own else UNKNOWN_NETWORK
    return min(inside, machine)
