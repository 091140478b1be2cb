"""Which paths a space has, and what a child has to be asked about each."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import EstimateRequest, Point
from autotune.estimate.variant import (
    TracedConfig,
    engine_is_traced,
    liger_is_traced,
    optimizer_apart,
    traced_config,
    unique,
)
from autotune.facts import Facts
from autotune.facts.device_kinds import rules_of
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.cache import code_version
from autotune.space.knobs import Candidate
from autotune.space.settings import settings
from autotune.space.sharding.deepspeed import deepspeed_of
from autotune.space.sharding.processes import processes_of, rows_of_step
from autotune.space.sharding.sharding import DISTRIBUTED_TYPE, sharding_of
from autotune.space.vllm.colocated import vllm_share
from autotune.training.batch_plan import Batching, batching_of
from autotune.training.rollout_plan import Rollout, rollout_of

_Member = tuple[Candidate, TracedConfig, dict[str, Any], dict[str, Any]]
"""A candidate, what is traced for it, its point, its configuration."""


@dataclass(frozen=True, kw_only=True)
class PathTask:
    """One path to trace, and which candidates are on it."""

    request: EstimateRequest
    traced: TracedConfig
    candidates: tuple[Candidate, ...]
    replaced: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]
    """For each candidate the index of its point."""

    @property
    def engine(self) -> bool:
        """Whether DeepSpeed or FSDP itself is to be traced."""
        kind = (self.request.sharding or {}).get(DISTRIBUTED_TYPE)
        return engine_is_traced(self.request.method, kind)


def path_tasks(
    job: Job,
    facts: Facts,
    candidates: Iterable[Candidate],
    *,
    rows: Path,
    limit: int,
    cache: Path | None,
) -> list[PathTask]:
    """Divide candidates into paths."""
    groups: dict[tuple[object, ...], list[_Member]] = {}
    fused = facts.stack.fused_head
    liger = liger_is_traced(job.method, facts.model.model_type, fused_head=fused)
    for candidate in candidates:
        config = settings(job, facts, candidate, "out").config
        path, optim = optimizer_apart(config)
        traced = traced_config(path, liger=liger)
        point = {
            "batching": dataclasses.asdict(batching(job, config, candidate)),
            "accumulates": candidate.gradient_accumulation_steps > 1,
            "expandable_segments": bool(candidate.values.get("expandable_segments")),
            "optim": optim,
            **_beside(config, facts),
        }
        shared = sharding_of(candidate.values, job.devices.total)
        # An engine's points with and without accumulation, or with other optimizers, share nothing.
        engine = engine_is_traced(job.method, shared.distributed_type)
        apart = (point["accumulates"], optim) if engine else ()
        key = (traced.key, shared, *apart)
        groups.setdefault(key, []).append((candidate, traced, point, config))
    return [
        _task(job, facts, members, rows=rows, limit=limit, cache=cache)
        for members in groups.values()
    ]


def _beside(config: dict[str, Any], facts: Facts) -> dict[str, int | None]:
    """What vLLM has of the device, as fields of a point."""
    share = vllm_share(config, facts.device.total_bytes)
    if share is None:
        return {}
    return {"vllm_bytes": share.awake_bytes, "vllm_asleep_bytes": share.asleep_bytes}


def batching(job: Job, config: dict[str, Any], candidate: Candidate) -> Batching | Rollout:
    """How a candidate makes its micro-batches."""
    if METHODS[job.method].online:
        return rollout_of(config, devices=processes_of(candidate.values, job), seed=job.seed)
    global_batch = rows_of_step(candidate, job)
    return batching_of(job.method, config, global_batch=global_batch, seed=job.seed)


def _task(
    job: Job,
    facts: Facts,
    members: Sequence[_Member],
    *,
    rows: Path,
    limit: int,
    cache: Path | None,
) -> PathTask:
    points, places = unique(point for _, _, point, _ in members)
    first = members[0][1]
    sharding = sharding_of(members[0][0].values, job.devices.total)
    request = EstimateRequest(
        method=job.method,
        config=dict(first.config),
        model_path=facts.model.path,
        model=_model_text(facts),
        versions={
            "autotune": code_version(),
            **{name: version or "" for name, version in facts.stack.versions.items()},
        },
        layers=facts.model.layers or 0,
        cuda=cuda_rules(facts),
        rows=str(rows),
        rows_total=facts.data.rows,
        rows_sampled=facts.data.sampled,
        points=[Point(**point) for point in points],
        limit_bytes=limit,
        cache=None if cache is None else str(cache),
        seed=job.seed,
        devices=sharding.num_processes,
        sharding=sharding.plain(),
        deepspeed=deepspeed_of(sharding, members[0][3], facts),
        hidden=facts.model.hidden_size or 4096,
    )
    return PathTask(
        request=request,
        traced=first,
        candidates=tuple(member[0] for member in members),
        replaced=tuple(member[1].replaced for member in members),
        places=tuple(places),
    )


def _model_text(facts: Facts) -> str:
    """What identifies the model's shape: its config."""
    file = Path(facts.model.path) / "config.json"
    return file.read_text(encoding="utf-8") if file.is_file() else facts.model.path


def cuda_rules(facts: Facts) -> dict[str, Any] | None:
    """What the device's architecture decides, as fields of `CudaRules`; None on the CPU."""
    if facts.device.kind != "cuda":
        return None
    capability = facts.device.capability or (8, 0)
    rules = rules_of(capability, facts.stack.versions.get("torch") or "2.13")
    return {
        "workspace_bytes": rules.cublas_workspace_bytes,
        "flash": rules.flash_sdpa,
        "cudnn_first": rules.cudnn_sdpa_first,
    }
