"""`autotune plan`."""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
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
    help="How many, in place of the job's; how the training is spread over them is searched.",
)
@click.option(
    "--nodes", type=click.IntRange(min=1), help="On how many machines, each with so many devices."
)
@click.option("--fits", is_flag=True, help="Only candidates that fit.")
@click.option(
    "--trace-all",
    is_flag=True,
    help="Trace DeepSpeed and FSDP for every candidate, not for the most promising only (slow).",
)
@click.option("--top", type=click.IntRange(min=1), help="Only the first so many.")
@click.option(
    "--max", "maximum", type=click.Choice(MAXIMA), help="The largest value of this knob that fits."
)
@click.option("--min-devices", is_flag=True, help="How few of these GPUs would do.")
@click.option("--advise", is_flag=True, help="Where it does not fit: what would make it fit.")
@json_option
@guarded
def command(
    fits: bool,
    top: int | None,
    maximum: str | None,
    min_devices: bool,
    advise: bool,
    trace_all: bool,
    **asked: Any,
) -> int:
    """Say what every candidate of JOB will take, before anything runs on the device.

    Nothing is downloaded but the model's config, and no GPU is needed. Without JOB, `--model`,
    `--max-length` and `--set` describe one candidate. The exit code is 1 where nothing fits.
    """
    if advise and (maximum is not None or fits or top):
        raise user_error(
            "`--advise` cannot be combined with --max, --fits or --top", where="--advise"
        )
    if trace_all and (advise or min_devices or maximum is not None):
        what_goes = "`--trace-all` cannot be combined with --advise, --min-devices or --max"
        raise user_error(what_goes, where="--trace-all")
    alone = not (advise or maximum is not None or fits or top or asked["devices"] or asked["nodes"])
    if min_devices and not alone:
        raise user_error(
            "`--min-devices` can be combined with --device only", where="--min-devices"
        )
    names = ("job", "sets", "device", "devices", "nodes", "as_json")
    named = {name: asked.pop(name) for name in names}
    what = _Asked(**named, flags=asked)
    if min_devices:
        return _fewest(what)
    if maximum is not None:
        return _largest(what, maximum)
    if advise:
        return _advice(what)
    return _candidates(what, fits=fits, top=top, trace_all=trace_all)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The job as the options have it, and where it is planned for."""

    job: Path | None
    sets: tuple[str, ...]
    flags: dict[str, Any]
    device: str | None
    devices: int | None
    nodes: int | None
    as_json: bool

    def loaded(self) -> Any:
        """(Job, SpaceDefinition)."""
        sets = self.sets
        if self.devices is not None:
            sets = (*sets, f"devices.count={self.devices}")
        if self.nodes is not None:
            sets = (*sets, f"devices.nodes={self.nodes}")
        sets = _sets(self.job, sets, self.flags, (self.devices or 1) * (self.nodes or 1))
        return load(self.job, sets, self.flags, device=self.device, figures=True)


def _candidates(asked: _Asked, *, fits: bool, top: int | None, trace_all: bool) -> int:
    from autotune.plan.engines import EVERY, PROMISING
    from autotune.plan.plan import plan

    loaded, definition = asked.loaded()
    with _scratch() as folder, _shown() as told:
        made = plan(
            loaded,
            definition,
            folder,
            device=asked.device,
            only_default=asked.job is None,
            effort=EVERY if trace_all else PROMISING,
            told=told,
        )
    chosen = [(one, estimate) for one, estimate in made.ranked() if estimate.fits or not fits]
    chosen = chosen[:top] if top else chosen
    if asked.as_json:
        from autotune.cli.views.plan import plan_plain

        print_json(plan_plain(made, chosen))
    else:
        from rich.console import Console

        from autotune.cli.views.plan import plan_view

        Console(width=None if Console().is_terminal else 160).print(*plan_view(made, chosen))
    return 0 if any(estimate.fits for estimate in made.estimates.values()) else 1


def _fewest(asked: _Asked) -> int:
    from autotune.cli.views.fewest import fewest_lines, fewest_plain
    from autotune.plan.questions.fewest_devices import fewest

    loaded, definition = asked.loaded()
    with _scratch() as folder, _shown() as told:
        tried = fewest(loaded, definition, folder, device=asked.device, told=told)
    if asked.as_json:
        print_json(fewest_plain(tried))
    else:
        click.echo("\n".join(fewest_lines(tried)))
    return 0 if tried[-1].fits else 1


def _largest(asked: _Asked, maximum: str) -> int:
    from autotune.cli.views.plan import largest_plain, largest_view
    from autotune.plan.questions.largest import largest

    loaded, definition = asked.loaded()
    with _scratch() as folder:
        answer = largest(loaded, definition, folder, maximum, device=asked.device)
    if asked.as_json:
        print_json(largest_plain(answer))
    else:
        click.echo(largest_view(answer))
    return 0 if answer.value is not None else 1


def _advice(asked: _Asked) -> int:
    from autotune.cli.views.advice import advice_lines, advice_plain
    from autotune.plan.questions.advice import advise

    loaded, definition = asked.loaded()
    with _scratch() as folder, _shown() as told:
        advice = advise(
            loaded, definition, folder, device=asked.device, told=told, about=told.about
        )
    if asked.as_json:
        print_json(advice_plain(advice))
    else:
        click.echo("\n".join(advice_lines(advice)))
    return 0 if advice.fits or advice.ways else 1


@contextlib.contextmanager
def _shown() -> Iterator[Any]:
    """What shows on stderr how far estimates are."""
    from rich.console import Console

    from autotune.cli.views.progress import EstimatesShown

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
    from autotune.job.methods import METHODS, SFT

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
