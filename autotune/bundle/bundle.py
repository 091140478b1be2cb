"""The bundle: every file of a recommendation, by name. Pure: values in, text out."""

import json
from dataclasses import asdict
from typing import Any

from autotune.bundle.check.rules import disagreements, of_bundle
from autotune.bundle.configuration import accelerate_config, trainer_config
from autotune.bundle.launch_script import NODES_SCRIPT, launch_script, nodes_script
from autotune.bundle.readme import plain_name, readme
from autotune.bundle.schedulers import scheduled
from autotune.bundle.vllm_script import FILE as SERVE_SCRIPT
from autotune.bundle.vllm_script import serve_script, wants_server
from autotune.errors import UserError
from autotune.job.methods import METHODS
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.learning_rate import scaling
from autotune.space.notes import code_note
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.sharding import DEEPSPEED
from autotune.space.trl_config import Settings, resolve_precision
from autotune.training.registry import own_script

SCHEMA = 1
RECOMMENDATION = "recommendation.json"
_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


def bundle_files(
    recommendation: Recommendation,
    chosen: Settings,
    *,
    python: str,
    origin: str,
    verification: dict[str, Any] | None,
) -> dict[str, str]:
    """Return file name -> text. The same recommendation gives the same bytes.

    Args:
        chosen: settings of the recommended candidate.
        python: interpreter that launches.
        origin: how it was found, as a sentence.
        verification: the result of the verification; None before it ran.

    Raises:
        UserError: what is asked for makes files that contradict each other.
    """
    return {
        **launched_files(chosen, python),
        RECOMMENDATION: as_json(recommendation_plain(recommendation, chosen, verification)),
        "README.md": readme(recommendation, chosen, origin, verification),
    }


def found_by(probes: int, candidates: int, device: str) -> str:
    """Return how a run found its recommendation, as a sentence."""
    where = plain_name(device)
    return f"Found by autotune on {where}: {probes} probes out of {candidates} candidates."


def launched_files(chosen: Settings, python: str) -> dict[str, str]:
    """Return the files that the launch reads.

    Raises:
        UserError: they contradict each other.
    """
    job, method = chosen.job, METHODS[chosen.job.method]
    moved, one_machine = scaling(job, chosen.candidate), job.devices.nodes == 1
    files = {
        method.config_file: trainer_config(chosen.config, method, moved.lines() if moved else ()),
        "accelerate.yaml": accelerate_config(chosen),
        **({"launch.sh": launch_script(chosen, python)} if one_machine else {}),
        **_files_of_several(chosen, python),
        **({method.own_script: own_script(method.own_script)} if method.own_script else {}),
        **({SERVE_SCRIPT: serve_script(chosen, python)} if wants_server(chosen.config) else {}),
    }
    problems = disagreements(of_bundle(files, method))
    if problems:
        raise UserError(*problems)
    return files


def _files_of_several(chosen: Settings, python: str) -> dict[str, str]:
    """Return DeepSpeed's file and the launches over several machines, where they are needed; there
    are none of these where a server has some of the job's GPUs."""
    single = chosen.processes == 1 or chosen.split is not None
    files = {} if single else _on_machines(chosen, python)
    deepspeed = chosen.deepspeed
    if deepspeed is None:
        return files
    return {**files, DEEPSPEED_FILE: json.dumps(deepspeed, indent=2) + "\n"}  # in its own order


def _on_machines(chosen: Settings, python: str) -> dict[str, str]:
    """Return the files of a launch over several machines."""
    return {
        NODES_SCRIPT: nodes_script(chosen, python),
        **scheduled(chosen, requirements(chosen)),
    }


def requirements(chosen: Settings) -> list[str]:
    """Return the packages that train, in the versions that were tuned, as pip requirements."""
    names = [*_PACKAGES, *(["deepspeed"] if chosen.sharding.distributed_type == DEEPSPEED else [])]
    versions = {name: chosen.facts.stack.versions.get(name) for name in names}
    return [f"{name}=={v.partition('+')[0]}" for name, v in versions.items() if v]


def recommendation_plain(
    recommendation: Recommendation, chosen: Settings, verification: dict[str, Any] | None
) -> dict[str, Any]:
    """Return `recommendation.json` as data."""
    return {
        **origin_plain(chosen),
        "weights_probed": chosen.facts.model.weights,
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


def origin_plain(chosen: Settings) -> dict[str, Any]:
    """Return the job, device and packages of a recommendation, as data."""
    job, facts = chosen.job, chosen.facts
    precision, reason = resolve_precision(job, facts.device)
    return {
        "schema": SCHEMA,
        "method": job.method,
        "model": facts.model.name,
        "device": facts.device.name,
        "versions": facts.stack.versions,
        "precision": {"value": precision, "reason": reason},
        "assumed": list(job.assumed),
        **({"code": code} if (code := code_note(job)) else {}),
    }


def as_json(data: dict[str, Any]) -> str:
    """Return data as JSON text, the same bytes for the same data."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _ranked(candidate: Ranked) -> dict[str, Any]:
    return {
        "probe": candidate.number,
        "knobs": candidate.candidate.knobs,
        "measurement": asdict(candidate.measurement),
    }
