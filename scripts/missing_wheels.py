"""Which wheels of a folder the running Python lacks, one path a line.

    python scripts/missing_wheels.py DIR

A wheel is missing where none of its top-level modules can be found, or where another missing wheel
pins a version of it (`==`) that is not the installed one.
"""

import argparse
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

PIN = re.compile(r"^Requires-Dist: ([\w.-]+)\s*==\s*([\w.+!]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """What a wheel says of itself."""

    path: Path
    name: str
    modules: frozenset[str]
    pins: dict[str, str]

    @property
    def absent(self) -> bool:
        """Whether this Python has none of it."""
        return all(importlib.util.find_spec(module) is None for module in self.modules)


def main() -> None:
    parser = argparse.ArgumentParser(description="List the wheels that this Python lacks.")
    parser.add_argument("folder", type=Path, help="where the wheels are")
    folder: Path = parser.parse_args().folder
    wheels = [read_wheel(path) for path in sorted(folder.glob("*.whl"))]
    for wheel in missing(wheels):
        print(wheel.path)


def read_wheel(path: Path) -> Wheel:
    with ZipFile(path) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode("utf-8").partition("\n\n")[0]
    tops = {name.split("/")[0] for name in names}
    return Wheel(
        path=path,
        name=canonical(path.name.split("-")[0]),
        modules=frozenset(
            top.split(".")[0] for top in tops if not top.endswith((".dist-info", ".data"))
        ),
        pins={canonical(name): version for name, version in PIN.findall(text)},
    )


def canonical(name: str) -> str:
    """One spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(wheels: list[Wheel]) -> list[Wheel]:
    found = [wheel for wheel in wheels if wheel.absent]
    while True:
        pins = {name: version for wheel in found for name, version in wheel.pins.items()}
        more = [
            w for w in wheels if w not in found and pins.get(w.name, installed(w)) != installed(w)
        ]
        if not more:
            return found
        found += more


def installed(wheel: Wheel) -> str | None:
    """The version of the package that is installed."""
    try:
        return importlib.metadata.version(wheel.name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
