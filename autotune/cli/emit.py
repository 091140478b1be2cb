"""`autotune emit`."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import json_option, print_notes
from autotune.errors import user_error

_MOST_BYTES = 2**22
FORMATS = ("axolotl", "llamafactory")
RAY_SLURM = "ray-slurm"


@click.command("emit")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--probe", type=int, help="Number of the probe to emit, in place of the recommended.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder to write. Default: RUN/bundle."
)
@click.option(
    "--format",
    "form",
    type=click.Choice((*FORMATS, RAY_SLURM)),
    help="Print the bundle as another tool reads it (with --out: write its files there), and say "
    "what that cannot express. RUN may be the folder of a bundle, too. `ray-slurm`: print the "
    "Slurm job that searches on Ray for the job of RUN, which may be a job's file, too.",
)
@json_option
@guarded
def command(run: Path, probe: int | None, out: Path | None, form: str | None, as_json: bool) -> int:
    """Write the bundle of RUN again, or that of one of its probes. Only the bundle that was
    verified before is called verified: see `autotune verify`."""
    from autotune.bundle.formats.written import formatted
    from autotune.process.files import refuse_used
    from autotune.run.past_run import reopen

    if form == RAY_SLURM and probe is not None:
        raise user_error("a search has many probes", where="--probe", hint="leave it out")
    bundle = form is not None and _is_bundle(run)
    if bundle and probe is not None:
        hint = f"name the run: `autotune emit RUN --probe {probe} --format {form}`"
        raise user_error("a bundle already belongs to one probe", where="--probe", hint=hint)
    if out is not None:
        if form is None and os.path.lexists(out) and out.is_dir():
            hint = "choose another one"
            raise user_error("the folder exists already", where=str(out), hint=hint)
        refuse_used(out)
    if form == RAY_SLURM:
        return _write_form(_search(run), form, out, as_json)
    if form is not None and bundle:
        return _write_form(formatted(_texts_of(run), form), form, out, as_json)
    past = reopen(run)
    print_notes(past.notes)
    target = (out or past.run.bundle).absolute()
    recommendation = past.recommendation(probe)
    verification = past.kept_verification(recommendation)
    rendered = past.files(recommendation, verification)
    if form is not None:
        return _write_form(formatted(rendered, form), form, out, as_json)
    with past.run.locked() if out is None else contextlib.nullcontext():
        past.run.write_bundle(target, rendered)
    if as_json:
        print_json({"schema": 1, "bundle": str(target), "probe": recommendation.chosen.number})
    else:
        echo(str(target))
    return 0


def _is_bundle(folder: Path) -> bool:
    """True if a folder is a bundle itself, as `autotune plan --emit` writes one."""
    return (folder / "accelerate.yaml").is_file() and (folder / "recommendation.json").is_file()


def _texts_of(folder: Path) -> dict[str, str]:
    """Return the files of a bundle."""
    from autotune.job.text_file import readable_text

    texts = {file.name: readable_text(file, _MOST_BYTES) for file in sorted(folder.iterdir())}
    return {name: text for name, text in texts.items() if text is not None}


def _search(run: Path) -> Any:
    """Return the Slurm job that searches on Ray."""
    from autotune.bundle.formats.launched import Formatted
    from autotune.bundle.schedulers import ray_script
    from autotune.space.job_file.load import load_job

    file = (run / "job.yaml" if run.is_dir() else run).absolute()
    devices = load_job(file, elsewhere=True)[0].devices
    return Formatted(files={"ray.slurm": ray_script(str(file), sys.executable, devices)}, lost={})


def _write_form(found: Any, form: str, out: Path | None, as_json: bool) -> int:
    """Print or write a bundle in another form, and say what is lost."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in found.files.items():
            (out / name).write_text(text, encoding="utf-8")
    if as_json:
        files = dict(found.files)
        print_json({"schema": 1, "format": form, "files": files, "lost": dict(found.lost)})
        return 0
    if out is None:
        first, *rest = found.files.items()
        echo(first[1], nl=False)
        every = "both" if len(rest) == 1 else "all"
        for name, _ in rest:
            echo(f"it needs {name} beside it: `--out DIR` writes {every}", err=True)
    for name, reason in found.lost.items():
        echo(f"not in it: {name}: {reason}", err=True)
    return 0
