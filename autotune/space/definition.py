"""The search spaces of this package, and the words that they may write in place of values that
follow from the job. Tests hold what the files say."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.facts.stack import field_types
from autotune.job.yaml_file import parse_yaml
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    NUM_PROCESSES,
    RESPONSE,
    ROLLOUT_CHUNK,
    TENSOR_PARALLEL,
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
BY_LENGTH = "random, and group_by_length where rows differ in length"
ONE_SHAPE = "false, and true where rows have one length"
GROWING = "growing where rows differ in length"
UNTRAINED = "float32, and the checkpoint's own where the base is not trained"
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


INCLUDES = ("sharding.yaml",)


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
def load_definition(method: str) -> SpaceDefinition:
    """Return the search space of a method."""
    return parse_definition(shipped_space(method), f"search_spaces/{method}.yaml")


def parse_definition(text: str, name: str) -> SpaceDefinition:
    """Return a search space from its text, with what it includes."""
    data = _read(text, name)
    included = [
        _read(shipped_space(Path(file).stem), file) for file in (data.get("include"),) if file
    ]
    return _definition(name, str(data["method"]), [data, *included])


def shared_part(file: str) -> SpaceDefinition:
    """Return what spaces include from `file`, one of `INCLUDES`: knobs and rules of no method."""
    return _definition(f"search_spaces/{file}", "", [_read(shipped_space(Path(file).stem), file)])


def _read(text: str, name: str) -> dict[str, Any]:
    return parse_yaml(text, name, shipped=True)[0]


def _definition(name: str, method: str, parts: Sequence[Mapping[str, Any]]) -> SpaceDefinition:
    knobs = [_knob(knob, entry) for part in parts for knob, entry in part["knobs"].items()]
    rules = [Rule(**entry) for part in parts for entry in part.get("rules", ())]
    return SpaceDefinition(name=name, method=method, knobs=tuple(knobs), rules=tuple(rules))


def _knob(name: str, entry: Mapping[str, Any]) -> Knob:
    values, choices = entry["values"], entry.get("choices")
    by_device = list(values.values()) if isinstance(values, dict) else [values]
    listed = [value for each in by_device if isinstance(each, list) for value in each]
    if choices is None and all(isinstance(each, list) for each in by_device):
        choices = listed
    return Knob(
        name=name,
        kind=entry["kind"],
        values=values,
        why=entry.get("why", ""),
        default=entry.get("default", listed[0] if listed else None),
        choices=tuple(choices) if isinstance(choices, list) else None,
        place=entry.get("in", "config"),
        only_if=entry.get("only_if", {}),
    )


def knob_types(method: str) -> dict[str, str]:
    """Return the types of what knobs set: of fields as the trainer's source has them, of others as
    the values of our own space are."""
    types = dict(field_types(method))
    for knob in load_definition(method).knobs:
        kinds = {type(value).__name__ for value in knob.choices or ()}
        if knob.place != "config" and kinds:
            types[knob.name] = " | ".join(sorted(kinds))
    return types | {
        "lora_target_modules": "str | list[str]",
        "lora_target_parameters": "str | list[str] | None",
        CHECKPOINTING: "bool | str",
    }
