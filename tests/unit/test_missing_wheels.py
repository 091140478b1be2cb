"""scripts/missing_wheels.py: what a machine without a package index has to install."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

SCRIPT = Path(__file__).parents[2] / "scripts" / "missing_wheels.py"


def make_wheel(folder, name, *modules, version="1.0", needs=()):
    path = folder / f"{name}-{version}-py3-none-any.whl"
    lines = [f"Name: {name}", *(f"Requires-Dist: {need}" for need in needs), "", "Long text"]
    with ZipFile(path, "w") as archive:
        for module in modules:
            archive.writestr(module, "")
        archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(lines))
        archive.writestr(f"{name}-{version}.data/scripts/tool", "")
    return path


def missing(folder):
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Path(line).name.split("-")[0] for line in done.stdout.splitlines()]


def test_only_what_cannot_be_imported_is_missing(tmp_path):
    folder = tmp_path / "a 0"
    folder.mkdir()
    make_wheel(folder, "json_there", "json/__init__.py")
    make_wheel(folder, "no_such_thing", "no_such_thing/__init__.py", "no_such_thing/more.py")
    make_wheel(folder, "no_such_file", "no_such_file.cpython-312-x86_64-linux-gnu.so")
    make_wheel(folder, "partly_there", "example_that_is_nowhere.py", "json/__init__.py")
    assert missing(folder) == ["no_such_file", "no_such_thing"]


def test_a_missing_package_brings_the_version_that_it_pins(tmp_path):
    make_wheel(tmp_path, "no_such_thing", "no_such_thing.py", needs=["Click==0.1", "rich>=0.1"])
    make_wheel(tmp_path, "click", "click/__init__.py", version="0.1")
    make_wheel(tmp_path, "rich", "rich/__init__.py", version="0.1")
    assert sorted(missing(tmp_path)) == ["click", "no_such_thing"]
