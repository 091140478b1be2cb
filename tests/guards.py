"""Tests that are too long for each change, and the code that makes them due.

A test marked `nightly("launches")` is left out until the code of its guard changes: then a test of
`tests/unit` fails until it has run once. `scripts/nightly` runs all of them.

    scripts/test --guard launches    runs the tests of one guard, and records that they passed
    scripts/test --due               the same for every guard whose code has changed since

Comments and docstrings of the code do not count.
"""

import ast
import hashlib
import io
import re
import sys
import tokenize
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "tests" / "passed"
OWED = RECORDS / "owed.txt"
"""`guard: why` of what is still to be run; `scripts/test --due` runs it, and its line goes."""
GUARDS = {
    "documents": ("docs/first_answer.md", "docs/tasks", "examples", "search_spaces")
    + ("autotune/plan", "autotune/space", "autotune/report", "autotune/cli/views"),
    "engine": ("autotune/engine", "autotune/process", "tests/contract/ray_nodes.py"),
    "exactness": ("autotune/estimate", "autotune/training", "constraints.txt"),
    "launches": ("autotune/bundle", "autotune/run", "autotune/training"),
    "ppo": ("autotune/training/ppo.py", "autotune/training/train_ppo.py", "constraints-ppo.txt")
    + ("autotune/estimate/tracing/ppo_phases.py", "autotune/estimate/tracing/rollout.py")
    + ("autotune/estimate/variants/rollouts.py", "search_spaces/ppo.yaml"),
    "process": ("autotune/process",),
    "ranks": ("autotune/probe", "autotune/training", "autotune/space/sharding"),
    "rehearsals": ("scripts/gpu_memory.py", "scripts/gpu.sh", "benchmarks/gpu_memory"),
    "scripts": ("autotune/script",),
    "service": ("autotune/server", "autotune/client.py", "autotune/search/storage.py"),
    "virtual_gpu": ("autotune/probe", "autotune/process", "autotune/training", "autotune/doctor")
    + ("autotune/facts/devices.py", "tests/virtual_gpu"),
}
"""Name of a guard -> files and folders whose change makes its tests due."""
MADE = {"__pycache__", "build"}
"""Folders that hold no source."""


def fingerprint(guard: str) -> str:
    """Return a hash of the code that the tests of a guard cover."""
    texts = []
    for place in GUARDS[guard]:
        path = ROOT / place
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.is_file())
        for file in files:
            name = file.relative_to(ROOT)
            if MADE.isdisjoint(name.parts):
                data = file.read_bytes()
                counted = code(data.decode()).encode() if file.suffix == ".py" else data
                texts.append(f"{name} {hashlib.sha256(counted).hexdigest()}")
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def recorded(guard: str) -> str:
    """Return the hash of the code that the tests of a guard have last passed for."""
    file = RECORDS / f"{guard}.sha"
    return file.read_text(encoding="ascii").strip() if file.exists() else ""


def due() -> list[str]:
    """Return the guards whose code has changed since their tests passed."""
    return [guard for guard in GUARDS if recorded(guard) != fingerprint(guard)]


def owed() -> dict[str, str]:
    """Return the guards whose tests are known not to have run for the code as it is, and why."""
    lines = OWED.read_text(encoding="utf-8").splitlines() if OWED.exists() else []
    return {guard: why.strip() for guard, _, why in (line.partition(":") for line in lines)}


def record(guard: str) -> None:
    """Write down that the tests of a guard have passed for the code as it is."""
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{guard}.sha").write_text(fingerprint(guard) + "\n", encoding="ascii")
    rest = [f"{name}: {why}\n" for name, why in owed().items() if name != guard]
    if rest:
        OWED.write_text("".join(rest), encoding="utf-8")
    else:
        OWED.unlink(missing_ok=True)


def ppo_apart(names: Iterable[str]) -> list[Any]:
    """Return names as parameters of a test: those of PPO need the environment that has it."""
    marks = pytest.mark.ppo
    return [pytest.param(name, marks=marks if _is_of_ppo(name) else ()) for name in names]


def some_of(cases: Iterable[Any], kept: Collection[Any], guard: str) -> list[Any]:
    """Return cases as parameters of a test: the kept ones always run, the rest are nightly, those
    of PPO in the environment that has it."""
    guards = {True: pytest.mark.nightly("ppo"), False: pytest.mark.nightly(guard)}
    return [
        pytest.param(case, marks=() if case in kept else guards[_is_of_ppo(case)]) for case in cases
    ]


def _is_of_ppo(case: Any) -> bool:
    return re.search(r"\bppo", str(getattr(case, "name", case))) is not None


def code(text: str) -> str:
    """Return a module without comments, docstrings and empty lines."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            rows = slice(node.lineno - 1, node.end_lineno)
            lines[rows] = [""] * len(lines[rows])
    return "\n".join(line.rstrip() for line in lines if line.strip())


if __name__ == "__main__":  # guards.py: the due ones, a line each; guards.py NAME...: record these
    for name in sys.argv[1:]:
        record(name)
    if not sys.argv[1:]:
        print(*due(), sep="\n")
