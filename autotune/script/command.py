"""The command by which a user starts a script, and how one start of it is watched."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import autotune
from autotune.process.launch import launch
from autotune.process.limits import LaunchReport
from autotune.process.messages import ChildFolder, write_json
from autotune.script.protocol import ScriptRequest

VARIABLE = "AUTOTUNE_SCRIPT"
"""Names the request; read by `hook/sitecustomize.py`."""
HOOK = Path(__file__).parent / "hook"
PACKAGE = Path(autotune.__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class ScriptCommand:
    """A command in a folder.

    Attributes:
        words: of the command line, the program first.
        folder: where it is started.
    """

    words: tuple[str, ...]
    folder: Path = field(default_factory=Path.cwd)

    @classmethod
    def of_script(cls, script: str, arguments: Sequence[str]) -> "ScriptCommand":
        """Return `python SCRIPT ARGUMENTS`, with this very interpreter."""
        return cls(words=(sys.executable, script, *arguments))

    @property
    def text(self) -> str:
        """The command in a line."""
        return " ".join(self.words)

    def start(
        self,
        folder: ChildFolder,
        environment: Mapping[str, str],
        timeout_s: float,
        gpus: Sequence[int],
        stop: Callable[[], str | None] | None,
    ) -> LaunchReport:
        """Start it with the hook, whose request is in `folder`."""
        return launch(
            self.words,
            log=folder.stderr,
            environment={**hooked(folder.request), **environment},
            timeout_s=timeout_s,
            gpus=gpus,
            stop=stop,
            folder=self.folder,
        )


def hooked(request: Path) -> dict[str, str]:
    """Return variables that load the hook with a request."""
    path = os.environ.get("PYTHONPATH")
    return {
        **without_trackers(request.parent),
        VARIABLE: str(request),
        "PYTHONPATH": os.pathsep.join([str(HOOK), *([path] if path else [])]),
    }


def without_trackers(folder: Path) -> dict[str, str]:
    """Return variables that keep looks and probes from what a script tells a tracker by itself;
    MLflow, which cannot be switched off, writes into `folder`."""
    return {
        "WANDB_MODE": "disabled",
        "COMET_MODE": "disabled",
        "CLEARML_OFFLINE_MODE": "1",
        "MLFLOW_TRACKING_URI": (folder.absolute() / "scratch" / "mlruns").as_uri(),
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }


def write_request(folder: ChildFolder, mode: str, **values: Any) -> ScriptRequest:
    """Write down what the hook is to do, into a folder that may be made for it."""
    folder.path.mkdir(parents=True, exist_ok=True)
    place: dict[str, Any] = {"folder": str(folder.path.absolute()), "package": str(PACKAGE)}
    request = ScriptRequest(mode=mode, **place, **values)
    write_json(folder.request, request.plain())
    return request
