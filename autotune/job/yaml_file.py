"""YAML as our users write it: line numbers for messages, `2e-4` a number, `no` a word."""

import math
import re
from typing import Any

import yaml

from autotune.errors import Problem, UserError

Path_ = tuple[str | int, ...]
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
MOST_VALUES = 20_000
"""Values that a file may have, each `*name` counted as all that it stands for: a few hundred bytes
of such names can stand for more than any memory holds."""
_MOST_DIGITS = 300
_HALF = re.compile("[\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: PyYAML reads `2e-4` as a string, `no` as False, `1:30` as 90, `010` as 8
    and days as dates, which surprises. Files without end are refused while they are read."""

    _composed = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; not one too many, and no half of a character."""
        self._composed += 1
        if self._composed > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, _TOO_MANY, self.get_mark())
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and _HALF.search(node.value):
            what = "half of a character (a lone surrogate)"
            raise yaml.composer.ComposerError(None, None, what, node.start_mark)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return a whole number; not one that Python itself would refuse to print."""
        if len(node.value) > _MOST_DIGITS:
            what = f"a number of more than {_MOST_DIGITS} digits"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
        return int(super().construct_yaml_int(node))


_TOO_MANY = f"more than {MOST_VALUES:,} values, each `*name` counted as all that it stands for"
_TWICE = "is given twice"
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, rule) for tag, rule in rules if tag not in _REPLACED]
    for _REPLACED in [
        [f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "timestamp")]
    ]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


class _TableLoader(_Loader):
    """The same by libyaml, four times as fast: for our own tables, in which nothing is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__("")
        events = yaml.CSafeLoader(text)
        for name in ("check_event", "peek_event", "get_event"):
            setattr(self, name, getattr(events, name))


def parse_scalar(text: str) -> Any:
    """Return one value as it would be read in a file (for `--set name=value`)."""
    loader, node = _composed(text)
    return None if node is None else loader.construct_document(node)


def check_size(text: str) -> None:
    """Hold what a YAML text stands for against `MOST_VALUES`.

    Raises:
        YAMLError: it stands for more, or is not YAML.
    """
    _composed(text)


def _composed(text: str, kind: type[_Loader] = _Loader) -> tuple[_Loader, yaml.Node | None]:
    """Return a text as YAML's nodes, and who makes values of them; not of too many."""
    loader = kind(text)
    node = loader.get_single_node()
    if node is not None and _size(node, {}) > MOST_VALUES:
        raise yaml.composer.ComposerError(None, None, _TOO_MANY, node.start_mark)
    return loader, node


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Return values in a node, with all that aliases stand for; without end where it contains
    itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for entry in node.value for part in entry]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def parse_yaml(
    text: str, name: str, *, shipped: bool = False, twice: list[Problem] | None = None
) -> tuple[dict[str, Any], dict[Path_, int]]:
    """Return the mapping in `text` and the line of each of its entries (1-based).

    Args:
        shipped: whether it is one of our own tables.
        twice: takes keys that are given twice, in place of a refusal; the last value counts.

    Raises:
        UserError: not YAML, not a mapping, a key given twice, or one that is no word.
    """
    lines: dict[Path_, int] = {}
    problems: list[Problem] = []
    try:
        by_libyaml = shipped and yaml.__with_libyaml__
        loader, node = _composed(text, _TableLoader if by_libyaml else _Loader)
        if node is not None:
            # Before construction, which copies the keys of a merge (`<<`) into the node.
            _walk(node, (), lines, problems, name)
            repeated = [problem for problem in problems if problem.what.endswith(_TWICE)]
            if twice is not None:
                twice += repeated
                problems = [problem for problem in problems if problem not in repeated]
        data = loader.construct_document(node) if node is not None else {}
    except RecursionError:
        raise UserError(Problem(where=name, what="not valid YAML: nested without end")) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # What PyYAML lets through where a value does not fit its explicit tag, as in `!!int x`.
        raise UserError(Problem(where=name, what=f"not valid YAML: {error}")) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise UserError(
            Problem(where=where, what=f"not valid YAML: {getattr(error, 'problem', error)}")
        ) from None
    if not isinstance(data, dict):
        raise UserError(Problem(where=name, what="must be a mapping of `field: value` lines"))
    if problems:
        raise UserError(*problems)
    return data, lines


def _walk(
    node: yaml.Node, path: Path_, lines: dict[Path_, int], problems: list[Problem], name: str
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            word = str(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            key_path = (*path, word)
            if key.tag not in _KEY_TAGS:
                problems.append(
                    Problem(
                        where=f"{name}:{key.start_mark.line + 1}",
                        what=f"`{word}` cannot be the name of a field: names are words",
                    )
                )
            elif key_path in lines:
                problems.append(
                    Problem(
                        where=f"{name}:{key.start_mark.line + 1}",
                        what=f"`{'.'.join(map(str, key_path))}` {_TWICE}",
                        hint=f"the first one is on line {lines[key_path]}; keep one",
                    )
                )
            lines.setdefault(key_path, key.start_mark.line + 1)
            _walk(value, key_path, lines, problems, name)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), lines, problems, name)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back as the very same data."""


def _word(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Return our reader takes `1e-4` for a number where PyYAML sees a word, so such a word is
    quoted."""
    try:
        number = isinstance(parse_scalar(text), int | float)
    except (yaml.YAMLError, ValueError):
        number = False
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if number else None)


_Dumper.add_representer(str, _word)


def dump_flow(value: Any) -> str:
    """Return a value as it is written within a line of YAML."""
    text: str = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        sort_keys=False,
        allow_unicode=True,
        width=10**6,
    )
    return text.removesuffix("...\n").strip()


def to_yaml(data: dict[str, Any]) -> str:
    """Return a mapping as YAML text, its order kept."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
