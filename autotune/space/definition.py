"""Search space files: read strictly, every problem reported at once; and the words that they may
write in place of values that follow from the job."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, cast

from autotune.errors import Problem, UserError, nearest
from autotune.facts.stack import field_types
from autotune.job.fields import as_batch
from autotune.job.methods import METHODS
from autotune.job.text_file import text_of
from autotune.job.yaml_file import parse_yaml
from autotune.space.job_file.training_values import is_plain, wrong_value
from autotune.space.knobs import (
    COMPLETION,
    DTYPE,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    NUM_PROCESSES,
    RESPONSE,
    ROLLOUT_CHUNK,
    SAMPLING,
    SEGMENTS,
    TENSOR_PARALLEL,
    VLLM_SHARE,
    Knob,
    Rule,
)
from autotune.space.sharding.sharding import BUCKET_SIZE, PERSISTENCE, PREFETCHED

DIVISORS = "divisors of the global batch"
JOB_MAX_LENGTH = "the job's max_length"
JOB_BATCH = "the job's global_batch_size"
WHOLE_GROUPS = "whole groups that divide the global batch"
QUARTERS = "a device's part of the global batch, and a quarter of it"
AS_NEEDED = "what the completions need"
ONE_EACH = "one for each device"
SIZES = "sizes among which vLLM can divide the model"
DEFAULT_SIZE = "what transformers fills in"
LARGER_SIZES = "what transformers fills in, and larger"
BY_LENGTH = "random, and group_by_length where rows differ in length"
GROWING = "growing where rows differ in length"
UNTRAINED = "float32, and the checkpoint's own where the base is not trained"
_BUCKETS = (DEFAULT_SIZE, LARGER_SIZES)
WORDS: dict[str, tuple[str, ...]] = {
    MICRO_BATCH: (DIVISORS,),
    "max_length": (JOB_MAX_LENGTH,),
    SAMPLING: (BY_LENGTH,),
    SEGMENTS: (GROWING,),
    DTYPE: (UNTRAINED,),
    GLOBAL_BATCH: (JOB_BATCH,),
    GENERATION_BATCH: (WHOLE_GROUPS,),
    ROLLOUT_CHUNK: (QUARTERS,),
    VLLM_SHARE: (AS_NEEDED,),
    NUM_PROCESSES: (ONE_EACH,),
    TENSOR_PARALLEL: (SIZES,),
    BUCKET_SIZE: _BUCKETS,
    PREFETCHED: _BUCKETS,
    PERSISTENCE: _BUCKETS,
}
"""The words that the values of a knob may be."""
COUNTS = (
    *(MICRO_BATCH, "max_length", GENERATION_BATCH, GROUP, COMPLETION),
    *(ROLLOUT_CHUNK, MINI_BATCHES, RESPONSE, NUM_PROCESSES, TENSOR_PARALLEL, BUCKET_SIZE),
)
"""Knobs that are whole numbers above 0."""
COUNTS_FROM_ZERO = (PREFETCHED, PERSISTENCE)
"""Knobs that are whole numbers, 0 among them."""


def counts(name: str, value: object) -> bool:
    """True if a value is a whole number, as large as the knob of that name needs."""
    minimum = 0 if name in COUNTS_FROM_ZERO else 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


FACT_NAMES = frozenset(
    {
        "job.tuning",
        "job.precision",
        "job.spreads",
        "job.divides_base",
        "device.kind",
        "device.maker",
        "device.count",
        "device.nodes",
        "model.sdpa",
        "model.flash_attention",
        "data.rows",
        "data.longest",
        "data.sampled",
        "stack.flash_attention_2",
        "stack.flash_attention_3",
        "stack.liger",
        "stack.fused_head",
    }
)
"""What rules may ask besides knobs."""

_KNOB_KEYS = {"kind", "values", "choices", "default", "in", "only_if", "why"}
PLACES = ("config", "environment", "batch", "launch")
INCLUDES = ("sharding.yaml",)
_OPERATORS = {"not", "above", "contains"}


@dataclass(frozen=True, kw_only=True)
class SpaceDefinition:
    """A search space file: its knobs in order, and the rules between them."""

    name: str
    method: str
    knobs: tuple[Knob, ...]
    rules: tuple[Rule, ...]

    def knob(self, name: str) -> Knob | None:
        """Return the knob of that name."""
        return next((knob for knob in self.knobs if knob.name == name), None)


def shipped_space(method: str) -> str:
    """Return the text of `search_spaces/<method>.yaml`, from the checkout or the installed
    package."""
    checkout = Path(__file__).parents[2] / "search_spaces" / f"{method}.yaml"
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    packaged = resources.files("autotune").joinpath("search_spaces", f"{method}.yaml")
    return packaged.read_text(encoding="utf-8")


@functools.cache
def _shipped_definition(method: str) -> SpaceDefinition:
    return parse_definition(shipped_space(method), f"search_spaces/{method}.yaml", shipped=True)


def load_definition(method: str, path: str | None = None) -> SpaceDefinition:
    """Return the search space of a method, or the user's own from `path`.

    Raises:
        UserError: the file is missing or malformed.
    """
    if path is None:
        return _shipped_definition(method)
    text = text_of(Path(path), "search space")
    definition = parse_definition(text, path)
    if definition.method != method:
        raise UserError(
            Problem(
                where=path, what=f"is for method `{definition.method}`, but the job has `{method}`"
            )
        )
    return definition


def parse_definition(text: str, name: str, *, shipped: bool = False) -> SpaceDefinition:
    """Return a search space from its text, with what it includes.

    Args:
        shipped: whether it is one of ours.

    Raises:
        UserError: with every problem and its line.
    """
    keys = {"method", "knobs", "rules", "include"}
    main_part = _Part.of(text, name, keys, shipped=shipped)
    if not isinstance(main_part.data.get("method"), str):
        main_part.report(("method",), "`method` must name the training method")
    if MICRO_BATCH not in main_part.entries:
        main_part.report(
            ("knobs",), f"`knobs` must be a mapping that holds at least `{MICRO_BATCH}`"
        )
        raise UserError(*main_part.problems)
    parts = [main_part, *_included(main_part)]
    names = [entry for part in parts for entry in part.entries]
    knobs = [knob for part in parts for knob in part.knobs(FACT_NAMES.union(names))]
    rules = [rule for part in parts for rule in part.rules(FACT_NAMES.union(names))]
    for duplicate in sorted({entry for entry in names if names.count(entry) > 1}):
        main_part.report(
            ("include",), f"`{duplicate}` is a knob of this file and of one that it includes"
        )
    if problems := [problem for part in parts for problem in part.problems]:
        raise UserError(*problems)
    method = str(main_part.data["method"])
    return SpaceDefinition(name=name, method=method, knobs=tuple(knobs), rules=tuple(rules))


def _included(main_part: "_Part") -> list["_Part"]:
    """Return the files that a space takes knobs and rules from: shipped ones, by name."""
    file = main_part.data.get("include")
    if file is None:
        return []
    if file not in INCLUDES:
        main_part.report(
            ("include",), f"`{file}` cannot be included", f"there is {' | '.join(INCLUDES)}"
        )
        return []
    return [_shipped_part(str(file))]


def _shipped_part(file: str) -> "_Part":
    text = shipped_space(file.removesuffix(".yaml"))
    return _Part.of(text, f"search_spaces/{file}", {"knobs", "rules"}, shipped=True)


def shared_part(file: str) -> SpaceDefinition:
    """Return what spaces include from `file`, one of `INCLUDES`: knobs and rules of no method."""
    part = _shipped_part(file)
    names = FACT_NAMES.union(part.entries)
    knobs, rules = tuple(part.knobs(names)), tuple(part.rules(names))
    return SpaceDefinition(name=part.name, method="", knobs=knobs, rules=rules)


@dataclass(frozen=True)
class _Part:
    """One file, and what is wrong with it."""

    name: str
    data: dict[str, Any]
    lines: Mapping[tuple[str | int, ...], int]
    problems: list[Problem]
    types: Mapping[str, str]
    """Of what its knobs set; none of our own files, in which nothing is wrong."""

    @classmethod
    def of(cls, text: str, name: str, keys: set[str], *, shipped: bool) -> "_Part":
        data, lines = parse_yaml(text, name, shipped=shipped)
        method = str(data.get("method"))
        types = knob_types(method) if method in METHODS and not shipped else {}
        part = cls(name, data, lines, [], types)
        for key in data.keys() - keys:
            part.report((key,), f"unknown key `{key}`", nearest(key, sorted(keys)))
        return part

    def report(self, path: tuple[str | int, ...], what: str, hint: str | None = None) -> None:
        prefixes = (path[:n] for n in range(len(path), 0, -1) if path[:n] in self.lines)
        line = next((self.lines[prefix] for prefix in prefixes), 1)
        self.problems.append(Problem(where=f"{self.name}:{line}", what=what, hint=hint))

    @property
    def entries(self) -> dict[str, Any]:
        entries = self.data.get("knobs")
        return entries if isinstance(entries, dict) else {}

    def knobs(self, names: Collection[str]) -> list[Knob]:
        parsed_knobs: list[Knob | None] = [
            _knob(name, entry, self.report, self.types) for name, entry in self.entries.items()
        ]
        knobs = [knob for knob in parsed_knobs if knob is not None]
        for knob in knobs:
            path, only_if = ("knobs", knob.name, "only_if"), cast(Any, knob.only_if)
            if isinstance(only_if, Mapping):
                _conditions(path, only_if, names, self.report)
            else:
                self.report(path, "`only_if` must be a mapping of conditions")
        return knobs

    def rules(self, names: Collection[str]) -> list[Rule]:
        entries = self.data.get("rules") or []
        if not isinstance(entries, list):
            self.report(("rules",), "`rules` must be a list")
            return []
        rules = [_rule(index, entry, names, self.report) for index, entry in enumerate(entries)]
        return [rule for rule in rules if rule is not None]


def knob_types(method: str) -> dict[str, str]:
    """Return the types of what knobs set: of fields as the trainer's source has them, of others as
    the values of our own space are."""
    types = dict(field_types(method))
    for knob in _shipped_definition(method).knobs:
        kinds = {type(value).__name__ for value in knob.choices or ()}
        if knob.place != "config" and kinds:
            types[knob.name] = " | ".join(sorted(kinds))
    return types | {"lora_target_modules": "str | list[str]"}


def _wrong(name: str, value: Any, types: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Return why a knob cannot have a value that a space gives it, and what to do."""
    if name == GLOBAL_BATCH:
        try:
            as_batch(value)
        except ValueError as error:
            return f"`{name}`: {error}", None
        return None
    if name in (*COUNTS, *COUNTS_FROM_ZERO) and not _is_count(name, value):
        minimum = "from 0 on" if name in COUNTS_FROM_ZERO else "above 0"
        return f"`values` of `{name}` must be whole numbers {minimum}", None
    kind = types.get(name, "bool | int | float | str | None | list[str]")
    if not is_plain(value) or (value is None and kind in ("bool", "str")):
        return f"`{name}` cannot be `{value}`", None
    return wrong_value(name, value, kind)


