"""`autotune plan`."""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from autotune.cli.job_options import guarded, job_options, json_option, load, print_json
from autotune.errors import user_error

MAXIMA = ("per_device_train_batch_size", "max_length")


@click.command("plan")
@job_options
@click.option(
    "--device", metavar="KIND", help="Plan for this GPU (h200, a100-40gb, memory=24GiB) or `cpu`."
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    help="How many; how the training is spread over them is searched.",
)
@click.option("--fits", is_flag=True, help="Only candidates that fit.")
@click.option("--top", type=click.IntRange(min=1), help="Only the first so many.")
@click.option(
    "--max", "maximum", type=click.Choice(MAXIMA), help="The largest value of this knob that fits."
)
@click.option("--min-devices", is_flag=True, help="How few of these GPUs would do.")
@click.option("--advise", is_flag=True, help="Where it does not fit: what would make it fit.")
@json_option
@guarded
def command(
    job: Path | None,
    sets: tuple[str, ...],
    device: str | None,
    devices: int,
    fits: bool,
    top: int | None,
    maximum: str | None,
    min_devices: bool,
    advise: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Say what every candidate of JOB will take, before anything runs on the device.

    Nothing is downloaded but the model's config, and no GPU is needed. Without JOB, `--model`,
    `--max-length` and `--set` describe one candidate. The exit code is 1 where nothing fits.
    """
    if advise and (maximum is not None or fits or top):
        raise user_error("`--advise` goes with none of --max, --fits and --top", where="--advise")
    if min_devices and (advise or maximum is not None or fits or top or devices > 1):
        raise user_error("`--min-devices` goes with --device alone", where="--min-devices")
    if min_devices:
        return _fewest(job, sets, flags, device, as_json)
    if maximum is not None:
        return _largest(job, sets, flags, device, devices, maximum, as_json)
    if advise:
        return _advice(job, sets, flags, device, devices, as_json)
    from autotune.planning import plan

    loaded, definition = _loaded(job, sets, flags, device, devices)
    with _scratch() as folder, _shown() as told:
        made = plan(
            loaded,
            definition,
            folder,
            device=device,
            devices=devices,
            only_default=job is None,
            told=told,
        )
    chosen = [(one, estimate) for one, estimate in made.ranked() if estimate.fits or not fits]
    chosen = chosen[:top] if top else chosen
    if as_json:
        from autotune.report.plan import plan_plain

        print_json(plan_plain(made, chosen))
    else:
        from rich.console import Console

        from autotune.report.plan import plan_view

        Console(width=None if Console().is_terminal else 160).print(*plan_view(made, chosen))
    return 0 if any(estimate.fits for estimate in made.estimates.values()) else 1


def _fewest(
    job: Path | None,
    sets: tuple[str, ...],
    flags: dict[str, Any],
    device: str | None,
    as_json: bool,
) -> int:
    from autotune.fewest import fewest
    from autotune.report.fewest import fewest_lines, fewest_plain

    loaded, definition = _loaded(job, sets, flags, device, 1)
    with _scratch() as folder, _shown() as told:
        tried = fewest(loaded, definition, folder, device=device, told=told)
    if as_json:
        print_json(fewest_plain(tried))
    else:
        click.echo("\n".join(fewest_lines(tried)))
    return 0 if tried[-1].fits else 1


def _largest(
    job: Path | None,
    sets: tuple[str, ...],
    flags: dict[str, Any],
    device: str | None,
    devices: int,
    maximum: str,
    as_json: bool,
) -> int:
    from autotune.largest import largest
    from autotune.report.plan import largest_plain, largest_view

    loaded, definition = _loaded(job, sets, flags, device, devices)
    with _scratch() as folder:
        answer = largest(loaded, definition, folder, maximum, device=device, devices=devices)
    if as_json:
        print_json(largest_plain(answer))
    else:
        click.echo(largest_view(answer))
    return 0 if answer.value is not None else 1


def _advice(
    job: Path | None,
    sets: tuple[str, ...],
    flags: dict[str, Any],
    device: str | None,
    devices: int,
    as_json: bool,
) -> int:
    from autotune.advising import advise
    from autotune.report.advice import advice_lines, advice_plain

    loaded, definition = _loaded(job, sets, flags, device, devices)
    with _scratch() as folder:
        advice = advise(loaded, definition, folder, device=device, devices=devices)
    if as_json:
        print_json(advice_plain(advice))
    else:
        click.echo("\n".join(advice_lines(advice)))
    return 0 if advice.fits or advice.ways else 1


def _loaded(
    job: Path | None,
    sets: tuple[str, ...],
    flags: dict[str, Any],
    device: str | None,
    devices: int,
) -> Any:
    """(Job, SpaceDefinition) to be planned for these devices."""
    sets = _sets(job, sets, flags, devices)
    return load(job, sets, flags, device=device, devices=devices, figures=True)


@contextlib.contextmanager
def _shown() -> Iterator[Any]:
    """What shows on stderr how far estimates are."""
    from rich.console import Console

    from autotune.report.estimating import EstimatesShown

    shown = EstimatesShown(Console(stderr=True))
    try:
        yield shown
    finally:
        shown.clear()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that is gone afterwards, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-plan-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sets(
    job: Path | None, sets: tuple[str, ...], flags: dict[str, Any], devices: int
) -> tuple[str, ...]:
    """What one candidate without a job file leaves open: lengths for data, its own batch."""
    if job is not None:
        return sets
    named = dict(one.partition("=")[::2] for one in sets)
    length = flags["max_length"] or named.get("max_length")
    if flags["model"] is None and "model" not in named:
        raise user_error(
            "a job is needed", hint="name a job file, or give --model and --max-length"
        )
    if length is None:
        raise user_error("without a job file a length is needed", hint="add --max-length 1024")
    from autotune.methods import METHODS, SFT

    method = METHODS.get(flags["method"] or named.get("method", ""), SFT)
    if method.online:  # the length is that of prompts, which are not cut
        flags["max_length"] = None
        sets = tuple(one for one in sets if not one.startswith("max_length="))
    added = []
    if flags["dataset"] is None and not any(name.startswith("dataset") for name in named):
        added.append(f"dataset={{lengths: {{max: {length}}}}}")
    if flags["global_batch_size"] is None and "global_batch_size" not in named:
        batch = named.get("per_device_train_batch_size", "8")
        rows = 2 * int(batch) if batch.isdigit() else 8
        if method.online:
            group = named.get("num_generations", "8")
            rows = math.lcm(rows, int(group) if group.isdigit() and group != "0" else 8)
        added.append(f"global_batch_size={devices * rows}")
    return (*sets, *added)
