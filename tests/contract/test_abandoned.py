"""A run that ends takes its probes along, at once, and they say nothing."""

import json
import time

from ray_nodes import a_probe
from staging import Stage, still_running


def test_a_probe_that_ends_with_its_run_is_interrupted_and_its_server_lives(stage: Stage) -> None:
    folder = stage.folder.path
    stage.engine.begin(a_probe(folder.parent, folder.name))
    while not stage.engine.news(1.0):
        pass
    began = time.monotonic()
    stage.engine.abandon()
    assert time.monotonic() - began < 1.0
    assert still_running(stage.pids()) == [] and stage.engine.free_places() == 1
    kept = json.loads((folder / "measurement.json").read_text(encoding="utf-8"))
    assert (kept["outcome"], kept["reason"]) == ("interrupted", "the run was interrupted")
    assert stage.server.is_alive and stage.run("exits", code=7).exit_code == 7
