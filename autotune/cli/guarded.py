"""What every command is wrapped in: its exit code, its errors in words, and how it is ended."""

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from autotune.cli.echo import echo
from autotune.errors import EXIT_INTERRUPTED, EXIT_MACHINE, AutotuneError


def guarded(function: Callable[..., int | None]) -> Callable[..., None]:
    """Run a command's body: no traceback for what a user can cause, and the documented exit code.

    SIGTERM and a terminal that is closed end a run as Ctrl-C does.
    """

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        _end_with_terminal()
        try:
            code = function(*args, **kwargs)
        except AutotuneError as error:
            for problem in error.problems:
                echo(f"error: {problem.render()}", err=True)
            code = error.exit_code
        except KeyboardInterrupt:
            echo("interrupted", err=True)
            code = EXIT_INTERRUPTED
        except OSError as error:  # a full disk, a folder that may not be written
            echo(f"error: {error}", err=True)
            code = EXIT_MACHINE
        except Exception:  # our own mistake: the trace is for the report, the code is not 1
            echo(traceback.format_exc(), err=True, nl=False)
            echo("error: this is a bug; please report it with `autotune doctor --json`", err=True)
            code = EXIT_MACHINE
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending already
        sys.exit(code or 0)

    return body


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
