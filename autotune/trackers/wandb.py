"""Weights & Biases. WANDB_MODE=offline keeps runs on disk until `wandb sync`.

An entry sent again goes on with its run: its figures take the place of those before.
"""

import os

import wandb

from autotune.trackers import PROJECT
from autotune.trackers.tracker import Entry, Tracker

LONGEST, LONGEST_TAG = 128, 64
"""Characters."""
EXIT_CODES = {"finished": 0, "failed": 1, "killed": 255}


class Runs(Tracker):
    """Runs of one group."""

    def record(self, entry: Entry) -> None:
        # What wandb looks at by itself is this process, which trains nothing.
        settings = wandb.Settings(
            console="off", silent=True, disable_code=True, disable_git=True, x_disable_stats=True
        )
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=f"{self.run.id}-{entry.key}",
            name=entry.name[:LONGEST],
            group=f"{self.run.name[: LONGEST // 2]}-{self.run.id}",
            job_type=entry.kind,
            tags=[label[:LONGEST_TAG] for label in (*self.run.labels, entry.outcome)],
            notes=entry.reason,
            config=entry.config,
            resume="allow",
            settings=settings,
        )
        run.summary.update({**entry.metrics, "outcome": entry.outcome, "reason": entry.reason})
        if entry.bundle is not None:
            bundle = wandb.Artifact(f"bundle-{self.run.id}", type="bundle")
            bundle.add_dir(entry.bundle)
            run.log_artifact(bundle)
        run.finish(exit_code=EXIT_CODES[entry.state])
