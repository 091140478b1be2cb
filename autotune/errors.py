"""The problems of a user, and the messages for them.

A message names the rule, what came, the choices and the next step. All problems of one file are
collected and raised once. The exit codes are part of the interface: 0 done, 1 nothing fits, or a
bundle failed its verification or a machine a check, 2 the user's file or flags, 3 the machine, 4 no
probe told whether anything fits or the machine was too busy to tell what is fastest, 130
interrupted.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_DONE = 0
EXIT_NOTHING_FITS = 1
EXIT_NOT_VERIFIED = 1
EXIT_CHECK_FAILED = 1
EXIT_USER = 2
EXIT_MACHINE = 3
EXIT_NOTHING_MEASURED = 4
EXIT_INTERRUPTED = 130


CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal may obey (all controls but tabs and ends of lines, and writing
directions), and those that cannot be sent to one."""


def visible(text: str) -> str:
    """Return a text whose control characters are shown as escapes, so that no terminal obeys
    them."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def in_one_line(text: str) -> str:
    """Return a text as `visible` shows it, with spaces for ends of lines: no name starts a line."""
    return visible(text.replace("\n", " ").replace("\t", " "))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: where it stands, what is wrong with it, what to do about it."""

    where: str
    what: str
    hint: str | None = None

    def render(self) -> str:
        """Return the problem as text, its hint on a line of its own."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        text = text.replace("\n", "\\n")  # of a name, which begins no line of ours
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
    """Return a UserError of one problem."""
    return UserError(Problem(where=where, what=what, hint=hint))


def machine_error(what: str, *, where: str = "", hint: str | None = None) -> MachineError:
    """Return a MachineError of one problem."""
    return MachineError(Problem(where=where, what=what, hint=hint))


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return a hint that names the closest valid name, or lists the choices when there are few."""
    known = sorted(choices)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{close[0]}`?"
    if 0 < len(known) <= 24:
        return "choose from " + ", ".join(f"`{choice}`" for choice in known)
    return None
