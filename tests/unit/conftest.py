from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model `m` and data `d` for job files."""
    (tmp_path / "m").mkdir()
    (tmp_path / "d").mkdir()
    return tmp_path
