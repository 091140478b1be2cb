"""The bundle: every file of a recommendation, by name. Pure: values in, text out."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.bundle.accelerate_config import accelerate_config
from autotune.bundle.check.check import disagreements, of_bundle
from autotune.bundle.launch_script import launch_script, missing_fields
from autotune.bundle.multi_node import NODES_SCRIPT, SLURM_SCRIPT, nodes_script, slurm_script
from autotune.bundle.readme import readme
from autotune.bundle.recipe_costs import recipe_costs
from autotune.bundle.trainer_config import trainer_config
from autotune.bundle.vllm_script import FILE as SERVE_SCRIPT
from autotune.bundle.vllm_script import serve_script, wants_server
from autotune.errors import UserError
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.search.job_time import work_of
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.knobs import Candidate
from autotune.space.learning_rate import scaling
from autotune.space.precision import resolve_precision
from autotune.space.settings import Settings, settings, threads
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.deepspeed import auto_config, deepspeed_of
from autotune.space.vllm.server import Split, split_of
from autotune.training.registry import own_script

SCHEMA = 1
AUTO_FILE = "deepspeed_auto.json"
"""For those who keep TrainingArguments of their own."""


def bundle_files(
    recommendation: Recommendation,
    job: Job,
    facts: Facts,
    *,
    python: str,
    output_dir: str,
    space_size: int,
    recipe_knobs: Sequence[str],
    probes: int,
    verification: dict[str, Any] | None,
) -> dict[str, str]:
    """File name -> text. The same recommendation gives the same bytes.

    Args:
        python: interpreter that launches.
        output_dir: where training writes unless the job says otherwise.
        space_size: candidates in the space.
        recipe_knobs: those that the job varies.
        probes: how many were probed.
        verification: what verification found; None before it ran.

    Raises:
        UserError: what is asked for makes files that contradict each other.
    """
    candidate = recommendation.chosen.candidate
    chosen = settings(job, facts, candidate, output_dir)
    measured = [recommendation.chosen, *recommendation.ties, *recommendation.runners_up]
    costs = recipe_costs(measured, recipe_knobs)
    plain = recommendation_plain(recommendation, job, facts, verification)
    return {
        **_launched_files(chosen, python),
        "recommendation.json": _json({**plain, "recipe_costs": costs}),
        "README.md": readme(
            recommendation,
            model=facts.model.name,
            device=facts.device.name,
            work=work_of(chosen.config),
            missing=missing_fields(chosen.config, METHODS[job.method]),
            first=SERVE_SCRIPT if wants_server(chosen.config) else None,
            processes=chosen.processes,
            split=split_of(job, facts, candidate.values, chosen.processes),
            assumed=job.assumed,
            verification=verification,
            costs=costs,
            space_size=space_size,
            probes=probes,
        ),
    }


def _launched_files(chosen: Settings, python: str) -> dict[str, str]:
    """What the launch reads; files that contradict each other are refused."""
    job, facts, sharding = chosen.job, chosen.facts, chosen.sharding
    moved = scaling(job, chosen.candidate)
    method = METHODS[job.method]
    missing = missing_fields(chosen.config, method)
    split = split_of(job, facts, chosen.candidate.values, chosen.processes)
    files = {
        method.config_file: trainer_config(chosen.config, method, moved.lines() if moved else ()),
        "accelerate.yaml": accelerate_config(
            device_kind=facts.device.kind,
            precision=resolve_precision(job, facts.device)[0],
            sharding=sharding,
        ),
        "launch.sh": launch_script(
            method=method,
            python=python,
            environment=chosen.environment,
            threads=threads(facts, chosen.processes),
            missing=missing,
            sharding=sharding,
            split=split,
        ),
        **_several(chosen, python, split),
        **({method.own_script: own_script(method.own_script)} if method.own_script else {}),
        **(
            {SERVE_SCRIPT: serve_script(chosen.config, facts, python, split)}
            if wants_server(chosen.config)
            else {}
        ),
    }
    problems = disagreements(of_bundle(files, method))
    if problems:
        raise UserError(*problems)
    return files


def _several(chosen: Settings, python: str, split: Split | None) -> dict[str, str]:
    """What several processes want besides, and one that offloads: DeepSpeed's file, and launches
    over several machines; a server that has some of the GPUs is on theirs."""
    alone = chosen.processes == 1 or split is not None
    files = {} if alone else _on_machines(chosen, python)
    deepspeed = chosen.deepspeed
    return files if deepspeed is None else {**files, DEEPSPEED_FILE: _as_written(deepspeed)}


def _on_machines(chosen: Settings, python: str) -> dict[str, str]:
    """Launches over several machines."""
    method, machines = METHODS[chosen.job.method], chosen.job.devices.nodes
    return {
        NODES_SCRIPT: nodes_script(
            method=method,
            python=python,
            environment=chosen.environment,
            threads=threads(chosen.facts, chosen.processes),
            missing=missing_fields(chosen.config, method),
            sharding=chosen.sharding,
            machines=machines,
        ),
        SLURM_SCRIPT: slurm_script(
            method=method,
            device_kind=chosen.facts.device.kind,
            processes=chosen.processes,
            machines=machines,
        ),
    }


def auto_deepspeed(job: Job, facts: Facts, candidate: Candidate) -> str | None:
    """DeepSpeed's file with `auto` wherever transformers' Trainer fills a value in, as text; None
    where DeepSpeed does not train the candidate."""
    chosen = settings(job, facts, candidate)
    deepspeed = deepspeed_of(chosen.sharding, chosen.config, facts, auto_config)
    return None if deepspeed is None else _as_written(deepspeed)


def _as_written(deepspeed: dict[str, Any]) -> str:
    """DeepSpeed's file as text, in the order of its own documentation."""
    return json.dumps(deepspeed, indent=2) + "\n"


def recommendation_plain(
    recommendation: Recommendation,
    job: Job,
    facts: Facts,
    verification: dict[str, Any] | None,
) -> dict[str, Any]:
    """`recommendation.json` as data."""
    precision, reason = resolve_precision(job, facts.device)
    return {
        "schema": SCHEMA,
        "method": job.method,
        "model": facts.model.name,
        "weights_probed": facts.model.weights,
        "device": facts.device.name,
        "versions": facts.stack.versions,
        "precision": {"value": precision, "reason": reason},
        "assumed": list(job.assumed),
        "chosen": _ranked(recommendation.chosen),
        "reasons": list(recommendation.reasons),
        "ties": [_ranked(candidate) for candidate in recommendation.ties],
        "runners_up": [_ranked(candidate) for candidate in recommendation.runners_up],
        "rejected": {reason: list(numbers) for reason, numbers in recommendation.rejected.items()},
        "allowed_bytes": recommendation.allowed_bytes,
        "passed_over": {str(n): reason for n, reason in recommendation.passed_over.items()},
        "verified": bool(verification and verification["verified"]),
        "verification": verification,
    }


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _ranked(candidate: Ranked) -> dict[str, Any]:
    return {
        "probe": candidate.number,
        "knobs": candidate.candidate.knobs,
        "measurement": asdict(candidate.measurement),
    }
