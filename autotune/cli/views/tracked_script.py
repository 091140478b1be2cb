"""What trackers are told of the search of a script."""

from collections.abc import Sequence
from pathlib import Path

from autotune import __version__
from autotune.facts import Facts
from autotune.process.run_folder import RunFolder
from autotune.script.protocol import Look
from autotune.trackers.tracker import TrackedRun


def tracked_script(look: Look, words: Sequence[str], facts: Facts, run: RunFolder) -> TrackedRun:
    """Return what a tracker is told of a search as it begins; of the command no more than its
    script.

    Args:
        words: of the command; none: a function is searched.
    """
    trainer = look.trainer.rpartition(".")[2]
    return TrackedRun(
        id=str(run.read(run.run)["study"]),
        name=run.path.name,
        folder=str(run.tracking),
        config={
            "script": Path(look.command_line[0]).name if words else "a function",
            "trainer": trainer,
            "model": look.model,
            "parameters": facts.model.parameters,
            "rows": facts.data.rows,
            "global_batch_size": look.global_batch,
            "device": facts.device.name,
            "devices": look.ways,
        },
        labels=[trainer, facts.device.name, f"autotune {__version__}"],
    )
