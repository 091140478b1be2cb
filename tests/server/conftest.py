"""A real service, as `autotune serve` starts it, with its worker beside it: one of all tests that
leave it as it was."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from playwright.sync_api import Browser

from autotune.server.serve import local_worker
from tests.server.browser import launched
from tests.server.finished_run import FinishedRun, finished_run

ROOT = Path(__file__).parents[2]
START_S = 120.0
END_S = 30.0


@dataclass(frozen=True)
class Served:
    """A service that answers.

    Attributes:
        folder: of `--runs`.
        models: a folder that jobs may name files of.
    """

    url: str
    folder: Path
    models: Path
    process: "subprocess.Popen[bytes]"


@contextlib.contextmanager
def served(
    base: Path, cache: Path, settings: Mapping[str, Any] | None = None, port: int = 0
) -> Iterator[Served]:
    """A service in `base`, until its worker is there; SIGTERM ends it, and its worker with it.

    Args:
        settings: of server.yaml, besides the allowed folder.
        port: 0: a free one.
    """
    folder, models, home = base / "service", base / "models", base / "home"
    for path in (folder, models, home):
        path.mkdir(parents=True, exist_ok=True)
    config = base / "server.yaml"
    data: dict[str, Any] = {"allowed": {"folders": [str(models)]}}
    data |= settings or {}
    config.write_text(json.dumps(data), encoding="utf-8")
    (folder / "address").unlink(missing_ok=True)
    command = [sys.executable, "-m", "autotune", "serve", "--runs", str(folder)]
    command += ["--config", str(config), "--port", str(port), "--log", "json"]
    environment = {
        **os.environ,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "1",
        "AUTOTUNE_CACHE": str(cache),
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with (base / "service.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=base, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield Served(_answering(folder, process, base / "service.log"), folder, models, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        assert process.returncode in (0, -signal.SIGKILL)  # a test may have killed it
        assert process.returncode or local_worker(folder) is None


def _answering(folder: Path, process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The URL of a service, once it can take work."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        with contextlib.suppress(OSError, requests.RequestException):
            url = (folder / "address").read_text(encoding="ascii")
            if requests.get(f"{url}/api/v1/health", timeout=5).json()["status"] == "ok":
                return url
        time.sleep(0.1)
    raise AssertionError(log.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def service_url(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path) -> Iterator[Served]:
    """A service that tests share, and that nobody needs a token for."""
    with served(tmp_path_factory.mktemp("service"), plan_cache) as service:
        yield service


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser that tests share; beyond this package its event loop would be in the way."""
    with launched() as running:
        yield running


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run that has ended, as its worker would send it."""
    return finished_run(tmp_path_factory.mktemp("finished"))
