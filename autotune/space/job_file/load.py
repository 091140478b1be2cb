"""Makes a Job of a job file and flags: strictly, with every problem and its line at once."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.errors import Problem, UserError
from autotune.facts.known_models import known_model
from autotune.facts.stack import canonical_name, field_types, fused_head
from autotune.job.job import Job
from autotune.job.methods import BY_SCRIPT, EXPERIMENTAL, METHODS, SFT
from autotune.job.paths import absolute_path, exists, resolve_path, why_not_literal
from autotune.space.batch_checks import batch_problems
from autotune.space.checkpointing import CHECKPOINTING, KWARGS, contradicts, value_in
from autotune.space.definition import SpaceDefinition, knob_types, load_definition
from autotune.space.foreign.fields import Imported
from autotune.space.job_file.given_file import given_data
from autotune.space.job_file.homes import of_devices
from autotune.space.job_file.knob_values import impossible, pin_problems, uncounted
from autotune.space.job_file.online import TEACHER, online_problems
from autotune.space.job_file.overrides import OWNERS, Draft, secret_of
from autotune.space.job_file.problems import (
    UNKNOWN,
    Positions,
    as_yaml,
    details_by_path,
    explain,
    field_positions,
    line_positions,
    shown,
)
from autotune.space.job_file.training_values import is_plain, wrong_value
from autotune.space.job_shape import JobShape
from autotune.space.knobs import ACCUMULATION, GLOBAL_BATCH, GROUP

_MOST_EXPLAINED = 200


def load_job(
    path: Path | None,
    sets: Sequence[str] = (),
    *,
    elsewhere: bool = False,
    imported: Callable[[Imported], None] = lambda _: None,
) -> tuple[Job, SpaceDefinition]:
    """Return the job of a file (or of flags alone) with `--set` values over it, and its search
    space.

    The configuration of another tool's training is read as a job (`autotune.space.foreign`).

    Args:
        elsewhere: whether it is for another machine: what it names need not be on this one.
        imported: is told what became of another tool's fields.

    Raises:
        UserError: every problem at once, each with where it stands.
    """
    data: dict[str, Any] = {}
    positions: Positions = {}
    name, base = "flags", Path.cwd()
    if path is not None:
        name, base = str(path), path.parent
        data, lines = given_data(path, sets, imported)
        positions = line_positions(lines, name)
    return _Loading(data, positions, name, base).load(sets, elsewhere)


def load_data(data: Mapping[str, Any], sets: Sequence[str] = ()) -> tuple[Job, SpaceDefinition]:
    """Return the job of data that a program holds, with `--set` values over it, and its search
    space. Paths are relative to the current folder.

    Raises:
        UserError: every problem at once, each with the field that it is about.
    """
    fields = copy.deepcopy(dict(data))
    return _Loading(fields, field_positions(fields), "job", Path.cwd()).load(sets, elsewhere=False)


def judge(data: Mapping[str, Any], name: str, base: Path) -> Job:
    """Return the job that was made of another tool's files, judged as a job file is.

    Args:
        base: the folder that its paths are relative to; what they name need not be there.

    Raises:
        UserError: every problem at once.
    """
    return _Loading(copy.deepcopy(dict(data)), {}, name, base).load((), elsewhere=True)[0]


LOSS = "loss_type"
_REMOVED_KNOBS = ("zero_hpz_partition_size", "nvme_path")
_REMOVED = "it was removed: leave it out"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A job as far as it could be read, and its problems.

    Attributes:
        job: as far as its fields are sound; None: they are not enough to make one.
        problems: all that is wrong.
        unsound: fields that the job does not have as they came.
    """

    job: Job | None
    problems: list[Problem]
    unsound: frozenset[str]


def judge_job(
    data: Mapping[str, Any], positions: Positions, name: str, base: Path, unsound: Collection[str]
) -> Judged:
    """Return a job of data that may be wrong.

    Args:
        positions: where each part stands.
        name: what the whole is called.
        base: what its paths are relative to.
        unsound: fields that are known to be wrong, and stand for something else here: what depends
            on them is not judged.

    Raises:
        UserError: its search space cannot be read.
    """
    loading = _Loading(dict(data), dict(positions), name, base)
    loading.unsound |= set(unsound)
    job = loading.judge(loading.definition(()), (), elsewhere=False)
    return Judged(job=job, problems=loading.problems, unsound=frozenset(loading.unsound))


