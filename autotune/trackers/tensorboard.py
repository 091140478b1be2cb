"""TensorBoard: event files in the run's folder, for `tensorboard --logdir runs`.

Its page HPARAMS has the knobs as a table. The files of a bundle are texts, as it keeps no others.
"""

import shutil
import time
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from autotune.trackers.tracker import Entry, Tracker

STATUSES = {
    "finished": api_pb2.STATUS_SUCCESS,
    "failed": api_pb2.STATUS_FAILURE,
    "killed": api_pb2.STATUS_FAILURE,
}


class Runs(Tracker):
    """A folder of event files for each entry."""

    def record(self, entry: Entry) -> None:
        folder = Path(self.run.folder) / "tensorboard" / entry.key
        shutil.rmtree(folder, ignore_errors=True)
        writer = EventFileWriter(str(folder))
        knobs = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in entry.config.items()
        }
        ending = {"outcome": entry.outcome, "reason": entry.reason}
        files = {} if entry.bundle is None else _texts(Path(entry.bundle))
        summaries = [
            summary_v2.hparams_pb(knobs, trial_id=entry.name),
            *(scalar_pb(name, value) for name, value in entry.metrics.items()),
            *(text_pb(name, text) for name, text in {**ending, **files}.items()),
            _end(entry.state),
        ]
        for summary in summaries:
            writer.add_event(event_pb2.Event(summary=summary, step=0, wall_time=time.time()))
        writer.close()


def _texts(bundle: Path) -> dict[str, str]:
    """Return the files of a bundle, each as it is."""
    paths = sorted(path for path in bundle.rglob("*") if path.is_file())
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths}
    return {
        f"bundle/{path.relative_to(bundle)}": f"```\n{text}\n```" for path, text in texts.items()
    }


def _end(state: str) -> summary_pb2.Summary:
    """Return how the run of an entry ended, for the page HPARAMS."""
    info = plugin_data_pb2.SessionEndInfo(status=STATUSES[state], end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    value = summary_pb2.Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(content),
        tensor=metadata.NULL_TENSOR,
    )
    return summary_pb2.Summary(value=[value])
