"""The site is built without a warning, and its pages ask no host for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|icon)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|(?:url\(|@import\s*)["']?(?:https?:)?//"""
)
"""What a browser fetches by itself from another host."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # a notice of the theme's makers
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_page_is_built_and_found_by_the_search(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    for page in ("install", "first_answer", "tasks/out_of_memory", "cli", "benchmarks/peers/index"):
        assert (site / f"{page}.html").is_file()
        assert f'"location":"{page}.html"' in index


def test_pages_ask_no_host_for_anything(site: Path) -> None:
    assert LOADED.search('<link rel="stylesheet" href="https://fonts.example/css">')
    files = [file for file in site.rglob("*") if file.suffix in (".html", ".css")]
    assert len(files) > 60
    for file in files:
        found = LOADED.search(file.read_text(encoding="utf-8"))
        assert found is None, f"{file.relative_to(site)}: {found}"
