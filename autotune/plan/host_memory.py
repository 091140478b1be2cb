"""What a candidate's processes are expected to take of the host together, and whether it has that.
Pure.

Counted: what a process with the training stack holds, once for each; what offloading keeps there
(by the trace of the engine where there is one, else by `estimate/formula/offload.py`); under FSDP
the models, which the first process of a machine holds whole until all have their part. Devices are
evenly divided among the machines of a job. Not counted: what CUDA itself takes of the host, and
what other trainings take while a model is loaded.

On a CPU the host's memory is the devices', and only matters where the job limits it for all
processes together: each of them takes its peak.
"""

import dataclasses

from autotune.estimate.estimate import Estimate
from autotune.estimate.formula.offload import (
    OffloadedTraining,
    offloaded_bytes,
    pinned_excess_bytes,
)
from autotune.estimate.residual import Residual
from autotune.facts.host import host_limit
from autotune.plan.exchange import computed_bytes, is_wide, trained_parameters
from autotune.space.reference_model import has_reference
from autotune.space.settings import Settings
from autotune.space.sharding.sharding import FSDP
from autotune.units import format_bytes

UNSURE = 0.1
"""Standard deviation of what is expected of the host, relative. Assumed: none has been measured on
a machine with GPUs."""


def with_host(
    estimate: Estimate,
    chosen: Settings,
    *,
    process_bytes: int,
    traced_bytes: int | None,
) -> Estimate:
    """An estimate with what it takes of the host; `fits` only where the host has that, too.

    Args:
        process_bytes: what a process with the training stack holds before any model.
        traced_bytes: what offloading keeps on the host for one process, by trace; None: not traced.
    """
    job, facts = chosen.job, chosen.facts
    limit = host_limit(job, facts.device.kind, facts.host)
    count = -(-chosen.processes // job.devices.nodes)
    if facts.device.kind == "cpu":
        if limit is None:
            return estimate
        each, loaded = float(estimate.peak_memory_bytes), 0
    else:
        loaded = loaded_on_host(chosen)
        kept = kept_on_host(chosen, traced_bytes)
        each = float(process_bytes + kept + estimate.offloaded_bytes)
    total = round(count * each) + loaded
    estimate = dataclasses.replace(estimate, host_bytes=total)
    if limit is None:
        return estimate
    p_host = Residual(relative_sigma=UNSURE).probability_above(total, limit)
    if p_host < 0.5:
        return dataclasses.replace(estimate, p_host_oom=p_host)
    return dataclasses.replace(
        estimate,
        p_host_oom=p_host,
        fits=False,
        host_missing_bytes=max(total - limit, 1),
        notes=(*estimate.notes, _why_not(total, limit, count)),
    )


def loaded_on_host(chosen: Settings) -> int:
    """Bytes of the models that one process of a machine divides among all.

    Source: accelerate 1.15, `cpu_ram_efficient_loading`, which emitted files ask for. Measured of
    ranks on a virtual GPU (`benchmarks/virtual_gpu/results_ranks.md`).
    """
    if chosen.sharding.distributed_type != FSDP:
        return 0
    models = 1 + has_reference(chosen.job, chosen.config)
    return models * chosen.facts.model.parameters * (4 if is_wide(chosen.config) else 2)


def kept_on_host(chosen: Settings, traced_bytes: int | None) -> int:
    """Bytes that offloading keeps on the host for one process."""
    sharding, model = chosen.sharding, chosen.facts.model
    if not sharding.offloads:
        return 0
    trained = trained_parameters(chosen.job, chosen.facts, chosen.config)
    words, hidden = model.vocab_size or 0, model.hidden_size or 0
    kept = OffloadedTraining(
        parameters=model.parameters,
        trained=trained,
        width=computed_bytes(chosen.config),
        largest=min(words * hidden, trained),
        accumulates=chosen.candidate.gradient_accumulation_steps > 1,
    )
    offloaded = offloaded_bytes(sharding, kept) if traced_bytes is None else traced_bytes
    return offloaded + pinned_excess_bytes(sharding, kept)


def _why_not(total: int, limit: int, count: int) -> str:
    who = f"{count} processes take" if count > 1 else "it takes"
    return (
        f"{who} about {format_bytes(total)} of the host's memory, and may take "
        f"{format_bytes(limit)} (`devices.host_memory`)"
    )
