"""A model's config.json that comes with a job: plain, of a size that a machine can lay out, and
without what would make the stack load code."""

import json
import re
from typing import Any

from autotune.errors import UserError, user_error
from autotune.facts.model_config import config_problems, read_config
from autotune.server.access.plain import MOST_JSON, check_data, check_text

_DROPPED = re.compile(
    r"auto_map|custom_pipelines|custom_generate|_?attn_implementation(?:_\w+)?|_commit_hash"
    r"|_name_or_path|transformers_weights|\w*kernel_config\w*|use_kernels"
)
"""What names code or kernels of a hub, or a place: a plan needs none of it."""
_REPEATED = re.compile(r"layer|depth|blocks|stages|expert|codebook")
_NOT_REPEATED = re.compile(r"size|dim|_ids?$|eps|theta|scal")
MOST_LAYERS, MOST_PARTS, MOST_LIST = 1024, 2**17, 4096
"""Of layers, of layers times experts, and of a list: each is made one by one."""
_LARGEST = 2**40


def model_config(config: str | dict[str, Any], where: str) -> str:
    """Return the config as it is handed on: JSON, without what is dropped.

    Raises:
        UserError: it is not the config of a model, or of none that can be laid out.
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
    """Refuse what would be laid out without end."""
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
            if abs(part) > _LARGEST:
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
