"""The variants of a space, and what a child estimates for each."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import EstimateRequest, Point
from autotune.estimate.variant import (
    TracedConfig,
    engine_is_traced,
    liger_is_traced,
    traced_config,
    traced_optimizer,
    unique,
)
from autotune.facts import Facts
from autotune.facts.device_kinds import rules_of
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.cache import code_version
from autotune.space.knobs import Candidate
from autotune.space.trl_config import CUDNN_LAST, USUAL_TORCH, Settings
from autotune.training.batch_plan import Batching, batching_of
from autotune.training.rollout_plan import Rollout, rollout_of

TRLS_REWARD = "accuracy_reward"
"""A reward function of TRL."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A candidate of a variant.

    Attributes:
        replaced: names of its fields that are traced with another value.
        place: index of its point among those of the task.
    """

    settings: Settings
    replaced: tuple[str, ...]
    place: int

    @property
    def candidate(self) -> Candidate:
        """The candidate alone."""
        return self.settings.candidate


@dataclass(frozen=True, kw_only=True)
class VariantTask:
    """A variant to trace, and its candidates."""

    request: EstimateRequest
    traced: TracedConfig
    members: tuple[Member, ...]

    @property
    def engine(self) -> bool:
        """True if DeepSpeed or FSDP itself is to be traced."""
        return self.request.engine


def variant_tasks(
    candidates: Iterable[Settings],
    *,
    rows: Path,
    limit: int,
    cache: Path | None,
) -> list[VariantTask]:
    """Group candidates by variant: one trace serves a group.

    Args:
        cache: folder of traces; None: none are kept.
    """
    groups: dict[tuple[object, ...], list[_Traced]] = {}
    for candidate_settings in candidates:
        config, optim = traced_optimizer(candidate_settings.config)
        liger = traces_liger(candidate_settings.job, candidate_settings.facts)
        traced = traced_config(config, liger=liger)
        point = _point(candidate_settings, optim)
        group = _trace_group(candidate_settings, point)
        without_cudnn = CUDNN_LAST in candidate_settings.environment
        key = (traced.key, candidate_settings.sharding, without_cudnn, *group)
        groups.setdefault(key, []).append(_Traced(candidate_settings, traced, point))
    return [_task(group, rows, cache, limit) for group in groups.values()]


def traces_liger(job: Job, facts: Facts) -> bool:
    """True if Liger's kernels are in the estimates of a job's candidates that have them."""
    fused = facts.stack.fused_head
    return liger_is_traced(job.method, facts.model.model_type, fused_head=fused)


def _trace_group(candidate_settings: Settings, point: dict[str, Any]) -> tuple[object, ...]:
    """Return the group of a point of a variant: points of different groups share no trace."""
    method = candidate_settings.job.method
    if engine_is_traced(method, candidate_settings.sharding.distributed_type):
        return point["accumulates"], point["optim"]
    return (point["batching"]["completions"],) if METHODS[method].online else ()


@dataclass(frozen=True)
class _Traced:
    """A candidate's settings, what is traced for it, and the fields of its point."""

    settings: Settings
    config: TracedConfig
    point: dict[str, Any]


def _point(candidate_settings: Settings, optim: str | None) -> dict[str, Any]:
    fields = {
        "batching": dataclasses.asdict(batching(candidate_settings, of_a_part=True)),
        "accumulates": candidate_settings.candidate.gradient_accumulation_steps > 1,
        "expandable_segments": bool(candidate_settings.candidate.values.get("expandable_segments")),
        "optim": optim,
    }
    share = candidate_settings.vllm
    if share is None:
        return fields
    return {**fields, "vllm_bytes": share.awake_bytes, "vllm_asleep_bytes": share.asleep_bytes}


def batching(candidate_settings: Settings, *, of_a_part: bool = False) -> Batching | Rollout:
    """Return how a candidate makes its micro-batches; `of_a_part`: of what a process has of each
    row."""
    job, config = candidate_settings.job, candidate_settings.config
    if METHODS[job.method].online:
        return rollout_of(config, devices=candidate_settings.processes, seed=job.seed)
    global_batch = candidate_settings.candidate.global_batch * candidate_settings.sharding.replicas
    config = {**config, **(_of_a_part(candidate_settings) if of_a_part else {})}
    return batching_of(job.method, config, global_batch=global_batch, seed=job.seed)


