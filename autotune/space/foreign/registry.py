"""LLaMA-Factory's registry of data sets (`dataset_info.json`). Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import set_lengths

REGISTRY = "dataset_info.json"
_WHOLE_NAMES = {"role_tag": "role", "content_tag": "content"}


def is_registry(data: Mapping[str, Any]) -> bool:
    """True if a file lists data sets."""
    places = ("file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name")
    return bool(data) and all(
        isinstance(entry, Mapping) and any(place in entry for place in places)
        for entry in data.values()
    )


def read_registered(reading: Reading) -> None:
    """Read the data set that a name stands for; rows of the longest length where it is unknown."""
    given = reading.given("dataset")
    names = [n.strip() for n in given.split(",")] if isinstance(given, str) else given
    names = names if isinstance(names, list) else []
    if len(names) != 1:
        why = f"{len(names)} data sets mixed" if names else "no data set is named"
        reading.leave("dataset", f"{why}: a job has one")
        set_lengths(reading, why)
        return
    entry = reading.registry.get(str(names[0]))
    if not isinstance(entry, Mapping):
        what = f"`{names[0]}` stands for an entry of {REGISTRY}"
        reading.leave("dataset", f"{what}: give that file, too")
        set_lengths(reading, what)
        return
    folder = str(reading.given("dataset_dir") or "data")
    place, columns, why = _place_and_columns(entry, reading.method.name, folder)
    if place is None:
        reading.leave("dataset", why)
        set_lengths(reading, why)
        return
    reading.carry("dataset", "dataset", place)
    if columns:
        reading.write("columns", columns)
    for theirs, ours in (("subset", "dataset_config"), ("split", "dataset_train_split")):
        if entry.get(theirs):
            reading.write(ours, entry[theirs])


def _place_and_columns(
    entry: Mapping[str, Any], method: str, folder: str
) -> tuple[str | None, dict[str, str], str]:
    """Return where the rows lie and what their columns are called; no place and why, where TRL
    would read other rows."""
    place, file = entry.get("hf_hub_url"), entry.get("file_name")
    place = f"{folder}/{file}" if place is None and isinstance(file, str) else place
    if not isinstance(place, str):
        return None, {}, "it lies where no job can read it"
    columns = entry.get("columns")
    columns = columns if isinstance(columns, Mapping) else {}
    if entry.get("formatting", "alpaca") == "sharegpt":
        tags = entry.get("tags")
        tags = tags if isinstance(tags, Mapping) else {}
        same = all(tags.get(tag) == name for tag, name in _WHOLE_NAMES.items())
        if method != "sft" or not same:
            return None, {}, "its conversations are not in TRL's form (role, content)"
        return place, _renamed(messages=columns.get("messages", "conversations")), ""
    if columns.get("query", "input" if not columns else None):
        return None, {}, "its prompts are joined of two columns, which `columns:` cannot do"
    prompt, answer = columns.get("prompt"), columns.get("response", "output")
    if prompt is None:
        return None, {}, "its prompts have no column of their own"
    if method == "sft":
        if "response" not in columns:
            return place, _renamed(text=prompt), ""
        return place, _renamed(prompt=prompt, completion=answer), ""
    if entry.get("ranking") and {"chosen", "rejected"} <= columns.keys():
        named = {"prompt": prompt, "chosen": columns["chosen"], "rejected": columns["rejected"]}
        return place, _renamed(**named), ""
    return None, {}, f"its columns are not those of `method: {method}`"


def _renamed(**columns: Any) -> dict[str, str]:
    return {ours: str(theirs) for ours, theirs in columns.items() if ours != theirs}
