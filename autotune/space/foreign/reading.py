"""A job while it is made of another tool's fields. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.errors import Problem
from autotune.facts.stack import canonical_name, field_name, field_types, training_fields
from autotune.job.job import Job
from autotune.job.methods import METHODS, Method
from autotune.space.checkpointing import CHECKPOINTING, KWARGS, value_in
from autotune.space.definition import SpaceDefinition
from autotune.space.foreign.fields import (
    CARRIED,
    LEARNING,
    LEFT,
    MEMORY,
    NOTHING,
    SEARCHED,
    SPEED,
    UNKNOWN,
    Fate,
    FateKind,
    holds_secret,
    is_secret,
)
from autotune.space.foreign.tool import ALL_LINEAR, TRL, Tool, switch
from autotune.space.job_file.overrides import OWNERS
from autotune.space.job_file.problems import as_yaml

_SAME_MATH = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
"""Kernels of one optimizer: any other one changes what is learned."""
_COUNTS_ONLY = ("dataloader_num_workers",)
"""Speed knobs of which any value is as good as those that are searched."""
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_MODULES = ("lora_target_modules", "lora_modules_to_save")
_SWITCHES = ("bool", "bool | None")
_NOTHING = ("", "none", "null")


class Reading:
    """Gives each field of a tool its place in a job, or says what it changes that it has none.

    Attributes:
        data: what the tool's file holds.
        job: the fields of the job so far.
        fates: what became of each field, by its name.
        assumed: what the file does not say, as sentences.
        problems: what is wrong with values that are needed to make a job at all.
        registry: data sets by name, where a file that lists them was given.
        shards: whether several devices divide the weights by FSDP, where no launcher says more.
        longest: tokens of a row at most, where a method that generates has no such field.
        rows: of a micro-batch, and micro-batches, where no fields of theirs say it.
        own_program: whether the tool's own program reads its fields, not one like it.
        exists: whether there is such a file or folder here.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        tool: Tool,
        method: Method,
        definition: SpaceDefinition,
        *,
        as_is: bool,
    ):
        self.data, self.tool, self.method, self.definition = dict(data), tool, method, definition
        self.as_is = as_is
        self.job: dict[str, Any] = {"method": method.name}
        self.fates: dict[str, Fate] = {}
        self.assumed: list[str] = []
        self.problems: list[Problem] = []
        self.origins: dict[tuple[str, ...], str] = {}
        self.registry: Mapping[str, Any] = {}
        self.own_program = self.shards = False
        self.longest: int | None = None
        self.rows: tuple[int, int] | None = None
        self.exists: Callable[[str], bool] = lambda _: False
        self._fields = training_fields(method.name)
        self._types = field_types(method.name)

    def given(self, name: str) -> Any:
        """Return what the file says of a field; None where nothing is said."""
        value = self.data.get(name)
        return None if isinstance(value, str) and value.lower() in _NOTHING else value

    def say_half(self, switch_name: str, on: bool, fields: Sequence[str]) -> None:
        """Say that nothing is quantised where only details of it are given."""
        given = [name for name in fields if self.given(name) is not None]
        if given and not on:
            why = f"`{switch_name}` is missing, so these do nothing: {', '.join(given)}"
            self.assumed.append(f"nothing is quantised: {why}")
            for name in given:
                self.leave(name, MEMORY, f"nothing is quantised without `{switch_name}`")

    def is_on(self, name: str) -> bool:
        """True if a switch of theirs is on; a value that is no switch is a problem."""
        value = self.given(name)
        if value is not None and switch(value) is None:
            self.refuse(name, f"it must be true or false, but got `{as_yaml(value)}`")
        return switch(value) is True

    def has(self, ours: str) -> bool:
        """True if the job says something of a field, a knob or a training field already."""
        places = (self.job, self.job.get("fixed", {}), self.job.get("training", {}))
        return any(ours in place for place in places)

    def drop(self, path: tuple[str, str], why: str) -> None:
        """Take a field out of the job again."""
        del self.job[path[0]][path[1]]
        field = self.origins.pop(path, None)
        if field is None:
            self.assumed[:] = [t for t in self.assumed if not t.startswith(f"{'.'.join(path)}: ")]
        else:
            del self.fates[field]
            self.leave(field, NOTHING, why)

    def path_of(self, ours: str) -> str | None:
        """Return where a job field, a knob or a training field of this name stands; None:
        nowhere."""
        knob = self.definition.knob(ours)
        if ours in Job.model_fields:
            return None if ours == "max_length" and self.method.online else ours
        if knob is not None:
            return f"fixed.{ours}"
        return f"training.{ours}" if ours in self._fields else None

    def carry(self, field: str, path: str, value: Any, *, detail: str = "") -> None:
        """Write a value of `field` to `path` of the job (`training.beta`)."""
        self.write(path, value)
        self.origins[tuple(path.split("."))] = field
        self.end(field, CARRIED, detail or path)

    def write(self, path: str, value: Any) -> None:
        """Write a value to `path` of the job."""
        *parts, last = path.split(".")
        place = self.job
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value

    def search(self, field: str, detail: str) -> None:
        """Leave a field to the search."""
        self.end(field, SEARCHED, detail)

    def leave(self, field: str, changes: str, why: str = "") -> None:
        """Leave a field out of the job, which may change one of `EFFECTS`."""
        self.end(field, LEFT, f"{changes} ({why})" if why else changes, changes)

    def end(self, field: str, kind: FateKind, detail: str, changes: str = "") -> None:
        """Write down what became of a field; the first end counts, and only of what was given."""
        if field in self.data and field not in self.fates:
            said = {"field": field, "value": self.data[field], "detail": detail}
            self.fates[field] = Fate(**said, kind=kind, changes=changes)

    def ends(self, fields: Sequence[str], detail: str) -> None:
        """Write down that several fields are carried to one place."""
        for field in fields:
            self.end(field, CARRIED, detail)

    def refuse(self, field: str, what: str, hint: str | None = None) -> None:
        """Say that a field asks for a training that cannot be tuned."""
        problem = Problem(where=field, what=what, hint=hint)
        self.problems += [problem] if problem not in self.problems else []

    def assume(self, path: str, value: Any, why: str) -> None:
        """Write what the file does not say, and say so."""
        self.write(path, value)
        self.assumed.append(f"{path}: {as_yaml(value)} ({why})")

    def apply(self, field: str) -> bool:
        """Let the tool's table decide; False: it says nothing of this field."""
        known, value = self.tool.fields.get(field), self.data[field]
        if known is None:
            effect = self.tool.effect(field)
            if effect is not None:
                self.leave(field, NOTHING if value is False else effect)
            return effect is not None
        ours = known.value(value)
        if ours is None and "*" in known.values and value is not None:
            self.leave(field, LEARNING, f"`{as_yaml(value)}` is not a value of `{known.ours}`")
        elif ours is None:
            self.leave(field, NOTHING)
        else:
            self.place(field, known.ours, ours)
        return True

    def place(self, field: str, ours: str, value: Any) -> None:
        """Write a value to a job field, a knob or a training field of this name."""
        name = canonical_name(ours)
        value = self._plain(name, value)
        knob = self.definition.knob(name)
        if name in _MODULES:
            value = _names_of(value)
        if is_secret(name) or holds_secret(value):
            self.leave(field, NOTHING, "a secret, which a run and its bundle would keep")
        elif name == "max_length" and self.method.online:
            self.leave(field, LEARNING, f"TRL truncates no prompts of `{self.method.name}`")
        elif self.tool.file == TRL and self._types.get(name) in _SWITCHES and switch(value) is None:
            self.leave(field, NOTHING)  # "none"; anything else is refused
            self.is_on(field)
        elif name.partition(".")[0] in Job.model_fields:
            self.carry(field, name, value)
        elif knob is not None and knob.place != "launch":
            self._place_knob(field, name, value, knob)
        elif name in OWNERS:
            self.leave(field, NOTHING, f"it belongs to {OWNERS[name]} of a job")
        elif name in self._fields:
            self.carry(field, f"training.{name}", value)
        elif methods := [m for m in METHODS if name in training_fields(m)]:
            self.leave(field, NOTHING, f"it is for {' and '.join(f'`{m}`' for m in methods)}")
        else:
            self.end(field, UNKNOWN, "nothing is known of it")

    def _place_knob(self, field: str, name: str, value: Any, knob: Any) -> None:
        if knob.kind == "recipe":
            self.carry(field, f"fixed.{name}", value)
        elif self._is_searched(name, value, knob) and not self.as_is:
            self.search(field, name)
        elif not knob.allows(value):
            self.leave(field, SPEED, f"`{as_yaml(value)}` is not a value that is planned for")
        else:
            self.carry(field, f"fixed.{name}", value)

    @staticmethod
    def _is_searched(name: str, value: Any, knob: Any) -> bool:
        """True if the search tries it anyway, or what computes the same."""
        if name == "optim":
            return value in _SAME_MATH
        if name in _COUNTS_ONLY or isinstance(knob.values, str):
            return True
        values = knob.values
        lists = values.values() if isinstance(values, Mapping) else [values]
        return any(type(v) is type(value) and v == value for tried in lists for v in tried)

    def _plain(self, name: str, value: Any) -> Any:
        """Return a value as the type of its field has it: tools take words for switches and
        numbers."""
        kinds = self._types.get(name, "")
        if value is False and "bool" not in kinds and ("Strategy" in kinds or name == "report_to"):
            return "none" if name == "report_to" else "no"  # YAML 1.1 has false for it
        on = switch(value)
        if "bool" in kinds and on is not None and "Strategy" not in kinds:
            return on
        if not isinstance(value, str):
            return int(value) if isinstance(value, float) and _counts(kinds, value) else value
        numeric = "int" in kinds or "float" in kinds or name == "max_length"
        if numeric and _NUMBER.fullmatch(value):
            return int(value) if value.isdecimal() else float(value)
        return value

    def place_level(self) -> None:
        """Place the arguments of checkpointing that say which layers: the knob has a value for
        each."""
        fields, knob = frozenset(self.data), self.definition.knob(CHECKPOINTING)
        switched, arguments = (field_name(name, fields) for name in (CHECKPOINTING, KWARGS))
        level = value_in({switched: True, **self.data})
        if knob is None or not isinstance(level, str):
            return
        self._place_knob(arguments, CHECKPOINTING, level, knob)
        fate = self.fates[arguments]
        self.end(switched, fate.kind, fate.detail, fate.changes)

    def counted(self, field: str, default: int) -> int:
        """Return a whole number above 0 of theirs; where it is not one, that is a problem."""
        value = self.given(field)
        text = str(value).removesuffix(".0")
        if text.isdecimal() and len(text) < 20 and int(text) > 0:
            return int(text)
        if value is not None:
            what = f"`{field}` must be a whole number above 0, but got `{as_yaml(value)}`"
            self.refuse(field, what)
        return default


def _counts(kinds: str, value: float) -> bool:
    return value.is_integer() and "int" in kinds and "float" not in kinds


def _names_of(value: Any) -> Any:
    """Return module names as a list: tools take `q_proj,v_proj`, too."""
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",") if name.strip()]
        return ALL_LINEAR if names in (["all"], [ALL_LINEAR]) else names
    return ALL_LINEAR if value in (["all"], [ALL_LINEAR]) else value
