"""The first start of a script: only to see what it trains."""

from pathlib import Path

from autotune.errors import AutotuneError, user_error
from autotune.plain_data import NONSENSE
from autotune.process.limits import LaunchReport
from autotune.process.messages import ChildFolder, read_json
from autotune.script.command import Starter, write_request
from autotune.script.protocol import LOOK, Look

LAST_LINES = 4
"""Of what a script said that failed."""
ONE_TRAINING = "name a script that trains once: of several, each could be tuned by itself"


def look(starter: Starter, folder: ChildFolder, timeout_s: float) -> Look:
    """Start a script until its training begins, and say what that is.

    Raises:
        UserError: it does not train by a transformers Trainer, trains more than once, or fails.
    """
    write_request(folder, LOOK, fields={}, forked=starter.forked)
    report = starter.start(folder, {}, timeout_s, (), None)
    data = read_json(folder.path / "look.json")
    if data is None:
        raise _without_training(starter, folder, report, timeout_s)
    try:
        seen = Look.from_plain(data)
    except NONSENSE as error:
        raise user_error(
            f"what was seen of it makes no sense: {error}", where=starter.text
        ) from None
    if seen.again:
        places = ", ".join(seen.again)
        what = f"it trains more than once (again at {places}), and a search measures one training"
        raise user_error(what, where=starter.text, hint=ONE_TRAINING)
    return seen


def _without_training(
    starter: Starter, folder: ChildFolder, report: LaunchReport, timeout_s: float
) -> AutotuneError:
    log = folder.stderr
    if report.timed_out:
        what = f"its training did not begin within {timeout_s:.0f} s"
        hint = f"give it more time by `--set budget.probe_minutes=N`; its log is {log}"
        return user_error(what, where=starter.text, hint=hint)
    if report.exit_code != 0:
        ending = f"it ended with exit code {report.exit_code} before it trained"
        return user_error(f"{ending}: {last_lines(log)}", where=starter.text, hint=f"see {log}")
    what = (
        "it ended without `train()` of a transformers Trainer: a loop of its own cannot be tuned "
        "from outside"
    )
    hint = (
        "train by a Trainer, or describe the training as a job (`autotune init`); where it does "
        "train by one, see that Python was not started with -I, -E or -S"
    )
    return user_error(what, where=starter.text, hint=hint)


def last_lines(log: Path) -> str:
    """Return the end of what a script said, in one line; of a traceback what it says, not where."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    unindented = [
        line for line in lines if line.strip() and not line.startswith((" ", "Traceback"))
    ]
    return " | ".join(unindented[-LAST_LINES:])[-1500:]
