"""A service's store in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.server.store.database import Database, open_database, sqlite_url


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(sqlite_url(tmp_path / "service.db"))
    yield opened
    opened.close()
