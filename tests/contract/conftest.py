"""A real forkserver that runs the stub workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from staging import STUBS_PATH, Stage

from autotune.process.child_server import ChildServer


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """One server for all tests: that it survives each of them is part of the contract."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ChildServer(log, preload=(), environment={"PYTHONPATH": STUBS_PATH}) as server:
        yield server


@pytest.fixture
def stage(shared_server: ChildServer, tmp_path: Path) -> Stage:
    """The shared server and a folder of this test's own."""
    return Stage(shared_server, tmp_path / "probe")
