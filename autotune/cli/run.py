"""`autotune run`."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.doctor import say_what_fails
from autotune.cli.job_options import (
    all_sets,
    changes_of,
    engine_options,
    job_options,
    json_option,
    load,
    record_option,
    refuse_engine,
    track_option,
    write_result,
)
from autotune.cli.remote import JOB, refuse_local, run_there, server_option
from autotune.cli.script import WithCommand, by_script, is_of_script, script_options
from autotune.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_NOT_VERIFIED,
    EXIT_NOTHING_FITS,
    EXIT_NOTHING_MEASURED,
    user_error,
)

CODES = {
    "interrupted": EXIT_INTERRUPTED,
    "nothing_fits": EXIT_NOTHING_FITS,
    "nothing_measured": EXIT_NOTHING_MEASURED,
    "nothing_stable": EXIT_NOTHING_MEASURED,
}
ADD_SERVER = "add --server URL"


@click.command("run", cls=WithCommand)
@job_options
@script_options
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run folder to make. Default: runs/NAME-TIME."
)
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Go on with the run in this folder."
)
@click.option(
    "--no-history", is_flag=True, help="Neither use nor keep what runs of this user measured."
)
@click.option(
    "--no-verify", is_flag=True, help="Write the bundle without launching it; it says so."
)
@click.option(
    "--accept-noise",
    is_flag=True,
    help="Rank probes that ran while others took the cores, too, by the errors that were measured; "
    "the bundle is launched, but never called verified.",
)
@track_option
@server_option("run it. AUTOTUNE_TOKEN is its token.")
@click.option(
    "--attach", metavar="ID", help="With --server: follow a run that the service has already."
)
@record_option
@click.option("--quiet", is_flag=True, help="Print nothing while it runs, except errors.")
@json_option
@guarded
@engine_options
def command(
    job: Path | None,
    sets: tuple[str, ...],
    out: Path | None,
    resume: Path | None,
    no_history: bool,
    no_verify: bool,
    accept_noise: bool,
    track: tuple[str, ...],
    runs_on: Any,
    server: str | None,
    attach: str | None,
    record: Path | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Find the fastest stable configuration of JOB, or of a script, and write its verified bundle.

    JOB is a YAML file; it may be left out where flags say it all. Everything is kept in the run
    folder; Ctrl-C ends cleanly, and --resume goes on. While another run of yours has the devices
    this one waits. The exit code is 1 where the bundle failed its verification. A terminal shows
    live how far it is; piped, and where TERM is dumb or CI is set, it gets lines.

    With --script or --command your own training is started as you start it, again and again, with
    other fields, for a few steps; the bundle's launch.sh starts it with the fastest.

    With --server a service runs it on its devices, and the model and the data have to be where
    that may read them; only a bare config.json goes along. Ctrl-C then leaves the run alone, and
    --attach comes back to it; --resume ID goes on with one that was cancelled, failed or measured
    nothing. The bundle comes to --out.
    """
    if is_of_script(flags, resume):
        refuse_engine(runs_on)
        output: dict[str, Any] = {"verify": not no_verify, "accept_noise": accept_noise}
        output |= {"track": track, "record": record, "quiet": quiet, "as_json": as_json}
        limits = all_sets(sets, flags)
        return _code(by_script(job, limits, flags, out, resume, **output))
    if server is not None:
        return _by_server(server, job, all_sets(sets, flags), out, attach, resume, as_json)
    if attach is not None:
        raise user_error("only a service has runs to follow", where="--attach", hint=ADD_SERVER)
    from autotune.run import opening
    from autotune.run.session import Options
    from autotune.trackers.sending import refuse_missing

    refuse_missing(track)
    if runs_on is not None:
        runs_on.refuse_impossible()
    if resume is not None:
        _refuse_to_resume_with(out, no_history, no_verify)
        search = (*_resumed(resume, job, sets, flags), None)
        opening.change_options(search[2], **changes_of(accept_noise, runs_on))
    else:
        verify, history = not no_verify, not no_history
        options = Options(history=history, verify=verify, **changes_of(accept_noise, runs_on))
        search = (*_new(job, sets, flags, out), options)
    return _tune(search, track, record, quiet, as_json)


