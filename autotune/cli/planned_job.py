"""What `plan`, `limits` and `advise` share: the job as their options have it, and where it is
planned for."""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from autotune.cli.job_options import job_options, json_option, load
from autotune.errors import user_error

INSTALLED = "installed"


def planned_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """JOB and its flags, the devices to plan for, and `--json`."""
    for option in (
        json_option,
        click.option(
            "--nodes",
            type=click.IntRange(min=1),
            help="Number of machines, each with that many devices.",
        ),
        click.option(
            "--devices",
            type=click.IntRange(min=1),
            help="Number of devices, in place of the job's; autotune searches how to spread the "
            "training over them.",
        ),
        click.option(
            "--stack",
            type=click.Choice(("any", INSTALLED)),
            default="any",
            help="Packages on the machine of `--device`: any that its GPU can use, or only those "
            "that are installed here.",
        ),
        click.option(
            "--device",
            metavar="KIND",
            help="Plan for this GPU (h200, 'RTX 3070', memory=24GiB,tflops=165,bandwidth=1000) or "
            "`cpu`.",
        ),
        job_options,
    ):
        function = option(function)
    return function


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """The job as the options have it, and where it is planned for.

    Attributes:
        assume: whether every package is taken to be on the machine of `device`.
        flags: the flags of `job_options` by name.
    """

    job: Path | None
    sets: tuple[str, ...]
    flags: dict[str, Any]
    device: str | None
    devices: int | None
    nodes: int | None
    assume: bool = True

    @classmethod
    def of(cls, options: dict[str, Any]) -> "PlannedJob":
        """Return the job of the options that `planned_options` adds."""
        names = ("job", "sets", "device", "devices", "nodes")
        flags = {n: value for n, value in options.items() if n not in (*names, "stack")}
        assume = options["stack"] != INSTALLED
        return cls(**{name: options[name] for name in names}, flags=flags, assume=assume)

    def loaded(self) -> Any:
        """Return the (Job, SpaceDefinition)."""
        sets = self.completed()
        return load(self.job, sets, self.flags, device=self.device, figures=True)

    def completed(self) -> tuple[str, ...]:
        """Return the `--set` values, with those of `--devices` and `--nodes`, and the open ones."""
        sets = self.sets
        if self.devices is not None:
            sets = (*sets, f"devices.count={self.devices}")
        if self.nodes is not None:
            sets = (*sets, f"devices.nodes={self.nodes}")
        return _sets(self.job, sets, self.flags, (self.devices or 1) * (self.nodes or 1))


@contextlib.contextmanager
def shown_progress(record: Path | None = None) -> Iterator[Any]:
    """Yield a progress that is shown on stderr, and written down where that is asked for."""
    from autotune.cli.views.console import EstimatesShown, PlainConsole

    progress = EstimatesShown(PlainConsole(stderr=True))
    try:
        if record is None:
            yield progress
        else:
            from autotune.cli.views.events import recorded

            yield recorded(record, cast(Any, progress))  # a plan has no other events
    finally:
        progress.clear()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder that is gone afterwards, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-plan-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sets(
    job: Path | None, sets: tuple[str, ...], flags: dict[str, Any], devices: int
) -> tuple[str, ...]:
    """Return what one candidate without a job file leaves open: lengths for data, its own batch."""
    if job is not None:
        return sets
    assignments = dict(text.partition("=")[::2] for text in sets)
    length = flags["max_length"] or assignments.get("max_length")
    if flags["model"] is None and "model" not in assignments:
        raise user_error(
            "a job is needed", hint="name a job file, or give --model and --max-length"
        )
    if length is None:
        raise user_error("without a job file a length is needed", hint="add --max-length 1024")
    from autotune.job.methods import METHODS, SFT

    method = METHODS.get(flags["method"] or assignments.get("method", ""), SFT)
    if method.online:  # the length is that of prompts, which are not cut
        flags["max_length"] = None
        sets = tuple(text for text in sets if not text.startswith("max_length="))
    added = []
    if flags["dataset"] is None and not any(name.startswith("dataset") for name in assignments):
        added.append(f"dataset={{lengths: {{max: {length}}}}}")
    if flags["global_batch_size"] is None and "global_batch_size" not in assignments:
        batch = assignments.get("per_device_train_batch_size", "8")
        rows = 2 * int(batch) if batch.isdigit() else 8
        if method.online:
            group = assignments.get("num_generations", "8")
            rows = math.lcm(rows, int(group) if group.isdigit() and group != "0" else 8)
        added.append(f"global_batch_size={devices * rows}")
    return (*sets, *added)
