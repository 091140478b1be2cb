"""The command line: parse, make one call, print. One file a command.

stdout is data, stderr is talk. Commands are loaded when they are called, so that `--help` answers
at once.
"""

import importlib
import sys
from typing import Any

import click

from autotune import __version__

COMMANDS = {
    "init": "Ask four questions and write a commented job.",
    "import": "Make a job of a configuration of TRL, Axolotl, LLaMA-Factory and others.",
    "run": "Find the fastest stable configuration of a job and write its verified bundle.",
    "plan": "Say what every candidate of a job will take, before anything runs.",
    "limits": "Say how far a job can go: largest micro-batch, longest rows.",
    "advise": "Say what would make a job fit, each change with its price in speed.",
    "probe": "Measure one candidate of a job.",
    "verify": "Launch the bundle of a run or a plan for a few steps and compare with its promise.",
    "emit": "Write the bundle of a run, or of one of its probes, again.",
    "check": "Say whether the files of a launch agree, before it runs.",
    "report": "Show what a run measured and recommends.",
    "validate": "Check a job file and print it resolved, or show its search space.",
    "serve": "Serve plans, runs and history to browsers and programs.",
    "worker": "Do the plans and runs of a service, on this machine's devices.",
    "doctor": "Say what of this machine and its stack stops trainings or slows them down.",
}


class _Commands(click.Group):
    """A group whose commands are imported on call."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except OSError as error:  # of what click prints itself: a full disk
            click.echo(f"error: {error.strerror}", err=True)
            sys.exit(3)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # `import` is a word of Python's, and no name of a module.
        name = "import_job" if cmd_name == "import" else cmd_name
        module = importlib.import_module(f"autotune.cli.{name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from autotune.errors import nearest

            hint = nearest(args[0], COMMANDS)
            raise click.UsageError(f"{error.message} {hint or ''}".strip(), ctx) from None


@click.command(cls=_Commands)
@click.version_option(version=__version__)
def main() -> None:
    """Find the fastest stable configuration of a fine-tuning job by running short real training
    steps on this machine's own devices.

    Exit codes: 0 done, 1 nothing fits or a verification failed, 2 the job file or flags, 3 the
    machine, 4 no probe came to its end or the machine was too busy, 130 interrupted.
    """
