"""The memory that a candidate's processes are expected to take of the host together, and whether it
has that. Pure.

Counted: what a process with the training stack holds, once for each; what offloading keeps there
(by the trace of the engine where there is one, else by `estimate/formula/offload.py`); or, where
that is more, the models while they are loaded (`estimate/formula/loading.py`) beside the weights
that stay there. Devices are evenly divided among the machines of a job. Not counted: what CUDA
itself takes of the host, and files that are only mapped.

On a CPU the host's memory is the devices', and only matters where the job limits it for all
processes together: each of them takes its peak.
"""

import dataclasses

from autotune.estimate.estimate import Estimate
from autotune.estimate.formula.loading import Loaded, on_host
from autotune.estimate.formula.offload import (
    OffloadedTraining,
    offloaded_bytes,
    pinned_excess_bytes,
)
from autotune.estimate.residual import Residual
from autotune.facts.host import host_limit
from autotune.job.methods import METHODS
from autotune.plan.exchange import computed_bytes, is_wide, trained_parameters
from autotune.space.quantization import base_bytes, bits_of
from autotune.space.sharding.sharding import FSDP
from autotune.space.trl_config import Settings, has_reference
from autotune.units import format_bytes


def loaded_models(settings: Settings) -> Loaded:
    """Return the models of a candidate as they are loaded."""
    job, config, model = settings.job, settings.config, settings.facts.model
    width, hidden = 4 if is_wide(config) else 2, model.hidden_size or 0
    dtype = str(config.get("dtype", "float32"))
    base = base_bytes(model, config)
    mixed = bool(config.get("bf16") or config.get("fp16")) and base is None
    upcast = mixed and width == 2 and settings.sharding.distributed_type == FSDP
    return Loaded(
        parameters=model.parameters,
        models=1 + has_reference(job, config) + 2 * METHODS[job.method].value_model,
        width=width,
        converted=dtype not in (model.dtype, "auto"),  # where nothing says it, too
        held_bytes=width * model.parameters if base is None else base,
        largest=model.largest_weight or 0,
        embedding=hidden * (model.vocab_size or 0),
        bits=bits_of(config),
        fused=model.active_parameters is not None,
        unpacked=model.dequantized_from is not None,
        others=settings.teacher_bytes,
        upcast=trained_parameters(job, settings.facts, config) if upcast else 0,
    )


UNSURE = 0.1
"""Relative standard deviation of the memory expected of the host. Assumed: none has been measured
on a machine with GPUs."""


def with_host(
    estimate: Estimate,
    settings: Settings,
    *,
    process_bytes: int,
    traced_bytes: int | None,
) -> Estimate:
    """Return an estimate with its memory on the host; `fits` only where the host has that, too.

    Args:
        process_bytes: what a process with the training stack holds before any model.
        traced_bytes: what offloading keeps on the host for one process, by trace; None: not traced.
    """
    job, facts = settings.job, settings.facts
    limit = host_limit(job.devices.host_memory, facts.device.kind, facts.host)
    count = -(-settings.processes // job.devices.nodes)
    if facts.device.kind == "cpu":
        if limit is None:
            return estimate
        process_host_bytes, loading_bytes = float(estimate.peak_memory_bytes), None
    else:
        loading_bytes = round(count * process_bytes + loaded_on_host(settings, count))
        kept_bytes = kept_on_host(settings, traced_bytes)
        process_host_bytes = float(process_bytes + kept_bytes + estimate.offloaded_bytes)
    total = max(round(count * process_host_bytes), loading_bytes or 0)
    estimate = dataclasses.replace(
        estimate, host_bytes=total, host_peak_while_loading_bytes=loading_bytes
    )
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
        notes=(*estimate.notes, _why_not(total, limit, count, total == loading_bytes)),
    )


def loaded_on_host(settings: Settings, count: int) -> int:
    """Return bytes of the models of so many processes while they are loaded, and of the weights
    that these keep there."""
    bytes_there = on_host(loaded_models(settings), settings.sharding, count)
    if settings.sharding.offload_param_device == "cpu":
        whole = computed_bytes(settings.config) * settings.facts.model.parameters
        bytes_there += count * ((whole + settings.teacher_bytes) // settings.processes)
    return bytes_there


def kept_on_host(settings: Settings, traced_bytes: int | None) -> int:
    """Return bytes that offloading keeps on the host for one process."""
    sharding, model = settings.sharding, settings.facts.model
    if not sharding.offloads:
        return 0
    trained = trained_parameters(settings.job, settings.facts, settings.config)
    words, hidden = model.vocab_size or 0, model.hidden_size or 0
    training = OffloadedTraining(
        parameters=model.parameters,
        trained=trained,
        width=computed_bytes(settings.config),
        largest=min(words * hidden, trained),
        accumulates=settings.candidate.gradient_accumulation_steps > 1,
    )
    offloaded = offloaded_bytes(sharding, training) if traced_bytes is None else traced_bytes
    return offloaded + pinned_excess_bytes(sharding, training)


def _why_not(total: int, limit: int, count: int, loading: bool) -> str:
    subject = f"{count} processes take" if count > 1 else "it takes"
    when = " while loading" if loading else ""
    return (
        f"{subject} about {format_bytes(total)} of the host's memory{when}, and may take "
        f"{format_bytes(limit)} (`devices.host_memory`)"
    )
