"""Whether the files of a launch agree: all that is wrong, before anything runs. Pure."""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from autotune.bundle.check import accelerate, types
from autotune.bundle.check import deepspeed as deepspeed_checks
from autotune.bundle.check.commands import Started
from autotune.bundle.check.files import LaunchFiles
from autotune.bundle.check.scripts import accelerate_flags, gpus, vllm_server
from autotune.bundle.check.scripts.merged import filled
from autotune.bundle.check.scripts.shell import ENDINGS, started
from autotune.errors import Problem
from autotune.job.methods import Method
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE


def disagreements(files: LaunchFiles) -> tuple[Problem, ...]:
    """Everything that is wrong: where, what each file says, what to do."""
    completed = filled(files)
    wrong = [one for some in completed for check in types.CHECKS for one in check(some)]
    checks = (*accelerate.CHECKS, *deepspeed_checks.CHECKS)
    found = [problem for one in completed for check in checks for problem in check(one)]
    by_scripts = (*vllm_server.CHECKS, *accelerate_flags.CHECKS, *gpus.CHECKS)
    found += [problem for check in by_scripts for problem in check(files)]
    # Of a value that cannot be, and what is in it, nothing else is worth saying.
    known = {one.where for one in wrong}
    inside = tuple(f"{where}." for where in known)
    rest = [p for p in found if p.where not in known and not p.where.startswith(inside)]
    return tuple(dict.fromkeys([*wrong, *rest]))


def of_bundle(texts: Mapping[str, str], method: Method) -> LaunchFiles:
    """The files of a bundle, as those read them that it is made for.

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
        commands=commands_of(texts),
    )


def commands_of(texts: Mapping[str, str]) -> tuple[Started, ...]:
    """What scripts start.

    Args:
        texts: file name -> text; those that are no scripts are passed over.
    """
    scripts = sorted(name for name in texts if name.endswith(ENDINGS))
    return tuple(one for name in scripts for one in started(name, texts[name]))


def _mapping(data: Any) -> dict[str, Any]:
    assert isinstance(data, dict)
    return data
