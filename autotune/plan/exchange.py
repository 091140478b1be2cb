"""The data that a candidate's processes exchange on the links of its devices, and the needs of a
vLLM server. Pure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.formula.communication import (
    Exchange,
    SharedRows,
    exchange_s,
    hidden_s,
    row_buffers_bytes,
    shared_rows_bytes,
)
from autotune.estimate.protocol import PointReply
from autotune.estimate.records.events import COMMUNICATION
from autotune.facts import Facts
from autotune.facts.device_kinds import Interconnect, known_kind
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.checkpointing import CHECKPOINTING, OFFLOAD, SELECTIVE
from autotune.space.knobs import Candidate
from autotune.space.quantization import base_bytes, trains_wide
from autotune.space.sharding.deepspeed import MAX_REUSE_DISTANCE
from autotune.space.sharding.sharding import DATA_PARALLEL, NONE
from autotune.space.trl_config import Settings
from autotune.space.vllm.server import server_needs
from autotune.units import format_seconds

UNKNOWN_LINK = 2e10
"""Bytes/s between two devices, or device and host, where the table has none: PCIe 4.0 x16, less a
fifth."""
UNKNOWN_NETWORK = 12.5e9
"""Bytes/s between machines, of each machine, where the table has none: 100 Gb/s Ethernet."""
NOT_COUNTED = "the time to exchange gradients and weights is not counted"
NOT_MOVED = "the time to move and update what is offloaded is not counted"


def trained_parameters(job: Job, facts: Facts, config: Mapping[str, Any]) -> int:
    """Return the number of parameters of the policy that have gradients; a rough count for
    adapters."""
    if job.tuning == "full":
        return facts.model.parameters
    hidden, layers = facts.model.hidden_size or 1024, facts.model.layers or 1
    return 2 * layers * hidden * 8 * int(config.get("lora_r") or 16)


def with_exchange(estimate: Estimate, settings: Settings) -> Estimate:
    """Return an estimate with the time of the exchange among several devices, or of moving what is
    offloaded; where the links are not known, with a note that it is not counted."""
    count, sharding, nodes = settings.processes, settings.sharding, settings.job.devices.nodes
    if not sharding.in_group:
        return estimate
    if settings.facts.device.kind != "cuda" or estimate.step_time_s is None:
        note = f"{count} devices: {NOT_COUNTED}" if count > 1 else NOT_MOVED
        notes = (*estimate.notes, note)
        estimate = dataclasses.replace(estimate, notes=notes)
        return without_cost(estimate, "exchange" if count > 1 else "offloading")
    what, often = exchanged(settings), optimizer_steps(settings.candidate)
    accumulation = settings.candidate.gradient_accumulation_steps
    seconds = often * exchange_s(sharding, what, accumulation)
    if (shared := shared_rows(settings, estimate.tokens_per_s, estimate.step_time_s)) is not None:
        seconds += shared_rows_bytes(sharding, shared) / what.link_bytes_per_s
    hidden = often * hidden_s(sharding, what, accumulation, estimate.step_time_s / often)
    seconds -= hidden
    step = estimate.step_time_s + seconds
    where = f" on {nodes} machines" if nodes > 1 else ""
    subject, link = f"{count} devices{where}", what.link_bytes_per_s
    if count == 1:
        subject, link = "what is offloaded", what.host_bytes_per_s
    rate = f"{link / 1e9:.0f} GB/s"
    share = f"{100 * seconds / step:.0f}% of a step are exchange"
    behind = f"{format_seconds(hidden)} more hidden by backward passes" if hidden else ""
    note = f"{subject}: {share}, at {rate}, {behind or 'none of it hidden'}"
    tokens, parts = estimate.tokens_per_s, estimate.time_parts
    if parts is not None:
        parts = dataclasses.replace(parts, exchange_s=parts.exchange_s + seconds)
    return dataclasses.replace(
        estimate,
        step_time_s=step,
        time_parts=parts,
        tokens_per_s=None if tokens is None else tokens * estimate.step_time_s / step,
        notes=(*estimate.notes, note),
    )


def shared_rows(
    settings: Settings, tokens_per_s: float | None, step_time_s: float | None
) -> SharedRows | None:
    """Return the attention of what a process has of the rows of a step; None: all of them."""
    model, sharding = settings.facts.model, settings.sharding
    if sharding.row_parts == 1:
        return None
    hidden, heads = model.hidden_size or 1024, model.attention_heads or 1
    return SharedRows(
        tokens=(tokens_per_s or 0) * (step_time_s or 0) / settings.processes,
        queries=hidden,
        keys=hidden * (model.key_value_heads or heads) // heads,
        layers=model.layers or 1,
        width=computed_bytes(settings.config),
        recomputes=settings.candidate.values.get(CHECKPOINTING) not in (False, None, SELECTIVE),
    )


def with_row_buffers(point: PointReply, settings: Settings) -> PointReply:
    """Return a point with what a process holds to share rows, at its peak."""
    rows, data = shared_rows(settings, None, None), settings.facts.data
    if rows is None:
        return point
    length = settings.config.get("max_length") or data.longest
    length = length if data.sampled else min(length, data.longest)
    tokens = settings.candidate.micro_batch * length / settings.sharding.row_parts
    rows = dataclasses.replace(rows, tokens=tokens)
    size = round(row_buffers_bytes(settings.sharding, rows))
    return dataclasses.replace(
        point,
        peak_allocated_bytes=point.peak_allocated_bytes + size,
        peak_reserved_bytes=point.peak_reserved_bytes + size,
        parts={**point.parts, COMMUNICATION: point.parts.get(COMMUNICATION, 0) + size},
    )


def without_cost(estimate: Estimate, cost: str) -> Estimate:
    """Return an estimate that notes that its speed leaves out this cost."""
    if estimate.step_time_s is None:
        return estimate
    return dataclasses.replace(estimate, left_out=(*estimate.left_out, cost))


def optimizer_steps(candidate: Candidate) -> int:
    """Return the number of optimizer steps in one step of the trainer: a step of PPO is an update,
    in which each pass over the responses ends with one (search_spaces/ppo.yaml)."""
    epochs = candidate.values.get("num_ppo_epochs")
    return epochs if isinstance(epochs, int) else 1


def is_wide(config: Mapping[str, Any]) -> bool:
    """True if weights are in float32."""
    return bool(config.get("dtype", "float32") == "float32")


def computed_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of a weight in the type of the computation."""
    half = bool(config.get("bf16") or config.get("fp16"))
    return 4 if is_wide(config) and not half else 2


