"""What the stack is licensed under: nothing that binds who uses it."""

import re
from importlib import metadata
from pathlib import Path

LOCK = Path(__file__).parents[2] / "constraints.txt"
FREE = (
    *("0BSD", "Academic Free", "Apache", "BSD", "BSL-1.0", "CC0", "CNRI", "ISC", "LLVM", "MIT"),
    *("MPL", "Mozilla", "PSF", "Python Software Foundation", "Zlib"),
)
LINKED = {"psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"}
"""Used as they come, and only by a service on PostgreSQL."""


def licence(name: str) -> str:
    """What a package says of itself; empty: it is not installed here."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    classifiers = [x for x in said.get_all("Classifier") or () if x.startswith("License ::")]
    texts = [x.rpartition(" :: ")[2] for x in classifiers]
    first = (said["License"] or "").strip().partition("\n")[0]
    return str(said["License-Expression"] or "; ".join(texts) or first or "nothing said")


def test_all_of_the_locked_stack_may_be_used_freely() -> None:
    names = re.findall(r"^([\w.-]+)==", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    licences = {name: licence(name) for name in names}
    assert sum(map(bool, licences.values())) > 80
    binding = {
        name: text
        for name, text in licences.items()
        if text and not any(word in text for word in FREE) or "GPL" in text
    }
    assert binding == {name: text for name, text in LINKED.items() if licences[name]}
