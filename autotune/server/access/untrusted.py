"""Texts, data and model configs by strangers: only what is small and plain enough is read.

Reading YAML takes time and memory without bound where it refers to itself, and so does what comes
after for data that are nested without end, or whose numbers have thousands of digits. A model's
config.json must be of a size that a machine can lay out, without what would make the stack load
code.
"""

import json
import math
import re
from typing import Any

import yaml

from autotune.errors import UserError, user_error
from autotune.facts.model_files import config_problems, read_config
from autotune.plain_data import is_writable

MOST_TEXT = 32 * 1024
"""Characters of a YAML file: a job has a thousand."""
MOST_JSON = 256 * 1024
"""Characters of a model's config."""
_DEEPEST = 24
_MOST_PARTS = 20_000
_LARGEST = 2**53
"""Whole numbers beyond it are not the same everywhere."""
_OPENS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSES = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_DROPPED = re.compile(
    r"auto_map|custom_pipelines|custom_generate|_?attn_implementation(?:_\w+)?|_commit_hash"
    r"|_name_or_path|transformers_weights|\w*kernel_config\w*|use_kernels"
)
"""Fields that name code or kernels of a hub, or a place: a plan needs none of them."""
_REPEATED = re.compile(r"layer|depth|blocks|stages|expert|codebook")
_NOT_REPEATED = re.compile(r"size|dim|_ids?$|eps|theta|scal")
MOST_LAYERS, MOST_PARTS, MOST_LIST = 1024, 2**17, 4096
"""Layers, layers times experts, and values of a list: each is made one by one."""
_LARGEST_OF_MODEL = 2**40


def check_yaml(text: str, where: str) -> None:
    """Refuse a YAML text that is too long, too deep, or refers to itself.

    Raises:
        UserError: it does. Text that is no YAML passes here, and fails when it is read.
    """
    check_text(text, where, MOST_TEXT)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                hint = "write the value in both places"
                raise user_error("`*names` are not taken over HTTP", where=where, hint=hint)
            depth += isinstance(event, _OPENS)
            depth -= isinstance(event, _CLOSES)
            if depth > _DEEPEST:
                raise user_error(f"is nested deeper than {_DEEPEST} times", where=where)
    except yaml.YAMLError:
        return


def check_text(text: str, where: str, most: int) -> None:
    """Refuse a text that is too long.

    Raises:
        UserError: it is, or has characters that a text cannot have.
    """
    if len(text) > most:
        raise user_error(f"more than {most} characters are not taken", where=where)
    if _is_broken(text):
        raise user_error("has characters that a text cannot have", where=where)


def check_data(data: Any, where: str) -> None:
    """Refuse data that are too many or too deep, or that are not plain.

    Raises:
        UserError: they are.
    """
    parts, count = [(data, 0)], 0
    while parts:
        part, depth = parts.pop()
        count += 1
        what = _fault(part)
        if depth > _DEEPEST:
            what = f"is nested deeper than {_DEEPEST} times"
        elif count > _MOST_PARTS:
            what = f"has more than {_MOST_PARTS} parts"
        if what is not None:
            raise user_error(what, where=where)
        if isinstance(part, dict):
            parts += [(one, depth + 1) for one in (*part.keys(), *part.values())]
        elif isinstance(part, list):
            parts += [(one, depth + 1) for one in part]


def _fault(part: Any) -> str | None:
    if isinstance(part, str):
        return "has a text with characters that no text has" if _is_broken(part) else None
    if isinstance(part, bool) or part is None or isinstance(part, dict | list):
        return None
    if isinstance(part, int):
        return None if abs(part) <= _LARGEST else "has a number that is too large"
    if isinstance(part, float):
        return None if math.isfinite(part) else "has a number that is not finite"
    return f"has a value of the type {type(part).__name__}, which is not taken"


def _is_broken(text: str) -> bool:
    """True if it cannot be written to a file or a database: NUL, or half of a pair."""
    return "\0" in text or not is_writable(text)


def model_config(config: str | dict[str, Any], where: str) -> str:
    """Return the config as it is handed on: JSON, without what is dropped.

    Raises:
        UserError: it is no config of a model, or of one that cannot be laid out.
    """
    if isinstance(config, str):
        check_text(config, where, MOST_JSON)
        data, problems = read_config(config, where)
    else:
        check_data(config, where)
        data, problems = config, list(config_problems(config, where))
    if problems:
        raise UserError(*problems)
    check_data(data, where)
    names = data.get("architectures")
    if names is not None and not _are_classes(names):
        raise user_error("`architectures` must list names of classes", where=where)
    kept = _kept(data)
    _check_sizes(kept, where)
    return json.dumps(kept)


def _are_classes(names: Any) -> bool:
    return isinstance(names, list) and all(
        isinstance(name, str) and re.fullmatch(r"[A-Z]\w{0,95}", name) for name in names
    )


def _kept(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _kept(one) for name, one in data.items() if not _DROPPED.fullmatch(name)}
    return [_kept(one) for one in data] if isinstance(data, list) else data


def _check_sizes(data: dict[str, Any], where: str) -> None:
    """Refuse sizes that would be laid out without end."""
    layers = experts = 1
    parts: list[tuple[str, Any]] = [("", data)]
    while parts:
        name, part = parts.pop()
        if isinstance(part, dict):
            parts += part.items()
        elif isinstance(part, list):
            if len(part) > MOST_LIST:
                raise user_error(f"`{name}` has more than {MOST_LIST} values", where=where)
            parts += [(name, one) for one in part]
        elif isinstance(part, int | float) and not isinstance(part, bool):
            if abs(part) > _LARGEST_OF_MODEL:
                raise user_error(f"`{name}: {part}` is too large", where=where)
            if not _REPEATED.search(name) or _NOT_REPEATED.search(name):
                continue
            if "expert" in name:
                experts = max(experts, int(part))
            else:
                layers = max(layers, int(part))
    if layers > MOST_LAYERS or layers * experts > MOST_PARTS:
        raise user_error(
            f"{layers} layers of {experts} experts are more than are laid out here",
            where=where,
            hint=f"at most {MOST_LAYERS} layers, and {MOST_PARTS} experts of all layers together",
        )
