"""A job while it is put together: a file's data, flags over it, and where each part came from."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import Problem, nearest
from autotune.facts.stack import canonical_name, training_fields
from autotune.job.job import Job, as_budget
from autotune.job.methods import METHODS, SFT
from autotune.job.yaml_file import parse_scalar
from autotune.space.definition import SpaceDefinition
from autotune.space.job_file.homes import home_of
from autotune.space.job_file.problems import Positions, as_yaml, position_of
from autotune.space.knobs import ACCUMULATION

OWNERS = {
    "max_length": "`max_length`",
    "bf16": "`precision`",
    "fp16": "`precision`",
    "use_cpu": "`devices.kind`",
    "model_name_or_path": "`model`",
    "dataset_name": "`dataset`",
    "use_peft": "`tuning`",
    "reward_funcs": "`reward_funcs`",
    "reward_model_name_or_path": "`reward_model_path`",
    "reward_model_path": "`reward_model_path`",
    "teacher_model_name_or_path": "`teacher_model_name_or_path`",
    "load_in_4bit": "`tuning: qlora`",
    "auto_find_batch_size": "the search itself",
    "dataset_kwargs": "the probes, which prepare the rows themselves",
    "torch_compile_backend": "`fixed: {torch_compile: true}` (the backend cannot be chosen yet)",
    "torch_compile_mode": "`fixed: {torch_compile: true}` (the mode cannot be chosen yet)",
    "deepspeed": "`fixed: {distributed_type: DEEPSPEED, zero_stage: 2}`",
    "fsdp": "`fixed: {distributed_type: FSDP}`",
    "parallelism_config": "`fixed: {cp_size: 2}` or `fixed: {sp_size: 2}`",
}
"""Fields that have a home of their own in the job."""

SECRETS = ("hub_token", "push_to_hub_token", "token", "use_auth_token")
"""Fields, of `training` or of a mapping in it, that a bundle, a run and their logs would keep."""

_VERBATIM = ("model", "dataset", "dataset_config")
"""Fields whose value in a flag is a name: no character of it is taken for YAML syntax."""
_MOST_LOOKED_UP = 100
"""Unknown names whose nearest is looked up: it takes a while, and nobody reads more."""


def secret_of(name: str, value: Any) -> str | None:
    """Return the name of what is a secret in a training field; None: nothing is."""
    names = [name, *(value if isinstance(value, Mapping) else ())]
    return next((str(one) for one in names if one in SECRETS), None)


class Draft:
    """The data of a future job, and the problems found so far."""

    def __init__(
        self,
        data: dict[str, Any],
        positions: Positions,
        name: str,
        base: Path,
    ):
        self._data, self._positions, self._name, self._base = data, positions, name, base
        self._problems: list[Problem] = []
        self._set: set[tuple[str | int, ...]] = set()
        self._method = SFT
        self._looked_up = 0

    @property
    def _fields(self) -> frozenset[str]:
        """Training fields of the job's method."""
        return training_fields(self._method.name)

    def _where(self, path: tuple[str | int, ...]) -> str:
        if self._is_set(path):
            return "--set"
        position = position_of(path, self._positions)
        if position is not None:
            return position
        return "--set" if any(prefix[: len(path)] == path for prefix in self._set) else self._name

    def _base_of(self, path: tuple[str, ...]) -> Path:
        """Return what a path is relative to: the job file, or the shell where a flag gave it."""
        return Path.cwd() if self._is_set(path) else self._base

    def _is_set(self, path: tuple[str | int, ...]) -> bool:
        """True if a flag gave it, or the whole of what it stands in."""
        return any(path[:length] in self._set for length in range(1, len(path) + 1))

    def _report(self, path: tuple[str | int, ...], what: str, hint: str | None = None) -> None:
        self._problems.append(Problem(where=self._where(path), what=what, hint=hint))

    def _nearest(self, name: str, choices: Collection[str]) -> str | None:
        """Return a hint that names the closest valid name, for the first of many."""
        self._looked_up += 1
        return nearest(name, choices) if self._looked_up <= _MOST_LOOKED_UP else None

    def _home(self, path: tuple[str | int, ...], value: Any, definition: SpaceDefinition) -> Any:
        """Return where the field at `path` belongs, in the form in which it came; None: not
        known."""
        by_flag = self._where(path) == "--set"
        name = str(path[-1])
        home = home_of(name, value, definition, self._fields, by_flag=by_flag)
        return home or _of_other_methods(name)

    def apply(self, text: str, definition: SpaceDefinition) -> None:
        """Apply one `name=value`: a job field (dotted for parts), a knob or a training field."""
        name, equals, value_text = text.partition("=")
        if not equals:
            self._problems.append(Problem(where="--set", what=f"`{text}` must be `name=value`"))
            return
        try:
            value = _flag_value(name, value_text)
        except Exception as error:
            what = f"cannot read the value of `{as_yaml(text)}`"
            hint = getattr(error, "problem", None)
            self._problems.append(Problem(where="--set", what=what, hint=hint))
            return
        head, *parts = name.split(".")
        if head in Job.model_fields:
            self._set_field([head, *parts], value)
            return
        knob = canonical_name(name)
        if definition.knob(knob) is not None or knob == ACCUMULATION:
            self._section("fixed")[knob] = value
            self._section("recipe").pop(knob, None)
            self._set.add(("fixed", knob))
        elif name in self._fields:
            self._section("training")[name] = value
            self._set.add(("training", name))
        else:
            names = {*Job.model_fields, *(k.name for k in definition.knobs), *self._fields}
            home = home_of(name, value, definition, self._fields, by_flag=True)
            what = f"no job field, knob or training field is called `{name}`"
            hint = home or _of_other_methods(name) or self._nearest(name, names)
            self._problems.append(Problem(where="--set", what=what, hint=hint))

    def _set_field(self, path: list[str], value: Any) -> None:
        target = self._data
        for part in path[:-1]:
            section = target.get(part, {})
            if target is self._data and part == "budget":
                section = _expanded(section)
            if not isinstance(section, Mapping):
                self._problems.append(
                    Problem(
                        where="--set",
                        what=f"`{'.'.join(path)}` cannot be set: `{part}` is `{as_yaml(section)}`",
                        hint=f"give the whole of it: `{part}={{...}}`",
                    )
                )
                return
            target[part] = dict(section)
            target = target[part]
        target[path[-1]] = value
        self._set.add(tuple(path))
        if path == ["max_length"]:
            self._section("recipe").pop("max_length", None)

    def _section(self, name: str) -> dict[str, Any]:
        """Return a section to be written to; what is no section is left for `_validated` to
        refuse."""
        section = self._data.get(name, {})
        if not isinstance(section, Mapping):
            return {}
        self._data[name] = dict(section)
        fields: dict[str, Any] = self._data[name]
        return fields

    def canonical_names(self, section: str) -> None:
        """Rename knobs that are called by the name of another version of the stack."""
        for name in list(self._section(section)):
            knob = canonical_name(str(name))
            if knob == str(name):
                continue
            entries = self._section(section)
            value = entries.pop(name)
            if (section, name) in self._set:
                self._set.add((section, knob))
            elif knob in entries:
                self._report((section, name), f"`{name}` is `{knob}`, which is given too; keep one")
            entries[knob] = value
            if (section, name) in self._positions:
                self._positions.setdefault((section, knob), self._positions[(section, name)])

    def pins_from_training(self, definition: SpaceDefinition) -> None:
        """Pin a knob that is given among the training fields: it passes through untouched."""
        training = self._data.get("training")
        if not isinstance(training, Mapping):
            return
        for name in list(training):
            knob = canonical_name(str(name))
            if knob in OWNERS or (definition.knob(knob) is None and knob != ACCUMULATION):
                continue
            pins = self._section("fixed")
            if knob in pins and pins[knob] != training[name]:
                self._report(
                    ("training", name), f"`{name}` is set here and differently under `fixed`"
                )
            pins[knob] = self._section("training").pop(name)
            if ("training", name) in self._set:
                self._set.add(("fixed", knob))
            elif ("training", name) in self._positions:
                self._positions[("fixed", knob)] = self._positions[("training", name)]


def _of_other_methods(name: str) -> str | None:
    """Return what a training field is that the method of the job lacks; None: no method has it."""
    methods = [method for method in METHODS if name in training_fields(method)]
    if not methods:
        return None
    return f"leave it out: it is for {' and '.join(f'`method: {method}`' for method in methods)}"


def _flag_value(name: str, text: str) -> Any:
    if name in _VERBATIM and text not in ("", "null") and not text.startswith(("{", '"', "'")):
        return text
    return parse_scalar(text)


def _expanded(budget: Any) -> Any:
    """Return a budget of one word as the mapping it stands for; what is wrong with it is told
    later."""
    try:
        return as_budget(budget)
    except ValueError:
        return budget
