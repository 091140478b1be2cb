"""Search space files: read strictly, every problem reported at once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError, nearest
from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    RESPONSE,
    ROLLOUT_CHUNK,
    VLLM_SHARE,
    Knob,
    Rule,
)
from autotune.yaml_file import parse_yaml

FACT_NAMES = frozenset(
    {
        "job.tuning",
        "job.precision",
        "device.kind",
        "model.sdpa",
        "model.flash_attention",
        "data.rows",
        "data.longest",
        "data.sampled",
        "stack.flash_attention_2",
        "stack.flash_attention_3",
        "stack.liger",
        "stack.bitsandbytes",
        "stack.fused_head",
    }
)
"""What rules may ask besides knobs."""

DIVISORS = "divisors of the global batch"
JOB_MAX_LENGTH = "the job's max_length"
JOB_BATCH = "the job's global_batch_size"
WHOLE_GROUPS = "whole groups that divide the global batch"
QUARTERS = "a device's part of the global batch, and a quarter of it"
AS_NEEDED = "what the completions need"
_WORDS = {
    MICRO_BATCH: DIVISORS,
    "max_length": JOB_MAX_LENGTH,
    GLOBAL_BATCH: JOB_BATCH,
    GENERATION_BATCH: WHOLE_GROUPS,
    ROLLOUT_CHUNK: QUARTERS,
    VLLM_SHARE: AS_NEEDED,
}
COUNTS = (
    *(MICRO_BATCH, "max_length", GENERATION_BATCH, GROUP, COMPLETION),
    *(ROLLOUT_CHUNK, MINI_BATCHES, RESPONSE),
)
"""Knobs that are whole numbers above 0."""
_KNOB_KEYS = {"kind", "values", "choices", "default", "in", "only_if", "why"}
_OPERATORS = {"not", "above", "contains"}


@dataclass(frozen=True, kw_only=True)
class SpaceDefinition:
    """A search space file: its knobs in order, and the rules between them."""

    name: str
    method: str
    knobs: tuple[Knob, ...]
    rules: tuple[Rule, ...]

    def knob(self, name: str) -> Knob | None:
        """The knob of that name."""
        return next((knob for knob in self.knobs if knob.name == name), None)


def shipped_space(method: str) -> str:
    """The text of `search_spaces/<method>.yaml`, from the checkout or the installed package."""
    checkout = Path(__file__).parents[2] / "search_spaces" / f"{method}.yaml"
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    packaged = resources.files("autotune").joinpath("search_spaces", f"{method}.yaml")
    return packaged.read_text(encoding="utf-8")


def load_definition(method: str, path: str | None = None) -> SpaceDefinition:
    """The search space of a method, or the user's own from `path`.

    Raises:
        UserError: the file is missing or malformed.
    """
    if path is None:
        return parse_definition(shipped_space(method), f"search_spaces/{method}.yaml")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            Problem(where=path, what=f"cannot read the search space: {error}")
        ) from None
    definition = parse_definition(text, path)
    if definition.method != method:
        raise UserError(
            Problem(
                where=path, what=f"is for method `{definition.method}`, the job's is `{method}`"
            )
        )
    return definition


def parse_definition(text: str, name: str) -> SpaceDefinition:
    """A search space from its text.

    Raises:
        UserError: with every problem and its line.
    """
    data, lines = parse_yaml(text, name)
    problems: list[Problem] = []

    def report(path: tuple[str | int, ...], what: str, hint: str | None = None) -> None:
        line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), 1)
        problems.append(Problem(where=f"{name}:{line}", what=what, hint=hint))

    for key in data.keys() - {"method", "knobs", "rules"}:
        report((key,), f"unknown key `{key}`", nearest(key, ["method", "knobs", "rules"]))
    entries = data.get("knobs")
    if not isinstance(data.get("method"), str):
        report(("method",), "`method` must name the training method")
    if not isinstance(entries, dict) or MICRO_BATCH not in entries:
        report(("knobs",), f"`knobs` must be a mapping that holds at least `{MICRO_BATCH}`")
        raise UserError(*problems)
    knobs = [knob for k, v in entries.items() if (knob := _knob(k, v, report)) is not None]
    known = FACT_NAMES | entries.keys()
    for knob in knobs:
        only_if: Any = knob.only_if
        if isinstance(only_if, Mapping):
            _conditions(("knobs", knob.name, "only_if"), only_if, known, report)
        else:
            report(("knobs", knob.name, "only_if"), "`only_if` must be a mapping of conditions")
    entries = data.get("rules") or []
    if not isinstance(entries, list):
        report(("rules",), "`rules` must be a list")
        entries = []
    rules = []
    for index, entry in enumerate(entries):
        if (rule := _rule(index, entry, known, report)) is not None:
            rules.append(rule)
    if problems:
        raise UserError(*problems)
    return SpaceDefinition(name=name, method=data["method"], knobs=tuple(knobs), rules=tuple(rules))


def _knob(name: str, entry: Any, report: Any) -> Knob | None:
    here = ("knobs", name)
    if not isinstance(entry, dict):
        report(here, f"knob `{name}` must be a mapping")
        return None
    unknown = entry.keys() - _KNOB_KEYS
    for key in unknown:
        report((*here, key), f"unknown key `{key}` in knob `{name}`", nearest(key, _KNOB_KEYS))
    for key, valid in (("kind", ("speed", "recipe")), ("in", ("config", "environment", "batch"))):
        if entry.get(key, valid[0] if key == "in" else None) not in valid:
            report((*here, key), f"`{key}` of `{name}` must be one of {' | '.join(valid)}")
            return None
    values, choices = entry.get("values"), entry.get("choices")
    if isinstance(values, dict) and values.keys() != {"cpu", "cuda"}:
        report((*here, "values"), f"`values` of `{name}` by device must be for cpu and for cuda")
        return None
    flat = values.values() if isinstance(values, dict) else [values]
    derived = (_WORDS[name],) if name in _WORDS else ()
    if not all((isinstance(one, list) and one) or one in derived for one in flat):
        report((*here, "values"), f"`values` of `{name}` must be a list that is not empty")
        return None
    listed = [value for one in flat if isinstance(one, list) for value in one]
    if name in COUNTS and not all(_is_count(name, v) for v in listed):
        report((*here, "values"), f"`values` of `{name}` must be whole numbers above 0")
        return None
    if not (choices is None or choices == "any" or (isinstance(choices, list) and choices)):
        report((*here, "choices"), f"`choices` of `{name}` must be a list, or `any`")
        return None
    if choices is None and all(isinstance(one, list) for one in flat):
        choices = listed
    first = listed[0] if listed else None
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


def _rule(index: int, entry: Any, known: Collection[str], report: Any) -> Rule | None:
    here = ("rules", index)
    if not isinstance(entry, dict) or entry.keys() != {"forbid", "reason"}:
        report(here, "a rule has a `forbid` and a `reason`, and nothing else")
        return None
    forbid = entry["forbid"]
    if not isinstance(forbid, Mapping) or not forbid:
        report((*here, "forbid"), "`forbid` must be a mapping of conditions")
        return None
    if not _conditions((*here, "forbid"), forbid, known, report):
        return None
    return Rule(forbid=forbid, reason=str(entry["reason"]))


def _conditions(
    here: tuple[str | int, ...], conditions: Mapping[str, Any], known: Collection[str], report: Any
) -> bool:
    """Whether every condition can be asked."""
    sound = True
    for name, condition in conditions.items():
        if name not in known:
            report((*here, name), f"no knob or fact `{name}`", nearest(name, known))
            sound = False
        if not isinstance(condition, Mapping):
            continue
        bound = condition.get("above", 0)
        if len(condition) != 1 or not condition.keys() <= _OPERATORS:
            report((*here, name), "a condition has one of: not, above, contains")
            sound = False
        elif isinstance(bound, str) and bound not in known:
            report((*here, name), f"no knob or fact `{bound}`", nearest(bound, known))
            sound = False
        elif isinstance(bound, bool) or not isinstance(bound, int | float | str):
            report((*here, name), "`above` needs a number, or the name of a knob or fact")
            sound = False
    return sound


def _is_count(name: str, value: Any) -> bool:
    if value is None:
        return name == "max_length"
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
