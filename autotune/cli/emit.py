"""`autotune emit`."""

import contextlib
from pathlib import Path

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.guarded import guarded
from autotune.cli.job_options import (
    json_option,
    print_notes,
    storage_of,
    storage_option,
)


@click.command("emit")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--probe", type=int, help="Number of the probe to emit, in place of the recommended.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to write. Default: RUN/bundle."
)
@click.option(
    "--auto",
    is_flag=True,
    help="Write deepspeed_auto.json, too: DeepSpeed's file with `auto` values, for those who keep "
    "TrainingArguments of their own.",
)
@storage_option("Optuna storage URL of the run, where it has one of its own.")
@json_option
@guarded
def command(
    run: Path,
    probe: int | None,
    out: Path | None,
    auto: bool,
    storage: str | None,
    as_json: bool,
) -> int:
    """Write the bundle of RUN again, or that of one of its probes. Only the bundle that was
    verified before is called verified: see `autotune verify`."""
    from autotune.errors import user_error
    from autotune.run.past_run import reopen

    past = reopen(run, storage_of(storage))
    print_notes(past.notes)
    target = (out or past.run.bundle).absolute()
    if out is not None and target.exists():
        raise user_error("the folder is there already", where=str(out), hint="choose another one")
    recommendation = past.recommendation(probe)
    verification = past.kept_verification(recommendation)
    files = past.files_with_auto if auto else past.files
    rendered = files(recommendation, verification)
    with past.run.locked() if out is None else contextlib.nullcontext():
        past.run.write_bundle(target, rendered)
    if as_json:
        print_json({"schema": 1, "bundle": str(target), "probe": recommendation.chosen.number})
    else:
        echo(str(target))
    return 0
