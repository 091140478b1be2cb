"""The mark of files that were never launched, in the form of each file's format. Pure."""

import hashlib
import json
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import PurePath

from autotune.errors import in_one_line

MARK = "estimated, not verified"
KEY = "_autotune"
"""JSON has no comments: DeepSpeed, transformers and accelerate ignore this key."""
_START = "set -euo pipefail\n"
"""The line of our scripts after which they begin to work."""


def marked(files: Mapping[str, str], why: str | None = None) -> dict[str, str]:
    """Return the files of a bundle with the mark in their first lines; scripts print it as they
    start.

    Args:
        files: file name -> text.
        why: the reason why a verification failed; None: there was none yet.
    """
    mark = MARK if why is None else f"{MARK}: {in_one_line(' '.join(why.split()))}"
    return {name: _marked(name, text, mark) for name, text in files.items()}


def _marked(name: str, text: str, mark: str) -> str:
    kind = PurePath(name).suffix
    if kind == ".json":
        indent = " " * (len(text) - len(text[1:].lstrip()) - 2)
        mark_line = f"{indent}{json.dumps(KEY)}: {json.dumps(mark, ensure_ascii=False)},\n"
        return text.replace("{\n", f"{{\n{mark_line}", 1)
    if kind == ".md":
        title, _, rest = text.partition("\n")
        return f"{title}\n\n**{mark}**\n{rest}"
    comment = "".join(f"# {line}\n" for line in textwrap.wrap(mark, 98))
    if kind in (".sh", ".slurm"):
        warning = shlex.quote(f"{name}: {mark} (`autotune verify FOLDER` verifies it)")
        text = text.replace(_START, f"{_START}echo {warning} >&2\n", 1)
    first, end, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    return f"{first}{end}{comment}{rest}"


def digests(files: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file's text by its name, to detect later edits."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}
