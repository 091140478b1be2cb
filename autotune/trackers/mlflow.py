"""MLflow: each probe a child of the run's own, which has the bundle.

Where to is MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, else MLflow's own default.
"""

import os
import time
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag

from autotune.trackers import PROJECT
from autotune.trackers.tracker import PROBE, Entry, TrackedRun, Tracker

STATUSES = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_ID, _PARENT = "autotune.id", "mlflow.parentRunId"
_LONGEST = 6000
"""Characters of a value that every store of MLflow takes."""


class Runs(Tracker):
    """Runs of one experiment, found again by a tag."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        self._experiment = (
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        )
        self._parent = self._run_id("run", run.name, {})

    def record(self, entry: Entry) -> None:
        run_id, params = self._parent, self.run.config
        if entry.kind == PROBE:
            run_id = self._run_id(entry.key, entry.name, {_PARENT: self._parent})
            params = entry.config
        # A parameter stays as it is: the knobs of a result may be others when a run was resumed.
        tags = {name: value for name, value in entry.config.items() if name not in params}
        tags |= {"outcome": entry.outcome, "reason": entry.reason}
        now = int(time.time() * 1000)
        self._client.log_batch(
            run_id,
            metrics=[Metric(name, value, now, 0) for name, value in entry.metrics.items()],
            params=[Param(name, _text(value)) for name, value in params.items()],
            tags=[RunTag(name, _text(value)) for name, value in tags.items()],
        )
        if entry.bundle is not None:
            self._client.log_artifacts(run_id, entry.bundle, Path(entry.bundle).name)
        self._client.set_terminated(run_id, STATUSES[entry.state])

    def _run_id(self, key: str, name: str, tags: dict[str, str]) -> str:
        """Return the run of an entry: the one that is there, or a new one."""
        identity = f"{self.run.id}-{key}"
        query = f"tags.`{_ID}` = '{identity}'"
        if runs := self._client.search_runs([self._experiment], query, max_results=1):
            return str(runs[0].info.run_id)
        labels = {"labels": ", ".join(self.run.labels)}
        new_run = self._client.create_run(
            self._experiment, run_name=name, tags={_ID: identity, **labels, **tags}
        )
        return str(new_run.info.run_id)


def _text(value: Any) -> str:
    return str(value)[:_LONGEST]
