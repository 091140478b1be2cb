"""The data of another tool's file: rows that TRL reads the same, or their longest length. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.space.foreign.fields import LEARNING
from autotune.space.foreign.reading import Reading

_REGISTRY = "dataset_info.json"
_LOADERS = (None, "json", "csv", "parquet", "text")
"""Names of `datasets` for files that lie anywhere."""


def set_lengths(reading: Reading, why: str) -> None:
    """Plan from lengths: every row as long as rows may be."""
    longest = reading.job.get("max_length") or reading.longest
    longest = longest if isinstance(longest, int) and longest > 0 else 1024
    reading.write("dataset", {"lengths": {"max": longest}})
    reading.assumed.append(
        f"dataset: every row has {longest} tokens ({why}; `dataset: my-data` or "
        "`dataset: {lengths: {max: ..., p50: ...}}` says better)"
    )


def _leave(reading: Reading, field: str, why: str) -> None:
    reading.leave(field, LEARNING, why)
    set_lengths(reading, why)


def _take(reading: Reading, field: str, place: str, columns: Mapping[str, str]) -> None:
    reading.carry(field, "dataset", place)
    if columns:
        reading.write("columns", dict(columns))


def _take_parts(reading: Reading, entry: Mapping[str, Any], name: str) -> None:
    """Take the configuration and the split of a data set."""
    for theirs, ours in ((name, "dataset_config"), ("split", "dataset_train_split")):
        if isinstance(entry.get(theirs), str) and entry[theirs]:
            reading.write(ours, entry[theirs])


def _renamed(**columns: Any) -> dict[str, str]:
    return {ours: str(theirs) for ours, theirs in columns.items() if ours != theirs}


def _one(given: Any) -> Mapping[str, Any] | None:
    """Return the only entry of a list."""
    one = given[0] if isinstance(given, list) and len(given) == 1 else None
    return one if isinstance(one, Mapping) else None


def read_trls(reading: Reading) -> None:
    """Read TRL's data: one set, or a mixture of one."""
    given, mixture = reading.given("dataset_name"), reading.given("datasets")
    part = _one(mixture) or {}
    if isinstance(given, str):
        _take(reading, "dataset_name", given, {})
    elif isinstance(part.get("path"), str) and not {"data_files", "columns"} & part.keys():
        _take(reading, "datasets", part["path"], {})
        _take_parts(reading, part, "name")
    else:
        why = "a mixture: a job has one data set" if mixture else "no data set is named"
        _leave(reading, "datasets", why)


def read_axolotls(reading: Reading) -> None:
    """Read Axolotl's data, where TRL forms the same rows."""
    sets = reading.given("datasets")
    count, entry = len(sets) if isinstance(sets, list) else 0, _one(sets)
    if entry is None:
        why = f"{count} data sets mixed: a job has one" if count else "no data set is named"
        reading.leave("pretraining_dataset", LEARNING, why)
        _leave(reading, "datasets", why)
        return
    columns, place = _axolotls_columns(entry, reading.method.name), _place(entry)
    if columns is not None and place is None:
        _leave(reading, "datasets", "its `data_files` lie in a repository: a job has all rows")
    elif columns is None or not isinstance(place, str):
        _leave(reading, "datasets", f"`type: {entry.get('type')}` forms rows as TRL does not")
    else:
        _take(reading, "datasets", place, columns)
        _take_parts(reading, entry, "name")


def _place(entry: Mapping[str, Any]) -> Any:
    """Return where the rows lie; None: in some files of a repository."""
    path, files = entry.get("path"), entry.get("data_files")
    files = files[0] if isinstance(files, list) and len(files) == 1 else files
    if not files or not isinstance(files, str):
        return None if files else path
    if path in _LOADERS:
        return files
    if isinstance(path, str) and path.startswith(("/", ".", "~")):
        return files if files.startswith(("/", "~")) else f"{path.rstrip('/')}/{files}"
    return None


def _axolotls_columns(entry: Mapping[str, Any], method: str) -> dict[str, str] | None:
    """Return what TRL's columns are called in the data; None: TRL cannot read them."""
    kind = entry.get("type")
    if method == "sft" and kind == "completion":
        return _renamed(text=entry.get("field") or "text")
    if method == "sft" and kind == "chat_template":
        properties = entry.get("message_property_mappings") or {}
        roles = entry.get("message_field_role"), entry.get("message_field_content")
        same = isinstance(properties, Mapping) and all(k == v for k, v in properties.items())
        if same and roles in ((None, None), ("role", "content")):
            return _renamed(messages=entry.get("field_messages") or "messages")
    return None


def read_registered(reading: Reading) -> None:
    """Read the data set that a name stands for in LLaMA-Factory's registry."""
    given = reading.given("dataset")
    names = [n.strip() for n in given.split(",")] if isinstance(given, str) else given
    names = names if isinstance(names, list) else []
    if len(names) != 1:
        why = f"{len(names)} data sets mixed: a job has one" if names else "no data set is named"
        _leave(reading, "dataset", why)
        return
    entry = reading.registry.get(str(names[0]))
    if not isinstance(entry, Mapping):
        _leave(reading, "dataset", f"`{names[0]}` is an entry of {_REGISTRY}: give it, too")
        return
    place, file = entry.get("hf_hub_url"), entry.get("file_name")
    folder = str(reading.given("dataset_dir") or "data")
    place = f"{folder}/{file}" if place is None and isinstance(file, str) else place
    columns = _registered_columns(entry, reading.method.name)
    if not isinstance(place, str):
        _leave(reading, "dataset", "it lies where no job can read it")
    elif isinstance(columns, str):
        _leave(reading, "dataset", columns)
    else:
        _take(reading, "dataset", place, columns)
        _take_parts(reading, entry, "subset")


def _registered_columns(entry: Mapping[str, Any], method: str) -> dict[str, str] | str:
    """Return what TRL's columns are called; a sentence where TRL would read other rows."""
    columns, tags = entry.get("columns"), entry.get("tags")
    columns = columns if isinstance(columns, Mapping) else {}
    if entry.get("formatting", "alpaca") == "sharegpt":
        tags = tags if isinstance(tags, Mapping) else {}
        if method != "sft" or (tags.get("role_tag"), tags.get("content_tag")) != (
            "role",
            "content",
        ):
            return "its conversations are not in TRL's form (role, content)"
        return _renamed(messages=columns.get("messages", "conversations"))
    prompt = columns.get("prompt")
    if columns.get("query", None if columns else "input"):
        return "its prompts are joined of two columns, which `columns:` cannot do"
    if prompt is None:
        return "its prompts have no column of their own"
    if method == "sft" and "response" not in columns:
        return _renamed(text=prompt)
    if method == "sft":
        return _renamed(prompt=prompt, completion=columns["response"])
    if entry.get("ranking") and {"chosen", "rejected"} <= columns.keys():
        pair = {"chosen": columns["chosen"], "rejected": columns["rejected"]}
        return _renamed(prompt=prompt, **pair)
    return f"its columns are not those of `method: {method}`"
