"""`autotune run --script` and `--command`: a training that is started as its user starts it."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from autotune.cli.command import echo, print_json
from autotune.cli.doctor import say_what_fails
from autotune.cli.job_options import write_result
from autotune.errors import user_error

WORDS = "autotune.words"
"""Of a context: what stands behind `--`."""
BEHIND = "what is the script's own stands behind `--`"
BUDGETS = ("minutes", "probes", "probe_minutes", "total")
ELSEWHERE = ("server", "attach", "no_history")
"""Options that the search of a script lacks."""


class WithCommand(click.Command):
    """A command that keeps what stands behind `--` as it is, where `--script` or `--command` is
    given before it."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Take the user's own words off, and parse the rest."""
        place = args.index("--") if "--" in args else len(args)
        options = args[:place]
        if not any(word.split("=")[0] in ("--script", "--command") for word in options):
            return super().parse_args(context, args)
        context.meta[WORDS] = tuple(args[place + 1 :])
        try:
            return super().parse_args(context, options)
        except click.UsageError as error:
            raise click.UsageError(f"{error.format_message()}\n  hint: {BEHIND}", context) from None


def limits_of(sets: list[str]) -> dict[str, Any]:
    """Return the limits that flags name: `budget`, `headroom`, `devices` and pinned knobs.

    Raises:
        UserError: a flag is of a job, and a script has its own.
    """
    from autotune.job.job import as_budget
    from autotune.job.yaml_file import parse_scalar

    limits: dict[str, Any] = {}
    for assignment in sets:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise user_error(f"`{assignment}` should be NAME=VALUE", where="--set")
        room, _, field = name.partition(".")
        value = text if name == "budget" else parse_scalar(text)
        if name == "budget":
            limits["budget"] = as_budget(int(text) if text.isdecimal() else text)
        elif name == "headroom":
            limits["headroom"] = value
        elif (room, field) == ("devices", "memory") or room == "budget" and field in BUDGETS:
            limits.setdefault(room, {})[field] = value
        elif room == "fixed" or not field:
            limits.setdefault("fixed", {})[field or name] = value
        else:
            what = f"`{name}` is not a limit of a script's search"
            hint = "a script has its own model, data and recipe; set budget, devices.memory, "
            raise user_error(what, where="--set", hint=f"{hint}headroom or a knob")
    return limits


def script_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--script` and `--command`."""
    function = click.option(
        "--command",
        "as_command",
        is_flag=True,
        help="Tune the command behind `--` in place of JOB: `--command -- accelerate "
        "launch train.py ...`.",
    )(function)
    return click.option(
        "--script",
        metavar="FILE",
        help="In place of JOB your own Python script that trains by a transformers or TRL trainer; "
        "its arguments behind `--`.",
    )(function)


def is_of_script(flags: Mapping[str, Any], resume: Path | None) -> bool:
    """True if a script is searched, and no job."""
    begun = resume is not None and (resume / "script.json").is_file()
    return begun or flags["script"] is not None or bool(flags["as_command"])


def by_script(
    job: Path | None,
    sets: list[str],
    flags: Mapping[str, Any],
    out: Path | None,
    resume: Path | None,
    *,
    verify: bool,
    accept_noise: bool,
    track: tuple[str, ...],
    record: Path | None,
    quiet: bool,
    as_json: bool,
) -> Any:
    """Search the fields of a script, or go on with that; print and send what it came to.

    Returns:
        The result of the run.

    Raises:
        UserError: it cannot be tuned from outside, or an option is of jobs alone.
    """
    from autotune.cli.views.events import recorded
    from autotune.cli.views.live import run_view
    from autotune.cli.views.tracker_listener import ScriptTrackerListener
    from autotune.process.run_folder import RunFolder
    from autotune.run.opening import new_folder
    from autotune.script.tuning import tune_script
    from autotune.trackers.sending import refuse_missing

    _refuse_others(job, flags, resume, out)
    refuse_missing(track)
    if resume is not None:
        run = RunFolder(path=resume.absolute())
        command, limits = _command_of(run)
        changed = limits_of(sets)
        if changed.keys() - {"budget"}:
            hint = "start a new run for another limit"
            what = "only the budget of a resumed run may change"
            raise user_error(what, where="--set", hint=hint)
        limits = {**limits, **changed}
    else:
        command, limits = _new_command(flags["script"]), limits_of(sets)
        name = Path(flags["script"] or command.words[0]).stem
        path = out or new_folder(name)
        run = RunFolder(path=path.absolute())
        run.refuse_used()
    say_what_fails()
    with closing(ScriptTrackerListener(track, run, quiet=quiet)) as trackers:
        with run_view(quiet=quiet) as view:
            listener = recorded(record, trackers.beside(view))
            found = tune_script(
                command, run, limits, listener=listener, verify=verify, accept_noise=accept_noise
            )
        outcome = ScriptOutcome(found, run)
        if record is not None:
            write_result(record, outcome.plain())
        result = print_outcome(outcome, as_json)
        trackers.finish_run()
    return result


