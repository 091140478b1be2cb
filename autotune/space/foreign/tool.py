"""Tools whose configurations are read, each by a table beside this file (`axolotl.yaml`), and
whose a file is."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from autotune.errors import user_error
from autotune.job.yaml_file import parse_yaml
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH

AXOLOTL, LLAMA_FACTORY, UNSLOTH = "axolotl", "llamafactory", "unsloth"
TORCHTUNE, TRL = "torchtune", "trl"
FILES = (AXOLOTL, LLAMA_FACTORY, UNSLOTH, TORCHTUNE, TRL)
ALL_LINEAR = "all-linear"
_YES = re.compile(r"(?i)true|yes|on|y|t|1")
_NO = re.compile(r"(?i)false|no|off|n|f|0")
COMPONENT = "_component_"
_OWN = {"method", "tuning", "global_batch_size", "devices", "budget", "training", "recipe", "fixed"}
"""Fields that a job has and no other tool's file: with one of them it is a job with mistakes."""
MODEL = "a transformers model"
_BESIDE = (
    "give it beside the trainer's file: `autotune import trainer.yaml {file}`; "
    "`autotune check FOLDER` says whether they agree"
)
_NAMED = "write a job that names this file: `model: ./{file}` (docs/job.md; `autotune init` asks)"


