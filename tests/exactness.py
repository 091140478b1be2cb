"""The code that the sweeps of exactness were last run for: a hash beside them.

    scripts/test --exactness        runs the sweeps, and records it where they pass

What counts is the code of the estimates and of the trainers that they are held against, without
its comments and docstrings, and the locked versions of the stack.
"""

import ast
import hashlib
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("autotune/estimate", "autotune/training")
RECORD = ROOT / "tests" / "cpu" / "exactness.sha"


def fingerprint() -> str:
    """What the sweeps depend on, as a hash."""
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    texts = [f"{file.relative_to(ROOT)}\n{code(file.read_text('utf-8'))}" for file in files]
    texts.append((ROOT / "constraints.txt").read_text("utf-8"))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def code(text: str) -> str:
    """A module without comments, docstrings and empty lines."""
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


if __name__ == "__main__":
    RECORD.write_text(fingerprint() + "\n", encoding="ascii")
