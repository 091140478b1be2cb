"""What a job that comes over HTTP may name. What is not on a list here is refused.

A job over HTTP is text by somebody else: it must not make the service read or write where the
operator did not say so, run code, or reach a host.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.errors import Problem
from autotune.facts.known_models import known_model
from autotune.server.settings import Allowed

CONFIG = "config.json"
"""What a job calls the config that came with it."""
_WORD = re.compile(r"[\w.+-]{1,64}")
_HUB_ID = re.compile(r"[\w.-]{1,96}(?:/[\w.-]{1,96})?")
_NEVER = {
    "reward_funcs": "reward functions are code; name TRL's own, or use a `reward_model_path`",
    "search_space": "a search space of one's own is a file; pin or list knobs in the job",
}
_TRAINING_NEVER = re.compile(
    r"(?:hub|push_|token|report_to|trackio|wandb|project|run_name|logging_dir|output_dir|resume|"
    r"deepspeed|fsdp|accelerator|ddp_backend|trust_remote|remote_code|_path|_dir$|_file|_script|"
    r"_funcs|_function|_class|_module|kwargs|server|host|port|base_url|debug|profile|dataset_|"
    r"tracker|callback|torch_compile_backend|tokenizer|chat_template|local_rank|log_level)"
)
"""Parts of names of training fields that name files, hosts, code or secrets."""
_TRL_REWARDS = re.compile(r"[a-z_]+_reward|get_soft_overlong_punishment")


def refused(
    job: dict[str, Any], allowed: Allowed, *, plan: bool, config: bool
) -> Iterator[Problem]:
    """What the rules have against a job.

    Args:
        job: as its file has it.
        plan: whether it is only planned: a built-in model then needs no hub.
        config: whether a config.json came with it.
    """
    if not (config and job.get("model") in (CONFIG, f"./{CONFIG}")):
        yield from _place(job.get("model"), "model", allowed, plan=plan)
    yield from _place(job.get("reward_model_path"), "reward_model_path", allowed, plan=plan)
    if not isinstance(job.get("dataset"), dict):
        yield from _place(job.get("dataset"), "dataset", allowed, plan=False)
    for field, why in _NEVER.items():
        value = job.get(field)
        names = value if isinstance(value, list) else [value]
        if field == "reward_funcs" and all(_is_trls(name) for name in names):
            continue
        if value:
            yield Problem(where=field, what=f"`{field}` is not taken over HTTP", hint=why)
    training = job.get("training")
    for name, value in (training if isinstance(training, dict) else {}).items():
        yield from _training(str(name), value)
    budget = job.get("budget")
    minutes = budget.get("minutes") if isinstance(budget, dict) else None
    if isinstance(minutes, int | float) and minutes > allowed.minutes:
        what = (
            f"a run may probe for {allowed.minutes:g} minutes here, and this asks for {minutes:g}"
        )
        yield Problem(where="budget", what=what, hint="ask for less, or ask the operator")


def _is_trls(name: Any) -> bool:
    return isinstance(name, str) and bool(_TRL_REWARDS.fullmatch(name))


def _training(name: str, value: Any) -> Iterator[Problem]:
    if _TRAINING_NEVER.search(name):
        what = f"`{name}` is not taken over HTTP: it may name files, hosts or code"
        yield Problem(where="training", what=what, hint="leave it out; add it to the bundle later")
    elif isinstance(value, str) and not _WORD.fullmatch(value):
        what = f"`{name}: {value[:40]}` is not taken over HTTP: only a word is"
        yield Problem(where="training", what=what)
    elif isinstance(value, dict | list):
        what = f"`{name}` is not taken over HTTP: only numbers, words, true and false are"
        yield Problem(where="training", what=what)


def _place(value: Any, field: str, allowed: Allowed, *, plan: bool) -> Iterator[Problem]:
    """Whether a name is one of a file in an allowed folder, of the hub where that is allowed, or of
    a built-in model."""
    if not isinstance(value, str) or not value:
        return  # missing or of another type, which the job's own rules say
    if plan and field != "dataset" and known_model(value) is not None:
        return
    if value.startswith(("/", ".", "~")) or value.endswith((".json", ".jsonl")):
        if not _within(value, allowed.folders):
            folders = ", ".join(allowed.folders) or "none"
            hint = f"give an absolute path under one of these folders: {folders}"
            if not allowed.folders:
                hint = "the operator lists folders under `allowed.folders` of server.yaml"
            what = f"`{field}: {value}` is not under a folder that jobs over HTTP may name"
            yield Problem(where=field, what=what, hint=hint)
    elif not allowed.hub:
        what = f"`{field}: {value}` would be looked for on the hub, which is not allowed here"
        hint = "the operator allows it by `allowed: {hub: true}` in server.yaml"
        if field == "dataset":
            hint = "give its lengths: `{lengths: {max: 2048, p50: 300, p99: 1500}}`"
        yield Problem(where=field, what=what, hint=hint)
    elif not _HUB_ID.fullmatch(value) or ".." in value:
        yield Problem(where=field, what=f"`{field}: {value[:80]}` is not a hub id")


def _within(value: str, folders: list[str]) -> bool:
    """Whether a path, its links followed, lies under one of the folders."""
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts or "\0" in value:
        return False
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        return False
    return any(real.is_relative_to(Path(folder).resolve()) for folder in folders)