class _Loading(Draft):
    """Judges a draft."""

    def __init__(self, data: dict[str, Any], positions: Positions, name: str, base: Path) -> None:
        super().__init__(data, positions, name, base)
        self.unsound: set[str] = set()

    @property
    def problems(self) -> list[Problem]:
        """All that is wrong, as a user can read it."""
        return shown(self._problems, self._name)

    def load(self, sets: Sequence[str], elsewhere: bool) -> tuple[Job, SpaceDefinition]:
        """Return the job, and its search space.

        Raises:
            UserError: every problem at once.
        """
        definition = self.definition(sets)
        job = self.judge(definition, sets, elsewhere)
        if self.problems or job is None:
            raise UserError(*self.problems)
        return job, definition

    def judge(
        self, definition: SpaceDefinition, sets: Sequence[str], elsewhere: bool
    ) -> Job | None:
        """Return the job, as far as it is sound; what is wrong with it is among `problems`."""
        for section in ("fixed", "recipe"):
            self.canonical_names(section)
        for text in sets:
            self.apply(text, definition)
        for section in ("fixed", "recipe"):
            self.canonical_names(section)
        self.pins_from_training(definition)
        self._check_names(definition)
        self._check_online()
        job = self._validated(definition)
        if job is not None:
            job = todays_loss(job)
            self._check_values(job, definition)
            job = self._with_paths(job, elsewhere)
        return job

    def definition(self, sets: Sequence[str]) -> SpaceDefinition:
        """Return the search space, before anything is judged: names are judged by it."""
        method = self._data.get("method")
        for text in sets:
            key, _, value = text.partition("=")
            method = value.strip("\"'") if key == "method" else method
        self._method = METHODS.get(str(method), SFT)
        return load_definition(self._method.name)

    def _check_names(self, definition: SpaceDefinition) -> None:
        knobs = {knob.name: knob for knob in definition.knobs}
        pinned = self._data.get("fixed")
        for section in ("fixed", "recipe"):
            entries = self._data.get(section)
            for name in entries if isinstance(entries, Mapping) else ():
                valid = {*knobs, ACCUMULATION} if section == "fixed" else set(knobs)
                if name not in valid:
                    what = f"no knob `{name}`"
                    hint = _REMOVED if name in _REMOVED_KNOBS else self._nearest(str(name), valid)
                    self._report((section, name), what, hint)
                elif section == "recipe" and isinstance(pinned, Mapping) and name in pinned:
                    self._report((section, name), f"`{name}` is under `fixed` too; keep one")
        fields = self._data.get("training")
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            self._check_training(str(name), value, definition)

    def _check_training(self, name: str, value: Any, definition: SpaceDefinition) -> None:
        """Judge one field that is passed through."""
        path = ("training", name)
        refusal = self._method.refusals.get(name)
        if secret := secret_of(name, value):
            hint = "leave it out: `hf auth login`, or the variable HF_TOKEN, gives it to a launch"
            self._report(path, f"`{secret}` is a secret, which a run and its bundle keep", hint)
        elif refusal is not None and value not in (None, False, *refusal[0]):
            self._report(path, f"`{name}: {as_yaml(value)}`", refusal[1])
        elif name in OWNERS:
            what = f"`{name}` belongs to {OWNERS[name]} of the job"
            self._report(path, what, self._home(path, value, definition))
        elif name not in self._fields:
            what = f"`{name}` is not in {self._method.config}, ModelConfig or TrainingArguments"
            home = self._home(path, value, definition)
            self._report(path, what, home or self._nearest(name, self._fields))
        elif canonical_name(name) == KWARGS and contradicts(value):
            what = f"`{name}` says which layers are checkpointed, and that is searched"
            level = value_in({CHECKPOINTING: True, KWARGS: value})
            self._report(path, what, f"pin it: `fixed: {{{CHECKPOINTING}: {level}}}`")
        elif not is_plain(value):
            what = f"`{name}` must be plain finite data, but got `{as_yaml(value)}`"
            self._report(path, what)
        elif not (name == "generation_kwargs" and self._method.online):
            wrong = wrong_value(name, value, field_types(self._method.name).get(name))
            if wrong is not None:
                self._report(path, *wrong)

    def _check_online(self) -> None:
        """Judge the fields that only some trainers have."""
        for path, what, hint in online_problems(self._data, self._method):
            self._report(path, what, hint)
        if self._method.online:
            self._data["max_length"] = None
            if isinstance(self._data.get(GLOBAL_BATCH), str):
                self._data[GLOBAL_BATCH] = 16

    def _validated(self, definition: SpaceDefinition) -> Job | None:
        """Return the job; where fields are wrong, the job of the others, so that these are judged
        too."""
        try:
            return Job.model_validate(self._data)
        except ValidationError as error:
            for index, (path, detail) in enumerate(details_by_path(error)):
                self.unsound.add(str(path[0]))
                if index < _MOST_EXPLAINED:
                    self._report(path, *explain(detail, path, self._way(path, detail, definition)))
                else:
                    self._report(path, detail["msg"])
        sound = {k: v for k, v in self._data.items() if str(k) not in self.unsound}
        for field in {"model", "dataset"} & self.unsound:
            sound[field] = "unknown"
        try:
            return Job.model_validate(sound)
        except ValidationError:
            return None

    def _way(self, path: Any, detail: Any, definition: SpaceDefinition) -> str | None:
        """Return what to write in place of what is wrong at the top of a job; None: not known."""
        if len(path) == 1 and detail["type"] in UNKNOWN:
            hint: str | None = self._home(path, self._data.get(path[0]), definition)
            return hint
        if path == ("method",) and str(detail["input"]).lower().replace("-", "_") in EXPERIMENTAL:
            return BY_SCRIPT
        if path == ("devices",):
            return of_devices(detail["input"], self._where(path) == "--set")
        return None

    def _check_values(self, job: Job, definition: SpaceDefinition) -> None:
        types = knob_types(self._method.name)
        for section, name, what, hint in impossible(job, definition, types):
            self._report((section, name), what, hint)
        miscounted = list(uncounted(job))
        for section, name, what, hint in miscounted:
            self._report((section, name), what, hint)
        if not miscounted:
            self._check_batch(job, definition)
        if "tuning" not in self.unsound:
            for section, name, what, hint in pin_problems(job, definition):
                self._report((section, name), what, hint)

    def _check_batch(self, job: Job, definition: SpaceDefinition) -> None:
        """Check that the global batch is exact at every length that is asked for."""
        if self.unsound & {"global_batch_size", "max_length", "recipe", "fixed", "devices"}:
            return
        knob = definition.knob(GROUP)
        groups = job.recipe.get(GROUP) or [job.fixed.get(GROUP, knob.default if knob else 1)]
        lengths = job.recipe.get("max_length", [job.max_length])
        for problem in batch_problems(JobShape.of(job), lengths, groups):
            section = next((s for s in ("fixed", "recipe") if problem.where in getattr(job, s)), "")
            path = (section, problem.where) if section else (problem.where,)
            self._report(path, problem.what, problem.hint)

    def _with_paths(self, job: Job, elsewhere: bool) -> Job:
        placed = with_places(job, self._base_of)
        for field, what, hint in () if elsewhere else wrong_places(placed):
            self._report((field,), f"`{field}`: {what}", hint)
        return placed


