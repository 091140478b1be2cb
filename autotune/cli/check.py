"""`autotune check`."""

from pathlib import Path

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import json_option


@click.command("check")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--trainer", type=click.Path(path_type=Path), help="The trainer's YAML in BUNDLE.")
@click.option("--accelerate", type=click.Path(path_type=Path), help="accelerate's YAML in BUNDLE.")
@click.option("--deepspeed", type=click.Path(path_type=Path), help="DeepSpeed's JSON in BUNDLE.")
@click.option("--method", help="The training method. Default: what the YAML is named after.")
@json_option
@guarded
def command(
    bundle: Path,
    trainer: Path | None,
    accelerate: Path | None,
    deepspeed: Path | None,
    method: str | None,
    as_json: bool,
) -> int:
    """Say whether the trainer's YAML, accelerate's YAML and DeepSpeed's JSON in BUNDLE agree.

    It may be a folder that was written by hand: the files are told apart by what
    they hold, or by their names in it. Without accelerate's YAML the trainer reads DeepSpeed's
    JSON itself, as `torchrun` and `deepspeed` start it. Shell scripts, and the flags in them, are
    not read. The exit code is 0 where the files agree, 1 where not, 2 where a file is missing or
    unreadable."""
    from autotune.bundle.check.check import disagreements
    from autotune.bundle.check.read import read_launch
    from autotune.errors import nearest, user_error
    from autotune.job.methods import METHODS

    if method is not None and method not in METHODS:
        raise user_error(
            f"there is no method `{method}`", where="--method", hint=nearest(method, METHODS)
        )
    files = read_launch(
        bundle, trainer=trainer, accelerate=accelerate, deepspeed=deepspeed, method=method
    )
    problems = disagreements(files)
    named_files = [files.trainer_file, *([] if files.alone else [files.accelerate_file])]
    if files.deepspeed is not None:
        named_files.append(files.deepspeed_file)
    if as_json:
        plain = [{"where": p.where, "what": p.what, "hint": p.hint} for p in problems]
        agree = not problems
        print_json({"schema": 1, "agree": agree, "files": named_files, "problems": plain})
        return 1 if problems else 0
    for problem in problems:
        echo(problem.render())
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}" if problems else "agree"
    echo(f"{', '.join(named_files)}: {count}")
    return 1 if problems else 0
