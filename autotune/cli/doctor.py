"""`autotune doctor`."""

from dataclasses import asdict

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.guarded import guarded
from autotune.cli.job_options import json_option
from autotune.errors import EXIT_CHECK_FAILED


@click.command("doctor")
@json_option
@guarded
def command(as_json: bool) -> int:
    """Say what of this machine and its stack stops a training, bends it or slows it down.

    Each finding is `ok`, `warn` (slower, or not for every job), `fail` (trainings do not
    work, or not as one would think) or `unknown` (it could not be looked at), with a remedy
    and where it was looked up. The exit code is 0 without a `fail`, 1 with one, 3 where
    the machine cannot be looked at.
    """
    from autotune.doctor.examine import judge, look
    from autotune.doctor.finding import count

    findings = list(judge(look()))
    failed, warned = count(findings, "fail"), count(findings, "warn")
    if as_json:
        plain = [asdict(finding) for finding in findings]
        print_json({"schema": 1, "fail": failed, "warn": warned, "findings": plain})
        return EXIT_CHECK_FAILED if failed else 0
    for finding in findings:
        echo(f"{finding.state:<8}{finding.name}: {finding.found}")
        if finding.remedy:
            echo(f"        remedy: {finding.remedy}")
            echo(f"        source: {finding.source}")
    echo(f"{len(findings)} checks: {failed} fail, {warned} warn")
    return EXIT_CHECK_FAILED if failed else 0