def todays_loss(job: Job) -> Job:
    """Return a job whose loss has the name of the installed TRL: with a fused head `chunked_nll`
    is an old name of `nll`."""
    if not fused_head():
        return job
    fixed, recipe = dict(job.fixed), dict(job.recipe)
    if fixed.get(LOSS) == "chunked_nll":
        fixed[LOSS] = "nll"
    if LOSS in recipe:
        named = ["nll" if value == "chunked_nll" else value for value in recipe[LOSS]]
        recipe[LOSS] = list(dict.fromkeys(named))
    return job.model_copy(update={"fixed": fixed, "recipe": recipe})


BaseOf = Callable[[tuple[str, ...]], Path]
"""The folder that a field's path is relative to."""


def with_places(job: Job, base_of: BaseOf) -> Job:
    """Return the job with absolute paths, and a well-known model by its hub id.

    Paths in a file are relative to the file, those of flags to the current folder.
    """
    fields: dict[str, Any] = {"model": _model(job.model, base_of(("model",)))}
    if isinstance(job.dataset, str):
        fields["dataset"] = resolve_path(job.dataset, base_of(("dataset",)))
    for field in ("reward_model_path", TEACHER):
        if (name := getattr(job, field)) is not None:
            fields[field] = _model(name, base_of((field,)))
    if isinstance(job.training.get("output_dir"), str):
        base = base_of(("training", "output_dir"))
        output = absolute_path(job.training["output_dir"], base)
        fields["training"] = {**job.training, "output_dir": output}
    return job.model_copy(update=fields)


def wrong_places(job: Job) -> Iterator[tuple[str, str, str | None]]:
    """Yield (field, what is wrong, what to do) of the files and folders that a job names, as
    absolute paths. Of models only vLLM takes a path for a pattern."""
    for field in ("model", "dataset", "reward_model_path", TEACHER):
        path = getattr(job, field)
        if not (isinstance(path, str) and path.startswith("/")):
            continue
        if not exists(path):
            yield field, f"there is no {path}", None
        is_pattern = field == "dataset" or (field == "model" and job.fixed.get("use_vllm"))
        if is_pattern and (what := why_not_literal(path)) is not None:
            yield field, what, "rename it"


def _model(name: str, base: Path) -> str:
    path = resolve_path(name, base)
    known = known_model(name) if path == name else None
    return path if known is None else known.hub_id
