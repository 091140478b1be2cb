"""What a job that comes over HTTP may say. What is not on a list here is refused.

A job over HTTP is text by somebody else: it must not make the service read or write where the
operator did not say so, run code, reach a host, or take the machine down.
"""

import re
from collections.abc import Collection, Iterator
from math import prod
from typing import Any

from autotune.errors import Problem
from autotune.job.job import Job
from autotune.job.yaml_file import Path_
from autotune.server.access import training_fields as fields
from autotune.server.access.places import refused_place
from autotune.server.settings import Allowed
from autotune.server.store.values import Kind

CONFIG = "config.json"
"""What a job calls the config that came with it."""
PLACES = ("model", "dataset", "reward_model_path")
WORDS = ("dataset_config", "dataset_train_split", "dataset_test_split")
KNOBS = ("fixed", "recipe")
PLAIN = (
    *("method", "tuning", "precision", "weights", "objective", "learning_rate_scaling"),
    *("headroom", "global_batch_size", "max_length", "devices", "budget", "columns"),
)
"""Fields whose types and bounds say all: words of a list, numbers, names of columns."""
SPECIAL = ("reward_funcs", "search_space", "training")
_WORD = re.compile(r"\w[\w.+-]{0,63}|[1-9]\d{0,9} tokens", re.ASCII)
_TOKEN = re.compile(r"[^\s\x00-\x1f/\\]{1,64}")
_NO_KNOB = {"nvme_path": "the folder is the operator's to choose"}
_TRL_REWARDS = re.compile(r"[a-z_]+_reward|get_soft_overlong_punishment", re.ASCII)
_MOST_VALUES, _MOST_TOGETHER = 64, 256
"""Of a knob that varies, and of all combinations of those that do."""
_MOST = {
    ("max_length",): 2**20,
    ("dataset", "lengths", "max"): 2**20,
    ("dataset", "lengths", "rows"): 10**10,
    ("devices", "count"): 4096,
    ("devices", "nodes"): 1024,
    ("devices", "index"): 1024,
}
_MOST_BATCH = 2**20
_MOST_MADE_TOKENS = 2**17
"""Longest rows that a run makes where there are no data: it makes 256 of them."""


def refused(
    job: dict[str, Any], allowed: Allowed, *, plan: bool, config: bool
) -> Iterator[tuple[Path_, Problem]]:
    """Yield what the rules have against a job, before anything of it is looked at: each with its
    field.

    Args:
        job: as its file has it, plain data.
        plan: whether it is only planned: a built-in model then needs no hub.
        config: whether a config.json came with it.
    """
    for field in PLACES:
        is_sent = field == "model" and config and job.get(field) in (CONFIG, f"./{CONFIG}")
        if not is_sent and not (field == "dataset" and isinstance(job.get(field), dict)):
            found = refused_place(job.get(field), field, allowed, plan=plan)
            yield from (((field,), problem) for problem in found)
    for field in WORDS:
        if isinstance(value := job.get(field), str) and not _is_word(value):
            yield _found(f"`{field}: {value[:80]}` must be a word", field)
    if job.get("search_space"):
        hint = "a search space of one's own is a file; pin or list knobs in the job"
        yield _found(_not_taken("search_space"), "search_space", hint=hint)
    yield from _rewards(job.get("reward_funcs"), allowed)
    yield from _knobs(job, allowed)
    training = job.get("training")
    for name, value in (training if isinstance(training, dict) else {}).items():
        if name not in allowed.training:
            yield from _training(name, value)
    for path, most in _MOST.items():
        value = job
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, int | float) and value > most:
            yield _found(f"`{'.'.join(path)}: {value}` is more than {most}", *path)
    if _rows(job.get("global_batch_size")) > _MOST_BATCH * 2**11:
        yield _too_large_a_batch()


def beyond(
    job: Job, allowed: Allowed, kind: Kind, unsound: Collection[str]
) -> Iterator[tuple[Path_, Problem]]:
    """Yield what a job asks for beyond what it may have: each with its field.

    Args:
        unsound: fields of which nothing is to be said.
    """
    if not {"global_batch_size", "max_length", "recipe"} & set(unsound):
        yield from _batches(job)
    if kind == "plan":
        return
    for name in ("minutes", "probe_minutes") if "budget" not in unsound else ():
        minutes = getattr(job.budget, name)
        if minutes > allowed.minutes:
            what = f"a run may probe for {allowed.minutes:g} minutes here, and `{name}` is"
            hint = f"write `budget: {{{name}: {allowed.minutes:g}}}`, or ask the operator"
            yield _found(f"{what} {minutes:g}", "budget", name, hint=hint)
    lengths = None if isinstance(job.dataset, str) or "dataset" in unsound else job.dataset.lengths
    if lengths is not None and lengths.max > _MOST_MADE_TOKENS:
        what = f"a run makes rows of at most {_MOST_MADE_TOKENS} tokens, and `max` is {lengths.max}"
        yield _found(what, "dataset", "lengths", "max", hint="plan it, or give real data")


