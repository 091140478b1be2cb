"""What every test gets: a home of its own, folders with names that break careless code, and where
tests run side by side (`-n`), cores of its own."""

import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from autotune.facts.stack import missing
from tests.guards import GUARDS

WORKER = os.environ.get("PYTEST_XDIST_WORKER")
QUIET_VARIABLE = "AUTOTUNE_QUIET"
ROOT = Path(__file__).resolve().parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
"""File -> test -> seconds, of the last whole run; `""`: all of the file that took less than one."""
DURATIONS_VARIABLE = "AUTOTUNE_DURATIONS"
"""Where a run is to keep its durations."""
_took: dict[str, dict[str, float]] = {}


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


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "only the nightly tests of this guard, or of all"
    parser.addoption("--guard", action="append", choices=[*GUARDS, "all"], help=about)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files come first, so that none is left to one worker at the end. What is nightly is left
    out, but where it is asked for (tests/guards.py); so is what this TRL has no PPO for."""
    files = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
    items.sort(key=lambda item: -sum(files.get(item.nodeid.partition("::")[0], {"": 0}).values()))
    asked = set(config.option.guard or ())
    kept, left_out, has_ppo = [], [], missing("ppo") is None
    for item in items:
        guards = {mark.args[0] for mark in item.iter_markers("nightly")}
        wanted = guards & asked or (guards and "all" in asked) if asked else not guards
        if "ppo" in guards or item.get_closest_marker("ppo"):
            wanted = wanted and has_ppo
        (kept if wanted else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The first process of a run hears of every test: its durations are added up there."""
    file, _, name = report.nodeid.partition("::")
    took = _took.setdefault(file, {})
    took[name] = took.get(name, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    """Where a run is asked for it, it keeps how long each test took: what took less than a second
    as one figure a file."""
    target = os.environ.get(DURATIONS_VARIABLE)
    if WORKER is not None or not target:
        return
    path = Path(target)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for file, took in _took.items():
        long = {name: round(seconds, 1) for name, seconds in took.items() if seconds >= 1}
        rest = sum(seconds for seconds in took.values() if seconds < 1)
        known[file] = dict(sorted(long.items())) | {"": round(rest, 1)}
    here = {file: took for file, took in known.items() if (ROOT / file).exists()}
    path.write_text(json.dumps(here, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def plan_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces are the same whoever asks: one test run makes each of them once."""
    return _of_all_workers(tmp_path_factory, "plan-cache")


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


@pytest.fixture(autouse=True)
def own_signals() -> None:
    """No test, nor what it starts, keeps the handlers of a command that ran in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def quiet_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on this machine disturb probes here, as they do where users measure."""
    monkeypatch.delenv(QUIET_VARIABLE)


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of a launch's files ask one child, which has the stack already."""
    from tests.unit.bundle.check.asking import ask

    monkeypatch.setattr("autotune.bundle.check.asking._ask", ask)


@pytest.fixture(params=["a 0", "a'; echo foo", "ü ñ 日本"])
def nasty_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose name wants quoting."""
    folder = tmp_path / request.param
    folder.mkdir()
    return folder
