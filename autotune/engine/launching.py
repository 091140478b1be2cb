"""A command that is launched where an engine runs its calls."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.engine.call import Call, Engine, result_of
from autotune.errors import MachineError
from autotune.facts import devices
from autotune.plain_data import from_plain
from autotune.process.child_server import ChildServer
from autotune.process.launch import launch
from autotune.process.limits import LaunchReport, Watcher
from autotune.process.messages import ChildFolder
from autotune.space.trl_config import device_environment

LAUNCH = "autotune.engine.launching:launched"
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
        named = {"log": str(log), "timeout_s": min(timeout_s, MOST_S), "gpus": len(gpus)}
        request = {"command": list(command), **given, **named}

        def hear(event: Mapping[str, Any]) -> None:
            if event.get("event") == "line":
                on_line(event["at_s"], event["text"])

        key = f"launch-{time.monotonic_ns()}"
        call = Call(key=key, folder=str(log.parent), request=request, task=LAUNCH, alone=True)
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
    if request["gpus"]:
        device = devices.detect("cuda", 0, request["gpus"])
        environment |= device_environment(device)
        gpus = (device.index, *device.peers)
    return launch(
        request["command"],
        log=Path(request["log"]),
        environment=environment,
        timeout_s=request["timeout_s"],
        gpus=gpus,
        on_line=hear,
        stop=lambda: server.asked(folder),
    )
