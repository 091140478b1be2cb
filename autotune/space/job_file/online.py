"""What only trainers that generate have in a job: rewards, and what is generated. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.errors import user_error
from autotune.job.job import Job
from autotune.job.methods import METHODS, Method
from autotune.space.knobs import GLOBAL_BATCH

Found = tuple[tuple[str | int, ...], str, str | None]
"""Where in the job, what is wrong, and what to do."""
_TRL_REWARDS = (
    "accuracy_reward",
    "reasoning_accuracy_reward",
    "think_format_reward",
    "get_soft_overlong_punishment",
)
_REWARDS = (
    "`reward_funcs: [get_soft_overlong_punishment]` works for any prompts (TRL's others: "
    "accuracy_reward, reasoning_accuracy_reward, think_format_reward), or name your own by its "
    "import path, or give a `reward_model_path`"
)
TEACHER = "teacher_model_name_or_path"
_KWARGS = "teacher_model_init_kwargs"
_TYPES = ("float32", "bfloat16", "float16")
_OWN_KWARGS = {"max_new_tokens", "min_new_tokens", "max_length", "eos_token_id", "stop_strings"}


def online_problems(data: Mapping[str, Any], method: Method) -> Iterator[Found]:
    """Yield what is wrong with lengths and rewards in a job of this method."""
    yield from _of_other_methods(data, method)
    if method.teacher:
        yield from _of_teacher(data, method)
    if not method.online:
        return
    if data.get("max_length") is not None:
        hint = f"`fixed: {{{method.completion}: ...}}` bounds what is generated"
        yield ("max_length",), f"TRL does not truncate the prompts of `method: {method.name}`", hint
    if isinstance(data.get(GLOBAL_BATCH), str):
        what = "a batch of completions has no fixed number of tokens"
        yield (GLOBAL_BATCH,), what, "give it in completions"
    yield from _of_generation(data.get("training"))
    yield from _of_rewards(data)


def refuse_unrewarded(job: Job) -> None:
    """Refuse to train where nothing rewards what is generated; a plan needs no rewards.

    Raises:
        UserError: the job names none.
    """
    if METHODS[job.method].lacks_reward(job.reward_funcs, job.reward_model_path):
        what = f"`method: {job.method}` needs something that rewards completions"
        raise user_error(what, where="reward_funcs", hint=_REWARDS)


def is_reward(name: Any) -> bool:
    """True if a reward function can be found by its name: TRL's own, or an import path."""
    return isinstance(name, str) and ("." in name or name in _TRL_REWARDS)


def _of_other_methods(data: Mapping[str, Any], method: Method) -> Iterator[Found]:
    for name in ("reward_funcs", "reward_model_path", TEACHER):
        able = [m for m in METHODS.values() if _takes(m, name)]
        if data.get(name) and method not in able:
            yield (name,), f"`{name}` is for {', '.join(f'`{m.name}`' for m in able)}", None


def _takes(method: Method, name: str) -> bool:
    """True if a method has the field `name`, of those that reward or teach."""
    if name == "reward_funcs":
        return method.rewards_by_functions
    return bool(method.second_model) and method.teacher == (name == TEACHER)


def _of_teacher(data: Mapping[str, Any], method: Method) -> Iterator[Found]:
    if not data.get(TEACHER):
        hint = f"`{TEACHER}: qwen3-8b` (a model of the same vocabulary)"
        yield (TEACHER,), f"`method: {method.name}` needs a teacher", hint
    training = data.get("training")
    kwargs = training.get(_KWARGS) if isinstance(training, Mapping) else None
    if isinstance(kwargs, Mapping) and not (len(kwargs) == 1 and kwargs.get("dtype") in _TYPES):
        hint = f"only its type can be said: `{_KWARGS}: {{dtype: bfloat16}}`"
        yield ("training", _KWARGS), "a teacher is not quantised or changed here", hint


def _of_rewards(data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield names of TRL's own functions, and a weight for each reward."""
    names = data.get("reward_funcs")
    names = names if isinstance(names, list) else []
    for index, name in enumerate(names):
        if isinstance(name, str) and not is_reward(name):
            yield ("reward_funcs", index), f"unknown reward function `{name}`", _REWARDS
    training = data.get("training")
    weights = training.get("reward_weights") if isinstance(training, Mapping) else None
    count = len(names) + bool(data.get("reward_model_path"))
    if isinstance(weights, list) and len(weights) != count:
        what = f"{len(weights)} reward weights for {count} reward(s)"
        yield ("training", "reward_weights"), what, "give one for each, models first"


def _of_generation(training: Any) -> Iterator[Found]:
    """Yield what is asked of generation must leave the length of completions to the knob."""
    kwargs = training.get("generation_kwargs") if isinstance(training, Mapping) else None
    if kwargs is None:
        return
    path = ("training", "generation_kwargs")
    if not isinstance(kwargs, Mapping):
        yield path, "`generation_kwargs` must be a mapping", None
        return
    for name in sorted(_OWN_KWARGS & kwargs.keys()):
        hint = "`fixed: {max_completion_length: ...}` says how long completions are"
        yield path, f"`{name}` conflicts with max_completion_length", hint
