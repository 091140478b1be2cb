"""What every command shares: how it prints, its exit code, its errors in words, how it is ended.

Names, data and errors come from anywhere; what a terminal would obey in them is shown instead.
`views/console.py` does the same for tables.
"""

import functools
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from autotune.errors import CONTROLS, EXIT_INTERRUPTED, EXIT_MACHINE, AutotuneError, visible


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text."""
    click.echo(visible(str(text)), err=err, nl=nl)


def say(text: object) -> None:
    """Tell on stderr what goes on, unless the command is to be quiet."""
    if not is_quiet():
        echo(text, err=True)


def is_quiet() -> bool:
    """True if the command that runs is to be quiet (`--quiet`)."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("quiet"))


def print_json(data: Any) -> None:
    """Print one JSON object on stdout."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, allow_nan=False)
    click.echo(CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def guarded(function: Callable[..., int | None]) -> Callable[..., None]:
    """Run a command's body: no traceback for what a user can cause, and the documented exit code.

    SIGTERM and a terminal that is closed end a run as Ctrl-C does.
    """

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> None:
        _open_streams()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _end_with_terminal()
        try:
            code = _exit_code(lambda: function(*args, **kwargs))
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            code = EXIT_INTERRUPTED
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending already
        sys.exit(code)

    return body


def _open_streams() -> None:
    """Open on nothing what is closed of the three streams: a file of ours would take its place."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _exit_code(call: Callable[[], int | None]) -> int:
    """Return the exit code of a call, and print the error that ended it."""
    try:
        return call() or 0
    except AutotuneError as error:
        for problem in error.problems:
            echo(f"error: {problem.render()}", err=True)
        return error.exit_code
    except OSError as error:  # a full disk, a folder that may not be written
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still printed
            return EXIT_INTERRUPTED
        place = f"{error.filename}: " if error.filename else ""
        echo(f"error: {place}{error.strerror or error}", err=True)
        return EXIT_MACHINE
    except Exception:  # our own mistake: the trace is for the report, the code is not 1
        echo(traceback.format_exc(), err=True, nl=False)
        echo("error: this is a bug; please report it with `autotune doctor --json`", err=True)
        return EXIT_MACHINE


def _reader_has_gone() -> bool:
    """True if nothing reads stdout any more (`| head`)."""
    stdout = select.poll()
    stdout.register(1, 0)
    return bool(stdout.poll(0))


def _end_with_terminal() -> None:
    """End the command where its terminal is closed, as Ctrl-C does, unless it stays (nohup)."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def hang_up(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell sends it, and the kernel
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in terminals:  # whoever writes to one that is gone fails
            os.dup2(nowhere, stream)
        signal.raise_signal(signal.SIGTERM)  # a service and a worker have their own way to end

    signal.signal(signal.SIGHUP, hang_up)
