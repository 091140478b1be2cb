"""What a data folder's card may say: where its files are, which have to lie in the folder.

`datasets` follows a README.md and a .huggingface.yaml to any file of the machine, and to any host;
and it hands everything else that they say of a configuration to the reader of the files.
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
_TAKEN = {"config_name", "default", "description", "version", *_PLACES}
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
        for what, hint in _wrong(data.get("configs") if isinstance(data, dict) else None):
            raise user_error(what, where=str(file), hint=hint)


def _wrong(configs: Any) -> Iterator[tuple[str, str]]:
    """Yield what a card must not say, and what to do."""
    entries = configs if isinstance(configs, list) else []
    for name, value in [
        entry for each in entries if isinstance(each, dict) for entry in each.items()
    ]:
        for place in _places(value) if name in _PLACES else ():
            if not isinstance(place, str) or _ELSEWHERE.search(place):
                what = f"names data outside of its folder: {in_one_line(str(place))[:200]}"
                yield what, "put the files into the folder, and name them relative to it"
        is_letter = isinstance(value, str) and (len(value) == 1 or value == "\\t")
        if name not in _TAKEN and not (is_letter and name in ("sep", "delimiter")):
            what = f"sets `{in_one_line(str(name))[:40]}` for the reader of its data"
            yield what, "leave it out: a card may name files, and a separator of one letter"


def _places(data: Any) -> Iterator[Any]:
    """Yield every value that says where files are."""
    if isinstance(data, dict):
        data = [value for name, value in data.items() if name != "split"]
    if isinstance(data, list):
        for value in data:
            yield from _places(value)
    elif data is not None:
        yield data
