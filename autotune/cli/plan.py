"""`autotune plan`."""

import dataclasses
import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json, say
from autotune.cli.job_options import all_sets, record_option, write_result
from autotune.cli.planned_job import (
    INSTALLED,
    PlannedJob,
    planned_options,
    scratch_folder,
    shown_progress,
)
from autotune.cli.remote import JOB, plan_there, refuse_local, refuse_used_folder, server_option
from autotune.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOTHING_FITS, UserError, user_error

_WIDTH = 80


def compare(
    planned: PlannedJob,
    devices: str,
    prices: str | None,
    deadline: str | None,
    at_most: str | None,
    *,
    record: Path | None,
    as_json: bool,
) -> int:
    """Print the best configuration on each machine, with time and money; return the exit code.

    Raises:
        UserError: a device, a price file or a limit cannot be.
    """
    from autotune.facts.machines import machines_of
    from autotune.facts.prices import prices_of
    from autotune.report import machines as report

    machines = machines_of(devices)
    priced = None if prices is None else prices_of(prices)
    try:
        limits = report.limits_of(deadline, at_most, priced)
    except UserError as error:
        raise UserError(*map(_as_option, error.problems)) from None
    open_tuning = planned.leaves_tuning_open
    answers: dict[str, dict[str, Any]] = {}
    some_keep_limits = False
    with shown_progress(record) as progress:
        for tuning in ("lora", "full") if open_tuning else (None,):
            job, definition = planned.loaded(tuning, says=False, several=True)
            with scratch_folder() as folder:
                rows = report.machine_rows(
                    job, definition, folder, machines, assume=planned.assume, progress=progress
                )
            made = report.offers(rows, priced, limits)
            some_keep_limits |= any(offer.within for offer in made)
            lines = list(report.machine_lines(rows, made, priced, limits))
            lines += report.closing_lines(job, made)
            answers[job.tuning] = report.machines_plain(rows, made, lines, priced)
    assumed = list(planned.assumed)
    first, *others = answers.values()
    plain = {**first, "assumed": assumed, "other_tuning": next(iter(others), None)}
    if record is not None:
        write_result(record, plain)
    if as_json:
        print_json(plain)
    else:
        for tuning, answer in answers.items():
            _print_machines(tuning if open_tuning else None, answer)
        for text in assumed:
            echo(textwrap.fill(f"Assumed: {text}.", _WIDTH, break_on_hyphens=False))
    return EXIT_DONE if some_keep_limits else EXIT_NOTHING_FITS


def _as_option(problem: Any) -> Any:
    return dataclasses.replace(problem, where=f"--{problem.where.replace('_', '-')}")


def _print_machines(tuning: str | None, answer: dict[str, Any]) -> None:
    """Print a plan; of a tuning that is one of two without its table where nothing is safe."""
    from autotune.report.words import tuning_text

    is_safe = any(one["safe"] and one["job_s"] is not None for one in answer["machines"])
    head = "" if tuning is None else f"{tuning_text(tuning)}: "
    for number, line in enumerate(answer["lines"]):
        echo(textwrap.fill(f"{head if number == 0 else ''}{line}", _WIDTH, break_on_hyphens=False))
    if is_safe:
        echo("")
    if is_safe or tuning is None:
        print_table(answer["table"])