def _tune(
    search: Any, track: tuple[str, ...], record: Path | None, quiet: bool, as_json: bool
) -> int:
    """Run, print what it came to, and send that; the exit code."""
    from autotune.cli.views.events import recorded
    from autotune.cli.views.live import run_view
    from autotune.cli.views.tracker_listener import TrackerListener
    from autotune.process.run_folder import STORAGE
    from autotune.run.tuning import tune

    say_what_fails()
    loaded, definition, run, options = search
    storage = run.storage() if options is None else os.environ.get(STORAGE) or None
    with closing(TrackerListener(track, run, quiet=quiet)) as trackers:
        with run_view(quiet=quiet) as view:
            listener = recorded(record, trackers.beside(view))
            result = tune(
                loaded, definition, run, storage=storage, listener=listener, options=options
            )
        _print(result, run, record, as_json)
        trackers.finish_run()
    return _code(result)


def _print(result: Any, run: Any, record: Path | None, as_json: bool) -> None:
    from autotune.cli.views.json import result_plain
    from autotune.report.result_lines import result_lines

    if record is not None:
        write_result(record, result_plain(result, run.bundle))
    if as_json:
        print_json(result_plain(result, run.bundle))
    else:
        echo("\n".join(result_lines(result, str(run.bundle))))
    if result.outcome == "interrupted":
        echo(run.interruption, err=True)


def _code(result: Any) -> int:
    failed = result.verification is not None and not result.verification.holds
    return EXIT_NOT_VERIFIED if failed else CODES.get(result.outcome, EXIT_DONE)


def _by_server(
    server: str,
    job: Path | None,
    sets: list[str],
    out: Path | None,
    attach: str | None,
    resume: Path | None,
    as_json: bool,
) -> int:
    made = {"attach"} if attach is not None else {"resume"} if resume is not None else JOB
    refuse_local({"out", "quiet", *made})
    return run_there(
        server,
        job,
        sets,
        out=out,
        attach=attach,
        resume=None if resume is None else str(resume),
        as_json=as_json,
    )


def _refuse_to_resume_with(out: Path | None, no_history: bool, no_verify: bool) -> None:
    for flag, is_given, what in (
        ("--out", out is not None, "a resumed run keeps its folder"),
        ("--no-history", no_history, "a resumed run searches as it was started"),
        ("--no-verify", no_verify, "a resumed run ends as it was started"),
    ):
        if is_given:
            raise user_error(what, where=flag, hint="leave it out")


def _new(job: Path | None, sets: tuple[str, ...], flags: dict[str, Any], out: Path | None) -> Any:
    from autotune.process.run_folder import RunFolder
    from autotune.run.opening import new_folder

    loaded, definition = load(job, sets, flags)
    path = out or new_folder(job.stem if job is not None else "job")
    run = RunFolder(path=path.absolute())
    run.refuse_used()
    return loaded, definition, run


def _resumed(resume: Path, job: Path | None, sets: tuple[str, ...], flags: dict[str, Any]) -> Any:
    from autotune.process.run_folder import RunFolder
    from autotune.space.job_file.load import load_job

    run = RunFolder(path=resume.absolute())
    run.storage()
    if job is not None:
        raise user_error("a resumed run keeps its job", where="JOB", hint="leave JOB out")
    earlier, _ = load_job(run.job)
    loaded, definition = load_job(run.job, all_sets(sets, flags))
    if loaded.model_copy(update={"budget": earlier.budget}) != earlier:
        raise user_error(
            "only the budget of a resumed run may change",
            where="--set",
            hint="start a new run for another job",
        )
    return loaded, definition, run
