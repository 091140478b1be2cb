"""Tests of CUDA code on a virtual GPU. Pytest runs inside of it:

scripts/virtual_gpu --kind a100-80gb --devices 4 -- python -m pytest tests/virtual_gpu
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.facts.device_kinds import find_kind
from tests.virtual_gpu.run import device_environment

IS_VIRTUAL = "VIRTUAL_GPU_NAME" in os.environ
if not IS_VIRTUAL:
    collect_ignore_glob = ["test_*.py"]
elif "PYTEST_XDIST_WORKER" in os.environ:  # workers do not see one another on the devices
    os.environ["VIRTUAL_GPU_STATE"] += "-" + os.environ["PYTEST_XDIST_WORKER"]


def pytest_report_header() -> list[str]:
    return [] if IS_VIRTUAL else ["tests/virtual_gpu: left out, scripts/virtual_gpu runs them"]


@dataclass(frozen=True)
class VirtualGpu:
    """Devices of one kind, with a state of their own, and commands on them."""

    environment: Mapping[str, str]
    folder: Path

    def start(self, *command: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **self.environment, **variables},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, expect: int | None = 0, **variables: str) -> str:
        """What a Python command prints; None: its exit code is 0 or 1."""
        process = self.start(*command, **variables)
        try:
            out, err = process.communicate(timeout=900)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        codes = (0, 1) if expect is None else (expect,)
        assert process.returncode in codes, out[-2000:] + err[-4000:]
        return out

    def autotune(self, *arguments: str, expect: int | None = 0, **variables: str) -> dict:
        """The JSON that `autotune ...` prints."""
        command = ("-m", "autotune", *arguments, "--json")
        return json.loads(self.run(*command, expect=expect, **variables))


@pytest.fixture
def virtual_gpu(tmp_path: Path) -> Iterator:
    """Makes devices: `virtual_gpu("a100-80gb", devices=2)`."""
    libraries = Path(os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="virtual-gpu-test-") as shared:

        def make(kind: str, devices: int = 1) -> VirtualGpu:
            variables = device_environment(find_kind(kind), devices, libraries)
            variables["VIRTUAL_GPU_STATE"] = f"{shared}/{kind}"
            return VirtualGpu(environment=variables, folder=tmp_path)

        yield make