def _refuse_others(
    job: Path | None, flags: Mapping[str, Any], resume: Path | None, out: Path | None
) -> None:
    context = click.get_current_context()
    given = [
        f"--{name.replace('_', '-')}"
        for name in ELSEWHERE
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if job is not None:
        raise user_error("a script is searched without a job", where="JOB", hint=BEHIND)
    if given:
        what = "the search of a script does not have this option"
        raise user_error(what, where=given[0], hint="leave it out")
    script, as_command = flags["script"], flags["as_command"]
    if resume is not None and (script is not None or as_command):
        raise user_error("a resumed run keeps its script", where="--resume", hint="name it alone")
    if resume is not None and out is not None:
        raise user_error("a resumed run keeps its folder", where="--out", hint="leave it out")
    if script is not None and as_command:
        raise user_error("the command names the script", where="--script", hint="leave it out")


def _new_command(script: str | None) -> Any:
    from autotune.script.command import ScriptCommand

    words: tuple[str, ...] = click.get_current_context().meta.get(WORDS, ())
    if script is not None:
        if not Path(script).is_file():
            raise user_error("there is no such file", where=f"--script {script}")
        return ScriptCommand.of_script(script, words)
    if not words:
        hint = "for example `autotune run --command -- accelerate launch train.py`"
        raise user_error("the command must follow `--`", where="--command", hint=hint)
    return ScriptCommand(words=words)


def _command_of(run: Any) -> Any:
    from autotune.script.command import ScriptCommand

    kept = run.read(run.script)
    words, folder, limits = (kept.get(name) for name in ("words", "folder", "limits"))
    if not (isinstance(words, list) and words and isinstance(folder, str)):
        hint = "begin anew: `autotune run --script FILE`"
        raise user_error("its record of the command is damaged", where=str(run.path), hint=hint)
    return ScriptCommand(words=tuple(map(str, words)), folder=Path(folder)), limits or {}


@dataclass(frozen=True)
class ScriptOutcome:
    """A finished search of a script, and the folder that keeps it."""

    searched: Any
    run: Any

    def plain(self) -> dict[str, Any]:
        """Return what `--json` prints: as of every run, and what it says of the script."""
        from autotune.cli.views.json import result_plain

        look = self.searched.look
        return {
            **result_plain(self.searched.result, self.run.bundle),
            "script": None if look is None else look.plain(),
            "fields": dict(self.searched.fields),
            "environment": dict(self.searched.environment),
        }

    def lines(self) -> list[str]:
        """Return the end of a search, as lines of text."""
        from autotune.report.result_lines import result_lines, verification_line

        lines = result_lines(self.searched.result, str(self.run.bundle))
        if self.searched.result.outcome != "recommended":
            return lines
        lines = [line for line in lines if line != verification_line(None)]
        if self.searched.result.verification is None:
            lines.append("NOT verified: launch.sh was not started yet")
        changes = ", ".join(f"{n} {json.dumps(v)}" for n, v in sorted(self.searched.fields.items()))
        same = "none: its own settings are the fastest"
        return [
            *lines,
            f"fields that change: {changes or same}",
            f"start it: bash {self.run.launch}",
        ]


def print_outcome(outcome: ScriptOutcome, as_json: bool) -> Any:
    """Print what was found; the result of the run."""
    if as_json:
        print_json(outcome.plain())
    else:
        echo("\n".join(outcome.lines()))
    if outcome.searched.result.outcome == "interrupted":
        echo(outcome.run.interruption, err=True)
    return outcome.searched.result
