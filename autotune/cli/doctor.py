"""`autotune doctor`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json, say
from autotune.cli.job_options import json_option
from autotune.errors import EXIT_CHECK_FAILED


@click.command("doctor")
@json_option
@guarded
def command(as_json: bool) -> int:
    """Say what of this machine and its stack stops a training or slows it down.

    Each finding is `ok`, `warn` (slower, or not for every job), `fail` (trainings do not
    work, or not as one would think) or `unknown` (it could not be looked at), with a remedy
    and where it was looked up. With --json it has the machine and the versions of its stack, too,
    as a bug report needs them. The exit code is 0 without a `fail`, 1 with one, 3 where the machine
    cannot be looked at.
    """
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
