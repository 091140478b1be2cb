"""Machines to plan for, as a user names them: `h100,l40s`, `4xl40s` or `l40s:4`, `all`."""

import contextlib
import re
from dataclasses import dataclass

from autotune.errors import Problem, UserError, user_error
from autotune.facts.device_kinds import DeviceKind, common_kinds, find_kind
from autotune.job.fields import MOST_DEVICES

ALL = "all"
MOST_MACHINES = 64
"""The most machines that are planned for at once."""
_COUNTED = re.compile(r"([0-9]+)\s*[x*]\s*(\S.*)|(.*\S)\s*:\s*([0-9]+)", re.IGNORECASE)
"""`4xl40s`, or `l40s:4`."""
_FORMS = "name kinds as `h100,4xl40s,rtx4090`, or `all`"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A number of devices of one kind.

    Attributes:
        count: None: as many as the job has.
    """

    kind: DeviceKind
    count: int | None = None

    @property
    def name(self) -> str:
        """The name of its kind, as a flag takes it, with the count before it where there is one."""
        short = self.kind.aliases[0] if self.kind.aliases else self.kind.name
        return short if self.count is None else f"{self.count}x{short}"


def machines_of(text: str) -> tuple[Machine, ...]:
    """Return the machines that a text names, in its order, each once.

    Raises:
        UserError: a kind or a count cannot be; with every one that cannot.
    """
    machines: list[Machine] = []
    problems: list[Problem] = []
    for part in dict.fromkeys(_parts(text)):
        try:
            all_kinds = part.lower() == ALL
            kinds = [Machine(kind=kind) for kind in common_kinds()] if all_kinds else []
            machines += kinds or [_machine(part)]
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    named = {machine.name: machine for machine in machines}
    if len(named) > MOST_MACHINES:
        raise user_error(
            f"{len(named)} machines are named, but at most {MOST_MACHINES} can be planned at once",
            where="device",
        )
    return tuple(named.values())


def names_several(text: str | None) -> bool:
    """True if a text names more than one device: several kinds, a count, or all."""
    if text is None:
        return False
    parts = _parts(text)
    return text.strip().lower() == ALL or len(parts) > 1 or any(map(_counted, parts))


def _counted(part: str) -> re.Match[str] | None:
    """Return the count and the kind of `4xl40s`; None: it has no count, as `7900xtx` has none."""
    counted = _COUNTED.fullmatch(part)
    if counted is not None:
        with contextlib.suppress(UserError):
            find_kind(part)
            return None
    return counted


def _parts(text: str) -> list[str]:
    """Return the parts of a list; the figures of a kind (`memory=24GiB,tflops=165`) are one: one
    that was given already begins the next kind."""
    parts: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        figure = f"{part.partition('=')[0].strip()}="
        if "=" in part and parts and "=" in parts[-1] and figure not in parts[-1]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _machine(part: str) -> Machine:
    if not part:
        raise user_error("a kind of GPU is missing between commas", where="device", hint=_FORMS)
    if part.lower() == "cpu":
        raise user_error("`cpu` is not compared with GPUs: plan it alone", where="device")
    counted = _counted(part)
    if counted is None:
        return Machine(kind=find_kind(part))
    count, name = int(counted[1] or counted[4]), counted[2] or counted[3]
    if not 1 <= count <= MOST_DEVICES:
        raise user_error(
            f"`{part}`: a machine has 1 to {MOST_DEVICES} devices", where="device", hint=_FORMS
        )
    return Machine(kind=find_kind(name), count=count)
