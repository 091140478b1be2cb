"""A service's store in a folder of its own, and the service in this process, without a worker."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from autotune.server.app import create_app
from autotune.server.service import Service, open_service
from autotune.server.settings import load_settings
from autotune.server.store.database import Database, open_database, sqlite_url

CSRF = "c" * 64
JOB: dict[str, Any] = {"model": "qwen2.5-0.5b", "dataset": {"lengths": {"max": 128}}}
"""A job that nothing is against, to be planned."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(sqlite_url(tmp_path / "service.db"))
    yield opened
    opened.close()


@dataclass(frozen=True)
class Served:
    """A service and a browser or a program that calls it."""

    service: Service
    client: TestClient
    models: Path
    """A folder that jobs may name files of."""

    def token(self, role: Any = "user", name: str = "ada") -> dict[str, str]:
        """Headers with a new token."""
        return {"authorization": f"Bearer {self.service.tokens.add(name, role)}"}

    def submit(self, job: Any, kind: str = "plan", **fields: Any) -> Any:
        """Ask for a job, as a program does."""
        return self.client.post(f"/api/v1/{kind}s", json={"job": job, **fields})

    def refusals(self, job: Any, kind: str = "plan", **fields: Any) -> dict[str, str]:
        """What is said against a job, by where."""
        answer = self.submit(job, kind, **fields)
        assert answer.status_code == 422, answer.text
        return {error["where"]: error["what"] for error in answer.json()["errors"]}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Makes services: called with what is in `server.yaml`, a folder is allowed beside it."""
    models = tmp_path / "models"
    (models / "m").mkdir(parents=True)
    (models / "m" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    opened = ExitStack()

    def make(**settings: Any) -> Served:
        allowed = {"folders": [str(models)], **settings.pop("allowed", {})}
        file = tmp_path / "server.yaml"
        file.write_text(json.dumps({"allowed": allowed, **settings}), encoding="utf-8")
        service = open_service(load_settings(file), tmp_path, CSRF)
        opened.callback(service.database.close)
        host = service.settings.host if service.settings.is_local else "127.0.0.1"
        client = TestClient(
            create_app(service), base_url=f"http://{host}", raise_server_exceptions=False
        )
        return Served(service, opened.enter_context(client), models)

    with opened:
        yield make


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """A service with its defaults, at 127.0.0.1, that needs no token."""
    return serve()
