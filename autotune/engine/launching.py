"""A command that is launched where an engine runs its calls, on each machine of a lane."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engine.call import Call, Engine, result_of
from autotune.errors import MachineError
from autotune.facts import devices
from autotune.plain_data import from_plain
from autotune.probe.extensions import COMPILED, EXTENSIONS
from autotune.probe.rank_replies import WITH_OTHERS
from autotune.process.child_server import ChildServer
from autotune.process.launch import launch
from autotune.process.limits import LaunchReport, Watcher
from autotune.process.memory_errors import read_memory_error
from autotune.process.messages import ChildFolder
from autotune.space.trl_config import device_environment
from autotune.training.spec import MEETS, Part

LAUNCH = "autotune.engine.launching:launched"
TOGETHER = "autotune.engine.launching:merged_report"
PEAKS = ("peak_resident_bytes", "peak_gpu_bytes")
MOST_S = 1e9


Launcher = Callable[..., LaunchReport]
"""A function like `process/launch.py:launch`."""


def launcher_of(engine: Engine) -> Launcher:
    """Return what launches a command where the engine's calls run."""

    def launch_there(
        command: Sequence[str],
        *,
        log: Path,
        timeout_s: float,
        gpus: Sequence[int],
        on_line: Callable[[float, str], None],
        **given: Any,
    ) -> LaunchReport:
        plain = {"log": str(log), "timeout_s": min(timeout_s, MOST_S), "gpus": len(gpus)}

        def hear(event: Mapping[str, Any]) -> None:
            if event.get("event") == "line":
                on_line(event["at_s"], event["text"])

        call = Call(
            key=f"launch-{time.monotonic_ns()}",
            folder=str(log.parent),
            request={"command": list(command), **given, **plain},
            task=LAUNCH,
            together=TOGETHER,
            alone=True,
        )
        ended = result_of(engine, call, hear)
        if ended.result is None:
            raise MachineError(*ended.problems)
        return from_plain(LaunchReport, ended.result)

    return launch_there if engine.is_remote else launch


def launched(
    server: ChildServer, folder: ChildFolder, request: Mapping[str, Any], watch: Watcher
) -> LaunchReport:
    """Launch a command here, with as many of the GPUs here; its lines are events."""

    def hear(at_s: float, text: str) -> None:
        watch({"event": "line", "at_s": at_s, "text": text})

    environment, gpus = dict(request["environment"]), tuple[int, ...]()
    part, log = Part.from_plain(request.get("part", {})), Path(request["log"])
    if part.node:
        folder.path.mkdir(parents=True, exist_ok=True)
        log = folder.path / log.name
    if part.nodes > 1:
        environment |= _place(part, watch)
    if compiled := os.environ.get(EXTENSIONS, os.environ.get(COMPILED)):
        environment[EXTENSIONS] = compiled
    if request["gpus"]:
        device = devices.detect("cuda", 0, request["gpus"])
        environment |= device_environment(device)
        gpus = (device.index, *device.peers)
    return launch(
        request["command"],
        log=log,
        environment=environment,
        timeout_s=request["timeout_s"],
        gpus=gpus,
        on_line=hear,
        stop=lambda: server.stop_reason(folder),
    )


def _place(part: Part, watch: Watcher) -> dict[str, str]:
    """Return the variables of `launch_nodes.sh`; the first machine tells the port that is free."""
    port = part.port
    if not port:
        with socket.create_server((part.host, 0)) as found:
            port = found.getsockname()[1]
        watch({"event": MEETS, "port": port})
    return {
        "NODES": str(part.nodes),
        "MACHINE_RANK": str(part.node),
        "MAIN_ADDRESS": part.host,
        "MAIN_PORT": str(port),
    }


def merged_report(reports: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Return the first machine's report with the highest peaks; where some failed, that of one
    which ran out of memory, or else of the first of them."""
    failed = [
        report
        for report in reports
        if (report["exit_code"] or report["timed_out"]) and report["stop_reason"] != WITH_OTHERS
    ]
    full = [one for one in failed if read_memory_error([line for _, line in one["lines"]])]
    chosen = [*full, *failed, reports[0]][0]
    measured = [name for name in PEAKS if chosen[name] is not None]
    return {**chosen, **{name: max(one[name] or 0 for one in reports) for name in measured}}