def _knob(name: str, entry: Any, report: Any, types: Mapping[str, str]) -> Knob | None:
    path = ("knobs", name)
    if not isinstance(entry, dict):
        report(path, f"knob `{name}` must be a mapping")
        return None
    foreign = entry.keys() - _KNOB_KEYS
    for key in foreign:
        report((*path, key), f"unknown key `{key}` in knob `{name}`", nearest(key, _KNOB_KEYS))
    for key, valid in (("kind", ("speed", "recipe")), ("in", PLACES)):
        if entry.get(key, valid[0] if key == "in" else None) not in valid:
            report((*path, key), f"`{key}` of `{name}` must be one of {' | '.join(valid)}")
            return None
    values, choices = entry.get("values"), entry.get("choices")
    if isinstance(values, dict) and values.keys() != {"cpu", "cuda"}:
        report((*path, "values"), f"`values` of `{name}` by device must be for cpu and for cuda")
        return None
    flat = values.values() if isinstance(values, dict) else [values]
    derived = WORDS.get(name, ())
    if not all((isinstance(value, list) and value) or value in derived for value in flat):
        report((*path, "values"), f"`values` of `{name}` must be a list that is not empty")
        return None
    flat_values = [value for values in flat if isinstance(values, list) for value in values]
    if not (choices is None or choices == "any" or (isinstance(choices, list) and choices)):
        report((*path, "choices"), f"`choices` of `{name}` must be a list, or `any`")
        return None
    given = [*flat_values, *(choices if isinstance(choices, list) else [])]
    given += [entry["default"]] if "default" in entry else []
    for wrong in [_wrong(name, value, types) for value in given] if types else ():
        if wrong is not None:
            report(path, *wrong)
    if choices is None and all(isinstance(value, list) for value in flat):
        choices = flat_values
    first = flat_values[0] if flat_values else None
    return Knob(
        name=name,
        kind=entry["kind"],
        values=values,
        why=str(entry.get("why", "")),
        default=entry.get("default", first),
        choices=tuple(choices) if isinstance(choices, list) else None,
        place=entry.get("in", "config"),
        only_if=entry.get("only_if", {}),
    )


