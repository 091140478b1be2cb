"""Makes a Job of a job file and flags: strictly, with every problem and its line at once."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.errors import Problem, UserError, nearest, user_error
from autotune.facts.stack import missing
from autotune.job.job import Job
from autotune.job.methods import METHODS, SFT
from autotune.job.paths import absolute_path
from autotune.job.yaml_file import parse_yaml
from autotune.space.batch_checks import batch_problems
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.job_file.homes import home_of, refuse_foreign
from autotune.space.job_file.overrides import OWNERS, Draft
from autotune.space.job_file.places import missing_places, with_places
from autotune.space.job_file.problems import as_yaml, details_by_path, explain
from autotune.space.job_file.unused_pins import pin_problems
from autotune.space.knobs import ACCUMULATION, GLOBAL_BATCH, GROUP, TENSOR_PARALLEL, VLLM_SHARE
from autotune.space.value_words import COUNTS, COUNTS_FROM_ZERO, counts
from autotune.space.vllm.colocated import MODE, USE

TRL_REWARDS = (
    "accuracy_reward",
    "reasoning_accuracy_reward",
    "think_format_reward",
    "get_soft_overlong_punishment",
)
REWARDS = (
    "`reward_funcs: [get_soft_overlong_punishment]` works for any prompts (TRL's others: "
    "accuracy_reward, reasoning_accuracy_reward, think_format_reward), or name your own by its "
    "import path, or give a `reward_model_path`"
)
OWN_KWARGS = {"max_new_tokens", "min_new_tokens", "max_length", "eos_token_id", "stop_strings"}
_WHOLE_NUMBERS = (*COUNTS, ACCUMULATION, "lora_r", "num_iterations", "num_ppo_epochs")
"""Knobs that are whole numbers above 0."""


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
            raise user_error(f"cannot read the job file: {error}", where=name) from None
        refuse_foreign(data, name)
    return _Loading(data, lines, name, base).load(sets)


class _Loading(Draft):
    """Judges a draft."""

    def load(self, sets: Sequence[str]) -> tuple[Job, SpaceDefinition]:
        self._unsound: set[str] = set()
        definition = self._definition(sets)
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
            self._check_values(job, definition)
            job = self._with_paths(job)
        if self._problems or job is None:
            raise UserError(*self._problems)
        return job, definition

    def _definition(self, sets: Sequence[str]) -> SpaceDefinition:
        """The space must be known before names can be judged, whatever else is wrong."""
        data, base = dict(self._data), self._base
        for text in sets:
            key, _, value = text.partition("=")
            if key in ("search_space", "method"):
                data[key] = None if value == "null" else value.strip("\"'") or None
                base = Path.cwd() if key == "search_space" else base
        self._method = METHODS.get(str(data.get("method")), SFT)
        space = data.get("search_space")
        if isinstance(space, str):
            space = absolute_path(space, base)
        return load_definition(self._method.name, space if isinstance(space, str) else None)

    def _check_names(self, definition: SpaceDefinition) -> None:
        if self._method.online:
            for name in self._method.knobs:
                if definition.knob(name) is None:
                    what = f"`{name}` must be a knob of a space of `{self._method.name}`"
                    self._problems.append(Problem(where=definition.name, what=what))
        knobs = {knob.name: knob for knob in definition.knobs}
        pinned = self._data.get("fixed")
        for section in ("fixed", "recipe"):
            entries = self._data.get(section)
            for name in entries if isinstance(entries, Mapping) else ():
                valid = {*knobs, ACCUMULATION} if section == "fixed" else set(knobs)
                if name not in valid:
                    self._report((section, name), f"no knob `{name}`", nearest(str(name), valid))
                elif section == "recipe" and isinstance(pinned, Mapping) and name in pinned:
                    self._report((section, name), f"`{name}` is under `fixed` too; keep one")
        fields = self._data.get("training")
        training = fields if isinstance(fields, Mapping) else {}
        for name in training:
            refusal = self._method.refusals.get(str(name))
            if refusal is not None and training[name] not in (None, False, *refusal[0]):
                self._report(("training", name), f"`{name}: {as_yaml(training[name])}`", refusal[1])
            elif name in OWNERS:
                self._report(("training", name), f"`{name}` belongs to {OWNERS[name]} of the job")
            elif name not in self._fields and missing(self._method.name) is None:
                self._report(
                    ("training", name),
                    f"`{name}` is not in {self._method.config}, ModelConfig or TrainingArguments",
                    nearest(str(name), self._fields),
                )
            elif not _is_plain(training[name]):
                self._report(
                    ("training", name),
                    f"`{name}` must be plain finite data, but got `{as_yaml(training[name])}`",
                )

    def _check_online(self) -> None:
        """What only some of the trainers have."""
        data = self._data
        if self._method.online:
            if data.get("max_length") is not None:
                hint = f"`fixed: {{{self._method.completion}: ...}}` bounds what is generated"
                what = f"TRL does not truncate the prompts of `method: {self._method.name}`"
                self._report(("max_length",), what, hint)
            data["max_length"] = None
            if isinstance(data.get(GLOBAL_BATCH), str):
                what = "a batch of completions has no fixed number of tokens"
                self._report((GLOBAL_BATCH,), what, "give it in completions")
                data[GLOBAL_BATCH] = 16
            self._check_generation(data.get("training"))
            self._check_rewards()
            if not self._method.rewards_by_functions:
                if data.get("reward_funcs"):
                    what = f"`method: {self._method.name}` is rewarded by a model"
                    self._report(("reward_funcs",), what, "give a `reward_model_path`")
            elif not data.get("reward_funcs") and not data.get("reward_model_path"):
                what = f"`method: {self._method.name}` needs something that rewards completions"
                self._report(("reward_funcs",), what, REWARDS)
            return
        for name in ("reward_funcs", "reward_model_path"):
            if data.get(name):
                functions = name == "reward_funcs"
                able = [
                    f"`{method.name}`"
                    for method in METHODS.values()
                    if (method.rewards_by_functions if functions else method.reward_model)
                ]
                self._report((name,), f"`{name}` is for {', '.join(able)}")

    def _check_rewards(self) -> None:
        """Names of TRL's own functions, and a weight for each reward."""
        names = self._data.get("reward_funcs")
        names = names if isinstance(names, list) else []
        for index, name in enumerate(names):
            if isinstance(name, str) and "." not in name and name not in TRL_REWARDS:
                self._report(("reward_funcs", index), f"unknown reward function `{name}`", REWARDS)
        training = self._data.get("training")
        weights = training.get("reward_weights") if isinstance(training, Mapping) else None
        count = len(names) + bool(self._data.get("reward_model_path"))
        if isinstance(weights, list) and len(weights) != count:
            what = f"{len(weights)} reward weights for {count} reward(s)"
            self._report(("training", "reward_weights"), what, "give one for each, models first")

    def _check_generation(self, training: Any) -> None:
        """What is asked of generation must leave the length of completions to the knob."""
        kwargs = training.get("generation_kwargs") if isinstance(training, Mapping) else None
        if kwargs is None:
            return
        path = ("training", "generation_kwargs")
        if not isinstance(kwargs, Mapping):
            self._report(path, "`generation_kwargs` must be a mapping")
            return
        for name in sorted(OWN_KWARGS & kwargs.keys()):
            hint = "`fixed: {max_completion_length: ...}` says how long completions are"
            self._report(path, f"`{name}` conflicts with max_completion_length", hint)

    def _validated(self, definition: SpaceDefinition) -> Job | None:
        """The job; where fields are wrong, the job of the others, so that these are judged too."""
        try:
            return Job.model_validate(self._data)
        except ValidationError as error:
            for path, detail in details_by_path(error):
                field = str(path[0])
                home = home_of(field, self._data.get(field), definition, self._fields)
                self._report(path, *explain(detail, path, home if len(path) == 1 else None))
                self._unsound.add(str(path[0]))
        sound = {k: v for k, v in self._data.items() if str(k) not in self._unsound}
        for field in {"model", "dataset"} & self._unsound:
            sound[field] = "unknown"
        try:
            return Job.model_validate(sound)
        except ValidationError:
            return None

    def _check_values(self, job: Job, definition: SpaceDefinition) -> None:
        for section in ("fixed", "recipe"):
            for name, pin in getattr(job, section).items():
                knob = definition.knob(name)
                if knob is None or knob.choices is None:
                    continue
                for value in pin if section == "recipe" else [pin]:
                    if not any(type(value) is type(c) and value == c for c in knob.choices):
                        choices = ", ".join(dict.fromkeys(f"`{as_yaml(c)}`" for c in knob.choices))
                        self._report(
                            (section, name),
                            f"`{name}` cannot be `{as_yaml(value)}`",
                            f"choose from {choices}",
                        )
        for name in ("max_length", GLOBAL_BATCH):
            if name in job.fixed:
                self._report(("fixed", name), f"`{name}` is a field of the job itself")
        if self._whole_numbers(job):
            self._check_batch(job, definition)
        share = job.fixed.get(VLLM_SHARE, 0.5)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            what = f"`{VLLM_SHARE}: {as_yaml(share)}` must be a fraction, above 0 and at most 1"
            self._report(("fixed", VLLM_SHARE), what)
        pinned_use = job.fixed.get(USE) and job.devices.total == 1
        if pinned_use and job.fixed.get(TENSOR_PARALLEL, 1) != 1:
            what = f"`{TENSOR_PARALLEL}: {as_yaml(job.fixed[TENSOR_PARALLEL])}` needs more devices"
            self._report(("fixed", TENSOR_PARALLEL), what, "raise `devices.count`, or unpin it")
        for name in sorted({USE, MODE, VLLM_SHARE} & job.recipe.keys()):
            what = f"`{name}` cannot be tried with several values: probes would not differ"
            self._report(("recipe", name), what, f"pin it: `fixed: {{{name}: ...}}`")
        if "tuning" not in self._unsound:
            for section, name, what, hint in pin_problems(job, definition):
                self._report((section, name), what, hint)

    def _whole_numbers(self, job: Job) -> bool:
        """Whether every knob that counts something counts."""
        sound = True
        for section in ("fixed", "recipe"):
            for name, value in getattr(job, section).items():
                values = value if section == "recipe" else [value]
                never = [None] if (section, name) == ("recipe", "max_length") else []
                if name not in (*_WHOLE_NUMBERS, *COUNTS_FROM_ZERO):
                    continue
                if not all(counts(name, v) or v in never for v in values):
                    minimum = "from 0 on" if name in COUNTS_FROM_ZERO else "above 0"
                    self._report((section, name), f"`{name}` must be a whole number {minimum}")
                    sound = False
        return sound

    def _check_batch(self, job: Job, definition: SpaceDefinition) -> None:
        """The global batch is exact at every length that is asked for."""
        if self._unsound & {"global_batch_size", "max_length", "recipe", "fixed", "devices"}:
            return
        knob = definition.knob(GROUP)
        groups = job.recipe.get(GROUP) or [job.fixed.get(GROUP, knob.default if knob else 1)]
        lengths = job.recipe.get("max_length", [job.max_length])
        for problem in batch_problems(job, lengths, groups):
            section = next((s for s in ("fixed", "recipe") if problem.where in getattr(job, s)), "")
            path = (section, problem.where) if section else (problem.where,)
            self._report(path, problem.what, problem.hint)

    def _with_paths(self, job: Job) -> Job:
        placed = with_places(job, self._base_of)
        for field, path in missing_places(placed):
            self._report((field,), f"`{field}`: there is no {path}")
        return placed


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
