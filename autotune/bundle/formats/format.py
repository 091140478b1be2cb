"""The forms in which a bundle can be written, among them those of transformers and TRL: JSON, a
script, a notebook, a Slurm job. Pure."""

import json
import pprint
import shlex
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from autotune.bundle.formats.launched import Formatted, Launched, not_said
from autotune.bundle.formats.written import axolotl, llama_factory
from autotune.bundle.launch_script import SLURM_SCRIPT
from autotune.errors import user_error
from autotune.facts.stack import transformers_fields
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE

_SCRIPT = '''\
"""Trains what autotune found, as `trl {method}` does. Written by autotune.

Start it with {start}.
"""

import os

{environment}from trl.scripts.{method} import main, make_parser

CONFIG = {config}


def train() -> None:
    """Train by TRL's own script."""
    main(*make_parser().parse_dict(CONFIG))


if __name__ == "__main__":
    train()
'''
_SLURM = """\
#!/bin/bash
# Written by autotune. Submit with `sbatch launch.slurm`, in the folder of the bundle.
#SBATCH --job-name=autotune
#SBATCH --nodes=1
#SBATCH --ntasks=1
{gpus}#SBATCH --output=%x-%j.out
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:-.}}"
bash launch.sh "$@"
"""


def training_arguments(bundle: Launched) -> Formatted:
    """Return the JSON that `HfArgumentParser(TrainingArguments).parse_json_file` reads."""
    fields = transformers_fields()
    known = {name: value for name, value in bundle.config.items() if name in fields}
    lost = {
        name: f"a field of TRL's {bundle.method.config} or ModelConfig, or of its script"
        for name in bundle.config
        if name not in fields
    }
    files = {}
    if bundle.deepspeed is not None:
        known["deepspeed"] = DEEPSPEED_FILE
        files[DEEPSPEED_FILE] = bundle.deepspeed
    elif bundle.uses_fsdp:
        lost["fsdp"] = "accelerate.yaml says it: start with `accelerate launch --config_file`"
    text = json.dumps(known, indent=2, sort_keys=True) + "\n"
    files = {"training_arguments.json": text, **files}
    return Formatted(files=files, lost={**lost, **not_said(bundle), **_launch_of(bundle)})


def script(bundle: Launched) -> Formatted:
    """Return a Python program that does the same training."""
    return Formatted(files={"train.py": _program(bundle), **bundle.launch_files}, lost={})


def notebook(bundle: Launched) -> Formatted:
    """Return the same program in a notebook, which trains on one device."""
    if bundle.processes > 1:
        what = f"a notebook trains on one device, and this bundle has {bundle.processes}"
        raise user_error(what, where="--format", hint="use `--format python`")
    program = _program(bundle).partition('\n\nif __name__ == "__main__":')[0]
    cells: list[dict[str, Any]] = [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
        | {"id": f"cell-{number}", "source": text.splitlines(keepends=True)}
        for number, text in enumerate([program, "train()"])
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    data = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return Formatted(files={"train.ipynb": json.dumps(data, indent=1) + "\n"}, lost={})


def _program(bundle: Launched) -> str:
    name = bundle.method.name
    if bundle.method.own_script:
        what = f"`method: {name}` has a program in its bundle already: {bundle.method.own_script}"
        raise user_error(what, where="--format")
    start = f"`{bundle.start or 'python'} train.py`"
    config = pprint.pformat(dict(bundle.config), width=96, sort_dicts=True)
    return _SCRIPT.format(
        method=name, start=start, config=config, environment=_exports(bundle.environment)
    )


def _exports(environment: Mapping[str, str]) -> str:
    """Return lines that set what has to be set before torch is loaded."""
    lines = [f"os.environ.setdefault({n!r}, {v!r})\n" for n, v in environment.items()]
    return "".join(lines) + ("\n" if lines else "")


def slurm(bundle: Launched) -> Formatted:
    """Return a job for Slurm: of one machine, or the bundle's own for several."""
    script = bundle.texts.get(SLURM_SCRIPT)
    if "launch.sh" not in bundle.texts and script is not None:
        return Formatted(files={SLURM_SCRIPT: script}, lost={})
    cpu = bundle.accelerate.get("use_cpu") is True
    gpus = "" if cpu else f"#SBATCH --gpus-per-node={bundle.each}\n"
    text = _SLURM.format(gpus=gpus)
    return Formatted(files={SLURM_SCRIPT: text}, lost={})


def variables(bundle: Launched) -> Formatted:
    """Return variables of the environment, as a shell reads them."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in bundle.environment.items()]
    return Formatted(files={".env": "".join(lines)}, lost={})


def trl(bundle: Launched) -> Formatted:
    """Return the YAML of `trl METHOD --config`."""
    name = bundle.method.config_file
    lost = {**not_said(bundle), **_launch_of(bundle)}
    return Formatted(files={name: bundle.texts[name]}, lost=lost)


def _launch_of(bundle: Launched) -> dict[str, str]:
    """Return the number of processes and the files of their sharding, as fields that are lost."""
    if not bundle.start:
        return {}
    several = "processes" if bundle.processes > 1 else "process"
    machines = f" on {bundle.machines} machines" if bundle.machines > 1 else ""
    forms = " and ".join(f"`--format {PurePath(name).stem}`" for name in bundle.launch_files)
    what = f"start {bundle.processes} {several}{machines} ({bundle.kind}): `{bundle.start} ...`"
    return {"processes": f"{what}; {forms} for its files"}


def accelerate(bundle: Launched) -> Formatted:
    """Return the YAML of `accelerate launch --config_file`."""
    return Formatted(files={"accelerate.yaml": bundle.texts["accelerate.yaml"]}, lost={})


def deepspeed(bundle: Launched) -> Formatted:
    """Return DeepSpeed's file.

    Raises:
        UserError: it does not train with DeepSpeed.
    """
    if bundle.deepspeed is None:
        what = f"this bundle trains without DeepSpeed (distributed_type: {bundle.kind})"
        raise user_error(what, where="--format")
    return Formatted(files={DEEPSPEED_FILE: bundle.deepspeed}, lost={})


FORMATS: Mapping[str, Callable[[Launched], Formatted]] = {
    "trl": trl,
    "training-arguments": training_arguments,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
    "axolotl": axolotl,
    "llamafactory": llama_factory,
    "python": script,
    "notebook": notebook,
    "slurm": slurm,
    "env": variables,
}


def formatted(texts: Mapping[str, str], name: str) -> Formatted:
    """Return a bundle in another form.

    Args:
        texts: the bundle's files.
        name: one of `FORMATS`.

    Raises:
        UserError: the form cannot say it.
    """
    return FORMATS[name](Launched.of(texts))
