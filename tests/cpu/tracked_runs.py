"""What trackers hold, read by their own readers: runs by name, as JSON. A program for the Python of
`.venv/trackers`: TOOL and the folders it keeps them in.

Of each run: its config, its metrics, its state in the tool's words, the files of its bundle.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def wandb(folder: Path) -> list[dict[str, Any]]:
    """A run that went on has a second log, which `wandb sync` puts into the same run. Read as
    `wandb leet inspect --json` does."""
    from wandb.util import get_core_path

    runs: dict[str, dict[str, Any]] = {}
    inspect = [get_core_path(), "leet", "inspect", "--no-observability", "--json", "--run-file"]
    for log in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        command = [*inspect, str(log), str(folder / "wandb")]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        records = [json.loads(line) for line in out.splitlines()]
        (run,) = [each["run"] for each in records if each["type"] == "run"]
        metrics: dict[str, Any] = {}
        for each in records:
            metrics |= each["summary"]["update"] if each["type"] == "summary" else {}
        (state,) = [each["exit"].get("exit_code", 0) for each in records if each["type"] == "exit"]
        bundles = [each["artifact"] for each in records if each["type"] == "artifact"]
        files = [file["path"] for each in bundles for file in each["manifest"]["contents"]]
        runs[run["run_id"]] = {
            "name": run["display_name"],
            "config": run["config"]["update"],
            "metrics": metrics,
            "state": state,
            "files": files,
        }
    return list(runs.values())


def mlflow(folder: Path) -> list[dict[str, Any]]:
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("autotune")
    assert experiment is not None
    return [
        {
            "name": run.info.run_name,
            "config": {**run.data.params, **run.data.tags},
            "metrics": run.data.metrics,
            "state": run.info.status,
            "files": [
                Path(file.path).name for file in client.list_artifacts(run.info.run_id, "bundle")
            ],
        }
        for run in client.search_runs([experiment.experiment_id])
    ]


def trackio(folder: Path) -> list[dict[str, Any]]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = []
    for run in trackio.Api().runs("autotune"):
        logs = SQLiteStorage.get_logs("autotune", run.name, run_id=run.id)
        files: list[str] = []
        for link in SQLiteStorage.get_run_artifacts("autotune", run.name, run.id)["output"]:
            version = f"v{link['version']}"
            manifest = SQLiteStorage.get_artifact_manifest("autotune", link["name"], version)
            files += [each["path"] for each in manifest["manifest"]]
        metrics: dict[str, Any] = {"logs": len(logs)}
        for log in logs:
            metrics |= log
        config = run.config or {}
        name, state = run.name.rpartition(" (")[0], config["state"]
        runs.append(
            {"name": name, "config": config, "metrics": metrics, "state": state, "files": files}
        )
    return runs


def tensorboard(folder: Path) -> list[dict[str, Any]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata
    from tensorboard.util import tensor_util

    runs = []
    for events in sorted(folder.iterdir()):
        read = EventAccumulator(str(events)).Reload()
        tensors = {
            tag: [tensor_util.make_ndarray(event.tensor_proto) for event in read.Tensors(tag)]
            for tag in read.Tags()["tensors"]
            if not tag.startswith("_hparams_")
        }
        hparams = read.PluginTagToContent(metadata.PLUGIN_NAME)
        start = metadata.parse_session_start_info_plugin_data(
            hparams[metadata.SESSION_START_INFO_TAG]
        )
        end = metadata.parse_session_end_info_plugin_data(hparams[metadata.SESSION_END_INFO_TAG])
        config = {
            name: getattr(value, str(value.WhichOneof("kind")))
            for name, value in start.hparams.items()
        }
        texts = {
            tag: str(value[0].item(), "utf-8")
            for tag, value in tensors.items()
            if value[0].dtype == object
        }
        runs.append(
            {
                "name": start.group_name,
                "config": {**config, **texts},
                "metrics": {
                    tag: value[0].item() for tag, value in tensors.items() if tag not in texts
                },
                "state": end.status,
                "files": [
                    tag.removeprefix("bundle/") for tag in texts if tag.startswith("bundle/")
                ],
            }
        )
    return runs


if __name__ == "__main__":
    read = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio, "tensorboard": tensorboard}
    found = [run for folder in sys.argv[2:] for run in read[sys.argv[1]](Path(folder))]
    twice = [name for name, count in Counter(run["name"] for run in found).items() if count > 1]
    assert not twice, twice
    print(json.dumps({run["name"]: run for run in found}))
