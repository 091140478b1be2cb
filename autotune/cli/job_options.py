"""Options that several commands share: a job from a file and flags, errors, output."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, say
from autotune.errors import user_error
from autotune.job.text_file import MOST_BYTES, readable_text
from autotune.trackers import TRACKERS

_FLAGS = {
    "model": "Hub id, local folder or config.json.",
    "dataset": "Hub id, local folder or JSONL file.",
    "method": "Training method.",
    "tuning": "full, lora or qlora.",
    "global-batch-size": "Sequences per optimizer step (exact), or 'N tokens'.",
    "max-length": "Rows are truncated to this many tokens.",
    "budget": "Minutes of probing such as 5m, or a number of probes; for everything together "
    "`--set budget.total=30m`.",
}
_SPELLINGS = {".yaml", ".yml", ".json", ".toml", ".sh", ".jsonl", ".txt", ".py", ".cfg"}
"""Suffixes of files, which no model's name ends with."""
FLAG_NAMES = tuple(name.replace("-", "_") for name in _FLAGS)
"""The flags as parameters."""


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """JOB, `--set` and a flag for each of the most used fields."""
    for name, text in reversed(_FLAGS.items()):
        function = click.option(f"--{name}", help=text)(function)
    function = click.option(
        "--set",
        "sets",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set any job field, knob or training field. May be repeated.",
    )(function)
    named = click.argument("job", required=False, type=click.Path())(function)
    return _model_as_flag(named)


def _model_as_flag(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a command with the model that stands in the place of a job as `--model`."""

    @functools.wraps(function)
    def command(**options: Any) -> Any:
        job: str | None = options["job"]
        if job is not None and names_model(job):
            if options["model"] is not None:
                what = f"two models are named: `{job}` and `{options['model']}`"
                raise click.UsageError(f"{what}; leave one out")
            return function(**{**options, "job": None, "model": job})
        return function(**{**options, "job": None if job is None else Path(job)})

    return command


def names_model(text: str) -> bool:
    """True if what stands in the place of a job is a model: its folder, its config.json, or a name
    that is neither a file here nor spelled as one."""
    job = Path(text)
    if job.is_dir():
        return (job / "config.json").exists()
    if job.exists() or job.suffix in _SPELLINGS:
        config = readable_text(job, MOST_BYTES) if job.name == "config.json" else None
        return config is not None and '"model_type"' in config
    return not text.startswith((".", "/", "~"))


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--engine`, `--address`, `--at-once` and `--insecure`, as one argument `runs_on`: None
    where nothing is said."""

    @functools.wraps(function)
    def command(
        engine: str | None, address: str | None, at_once: int | None, insecure: bool, **options: Any
    ) -> Any:
        return function(runs_on=_engine(engine, address, at_once, insecure), **options)

    for option in (
        click.option(
            "--insecure",
            is_flag=True,
            help="Take a Ray cluster that asks for no token: whoever reaches it runs code there.",
        ),
        click.option(
            "--at-once",
            type=click.IntRange(1),
            help="Probes of a run at once. Default: 2 on Ray, where each has devices of its own, "
            "on one node; else 1, as for a worker's runs.",
        ),
        click.option(
            "--address",
            metavar="HOST:PORT",
            help="The head of a Ray cluster, whose nodes have to see the run's folder. Default: "
            "RAY_ADDRESS, else a Ray on this machine alone.",
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            help="Where probes run: on this machine (the default) or on nodes of Ray.",
        ),
    ):
        command = option(command)
    return command


def _engine(name: str | None, address: str | None, at_once: int | None, insecure: bool) -> Any:
    if name != "ray" and (address is not None or insecure):
        flag = "--address" if address is not None else "--insecure"
        raise user_error("it is of a Ray cluster", where=flag, hint="add --engine ray")
    if name is None and at_once is None:
        return None
    from autotune.engine.opening import EngineOptions

    if name == "ray" and address is None and (address := os.environ.get("RAY_ADDRESS")):
        echo(f"probes run on the Ray cluster at {address} (RAY_ADDRESS)", err=True)
    return EngineOptions(name=name or "local", address=address, at_once=at_once, insecure=insecure)


def changes_of(accept_noise: bool, runs_on: Any) -> dict[str, Any]:
    """Return what was said that a run may also change when it goes on."""
    noise = {"accept_noise": True} if accept_noise else {}
    return noise | ({} if runs_on is None else {"engine": runs_on})


def refuse_engine(runs_on: Any) -> None:
    """Refuse what was said of an engine where a script is started."""
    if runs_on is not None:
        hint = "leave it out, and --at-once, or describe the training as a job (`autotune init`)"
        raise user_error("a script is started on this machine", where="--engine", hint=hint)


def record_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--record`."""
    return click.option(
        "--record",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write there what happens, as it happens (events.jsonl), what --json prints "
        "(result.json), and of a plan the files of its answer (bundle/).",
    )(function)


def track_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--track`."""
    return click.option(
        "--track",
        multiple=True,
        type=click.Choice(TRACKERS),
        help="Send each probe and the bundle to this tracker. May be repeated.",
    )(function)


def write_result(record: Path, data: Any) -> None:
    """Keep what `--json` prints."""
    from autotune.cli.views.events import RESULT
    from autotune.process.messages import write_json

    write_json(record / RESULT, data)


def all_sets(sets: tuple[str, ...], flags: dict[str, Any]) -> list[str]:
    """Return the `--set` values, those of the named flags last."""
    assignments = [
        f"{name.replace('-', '_')}={value}"
        for name in _FLAGS
        if (value := flags[name.replace("-", "_")]) is not None
    ]
    return [*sets, *assignments]


def load(
    job: Path | None,
    sets: tuple[str, ...],
    flags: dict[str, Any],
    *,
    says: bool = True,
) -> Any:
    """Return the (Job, SpaceDefinition) of the options.

    Args:
        says: whether it is printed what flags alone leave open; else the caller does.

    Raises:
        UserError: the job cannot be, or not with this TRL.
    """
    from autotune.facts.stack import refuse_missing
    from autotune.space.job_file.flags import completed
    from autotune.space.job_file.load import load_job

    overrides = all_sets(sets, flags)
    if job is None:
        if not any(text.startswith("model=") for text in overrides):
            raise user_error(
                "a job is needed", hint="name a model (`qwen2.5-7b`), or a job file (job.yaml)"
            )
        overrides, assumed = completed(overrides)
        for assumption in assumed if says else ():
            say(f"assumed: {assumption}")
    loaded_job, definition = load_job(job, overrides, imported=say_imported(job))
    refuse_missing(loaded_job.method)
    for assumption in loaded_job.assumed:
        say(f"assumed: {assumption}")
    return loaded_job, definition


def say_imported(file: Path | None) -> Callable[[Any], None]:
    """Return what tells in a line that another tool's file was read as a job."""

    return lambda found: say(found.line(str(file)))


def print_notes(notes: Sequence[str]) -> None:
    """Say which of a run's files are damaged; the rest is shown."""
    for note in notes:
        echo(f"damaged: {note}", err=True)
