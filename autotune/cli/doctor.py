"""`autotune doctor`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json, say
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress
from autotune.errors import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INTERRUPTED, user_error


@click.command("doctor")
@planned_options
@click.option(
    "--speed",
    metavar="TOKENS_PER_S",
    help="The measured speed of JOB on all its devices, real tokens a second (2900, 2.9k): is it "
    "normal?",
)
@guarded
def command(speed: str | None, as_json: bool, **options: Any) -> int:
    """Say what of this machine and its stack stops a training or slows it down.

    Each finding is `ok`, `warn` (slower, or not for every job), `fail` (trainings do not
    work, or not as one would think) or `unknown` (it could not be looked at), with a remedy
    and where it was looked up. With --json it has the machine and the versions of its stack, too,
    as a bug report needs them. The exit code is 0 without a `fail`, 1 with one, 3 where the machine
    cannot be looked at.

    With --speed and JOB, a file or a model as for `plan`, it looks at no machine: it says whether
    that speed is normal, by the plan of the job as it stands, by what runs that are recorded
    reached on such a GPU, and what the best configuration would give.
    """
    if speed is not None:
        return _check_speed(speed, options, as_json)
    if (given := _given(options)) is not None:
        raise user_error(
            "a job is looked at beside its speed only",
            where=given,
            hint="add `--speed TOKENS_PER_S`; `autotune plan` plans a job",
        )
    from autotune.doctor.checks import Finding, count
    from autotune.doctor.examine import judge, look
    from autotune.plain_data import to_plain

    machine = look()
    findings = list(judge(machine))
    failed, warned = count(findings, "fail"), count(findings, "warn")
    if as_json:
        plain = {"fail": failed, "warn": warned, "findings": to_plain(findings, list[Finding])}
        print_json({"schema": 1, **_described(machine.driver.gpus), **plain})
        return EXIT_CHECK_FAILED if failed else 0
    for finding in findings:
        echo(f"{finding.state:<8}{finding.name}: {finding.found}")
        if finding.remedy:
            echo(f"        remedy: {finding.remedy}")
            echo(f"        source: {finding.source}")
    echo(f"{len(findings)} checks: {failed} fail, {warned} warn")
    return EXIT_CHECK_FAILED if failed else 0


def _given(options: dict[str, Any]) -> str | None:
    """Return an option of a job that was given; None: none was."""
    given = (name for name, value in options.items() if value and name != "stack")
    return next(("JOB" if name == "job" else f"--{name.replace('_', '-')}" for name in given), None)


def _check_speed(text: str, options: dict[str, Any], as_json: bool) -> int:
    from autotune.plan.plan import plan
    from autotune.report.speed_check import SpeedCheck, parsed_speed

    speed, planned = parsed_speed(text), PlannedJob.of(options)
    job, definition = planned.loaded()
    places: dict[str, Any] = {"device": planned.device, "assume": planned.assume}
    with scratch_folder() as folder, shown_progress() as progress:
        shown = {**places, "progress": progress}
        plain = plan(job, definition, folder / "plain", only_default=True, **shown)
        best = plan(job, definition, folder / "best", **shown)
    check = SpeedCheck(tokens_per_s=speed, plain=plain, best=best)
    if as_json:
        print_json(check.data())
    else:
        echo("\n".join(check.lines()))
    return EXIT_INTERRUPTED if plain.stopped or best.stopped else EXIT_DONE


def _described(gpus: tuple[Any, ...]) -> dict[str, Any]:
    """Return the machine and its stack."""
    import platform

    from autotune import __version__
    from autotune.facts import devices, stack
    from autotune.plain_data import to_plain

    versions = to_plain(stack.installed())
    del versions["training_fields"]
    return {
        "autotune": __version__,
        "platform": "-".join([platform.system(), platform.release(), platform.machine()]),
        "stack": versions,
        "devices": to_plain([devices.cpu(), *gpus], list[devices.DeviceFacts]),
    }


def say_what_fails() -> None:
    """Say on stderr what fails of the machine that a run is about to use; it goes on."""
    from autotune.doctor.examine import preflight

    for finding in preflight():
        say(f"{finding.name}: {finding.found}; {finding.remedy}")
