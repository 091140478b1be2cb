"""`autotune import`."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import json_option
from autotune.errors import in_one_line, user_error
from autotune.process.files import writing

_SUFFIXES = (".yaml", ".yml", ".json")
_LONGEST = 32
"""Characters of a value that are shown."""


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE... | -- COMMAND...")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the job there.")
@click.option("--model", help="The model, in place of the files'.")
@click.option("--dataset", help="The data set, in place of the files'.")
@click.option("--method", help="The training method, where the files do not say it.")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Devices of each machine, a process each, in place of the files'. "
    "The global batch counts them.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="Machines, with as many devices each.")
@click.option(
    "--as-is",
    is_flag=True,
    help="Pin everything as the files have it: a plan then says whether that fits, how fast it is.",
)
@json_option
@guarded
def command(
    files: tuple[str, ...],
    out: Path | None,
    model: str | None,
    dataset: str | None,
    method: str | None,
    devices: int | None,
    nodes: int | None,
    as_is: bool,
    as_json: bool,
) -> int:
    """Make a job of a configuration of TRL, transformers, accelerate, DeepSpeed, Axolotl,
    LLaMA-Factory, torchtune or Unsloth, and list what it could not carry.

    FILE is a trainer's YAML or JSON, with accelerate's YAML, DeepSpeed's JSON or LLaMA-Factory's
    dataset_info.json beside it. COMMAND is what would start the training: `autotune import -- trl
    sft --config sft.yaml`. Nothing of it is run. The global batch stays exactly the same; what the
    files pin and autotune can search is searched, unless --as-is is given.

    The job goes to stdout, or to --out; what became of each field goes to stderr.
    """
    from autotune.space.foreign.fields import job_text
    from autotune.space.foreign.importing import Wishes
    from autotune.space.job_file.load import judge

    if out is not None and os.path.lexists(out):
        raise user_error("the file exists already", where=str(out), hint="name another, or move it")
    wishes = Wishes(method=method or "", devices=devices, nodes=nodes, as_is=as_is)
    imported, sources = _imported(files, wishes)
    named = {"model": model, "dataset": dataset}
    job = {**imported.job, **{name: value for name, value in named.items() if value is not None}}
    imported = replace(imported, job=job)
    judge(imported.job, sources, Path.cwd() if out is None else out.absolute().parent)
    text = job_text(imported, sources)
    if out is not None:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
    if as_json:
        print_json(_plain(imported))
        return 0
    if out is None:
        echo(text, nl=False)
    _say(imported, out)
    return 0


def _imported(files: Sequence[str], wishes: Any) -> tuple[Any, str]:
    """Return the job of files, or of a command and the files that it names, and what they are
    called. A command's text may hold a secret: it is written nowhere."""
    from autotune.job.paths import exists
    from autotune.space.foreign.command_line import parse_command
    from autotune.space.foreign.importing import import_job
    from autotune.space.job_file.given_file import beside, foreign_file

    if all(name.lower().endswith(_SUFFIXES) or Path(name).is_file() for name in files):
        paths = [Path(name) for name in files]
        given = [foreign_file(path) for path in paths]
        found = import_job(given, wishes, exists=exists, read=beside(paths))
        return found, " ".join(files)[:500]
    parsed = parse_command(files, beside([]))
    paths = [Path(name) for name in parsed.files]
    given = [foreign_file(path) for path in paths]
    wishes = replace(wishes, method=wishes.method or parsed.method)
    sources = " and ".join(["a command", *parsed.files])[:500]
    return import_job(given, wishes, parsed, exists=exists, read=beside(paths)), sources


def _plain(imported: Any) -> dict[str, Any]:
    fields = [
        {
            "field": f.field,
            "value": f.value,
            "fate": f.kind,
            "detail": f.detail,
            "changes": f.changes,
        }
        for f in imported.fates
    ]
    told = {"schema": 1, "tool": imported.tool, "job": imported.job}
    return {**told, "fields": fields, "assumed": list(imported.assumed)}


def _say(imported: Any, out: Path | None) -> None:
    """Say on stderr what became of each field."""
    for line in imported_lines(imported):
        echo(line, err=True)
    if out is not None:
        echo(f"Wrote {out}.\nNext: `autotune plan {out} --device h200`", err=True)


def imported_lines(imported: Any) -> Iterator[str]:
    """Yield a line for each field: the carried ones, and the others by what they may change; then
    what was assumed."""
    from autotune.space.foreign.fields import CARRIED, SEARCHED

    of = {kind: [f for f in imported.fates if f.kind == kind] for kind in (CARRIED, SEARCHED)}
    lists = {"carried:": of[CARRIED], "searched instead:": of[SEARCHED]}
    lists["not carried, by what it may change:"] = imported.lost
    width = max((len(fate.field) for fate in imported.fates), default=0)
    for title, fates in lists.items():
        if fates:
            yield title
        for fate in fates:
            value = in_one_line(json.dumps(fate.value, ensure_ascii=False, default=str))
            value = value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."
            name, detail = in_one_line(fate.field), in_one_line(fate.detail)
            yield f"  {name:{width}}  {value:{_LONGEST}}  {detail}"
    if imported.assumed:
        yield "assumed:"
    yield from (f"  {in_one_line(text)}" for text in imported.assumed)
    yield imported.summary