def print_table(table: dict[str, Any]) -> None:
    """Print a table, and what its signs mean; its last column is cut at the width of the page."""
    cells = [table["heads"], *table["rows"]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]) - 1)]
    for row in cells:
        figures = [
            text.ljust(width) if n < 2 else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = "  ".join([*figures, row[-1]]).rstrip()
        echo(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…")
    if table["notes"]:
        echo("; ".join(table["notes"]))
    echo("")


@click.command("plan")
@planned_options
@record_option
@click.option(
    "--all", "every", is_flag=True, help="Every candidate, also those that no estimate prefers."
)
@click.option(
    "--only-default",
    is_flag=True,
    help="The default candidate alone, pinned knobs as pinned: what the job takes as it stands.",
)
@click.option("--fits", is_flag=True, help="Only what fits.")
@click.option(
    "--trace-all",
    is_flag=True,
    help="Trace DeepSpeed and FSDP for every candidate, not for the most promising only (slow).",
)
@click.option(
    "--top", type=click.IntRange(min=1), help="That many rows, from the first (default: 12)."
)
@click.option(
    "--emit",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the bundle of the answer there, marked as not verified. Where nothing is safe, "
    "nothing is written and the exit code is 1.",
)
@click.option(
    "--prices",
    metavar="FILE",
    help="With several devices: what an hour of each kind costs (a line a kind: `h100: 2.50`), or "
    "`listed`: the dated table in the package.",
)
@click.option("--deadline", metavar="TIME", help="With several devices: the job has to end in 20h.")
@click.option(
    "--at-most", metavar="MONEY", help="With --prices: the whole job may cost that much (`50$`)."
)
@server_option("plan it. AUTOTUNE_TOKEN is its token.")
@guarded
def command(
    every: bool,
    only_default: bool,
    fits: bool,
    top: int | None,
    trace_all: bool,
    emit: Path | None,
    record: Path | None,
    server: str | None,
    prices: str | None,
    deadline: str | None,
    at_most: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Say what to use for JOB, and why, before anything runs on the device.

    JOB is a file, or a model by its name (`qwen2.5-7b`), folder or config.json: flags say the rest,
    and what they leave open is assumed and named. Without `--device` it plans for what is here; a
    model by its name, where no GPU is, for the kinds that people have.

    With several in `--device` (`h100,4xl40s`, `all`) it has a row for each, with the best
    configuration there, how long the job takes, and with `--prices` what it costs.

    Nothing is downloaded but the model's config, and no GPU is needed. The exit code is 1 where
    nothing fits. Ctrl-C ends it with what is known by then, and with exit code 130.

    With --server a service plans it: model and data have to be where that may read them; only a
    bare config.json goes along.
    """
    planned = PlannedJob.of(options)
    asked = {"prices": prices, "deadline": deadline, "at_most": at_most}
    machines = planned.several or (planned.device if any(asked.values()) else None)
    if server is not None:
        machines = machines and planned.device  # what is here does not count there
    _refuse_together(machines, asked, {"emit": emit, "only-default": only_default, "all": every})
    if server is not None:
        return _by_server(server, planned, emit, as_json, only_default=only_default, **asked)
    if machines is not None:
        return compare(planned, machines, *asked.values(), record=record, as_json=as_json)
    refuse_used_folder(emit)
    job, answer, other = _planned(
        planned, record, only_default=only_default, every=every, trace_all=trace_all
    )
    from autotune.cli.views.plan import plan_plain, plan_view

    bundle = None if emit is None else _emitted(answer, job, emit)
    chosen = [pair for pair in answer.ranked() if pair[1].fits or not fits][:top]
    plain = plan_plain(answer, chosen, other, bundle, fits=fits, top=top)
    if record is not None:
        _keep(answer, job, record, plain)
    if as_json:
        print_json(plain)
    else:
        command = _next_step(planned, job.tuning, None if bundle is None else emit)
        view = plan_view(answer, chosen, command=command, every=every, fits=fits, top=top)
        _print([*view, *_other_words(other)], every, bundle)
    if answer.stopped:
        return EXIT_INTERRUPTED
    return EXIT_NOTHING_FITS if emit is not None and bundle is None else _code(answer)


def _planned(
    planned: PlannedJob, record: Path | None, *, only_default: bool, every: bool, trace_all: bool
) -> tuple[Any, Any, tuple[str, Any] | None]:
    """Return (job, its plan, the other tuning with its plan; None: the tuning is given).

    Where it is open, all weights are trained if that is safe, else adapters; the other is planned,
    too.
    """
    from autotune.plan.plan import plan
    from autotune.plan.questions.ways import MOST_WAYS
    from autotune.plan.trace_choice import EVERY, PROMISING
    from autotune.report.words import tuning_text

    def planned_by(tuning: str | None, progress: Any) -> tuple[Any, Any]:
        if tuning is not None:
            progress.looking_at(tuning_text(tuning))
        job, answer = planned.answer(
            plan,
            tuning=tuning,
            progress=progress,
            only_default=only_default,
            whole_space=every,
            effort=EVERY if trace_all else PROMISING,
            ways=0 if tuning == "full" else MOST_WAYS,
        )
        return job, dataclasses.replace(answer, assumed=(*planned.assumed, *answer.assumed))

    with shown_progress(record) as progress:
        if not planned.leaves_tuning_open:
            return *planned_by(None, progress), None
        job, full = planned_by("full", progress)
        lora_job, lora = planned_by("lora", progress)
    if full.answer is not None and full.answer.choice.safe:
        return job, full, ("lora", lora)
    return lora_job, lora, ("full", full)


def _other_words(other: tuple[str, Any] | None) -> list[str]:
    """Return the line about the other tuning."""
    from rich.markup import escape

    from autotune.report.plan_answer import other_tuning_line

    return [] if other is None else [f"{escape(other_tuning_line(*other))}\n"]


def _refuse_together(
    machines: str | None, asked: dict[str, str | None], alone: dict[str, Any]
) -> None:
    """Refuse options of one device beside several machines, and those of machines beside none."""
    several = machines is not None
    what = "it compares machines, but no device is named"
    hint = "name some with `--device h100,l40s`, or `--device all`"
    if several:
        what = "it is of one device, but several are compared"
        hint = "name one device in --device (`--device h100 --devices 8`), or leave it out"
    for name, value in (alone if several else asked).items():
        if value:
            raise user_error(what, where=f"--{name.replace('_', '-')}", hint=hint)


def _code(answer: Any) -> int:
    fits = any(estimate.fits for estimate in answer.estimates.values())
    return EXIT_DONE if fits else EXIT_NOTHING_FITS


def _by_server(
    server: str, planned: PlannedJob, emit: Path | None, as_json: bool, **asked: Any
) -> int:
    from autotune.facts.prices import LISTED
    from autotune.space.job_file.flags import completed

    refuse_local({*JOB, "device", "devices", "nodes", "stack", "emit", *asked})
    if asked["prices"] not in (None, LISTED):
        what = f"a service does not take your file of prices: `{asked['prices']}`"
        hint = f"write `--prices {LISTED}`, or leave out --server"
        raise user_error(what, where="--prices", hint=hint)
    sets = all_sets(planned.all_sets(), planned.flags)
    if planned.job is None:
        sets, assumed = completed(sets)
        for text in assumed:
            say(f"assumed: {text}")
    asked |= {"device": planned.device, "stack": "any" if planned.assume else INSTALLED}
    return plan_there(server, planned.job, sets, emit=emit, as_json=as_json, **asked)


def _keep(answer: Any, job: Any, record: Path, plain: dict[str, Any]) -> None:
    """Write down what `--json` prints, and the files of the answer where it is safe."""
    from autotune.run.planned_bundle import emit_plan, unsafe_reason

    write_result(record, plain)
    if unsafe_reason(answer) is None:
        emit_plan(answer, job, record / "bundle")


def _print(view: Iterable[Any], wide: bool, bundle: Path | None) -> None:
    """Print a plan; where there is no terminal, at 80 columns."""
    from autotune.bundle.planned import MARK
    from autotune.cli.views.console import PlainConsole

    width = None if PlainConsole().is_terminal else 160 if wide else 80
    PlainConsole(width=width).print(*view, sep="", highlight=False)
    if bundle is not None:
        echo(f"bundle: {bundle} ({MARK})")


def _next_step(planned: PlannedJob, tuning: str, emitted: Path | None) -> str:
    """Return what goes on from the answer, as a sentence.

    Args:
        tuning: of the answer.
    """
    if emitted is not None:
        folder = shlex.quote(str(emitted))
        return f"`autotune verify {folder}` on the training machine verifies it."
    words = [] if planned.job is None else [str(planned.job)]
    for name, value in planned.flags.items():
        if value is not None:
            words += (
                [str(value)] if name == "model" else [f"--{name.replace('_', '-')}", str(value)]
            )
    words += [part for text in planned.all_sets() for part in ("--set", text)]
    words += ["--tuning", tuning] if planned.leaves_tuning_open else []
    return f"`autotune run {shlex.join(words)}` on the training machine measures and verifies it."


def _emitted(answer: Any, job: Any, folder: Path) -> Path | None:
    """Return the bundle of a plan's answer, written now; None: nothing is safe, which is said."""
    from autotune.run.planned_bundle import emit_plan, unsafe_reason

    unsafe = unsafe_reason(answer)
    if unsafe is None:
        return emit_plan(answer, job, folder)
    echo(f"{folder} was not written: {unsafe}", err=True)
    return None