def _batches(job: Job) -> Iterator[tuple[Path_, Problem]]:
    for batch in job.batches:
        sequences = (
            batch
            if isinstance(batch, int)
            else job.with_batch(batch).batch_sequences(job.max_length)
        )
        if isinstance(sequences, int) and sequences > _MOST_BATCH:
            yield _too_large_a_batch()


def _found(what: str, *path: str | int, hint: str | None = None) -> tuple[Path_, Problem]:
    return path, Problem(where=".".join(map(str, path)), what=what, hint=hint)


def _too_large_a_batch() -> tuple[Path_, Problem]:
    return _found(f"a batch of more than {_MOST_BATCH} sequences is not taken", "global_batch_size")


def _rows(batch: Any) -> int:
    digits = re.match(r"\s*(\d{1,18})", str(batch).replace("_", ""))
    return int(digits[1]) if digits else 0


def _rewards(names: Any, allowed: Allowed) -> Iterator[tuple[Path_, Problem]]:
    listed = isinstance(names, list)
    for index, name in enumerate(names if listed else [names] if names else []):
        trls = isinstance(name, str) and _TRL_REWARDS.fullmatch(name)
        if not trls and name not in allowed.reward_functions:
            hint = "reward functions are code; name TRL's own, or use a `reward_model_path`"
            what = f"`{str(name)[:80]}` is not taken over HTTP"
            yield _found(what, "reward_funcs", *([index] if listed else []), hint=hint)


def _knobs(job: dict[str, Any], allowed: Allowed) -> Iterator[tuple[Path_, Problem]]:
    sizes = []
    for section in KNOBS:
        knobs = job.get(section)
        for name, value in (knobs if isinstance(knobs, dict) else {}).items():
            if name in allowed.training:
                continue
            if name in _NO_KNOB:
                yield _found(_not_taken(name), section, name, hint=_NO_KNOB[name])
            elif not _are_words(value) and not _are_lists_of_words(value):
                what = f"`{str(name)[:80]}` takes numbers and words over HTTP"
                yield _found(what, section, name)
            elif section == "recipe" and isinstance(value, list):
                sizes.append(len(value))
    if prod(sizes) > _MOST_TOGETHER or max(sizes, default=0) > _MOST_VALUES:
        what = f"more than {_MOST_TOGETHER} combinations, or {_MOST_VALUES} values, are not taken"
        yield _found(what, "recipe")


def _training(name: str, value: Any) -> Iterator[tuple[Path_, Problem]]:
    if name in fields.NUMBERS:
        fits = _is_number(value) and not (_real(value) > fields.MOST.get(name, float("inf")))
        kind = f"a number up to {fields.MOST[name]}" if name in fields.MOST else "a number"
    elif name in fields.WORDS:
        fits, kind = _are_words(value), "a word"
    elif name in fields.TOKENS:
        fits, kind = value is None or bool(_TOKEN.fullmatch(str(value))), "a token"
    elif name in fields.LISTS:
        fits = value is None or (isinstance(value, list) and all(map(_is_number, value)))
        kind = "a list of numbers"
    elif name in fields.SETTINGS:
        fits = isinstance(value, dict) and all(map(_is_word, value)) and _all_numbers(value)
        kind = "a word with a number each"
    else:
        hint = "add it to the bundle later, or ask the operator: `allowed: {training: [...]}`"
        yield _found(_not_taken(name), "training", name, hint=hint)
        return
    if not fits:
        yield _found(f"`{name}` must be {kind}", "training", name)


def _not_taken(name: Any) -> str:
    return f"`{str(name)[:80]}` is not taken over HTTP"


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _all_numbers(value: dict[str, Any]) -> bool:
    return all(map(_is_number, value.values()))


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(_WORD.fullmatch(value))


def _are_words(value: Any) -> bool:
    """A number, a word, or a list of these."""
    values = value if isinstance(value, list) else [value]
    return all(_is_number(one) or _is_word(one) for one in values)


def _are_lists_of_words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_are_words, value))
