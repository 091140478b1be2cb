"""What is left behind for a script: `launch.sh`, which starts it with the fields that were found,
and what says why. Pure, but for the hook, whose text is handed in."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.probe.protocol import Measurement
from autotune.report.words import describe_measurement
from autotune.script.protocol import Look

FIELDS = "fields.json"
_LAUNCH = """\
#!/usr/bin/env bash
# Starts the script as it was started for autotune, with the fields that were found.
set -euo pipefail
here="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
{variables}cd -- {folder}
exec {words} "$@"
"""
_HOOK = """\
# Its arguments are not read from the command line: the hook sets them (README.md).
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
export AUTOTUNE_SCRIPT="${AUTOTUNE_SCRIPT-$here/fields.json}"
"""


@dataclass(frozen=True, kw_only=True)
class ScriptBundle:
    """The configuration that was found for a script.

    Attributes:
        words: the command by which the user starts it.
        folder: where.
        changes: fields in which it differs from the script's own.
        environment: variables beside them.
        probe: the number of the one that measured them.
        measurement: with these fields.
        reasons: why they, as sentences.
        verification: what a start of `launch.sh` showed; None: it was not started.
    """

    words: Sequence[str]
    folder: str
    look: Look
    changes: Mapping[str, Any]
    environment: Mapping[str, str]
    probe: int
    measurement: Measurement
    reasons: Sequence[str]
    verification: Mapping[str, Any] | None = None

    @property
    def by_flags(self) -> bool:
        """True if flags on the command line set all of it."""
        return set_by_flags(self.words, self.look, self.changes)


def set_by_flags(words: Sequence[str], look: Look, changes: Mapping[str, Any]) -> bool:
    """True if flags on the command line set these fields; another program that starts the script
    with words of its own may not hand them on."""
    if not look.flags or None in changes.values():
        return False
    script, *arguments = look.command_line
    if arguments:
        return list(words[-len(arguments) :]) == arguments
    return Path(words[-1]).name == Path(script).name


def files_of(bundle: ScriptBundle, hook: str) -> dict[str, str]:
    """Return the files, by their names.

    Args:
        hook: the text of `sitecustomize.py`.
    """
    files = {
        "launch.sh": _launch(bundle),
        "README.md": _readme(bundle),
        "recommendation.json": _json(
            {
                "schema": 1,
                "command": list(bundle.words),
                "folder": bundle.folder,
                "fields": dict(bundle.changes),
                "environment": dict(bundle.environment),
                "by_flags": bundle.by_flags,
                "chosen": {"probe": bundle.probe},
                "measurement": bundle.measurement.plain(),
                "reasons": list(bundle.reasons),
                "verification": bundle.verification,
            }
        ),
        FIELDS: _json({"fields": dict(bundle.changes)}),
    }
    return files if bundle.by_flags else {**files, "sitecustomize.py": hook}


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False, sort_keys=True) + "\n"


def flags_of(changes: Mapping[str, Any]) -> list[str]:
    """Return fields as flags of a command line."""
    words = ((f"--{name}", _word(value)) for name, value in sorted(changes.items()))
    return [word for pair in words for word in pair]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _launch(bundle: ScriptBundle) -> str:
    flags = flags_of(bundle.changes) if bundle.by_flags else []
    variables = "".join(
        f'export {name}="${{{name}-{value}}}"\n'
        for name, value in sorted(bundle.environment.items())
    )
    return _LAUNCH.format(
        variables=variables + ("" if bundle.by_flags else _HOOK),
        folder=shlex.quote(bundle.folder),
        words=shlex.join([*bundle.words, *flags]),
    )


def _readme(bundle: ScriptBundle) -> str:
    shown = "\n".join(f"    {n}: {json.dumps(v)}" for n, v in sorted(bundle.changes.items()))
    how = (
        "`launch.sh` adds them as flags to the command: the script reads its arguments from there."
        if bundle.by_flags
        else "`launch.sh` sets them by `sitecustomize.py` beside it, which Python loads by itself: "
        "the script does not read these arguments from the command line. To do without that file, "
        "write them where the script makes its arguments."
    )
    verification = bundle.verification
    word = "not started yet"
    if verification is not None:
        word = f"{'verified' if verification['verified'] else 'NOT verified'}: "
        word += str(verification["reason"])
    reasons = "\n".join(f"- {reason}" for reason in bundle.reasons)
    return f"""# The fastest stable settings of a script

    {shlex.join(bundle.words)}

trains {bundle.look.model} by `{bundle.look.trainer}`. These fields of its arguments change;
the rows of an optimizer step stay {bundle.look.global_batch}:

{shown or "    none: its own settings are the fastest"}

{how}

    bash launch.sh

Measured: {describe_measurement(bundle.measurement)}.

{reasons}

launch.sh: {word}.
"""
