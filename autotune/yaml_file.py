"""YAML as our users write it: line numbers for messages, `2e-4` a number, `no` a word."""

import re
from typing import Any

import yaml

from autotune.errors import Problem, UserError

Path_ = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: PyYAML reads `2e-4` as a string and `no` as False, which surprises."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _REPLACED]
    for _REPLACED in [("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def parse_scalar(text: str) -> Any:
    """One value as it would be read in a file (for `--set name=value`)."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[Path_, int]]:
    """The mapping in `text` and the line of each of its entries (1-based).

    Raises:
        UserError: not YAML, not a mapping, or a key given twice.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise UserError(
            Problem(where=where, what=f"not valid YAML: {getattr(error, 'problem', error)}")
        ) from None
    if not isinstance(data, dict):
        raise UserError(Problem(where=name, what="must be a mapping of `field: value` lines"))
    lines: dict[Path_, int] = {}
    doubled: list[Problem] = []
    if node is not None:
        _walk(node, (), lines, doubled, name)
    if doubled:
        raise UserError(*doubled)
    return data, lines


def _walk(
    node: yaml.Node, path: Path_, lines: dict[Path_, int], doubled: list[Problem], name: str
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            if here in lines:
                doubled.append(
                    Problem(
                        where=f"{name}:{key.start_mark.line + 1}",
                        what=f"`{'.'.join(map(str, here))}` is given twice",
                        hint=f"the first one is on line {lines[here]}; keep one",
                    )
                )
            lines.setdefault(here, key.start_mark.line + 1)
            _walk(value, here, lines, doubled, name)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), lines, doubled, name)
