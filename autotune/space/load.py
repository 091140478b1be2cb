"""From a job file and flags to a Job: strictly, with every problem and its line at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.errors import Problem, UserError, nearest
from autotune.facts.stack import canonical_name, training_fields
from autotune.job import Job, resolve_path
from autotune.space.batch import micro_batches
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH
from autotune.space.spaces import batch_problem
from autotune.yaml_file import parse_scalar, parse_yaml

_OWNED = {
    "max_length": "`max_length`",
    "bf16": "`precision`",
    "fp16": "`precision`",
    "use_cpu": "`devices.kind`",
    "model_name_or_path": "`model`",
    "dataset_name": "`dataset`",
    "use_peft": "`tuning`",
    "load_in_4bit": "`tuning` (4-bit bases are not supported yet)",
    "load_in_8bit": "`tuning` (8-bit bases are not supported yet)",
    "auto_find_batch_size": "the search itself",
    "deepspeed": "`devices` (sharding is not supported yet)",
    "fsdp": "`devices` (sharding is not supported yet)",
}
"""Fields that have a home of their own in the job."""


def load_job(path: Path | None, sets: Sequence[str] = ()) -> tuple[Job, SpaceDefinition]:
    """The job of a file (or of flags alone) with `--set` values over it, and its search space.

    Raises:
        UserError: every problem at once, each with where it stands.
    """
    data: dict[str, Any] = {}
    lines: dict[tuple[str | int, ...], int] = {}
    name, base = "flags", Path.cwd()
    if path is not None:
        name, base = str(path), path.parent
        try:
            data, lines = parse_yaml(path.read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                Problem(where=name, what=f"cannot read the job file: {error}")
            ) from None
    return _Loading(data, lines, name, base).load(sets)


class _Loading:
    """Collects problems while a job is put together."""

    def __init__(
        self,
        data: dict[str, Any],
        lines: dict[tuple[str | int, ...], int],
        name: str,
        base: Path,
    ):
        self._data, self._lines, self._name, self._base = data, lines, name, base
        self._problems: list[Problem] = []
        self._set: set[str] = set()

    def load(self, sets: Sequence[str]) -> tuple[Job, SpaceDefinition]:
        definition = self._definition(sets)
        for text in sets:
            self._apply(text, definition)
        self._pins_from_training(definition)
        self._check_names(definition)
        job = self._validated()
        if job is not None:
            self._check_values(job, definition)
        if self._problems or job is None:
            raise UserError(*self._problems)
        return self._with_paths(job), definition

    def _definition(self, sets: Sequence[str]) -> SpaceDefinition:
        """The space must be known before names can be judged, whatever else is wrong."""
        chosen = dict(self._data)
        for text in sets:
            key, _, value = text.partition("=")
            if key in {"method", "search_space"}:
                chosen[key] = value
        own = chosen.get("search_space")
        if isinstance(own, str):
            own = str((self._base / Path(own).expanduser()).absolute())
        return load_definition("sft", own if isinstance(own, str) else None)

    def _where(self, path: tuple[str | int, ...]) -> str:
        if path and str(path[0]) in self._set:
            return "--set"
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return f"{self._name}:{self._lines[path[:length]]}"
        return self._name

    def _report(self, path: tuple[str | int, ...], what: str, hint: str | None = None) -> None:
        self._problems.append(Problem(where=self._where(path), what=what, hint=hint))

    def _apply(self, text: str, definition: SpaceDefinition) -> None:
        """One `name=value`: a job field (dotted for its parts), a knob or a training field."""
        name, equals, value_text = text.partition("=")
        if not equals:
            self._problems.append(Problem(where="--set", what=f"`{text}` must be `name=value`"))
            return
        try:
            value = parse_scalar(value_text)
        except Exception:
            self._problems.append(Problem(where="--set", what=f"cannot read the value of `{text}`"))
            return
        head, *rest = name.split(".")
        if head in Job.model_fields:
            target = self._data
            for part in [head, *rest][:-1]:
                inner = target.get(part)
                target[part] = dict(inner) if isinstance(inner, Mapping) else {}
                target = target[part]
            target[[head, *rest][-1]] = value
            self._set.add(head)
            return
        knob = canonical_name(name)
        if definition.knob(knob) is not None or knob == ACCUMULATION:
            self._section("fixed")[knob] = value
            self._section("recipe").pop(knob, None)
            self._set.add("fixed")
        elif name in training_fields():
            self._section("training")[name] = value
            self._set.add("training")
        else:
            known = {*Job.model_fields, *(k.name for k in definition.knobs), *training_fields()}
            self._problems.append(
                Problem(
                    where="--set",
                    what=f"no job field, knob or training field is called `{name}`",
                    hint=nearest(name, known),
                )
            )

    def _section(self, name: str) -> dict[str, Any]:
        section = self._data.get(name)
        self._data[name] = dict(section) if isinstance(section, Mapping) else {}
        found: dict[str, Any] = self._data[name]
        return found

    def _pins_from_training(self, definition: SpaceDefinition) -> None:
        """A knob given among the training fields is pinned: it passes through untouched."""
        training = self._data.get("training")
        if not isinstance(training, Mapping):
            return
        for name in list(training):
            knob = canonical_name(str(name))
            if knob in _OWNED or (definition.knob(knob) is None and knob != ACCUMULATION):
                continue
            fixed = self._section("fixed")
            if knob in fixed and fixed[knob] != training[name]:
                self._report(
                    ("training", name), f"`{name}` is set here and differently under `fixed`"
                )
            fixed[knob] = self._section("training").pop(name)
            if ("training", name) in self._lines:
                self._lines[("fixed", knob)] = self._lines[("training", name)]

    def _check_names(self, definition: SpaceDefinition) -> None:
        knobs = {knob.name: knob for knob in definition.knobs}
        for section in ("fixed", "recipe"):
            entries = self._data.get(section)
            for name in entries if isinstance(entries, Mapping) else ():
                valid = {*knobs, ACCUMULATION} if section == "fixed" else set(knobs)
                if name not in valid:
                    self._report((section, name), f"no knob `{name}`", nearest(str(name), valid))
                elif section == "recipe" and name in (self._data.get("fixed") or {}):
                    self._report((section, name), f"`{name}` is under `fixed` too; keep one")
        training = self._data.get("training")
        for name in training if isinstance(training, Mapping) else ():
            if name in _OWNED:
                self._report(("training", name), f"`{name}` belongs to {_OWNED[name]} of the job")
            elif name not in training_fields():
                self._report(
                    ("training", name),
                    f"no field `{name}` in SFTConfig, ModelConfig or TrainingArguments",
                    nearest(str(name), training_fields()),
                )

    def _validated(self) -> Job | None:
        try:
            return Job.model_validate(self._data)
        except ValidationError as error:
            for one in error.errors():
                path = tuple(p for p in one["loc"] if p not in {"name", "no_data"})
                self._report(path, *_explain(one, path))
            return None

    def _check_values(self, job: Job, definition: SpaceDefinition) -> None:
        for section in ("fixed", "recipe"):
            for name, given in getattr(job, section).items():
                knob = definition.knob(name)
                if knob is None or knob.choices is None:
                    continue
                for value in given if section == "recipe" else [given]:
                    if not any(type(value) is type(c) and value == c for c in knob.choices):
                        choices = ", ".join(f"`{_yaml(c)}`" for c in knob.choices)
                        self._report(
                            (section, name),
                            f"`{name}` cannot be `{_yaml(value)}`",
                            f"choose from {choices}",
                        )
        for name in (MICRO_BATCH, ACCUMULATION):
            value = job.fixed.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                self._report(("fixed", name), f"`{name}` must be a whole number above 0")
                return
        if "max_length" in job.fixed:
            self._report(("fixed", "max_length"), "`max_length` is a field of the job itself")
            return
        lengths = job.recipe.get("max_length", [job.max_length])
        for length in lengths:
            problem = batch_problem(job, length)
            if problem is not None:
                self._report((problem.where,), problem.what, problem.hint)
                return
        if job.tuning == "full":
            for name in ("lora_r", "lora_target_modules"):
                for section in ("fixed", "recipe"):
                    if name in getattr(job, section):
                        self._report((section, name), f"`{name}` needs `tuning: lora`")

    def _with_paths(self, job: Job) -> Job:
        changes: dict[str, Any] = {"model": resolve_path(job.model, self._base)}
        if isinstance(job.dataset, str):
            changes["dataset"] = resolve_path(job.dataset, self._base)
        if job.search_space is not None:
            changes["search_space"] = str(
                (self._base / Path(job.search_space).expanduser()).absolute()
            )
        if isinstance(job.training.get("output_dir"), str):
            output = self._base / Path(job.training["output_dir"]).expanduser()
            changes["training"] = {**job.training, "output_dir": str(output.absolute())}
        resolved = job.model_copy(update=changes)
        missing = [
            Problem(where=self._where((field,)), what=f"`{field}`: there is no {path}")
            for field in ("model", "dataset", "search_space")
            if isinstance(path := getattr(resolved, field), str)
            and path.startswith("/")
            and not Path(path).exists()
        ]
        if missing:
            raise UserError(*missing)
        return resolved


def _explain(one: Any, path: tuple[str | int, ...]) -> tuple[str, str | None]:
    """A pydantic error in our words: what is wrong, and the next step."""
    field = ".".join(str(part) for part in path)
    if one["type"] == "extra_forbidden":
        siblings = _fields_at(path[:-1])
        return f"unknown field `{field}`", nearest(str(path[-1]), siblings)
    if one["type"] == "missing":
        return f"the field `{field}` is missing", None
    message = str(one["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if not one["msg"].startswith("Value error"):
        message = f"must be {message}, but got `{_yaml(one['input'])}`"
    hint = None
    if path == ("devices", "count"):
        hint = "several devices come with a later version"
    return f"`{field}`: {message}", hint


def _fields_at(path: tuple[str | int, ...]) -> list[str]:
    model: Any = Job
    for part in path:
        names = {
            "devices": "Devices",
            "budget": "Budget",
            "dataset": "NoData",
            "lengths": "Lengths",
        }
        from autotune import job as rooms

        model = getattr(rooms, names.get(str(part), "Job"))
    return list(model.model_fields)


def _yaml(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, default=str)


def valid_micro_batches(job: Job) -> list[int]:
    """Micro-batches that keep the job's global batch exact."""
    sequences = job.batch_sequences(job.max_length)
    return micro_batches(sequences, job.devices.count) if sequences else []
