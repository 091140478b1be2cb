"""What a candidate's processes exchange, on the links of its devices. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.estimate.communication import Exchanged, exchange_s
from autotune.estimate.estimates import Estimate
from autotune.facts import Facts
from autotune.facts.device_kinds import kind_of
from autotune.job import Job
from autotune.space.knobs import Candidate
from autotune.space.processes import processes_of
from autotune.space.settings import settings
from autotune.space.sharding import DATA_PARALLEL, NONE, sharding_of

UNKNOWN_LINK = 2e10
"""Bytes/s between two devices, or device and host, where the table has none: PCIe 4.0 x16, less a
fifth."""
NOT_COUNTED = "the time to exchange gradients and weights is not counted"


def trained_parameters(job: Job, facts: Facts, config: Mapping[str, Any]) -> int:
    """How many parameters of the policy have gradients; of adapters a rough count."""
    if job.tuning == "full":
        return facts.model.parameters
    hidden, layers = facts.model.hidden_size or 1024, facts.model.layers or 1
    return 2 * layers * hidden * 8 * int(config.get("lora_r") or 16)


def with_exchange(estimate: Estimate, job: Job, facts: Facts, candidate: Candidate) -> Estimate:
    """An estimate on several devices with the time that they need for one another; where nothing is
    known of their links, with a note that it is not counted."""
    count = processes_of(candidate.values, job)
    if count == 1:
        return estimate
    if facts.device.kind != "cuda" or estimate.step_time_s is None:
        notes = (*estimate.notes, f"{count} devices: {NOT_COUNTED}")
        return dataclasses.replace(estimate, notes=notes)
    sharding = sharding_of(candidate.values, count)
    what = exchanged(job, facts, candidate)
    seconds = exchange_s(sharding, what, candidate.gradient_accumulation_steps)
    step = estimate.step_time_s + seconds
    share = f"{100 * seconds / step:.0f}% of a step are exchange"
    note = f"{count} devices: {share}, at {what.link_bytes_per_s / 1e9:.0f} GB/s, none of it hidden"
    tokens, parts = estimate.tokens_per_s, estimate.time_parts
    return dataclasses.replace(
        estimate,
        step_time_s=step,
        time_parts=None if parts is None else dataclasses.replace(parts, exchange_s=seconds),
        tokens_per_s=None if tokens is None else tokens * estimate.step_time_s / step,
        notes=(*estimate.notes, note),
    )


def exchanged(job: Job, facts: Facts, candidate: Candidate) -> Exchanged:
    """What is exchanged for a candidate."""
    config = settings(job, facts, candidate, "out").config
    half = bool(config.get("bf16") or config.get("fp16"))
    wide = config.get("dtype", "float32") == "float32"
    trained = trained_parameters(job, facts, config)
    narrow = 4 if wide and not half else 2
    copies = sharding_of(candidate.values, job.devices.count).distributed_type in (
        *DATA_PARALLEL,
        NONE,
    )
    kind = kind_of(facts.device.name, facts.device.total_bytes)
    links = kind.interconnect if kind is not None else None
    between = links and (links.nvlink_bytes_per_s or links.pcie_bytes_per_s)
    return Exchanged(
        weights=narrow * facts.model.parameters,
        gradients=(4 if wide and copies else narrow) * trained,
        trained=trained,
        link_bytes_per_s=between or UNKNOWN_LINK,
        host_bytes_per_s=(links and links.pcie_bytes_per_s) or UNKNOWN_LINK,
    )
