"""`autotune check`."""

from pathlib import Path

import click

from autotune.cli.command import echo, guarded, print_json, say
from autotune.cli.job_options import json_option


@click.command("check")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--trainer", type=click.Path(path_type=Path), help="The trainer's YAML in BUNDLE.")
@click.option("--accelerate", type=click.Path(path_type=Path), help="accelerate's YAML in BUNDLE.")
@click.option("--deepspeed", type=click.Path(path_type=Path), help="DeepSpeed's JSON in BUNDLE.")
@click.option("--method", help="The training method. Default: what the YAML is named after.")
@click.option(
    "--devices", type=click.IntRange(min=1), help="How many processes train, of all machines."
)
@json_option
@guarded
def command(
    bundle: Path,
    trainer: Path | None,
    accelerate: Path | None,
    deepspeed: Path | None,
    method: str | None,
    devices: int | None,
    as_json: bool,
) -> int:
    """Say whether the trainer's YAML, accelerate's YAML and DeepSpeed's JSON in BUNDLE agree, and
    whether the installed libraries would launch them.

    It may be a folder that was written by hand: the files are told apart by what
    they hold, or by their names in it. Without accelerate's YAML the trainer reads DeepSpeed's
    JSON itself, as `torchrun` and `deepspeed` start it; --devices says on how many processes. A
    child builds all that a launch builds before it loads a model, for a machine that can what the
    files ask of it. Shell scripts, and the flags in them, are not read. The exit code is 0 where
    the files agree, 1 where not, 2 where a file is missing or unreadable."""
    from autotune.bundle.check.asking import check_launch
    from autotune.bundle.check.read import read_launch
    from autotune.errors import nearest, user_error
    from autotune.job.methods import METHODS

    if method is not None and method not in METHODS:
        hint = nearest(method, METHODS)
        raise user_error(f"there is no method `{method}`", where="--method", hint=hint)
    named = {"trainer": trainer, "accelerate": accelerate, "deepspeed": deepspeed}
    files = read_launch(bundle, **named, method=method, devices=devices)
    found = check_launch(files)
    names = [files.trainer_file, *([] if files.alone else [files.accelerate_file])]
    if files.deepspeed is not None:
        names.append(files.deepspeed_file)
    problems = found.problems
    if as_json:
        plain = [{"where": p.where, "what": p.what, "hint": p.hint} for p in problems]
        asked = {"conditions": list(found.conditions), "not_asked": found.unasked or None}
        answer = {"schema": 1, "agree": not problems, "files": names, "problems": plain}
        print_json(answer | asked)
        return 1 if problems else 0
    for problem in problems:
        echo(problem.render())
    if found.unasked:
        say(f"the installed libraries were not asked: {found.unasked}")
    for condition in found.conditions:
        echo(f"on condition of {condition}")
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}" if problems else "agree"
    echo(f"{', '.join(names)}: {count}")
    return 1 if problems else 0
