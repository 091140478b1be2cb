"""What is built of the checkout works in an environment that has never seen it."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from autotune import __version__
from autotune.facts.stack import DISTRIBUTION

ROOT = Path(__file__).parents[2]
SOURCES = ("autotune", "search_spaces", "pyproject.toml", "setup.py", "README.md", "LICENSE")
FILE_NAME = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
WATCH = """
import os, sys
watched, left_out = (path + os.sep for path in {folders!r})
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def hear(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and not isinstance(arguments[0], int | None):
        path = os.path.abspath(os.fsdecode(arguments[0])) + os.sep
        if path.startswith(watched) and not path.startswith(left_out):
            os.write(log, os.fsencode(path) + bytes([10]))
sys.addaudithook(hear)
"""
"""Notes what any Python process of the environment opens in the checkout. The test's own virtual
environment may lie there, and lends the packages that autotune needs."""
JOB = """\
model: qwen2.5-0.5b
dataset: {lengths: {max: 64, p50: 32, p99: 60}}
global_batch_size: 4
max_length: 64
devices: {kind: cpu}
"""


def run(*command: object, folder: Path) -> str:
    """What a command prints, without the variables that lead to the checkout."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel of the sdist, what both hold, and what it opened here."""

    folder: Path
    files: dict[str, set[str]]
    log: Path

    def run(self, *words: object, folder: Path) -> str:
        return run(self.folder / "bin" / words[0], *words[1:], folder=folder)


def pip(*words: object, folder: Path) -> None:
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", *words)
    run(*command, folder=folder)


def environment(folder: Path, wheel: Path, log: Path) -> None:
    """A virtual environment with nothing but the wheel, the stack of ours behind it."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    quiet = ("--quiet", "--no-deps", "--no-index")
    pip("--python", folder / "bin" / "python", "install", *quiet, wheel, folder=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # The folder alone: an editable installation of ours that is in it does not count.
    (site / "stack.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    text = WATCH.format(folders=(str(ROOT), sys.prefix), log=str(log))
    (site / "watch_checkout.py").write_text(text, encoding="utf-8")
    (site / "watch_checkout.pth").write_text("import watch_checkout", encoding="utf-8")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("distribution")
    copy, built, log = folder / "copy", folder / "built", folder / "opened.log"
    for name in SOURCES:
        source = ROOT / name
        copy.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    run(sys.executable, "-c", BUILD, built, folder=copy)
    sdist = built / f"{FILE_NAME}.tar.gz"
    with tarfile.open(sdist) as archive:
        files = {"sdist": {name.partition("/")[2] for name in archive.getnames()}}
        archive.extractall(folder / "unpacked", filter="data")
    words = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", built)
    pip(*words, folder / "unpacked" / FILE_NAME, folder=folder)
    wheel = built / f"{FILE_NAME}-py3-none-any.whl"
    files["wheel"] = set(ZipFile(wheel).namelist())
    environment(folder / "environment", wheel, log)
    shutil.rmtree(copy)
    shutil.rmtree(folder / "unpacked")
    return Installed(folder=folder / "environment", files=files, log=log)


def shipped(folders: Sequence[str]) -> set[str]:
    """The files of folders of the checkout, by their paths in it."""
    found = {file for name in folders for file in (ROOT / name).rglob("*") if file.is_file()}
    return {
        file.relative_to(ROOT).as_posix() for file in found if file.parent.name != "__pycache__"
    }


def test_both_hold_every_file_of_the_package_and_the_search_spaces(installed: Installed) -> None:
    package, spaces = shipped(["autotune"]), shipped(["search_spaces"])
    assert len(package) > 400 and len(spaces) > 5 and "autotune/py.typed" in package
    assert not {*package, *spaces, "LICENSE"} - installed.files["sdist"]
    assert not {*package, *(f"autotune/{name}" for name in spaces)} - installed.files["wheel"]


def test_commands_work_from_another_folder_and_read_nothing_of_the_checkout(
    installed: Installed, nasty_dir: Path
) -> None:
    (nasty_dir / "job.yaml").write_text(JOB, encoding="utf-8")

    def output(*words: object) -> str:
        return installed.run("autotune", *words, folder=nasty_dir)

    home = installed.run(
        "python", "-c", "import autotune; print(autotune.__file__)", folder=nasty_dir
    )
    assert Path(home.strip()).is_relative_to(installed.folder)
    assert output("--version").split()[-1] == __version__
    assert "global_batch_size: 4" in output("validate", "job.yaml")
    assert output("serve", "--help").startswith("Usage: autotune serve")
    assert installed.log.read_text(encoding="utf-8") == ""


def test_a_space_is_bound_by_the_tables_inside(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    shown = installed.run("autotune", "validate", "--space", "job.yaml", folder=tmp_path)
    assert " candidates" in shown and "per_device_train_batch_size" in shown
    assert installed.log.read_text(encoding="utf-8") == ""


def test_a_type_checker_sees_what_a_program_uses(installed: Installed, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    shutil.copy(ROOT / "tests" / "contract" / "typed_program.py", program)
    settings = ("--strict", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "c")
    python = ("--python-executable", installed.folder / "bin" / "python")
    said = run(sys.executable, "-m", "mypy", *settings, *python, program, folder=tmp_path)
    assert said == "Success: no issues found in 1 source file\n"
    installed.log.write_text("", encoding="utf-8")  # mypy has looked into the settings


def test_what_is_opened_in_the_checkout_is_noted(installed: Installed, tmp_path: Path) -> None:
    code = f"open({str(ROOT / 'LICENSE')!r}).close()"
    installed.run("python", "-c", code, folder=tmp_path)
    noted = installed.log.read_text(encoding="utf-8")
    installed.log.write_text("", encoding="utf-8")
    assert noted == f"{ROOT / 'LICENSE'}{os.sep}\n"


def of_extra(name: str) -> Iterator[Requirement]:
    """What an extra asks for, with the extras that it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["optional-dependencies"][name]:
        requirement = Requirement(line)
        if requirement.name != DISTRIBUTION:
            yield requirement
        for inner in requirement.extras if requirement.name == DISTRIBUTION else ():
            yield from of_extra(inner)


def test_a_developer_has_what_one_extra_asks_for() -> None:
    """`pip install -e '.[dev]'` is what scripts/setup does, so nothing else is used here."""
    assert "-e '.[dev]'" in (ROOT / "scripts" / "setup").read_text(encoding="utf-8")
    wanted = list(of_extra("dev"))
    assert {"fastapi", "mkdocs-material", "mypy", "pytest"} <= {one.name for one in wanted}
    assert not [one for one in wanted if not one.specifier.contains(version(one.name))]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["pla"], ["plan"]),
        (["plan", "--device"], ["--device", "--devices"]),
    ],
)
def test_bash_completes_what_is_installed(
    installed: Installed, tmp_path: Path, words: list[str], completed: list[str]
) -> None:
    script = (
        f'PATH="{installed.folder}/bin:$PATH"\n'
        'eval "$(_AUTOTUNE_COMPLETE=bash_source autotune)"\n'
        f"COMP_WORDS=(autotune {shlex.join(words)}) COMP_CWORD={len(words)}\n"
        "_autotune_completion autotune\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    assert run("bash", "-c", script, folder=tmp_path).split() == completed
