"""`autotune init`."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded
from autotune.errors import UserError, user_error
from autotune.job.methods import METHODS
from autotune.job.paths import exists, resolve_path
from autotune.process.files import writing
from autotune.space.job_file.new_job import TUNINGS, NewJob


@click.command("init")
@click.argument("file", default="job.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", help="Hub id, local folder, config.json, or a name such as qwen2.5-7b.")
@click.option("--dataset", help="Hub id, local folder or JSONL file; '': none yet.")
@click.option("--method", type=click.Choice(list(METHODS)), help="Training method.")
@click.option("--tuning", type=click.Choice(TUNINGS), help="What is trained.")
@guarded
def command(file: Path, **flags: str | None) -> int:
    """Write a commented job to FILE (job.yaml).

    Asks for what no flag gives: the model, the data, the method and what is trained. docs/job.md
    lists the models whose shape is built in: a plan of one needs no hub.
    """
    if os.path.lexists(file):
        hint = "name another, or move it"
        raise user_error("the file exists already", where=str(file), hint=hint)
    answers = {name: answer if answer.strip() else "" for name, answer in _answers(flags).items()}
    if not answers["model"]:
        hint = "give a hub id, a folder, a config.json, or a name such as qwen2.5-7b"
        raise user_error("a model is needed", where="--model", hint=hint)
    for name in ("model", "dataset"):
        answers[name] = _as_the_file_names(answers[name], file.absolute().parent)
    _write_valid(file, NewJob(**answers).text())
    echo(
        f"Wrote {file}.\n"
        f"Next: `autotune plan {file} --device h200` says what to use on such a GPU;\n"
        f"`autotune run {file}` on the training machine measures and verifies it."
    )
    return 0


def _write_valid(file: Path, text: str) -> None:
    """Write the file; not where it asks for what cannot be."""
    from autotune.space.job_file.load import load_job

    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    try:
        load_job(file)
    except UserError as error:
        file.unlink()
        # Of lines of a file that is not there nobody can read anything.
        raise UserError(*(replace(problem, where="") for problem in error.problems)) from None


def _as_the_file_names(name: str, folder: Path) -> str:
    """Return what a user in the shell's folder calls `name`, as a file in `folder` has to."""
    path = resolve_path(name, Path.cwd()) if name else name
    if path == name:
        return name
    relative = os.path.relpath(path, folder)
    return relative if exists(path) else f"./{relative}"


def _answers(flags: dict[str, str | None]) -> dict[str, str]:
    """Return a value for each question, of its flag or asked for."""
    questions: dict[str, dict[str, Any]] = {
        "model": {"text": "Model (hub id, folder, config.json, or a name such as qwen2.5-7b)"},
        "dataset": {"text": "Data (hub id, folder or JSONL file; empty: none yet)", "default": ""},
        "method": {"text": "Method", "default": "sft", "type": click.Choice(list(METHODS))},
        "tuning": {"text": "What is trained", "default": "lora", "type": click.Choice(TUNINGS)},
    }
    answers = {}
    for name, question in questions.items():
        given = flags[name]
        try:
            answers[name] = click.prompt(err=True, **question) if given is None else given
        except click.Abort:
            echo(err=True)
            raise user_error("an answer is missing", where=name, hint=f"give --{name}") from None
    return answers