def _rule(index: int, entry: Any, names: Collection[str], report: Any) -> Rule | None:
    path = ("rules", index)
    if not isinstance(entry, dict) or entry.keys() != {"forbid", "reason"}:
        report(path, "a rule has a `forbid` and a `reason`, and nothing else")
        return None
    forbid = entry["forbid"]
    if not isinstance(forbid, Mapping) or not forbid:
        report((*path, "forbid"), "`forbid` must be a mapping of conditions")
        return None
    if not _conditions((*path, "forbid"), forbid, names, report):
        return None
    return Rule(forbid=forbid, reason=str(entry["reason"]))


def _conditions(
    path: tuple[str | int, ...], conditions: Mapping[str, Any], names: Collection[str], report: Any
) -> bool:
    """True if every condition can be asked."""
    sound = True
    for name, condition in conditions.items():
        if name not in names:
            report((*path, name), f"there is no knob or fact `{name}`", nearest(name, names))
            sound = False
        if not isinstance(condition, Mapping):
            continue
        operand = condition.get("above", 0)
        if len(condition) != 1 or not condition.keys() <= _OPERATORS:
            report((*path, name), "a condition has one of: not, above, contains")
            sound = False
        elif isinstance(operand, str) and operand not in names:
            report((*path, name), f"there is no knob or fact `{operand}`", nearest(operand, names))
            sound = False
        elif isinstance(operand, bool) or not isinstance(operand, int | float | str):
            report((*path, name), "`above` needs a number, or the name of a knob or fact")
            sound = False
    return sound


def _is_count(name: str, value: Any) -> bool:
    return name == "max_length" if value is None else counts(name, value)
