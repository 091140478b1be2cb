"""What a data folder's card says of where its files are: they have to lie in the folder.

`datasets` follows a README.md and a .huggingface.yaml to any file of the machine, and to any host.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import in_one_line, user_error
from autotune.job.text_file import text_of
from autotune.job.yaml_file import check_size

_README, _CARD = "README.md", ".huggingface.yaml"
_HEAD = re.compile(r"\s*---(?:\r\n|\r|\n)([\S\s]*?)(?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$)")
"""As huggingface_hub finds it (`repocard.py`)."""
_MOST_BYTES = 2**22
_PLACES = ("data_files", "data_dir")
_ELSEWHERE = re.compile(r":|^[/~]|(?:^|[/\\])\.\.(?:[/\\]|$)")
"""A path that leaves its folder; a colon ends a scheme (`file:/x`) or begins another part."""
_NOT_YAML = (yaml.YAMLError, RecursionError, ValueError, LookupError, TypeError, AttributeError)
"""What PyYAML raises, also where a value does not fit its tag."""


def check_card(folder: Path, most_bytes: int = _MOST_BYTES) -> None:
    """Refuse a data folder whose card names files elsewhere.

    Args:
        most_bytes: of a card; reading YAML takes seconds a megabyte.

    Raises:
        UserError: it does, or cannot be read.
    """
    for file in (folder / _README, folder / _CARD):
        if not file.exists():
            continue
        text = text_of(file, "card of a data folder", most_bytes)
        if file.name == _README:
            head = _HEAD.match(text)
            text = head[1] if head else ""
        try:
            check_size(text)
            data = yaml.safe_load(text)
        except _NOT_YAML as error:
            what = f"its head cannot be read as YAML: {in_one_line(str(error))[:200]}"
            raise user_error(what, where=str(file), hint="correct it, or take it out") from None
        for place in _places(data.get("configs") if isinstance(data, dict) else None):
            if not isinstance(place, str) or _ELSEWHERE.search(place):
                raise user_error(
                    f"names data outside of its folder: {in_one_line(str(place))[:200]}",
                    where=str(file),
                    hint="put the files into the folder, and name them relative to it",
                )


def _places(data: Any, inside: bool = False) -> Iterator[Any]:
    """Yield every value that says where files are."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _places(value, (inside and name != "split") or name in _PLACES)
    elif isinstance(data, list):
        for value in data:
            yield from _places(value, inside)
    elif inside and data is not None:
        yield data
