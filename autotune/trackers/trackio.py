"""Trackio: on disk (TRACKIO_DIR), or a Space or server that its own variables name."""

import os
import warnings

import trackio

from autotune.trackers import PROJECT
from autotune.trackers.tracker import Entry, Tracker

FAILURE = "fail", "could not"
"""Words of its warnings: it raises nothing where it cannot write."""


class Runs(Tracker):
    """Runs of one group."""

    def record(self, entry: Entry) -> None:
        with warnings.catch_warnings(record=True) as reports:
            warnings.simplefilter("always", UserWarning)
            self._record(entry)
        for report in reports:
            text = str(report.message)
            if any(word in text for word in FAILURE):
                raise OSError(text)

    def _record(self, entry: Entry) -> None:
        ending = {"outcome": entry.outcome, "reason": entry.reason, "state": entry.state}
        run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            # It finds a run again by its name, so that no other may bear it.
            name=f"{entry.name} ({self.run.id[-6:]})",
            group=f"{self.run.name}-{self.run.id}",
            config={**entry.config, **ending, "labels": self.run.labels},
            resume="allow",
            embed=False,
            # What it would log by itself is of this process, which trains nothing.
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        run.log(dict(entry.metrics), step=0)
        if entry.bundle is not None:
            bundle = trackio.Artifact(f"bundle-{self.run.id}", type="bundle")
            bundle.add_dir(entry.bundle)
            run.log_artifact(bundle)
        run.finish()