def _task(group: Sequence[_Traced], rows: Path, cache: Path | None, limit: int) -> VariantTask:
    points, places = unique(member.point for member in group)
    first = group[0]
    job, facts, sharding = first.settings.job, first.settings.facts, first.settings.sharding
    request = EstimateRequest(
        method=job.method,
        config={
            **_without_code(first.config.config, job),
            **_reward_model_field(job, facts),
            **_of_a_part(first.settings),
        },
        model_path=facts.model.path,
        model=_model_text(facts),
        versions={
            "autotune": code_version(),
            **{name: version or "" for name, version in facts.stack.versions.items()},
        },
        layers=facts.model.layers or 0,
        cuda=cuda_rules(first.settings),
        rows=str(rows),
        rows_total=facts.data.rows,
        rows_sampled=facts.data.sampled,
        points=[Point(**point) for point in points],
        limit_bytes=limit,
        cache=None if cache is None else str(cache),
        seed=job.seed,
        devices=sharding.num_processes,
        sharding=dataclasses.replace(sharding, cp_size=1, sp_size=1).plain(),
        row_parts=sharding.row_parts,
        deepspeed=first.settings.deepspeed,
        hidden=facts.model.hidden_size or 4096,
        teacher_layers=(facts.model.teacher and facts.model.teacher.layers) or 0,
    )
    members = (
        Member(settings=member.settings, replaced=member.config.replaced, place=place)
        for member, place in zip(group, places, strict=True)
    )
    return VariantTask(request=request, traced=first.config, members=tuple(members))


def _of_a_part(chosen: Settings) -> dict[str, Any]:
    """Return the fields of a configuration whose rows are the part that a process has of each."""
    parts, length = chosen.sharding.row_parts, chosen.config.get("max_length")
    if parts == 1:
        return {}
    multiple = chosen.config["pad_to_multiple_of"] // parts
    return {"max_length": length and -(-length // parts), "pad_to_multiple_of": multiple or None}


def _without_code(config: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """Return a configuration whose reward functions are TRL's: a trace calls none of them, and
    would import the user's. Where nothing rewards yet, one of them does."""
    names = config.get("reward_funcs")
    if METHODS[job.method].lacks_reward(names, job.reward_model_path):
        names = [TRLS_REWARD]
    return {**config, "reward_funcs": [TRLS_REWARD for _ in names]} if names else dict(config)


def _reward_model_field(job: Job, facts: Facts) -> dict[str, str]:
    """Return the field that names the reward model, by the folder of its shape; none, unless it is
    built in."""
    field = METHODS[job.method].second_model
    same = facts.model.built_in and job.reward_model_path == job.model
    path = facts.model.path if same else facts.model.reward_shape
    return {field: path} if field and path and job.reward_model_path else {}


def _model_text(facts: Facts) -> str:
    """Return the identity of the shape of the model, and of its teacher: the config."""
    models = (facts.model, *((facts.model.teacher,) if facts.model.teacher else ()))
    files = [(model.path, Path(model.path) / "config.json") for model in models]
    return "".join(f.read_text(encoding="utf-8") if f.is_file() else path for path, f in files)


def cuda_rules(chosen: Settings) -> dict[str, Any] | None:
    """Return the rules of the device's architecture, as fields of `CudaRules`; None on the CPU."""
    facts = chosen.facts
    if facts.device.kind != "cuda":
        return None
    capability = facts.device.capability or (8, 0)
    rules = rules_of(capability, facts.stack.versions.get("torch") or USUAL_TORCH)
    return {
        "workspace_bytes": rules.cublas_workspace_bytes,
        "flash": rules.flash_sdpa,
        "cudnn_first": rules.cudnn_sdpa_first and CUDNN_LAST not in chosen.environment,
    }
