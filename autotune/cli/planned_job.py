"""What `plan`, `limits` and `advise` share: the job as their options have it, and where it is
planned for."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from autotune.cli.job_options import all_sets, job_options, json_option, load
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
            help="Plan for this GPU (h200, 'RTX 3070', '24 GB', or "
            "memory=24GiB,tflops=165,bandwidth=1000) or `cpu`; `plan` compares several "
            "(h100,4xl40s,rtx-4090; or `all`).",
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

    def answer(
        self,
        question: Callable[..., Any],
        *about: Any,
        tuning: str | None = None,
        progress: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Return (the job, what a question about it is answered) for the device of the options.

        Args:
            tuning: takes the place of what the options leave open.
            progress: None: one is shown on stderr, and what flags alone leave open is printed.

        Raises:
            UserError: the job cannot be, or `--device` names several.
        """
        job, definition = self.loaded(tuning, says=progress is None)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(scratch_folder())
            options["progress"] = progress or stack.enter_context(shown_progress())
            places = {"device": self.device, "assume": self.assume}
            return job, question(job, definition, folder, *about, **places, **options)

    def loaded(self, tuning: str | None = None, *, says: bool = True, several: bool = False) -> Any:
        """Return the (Job, SpaceDefinition).

        Args:
            tuning: takes the place of what the options leave open.
            says: whether it is printed what flags alone leave open; `assumed` has it.
            several: whether `--device` may name several.
        """
        from autotune.facts.machines import names_several

        if names_several(self.device) and not several:
            raise user_error(
                f"`{self.device}` names several devices",
                where="--device",
                hint="name one kind, and their number by --devices; `autotune plan` compares them",
            )
        sets = self.all_sets() if tuning is None else (*self.all_sets(), f"tuning={tuning}")
        return load(self.job, sets, self.flags, says=says)

    def all_sets(self) -> tuple[str, ...]:
        """Return the `--set` values, with those of `--devices` and `--nodes`."""
        sets = self.sets
        if self.devices is not None:
            sets = (*sets, f"devices.count={self.devices}")
        if self.nodes is not None:
            sets = (*sets, f"devices.nodes={self.nodes}")
        return sets

    @property
    def assumed(self) -> tuple[str, ...]:
        """The sentences about what flags alone leave open, but for the tuning."""
        from autotune.space.job_file.flags import completed

        if self.job is not None:
            return ()
        open_sets = all_sets(self.all_sets(), self.flags)
        return completed([*open_sets, "tuning=full"] if self.leaves_tuning_open else open_sets)[1]

    @property
    def leaves_tuning_open(self) -> bool:
        """True if neither a file nor a flag says how to tune."""
        given = all_sets(self.sets, self.flags)
        return self.job is None and not any(text.startswith("tuning=") for text in given)

    @property
    def several(self) -> str | None:
        """The machines to compare, as a text; None: one device is planned for.

        A job of flags that names no device is planned for what is here; where no GPU is, for the
        kinds that people have.
        """
        from autotune.facts.machines import ALL, names_several

        if names_several(self.device):
            return self.device
        devices = (text for text in self.sets if text.startswith("devices"))
        if self.device is not None or self.job is not None or any(devices):
            return None
        from autotune.facts.devices import gpu_count

        return None if gpu_count() else ALL


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
