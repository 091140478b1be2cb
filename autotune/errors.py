"""What can go wrong for a user, and how it is said.

A message names the rule, what came, the choices and the next step. All problems of one file are
collected and raised once. The exit codes are part of the interface: 0 done, 1 nothing fits or a
bundle failed its verification, 2 the user's file or flags, 3 the machine, 4 no probe told whether
anything fits or the machine was too busy to tell what is fastest, 130 interrupted.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_DONE = 0
EXIT_NOTHING_FITS = 1
EXIT_NOT_VERIFIED = 1
EXIT_USER = 2
EXIT_MACHINE = 3
EXIT_NOTHING_MEASURED = 4
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: where it stands, what is wrong with it, what to do about it."""

    where: str
    what: str
    hint: str | None = None

    def render(self) -> str:
        """The problem as text, its hint on a line of its own."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class AutotuneError(Exception):
    """Anything that ends a command with a message instead of a traceback."""

    exit_code = EXIT_MACHINE

    def __init__(self, *problems: Problem):
        self.problems = problems
        super().__init__("\n".join(problem.render() for problem in problems))


class UserError(AutotuneError):
    """The user's job file, search space or flags ask for something that cannot be."""

    exit_code = EXIT_USER


class MachineError(AutotuneError):
    """The machine cannot do what was asked: no such device, a busy GPU, a full disk."""

    exit_code = EXIT_MACHINE


def user_error(what: str, *, where: str = "", hint: str | None = None) -> UserError:
    """A UserError of one problem."""
    return UserError(Problem(where=where, what=what, hint=hint))


def machine_error(what: str, *, where: str = "", hint: str | None = None) -> MachineError:
    """A MachineError of one problem."""
    return MachineError(Problem(where=where, what=what, hint=hint))


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """A hint that names the closest valid name, or lists the choices when there are few."""
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    if 0 < len(known) <= 24:
        return "choose from " + ", ".join(f"`{choice}`" for choice in known)
    return None
