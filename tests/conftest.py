"""What every test gets: a home of its own, folders with names that break careless code, and where
tests run side by side (`-n`), cores of its own."""

import hashlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

USERS_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
QUIET_VARIABLE = "AUTOTUNE_QUIET"


def pytest_configure() -> None:
    """A worker of several, and whatever it starts, keeps to its own cores: what is timed in one is
    not disturbed by the others. How long an example of a property takes is no property."""
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
    # How quiet this machine is is tested only where a test asks for it (`quiet_counts`).
    os.environ[QUIET_VARIABLE] = "9"
    if WORKER is None:
        return
    number, workers = int(WORKER.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    own = sorted(os.sched_getaffinity(0))[number::workers]
    if own:
        os.sched_setaffinity(0, own)


LONG_FILES = (
    "test_run.py",
    "test_launch_several.py",
    "test_ppo.py",
    "test_online.py",
    "test_plan.py",
    "test_ranks.py",
    "test_planned_bundle.py",
    "test_preference.py",
    "test_loading.py",
)
"""Files of minutes in `tests/cpu`, which come first: none is left to one worker at the end. While
the first that needs it compiles DeepSpeed's code, the other worker has one that does not."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files come first. Sweeps of exactness are left out, but where they are asked for."""
    places = {f"tests/cpu/{name}": place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    if "exactness" not in config.option.markexpr:
        sweeps = [item for item in items if item.get_closest_marker("exactness")]
        config.hook.pytest_deselected(items=sweeps)
        items[:] = [item for item in items if item not in sweeps]


@pytest.fixture(scope="session")
def plan_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces are the same whoever asks: one test run makes each of them once."""
    return _of_all_workers(tmp_path_factory, "plan-cache")


@pytest.fixture(scope="session")
def kept_compiled() -> Path:
    """Where it is kept for later test runs with this stack on this processor: the user's cache."""
    versions = [version(name) for name in ("deepspeed", "torch")]
    processor = [
        line
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith(("model name", "flags", "Features"))
    ]
    parts = [sys.prefix, sys.version, *versions, *sorted(set(processor))]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return USERS_CACHE / "autotune-tests" / f"compiled-{key}"


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What DeepSpeed compiles at first use (minutes), one test run compiles once, in here."""
    folder = _of_all_workers(tmp_path_factory, "compiled")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    return folder


def _of_all_workers(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base if WORKER is None else base.parent) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, plan_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test can touch the user's home or caches, nor reach for the hub."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("AUTOTUNE_CACHE", str(plan_cache))
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    return home


@pytest.fixture
def quiet_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on this machine disturb probes here, as they do where users measure."""
    monkeypatch.delenv(QUIET_VARIABLE)


@pytest.fixture(params=["a 0", "a'; echo foo", "ü ñ 日本"])
def nasty_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose name wants quoting."""
    folder = tmp_path / request.param
    folder.mkdir()
    return folder
