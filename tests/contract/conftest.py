"""A real forkserver that runs the stub workers, and real nodes of Ray that have one each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes, joined, lanes, nodes
from staging import STUBS_PATH, Stage

from autotune.engine.call import Engine
from autotune.engine.local import LocalEngine
from autotune.process.child_server import ChildServer
from tests.guards import some_of

BY_ENGINE = ("test_runner_endings", "test_runner_kills", "test_runner_output", "test_naming")
EACH_TIME = BY_ENGINE[0]
"""On Ray, too; the others there where the engine's code changes."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What a runner owes a run is the same on every engine."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in BY_ENGINE and "stage" in metafunc.fixturenames:
        metafunc.fixturenames.append("engine_name")
        engines = ["local", *some_of(["ray"], ["ray"] if module == EACH_TIME else [], "engine")]
        metafunc.parametrize("engine_name", engines, indirect=True)


@pytest.fixture
def engine_name(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", "local")


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """One server for all tests: that it survives each of them is part of the contract."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with ChildServer(log, preload=(), environment={"PYTHONPATH": STUBS_PATH}) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """A Ray cluster that this process has joined; its first node stays."""
    with nodes(1) as started, joined(started):
        yield started


@pytest.fixture(scope="session")
def ray_engine(cluster: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine of one lane for all tests."""
    engine = lanes(cluster, tmp_path_factory.mktemp("lanes"), 1)
    yield engine
    engine.close()


@pytest.fixture
def stage(
    shared_server: ChildServer, tmp_path: Path, engine_name: str, request: pytest.FixtureRequest
) -> Stage:
    """The shared server and a folder of this test's own."""
    remote: Any = None if engine_name == "local" else request.getfixturevalue("ray_engine")
    return Stage(shared_server, tmp_path / "probe", remote or LocalEngine(shared_server))