def exchanged(settings: Settings) -> Exchange:
    """Return the data that a candidate exchanges."""
    job, facts, config, sharding = settings.job, settings.facts, settings.config, settings.sharding
    narrow = computed_bytes(config)
    trained = trained_parameters(job, facts, config)
    if METHODS[job.method].value_model:  # trained whole, taken to be as large as the policy
        trained += facts.model.parameters
    copies = sharding.distributed_type in (*DATA_PARALLEL, NONE)
    links = links_of(facts)
    link = _between_devices(links, job, settings.processes)
    base = base_bytes(facts.model, config)
    return Exchange(
        weights=narrow * facts.model.parameters if base is None else base,
        gradients=(4 if copies and trains_wide(config) else narrow) * trained,
        trained=trained,
        link_bytes_per_s=link,
        host_bytes_per_s=host_rate(facts),
        still_gathered=0 if base is not None else narrow * _still_gathered(settings),
    )


def links_of(facts: Facts) -> Interconnect | None:
    """Return the links of the device; None: it is in no table."""
    kind = known_kind(facts.device.name, facts.device.total_bytes)
    return None if kind is None else kind.interconnect


def host_rate(facts: Facts) -> float:
    """Return bytes per second between a device and its host, in one direction."""
    links = links_of(facts)
    return (links and links.host_bytes_per_s) or UNKNOWN_LINK


def _still_gathered(settings: Settings) -> int:
    """Return how many weights ZeRO-3 leaves gathered for the backward pass: up to
    `stage3_max_reuse_distance`.

    So it was in traces of a model of 19 million, with that distance (all stayed), with 14 (12
    stayed), 10 (12) and 5 million (5); of adapters with checkpointing nothing stayed.
    """
    if settings.job.tuning != "full" and settings.candidate.values.get(CHECKPOINTING) in (
        True,
        OFFLOAD,
    ):
        return 0
    return min(settings.facts.model.parameters, MAX_REUSE_DISTANCE)


def _inner_rate(links: Interconnect | None) -> float:
    """Return bytes per second from a device to the next one of its machine."""
    inside = links and (links.nvlink_bytes_per_s or links.pcie_bytes_per_s)
    return inside or UNKNOWN_LINK


def _between_devices(links: Interconnect | None, job: Job, processes: int) -> float:
    """Return bytes per second that each device sends to the next one, in one direction.

    Over several machines as many rings are laid as a machine has network cards, each through
    another one (NCCL's channels), so that all of a machine's cards together are what its devices'
    own links are held against; the slower of the two counts.
    """
    inside = _inner_rate(links)
    if job.devices.nodes == 1:
        return inside
    network = links and links.network_bytes_per_s
    machine = network * processes / job.devices.nodes if network else UNKNOWN_NETWORK
    return min(inside, machine)


def with_paging(estimate: Estimate, settings: Settings) -> Estimate:
    """Return an estimate that notes that it leaves out the time of paging, where the moments of a
    paged optimizer have no room on the GPU beside the training's peak."""
    optim, facts = str(settings.config.get("optim")), settings.facts
    each = 2 if "8bit" in optim else 8
    size = each * trained_parameters(settings.job, facts, settings.config)
    if "paged" not in optim or size <= facts.device.total_bytes - estimate.peak_memory_bytes:
        return estimate
    return without_cost(estimate, "paging")


def with_server(estimate: Estimate, settings: Settings) -> Estimate:
    """Return an estimate of the devices that train, with the needs of the server: the candidate
    fits where both do."""
    needs = server_needs(settings.job, settings.facts, settings.candidate.values)
    if needs is None:
        return estimate
    notes = estimate.notes
    if needs.cache_bytes is None:
        notes = (*notes, "the size of the server's caches is not known for this architecture")
    fits = estimate.fits and needs.missing_bytes is None
    return dataclasses.replace(estimate, server=needs, fits=fits, notes=notes)