@dataclass(frozen=True, kw_only=True)
class Field:
    """The meaning of another tool's field in a job.

    Attributes:
        ours: a field of the job, a knob, or a training field.
        values: theirs, as words in lower case or the last part of a path -> ours; others are as
            `*` says, or stay.
    """

    ours: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def value(self, given: Any) -> Any:
        """Return a value as a job has it."""
        if not self.values or not isinstance(given, str | bool):
            return given
        text, on = str(given).lower(), switch(given)
        words = (text, str(on).lower(), text.rpartition(".")[2], "*")
        return next((self.values[word] for word in words if word in self.values), given)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool, and how its configuration is read.

    Attributes:
        file: its table's name.
        name: as its users write it.
        marks: fields of which its files have at least two.
        fields: those that a job has, too.
        effects: what changes where another one is not carried (learning, memory, speed, nothing),
            by its name, or by how names begin (`wandb_*`).
        same: fields that it writes as TRL does.
        micro, accumulation: its names for the micro-batch and the number of them.
        rows, steps: their defaults.
        defaults: what it does where a file says nothing and TRL would do something else, by our
            names; those of adapters apply where one is trained.
        as_is: speed knobs as the tool has them, which TRL has otherwise.
        takes_trainer_fields: whether a field that no table names may be one of the trainer's.
        dumps_defaults: whether its files list all fields, those that nobody set among them.
        reads_by_omegaconf: whether a key that its file has twice ends its training.
        says_method: the field that names the method, where there is one.
        not_built: fields that say another training than any method's -> what it is.
        methods: its values -> methods; without a value it is `sft`.
    """

    file: str
    name: str
    marks: frozenset[str]
    fields: Mapping[str, Field]
    effects: Mapping[str, str]
    same: tuple[str, ...] = ()
    micro: str = MICRO_BATCH
    accumulation: str = ACCUMULATION
    rows: int = 8
    steps: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)
    as_is: Mapping[str, Any] = field(default_factory=dict)
    takes_trainer_fields: bool = True
    dumps_defaults: bool = False
    reads_by_omegaconf: bool = False
    says_method: str = ""
    not_built: Mapping[str, str] = field(default_factory=dict)
    methods: Field = field(default_factory=lambda: Field(ours="method"))

    def effect(self, name: str) -> str | None:
        """Return what changes where a field is not carried; None: the table does not say it."""
        return effect_of(self.effects, name)

    @property
    def theirs(self) -> Mapping[str, tuple[str, Mapping[Any, Any]]]:
        """Fields of a trainer -> what they are called there, and our values -> theirs."""
        inverted = {
            known.ours: (name, {ours: word for word, ours in known.values.items()})
            for name, known in self.fields.items()
        }
        return {**inverted, **{name: (name, {}) for name in self.same}}


def effect_of(effects: Mapping[str, str], name: str) -> str | None:
    """Return the effect of a field by its name, or by how it begins."""
    begun = (e for start, e in effects.items() if start[-1] == "*" and name.startswith(start[:-1]))
    return effects.get(name) or next(begun, None)


@functools.cache
def tool(file: str) -> Tool:
    """Return a tool by the name of its table."""
    data = table(file)
    base = table(data.pop("include")) if "include" in data else {}
    known = {**base.get("fields", {}), **data.pop("fields")}
    effects = {**_effects(base), **_effects(data)}
    return Tool(
        file=file,
        marks=frozenset(data.pop("marks").split()),
        fields={name: _field(ours) for name, ours in known.items()},
        effects=effects,
        same=tuple(data.pop("same", "").split()),
        methods=Field(ours="method", values=data.pop("methods", {})),
        **{name: value for name, value in data.items() if name != "not_carried"},
    )


def tools() -> tuple[Tool, ...]:
    """Return all tools, in the order in which a file is held against their marks."""
    return tuple(map(tool, FILES))


def table(name: str) -> dict[str, Any]:
    """Return a table beside this file."""
    file = resources.files("autotune").joinpath("space", "foreign", f"{name}.yaml")
    return parse_yaml(file.read_text(encoding="utf-8"), name, shipped=True)[0]


def _effects(data: Mapping[str, Any]) -> dict[str, str]:
    lists = data.get("not_carried", {})
    return {name: effect for effect, names in lists.items() for name in names.split()}


def _field(ours: Any) -> Field:
    if isinstance(ours, str):
        return Field(ours=ours)
    ((name, values),) = ours.items()
    return Field(ours=name, values=values)


def switch(value: Any) -> bool | None:
    """Return a word that tools take for true or false; None for anything else."""
    if isinstance(value, bool):
        return value
    text = str(value) if isinstance(value, str | int) else ""
    return True if _YES.fullmatch(text) else False if _NO.fullmatch(text) else None


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def tool_of(data: Mapping[str, Any]) -> Tool | None:
    """Return the tool whose training a file configures; None: it is not such a file."""
    if any(isinstance(value, Mapping) and COMPONENT in value for value in data.values()):
        return tool(TORCHTUNE)
    return None if part_of(data) is not None or _is_job(data) else _by_marks(data)


def _by_marks(data: Mapping[str, Any]) -> Tool | None:
    """Return the tool of which a file has two fields."""
    trls = "model_name_or_path" in data and "model_name" not in data
    known = (one for one in tools() if not (trls and one.file == UNSLOTH))
    return next((one for one in known if len(one.marks & data.keys()) >= 2), None)


@functools.cache
def _parts() -> Mapping[str, frozenset[str]]:
    return {name: words(marks) for name, marks in table("launch")["parts"].items()}


def part_of(data: Mapping[str, Any]) -> str | None:
    """Return whose file it is that makes a job beside others only; None: it is none."""
    if _is_job(data):
        return None
    if isinstance(data.get("zero_optimization"), Mapping):
        return "DeepSpeed"
    if {"num_processes", "mixed_precision"} & data.keys() and _by_marks(data) is not None:
        return None  # a trainer's file, with settings of its launcher
    return next((name for name, marks in _parts().items() if len(marks & data.keys()) >= 2), None)


def is_registry(data: Mapping[str, Any]) -> bool:
    """True if a file lists LLaMA-Factory's data sets."""
    places = ("file_name", "hf_hub_url", "ms_hub_url", "script_url", "cloud_file_name")
    return bool(data) and all(
        isinstance(entry, Mapping) and any(place in entry for place in places)
        for entry in data.values()
    )


def refuse_part(data: Mapping[str, Any], file: str) -> None:
    """Refuse a file that makes no job by itself, before each of its fields is.

    Raises:
        UserError: it is one.
    """
    name, last = part_of(data), file.replace("\\", "/").rpartition("/")[2]
    if name is None and is_registry(data):
        what = "LLaMA-Factory's registry of data sets, not a job"
        raise user_error(what, where=file, hint=_BESIDE.partition(";")[0].format(file=last))
    if name is not None:
        hint = (_NAMED if name == MODEL else _BESIDE).replace("{file}", last)
        raise user_error(f"a configuration of {name}, not a job", where=file, hint=hint)


def _is_job(data: Mapping[str, Any]) -> bool:
    return bool(_OWN & data.keys()) or {"model", "dataset"} <= data.keys()
