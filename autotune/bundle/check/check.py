"""All contradictions between the files of a launch, before anything runs. Pure."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from autotune.bundle.check import accelerate, types
from autotune.bundle.check import deepspeed as deepspeed_checks
from autotune.bundle.check.files import LaunchFiles
from autotune.errors import Problem
from autotune.job.methods import Method
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE


def disagreements(files: LaunchFiles) -> tuple[Problem, ...]:
    """Return all problems: where they are, what each file says, what to do."""
    wrong = [problem for check in types.CHECKS for problem in check(files)]
    without = accelerate.OF_THE_FILE if files.alone else ()
    checks = (*(c for c in accelerate.CHECKS if c not in without), *deepspeed_checks.CHECKS)
    problems = [problem for check in checks for problem in check(files)]
    # Nothing else is worth saying of an impossible value and what is in it.
    known = {problem.where for problem in wrong}
    inside = tuple(f"{where}." for where in known)
    rest = [p for p in problems if p.where not in known and not p.where.startswith(inside)]
    return tuple(dict.fromkeys([*wrong, *rest]))


def of_bundle(texts: Mapping[str, str], method: Method) -> LaunchFiles:
    """Return the files of a bundle, as trainer, accelerate and DeepSpeed read them.

    Args:
        texts: file name -> text.
    """
    deepspeed = texts.get(DEEPSPEED_FILE)
    return LaunchFiles(
        trainer=_mapping(yaml.safe_load(texts[method.config_file])),
        accelerate=_mapping(yaml.safe_load(texts["accelerate.yaml"])),
        deepspeed=None if deepspeed is None else _mapping(json.loads(deepspeed)),
        method=method,
        trainer_file=method.config_file,
    )


def _mapping(data: Any) -> dict[str, Any]:
    assert isinstance(data, dict)
    return data
