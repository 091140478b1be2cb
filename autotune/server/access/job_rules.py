"""What a job that comes over HTTP may say, and where it may take models and data from: whatever is
on no list here is refused.

A job over HTTP is text by a stranger: it must not make the service read or write where the operator
did not allow it, run code, reach a host, or take the machine down. A training field that is not
listed is refused, and so are those of newer versions until somebody has looked at them.
"""

import difflib
import os
import re
from collections.abc import Collection, Iterator
from math import prod
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts.data_card import check_card
from autotune.facts.known_models import known_model, nearest_models
from autotune.job.job import Job
from autotune.job.yaml_file import Path_
from autotune.server.settings import Allowed
from autotune.server.store.values import Kind
from autotune.space.job_file.overrides import SECRETS

_NUMBERS = """
    activation_checkpointing activation_offloading adam_beta1 adam_beta2 adam_epsilon
    assistant_only_loss average_tokens_across_devices batch_eval_metrics bf16_full_eval beta
    cast_lm_head_to_fp32 center_rewards_coefficient cliprange cliprange_value completion_only_loss
    copy_reference data_seed dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_prefetch_factor ddp_bucket_cap_mb delta desirable_weight disable_dropout discopop_tau
    do_eval entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target epsilon
    epsilon_high eval_accumulation_steps eval_delay eval_on_start eval_packing eval_steps
    f_alpha_divergence_coef fp16_full_eval full_determinism gamma generation_batch_size
    gradient_accumulation_steps gradient_checkpointing group_by_length kl_coef label_smoothing
    label_smoothing_factor lam ld_alpha learning_rate load_in_8bit local_rollout_forward_batch_size
    logging_first_step logging_nan_inf_filter logging_steps lora_alpha lora_dropout lora_r
    mask_truncated_completions max_completion_length max_grad_norm max_steps min_p
    missing_eos_penalty neftune_noise_alpha normalize_advantages num_generations
    num_generations_eval num_iterations num_mini_batches num_ppo_epochs num_sample_generations
    num_train_epochs off_policy_mask_threshold packing padding_free
    per_device_eval_batch_size per_device_train_batch_size precompute_ref_batch_size
    precompute_ref_log_probs prediction_loss_only ref_model_mixup_alpha ref_model_sync_steps
    remove_unused_columns repetition_penalty response_length router_aux_loss_coef
    sapo_temperature_neg sapo_temperature_pos save_only_model save_steps save_total_limit seed
    shuffle_dataset sync_ref_model temperature tf32 top_entropy_quantile top_k top_p torch_compile
    torch_empty_cache_steps undesirable_weight use_adaptive_entropy use_bias_correction_kl
    use_bnb_nested_quant use_cache use_dora use_liger_kernel use_rslora use_vllm use_weighting
    vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos vf_coef vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_max_model_length
    vllm_tensor_parallel_size warmup_ratio warmup_steps weight_decay whiten_rewards
"""
TRAINING_NUMBERS = frozenset(_NUMBERS.split())
"""A number, true, false or null."""
_TRAINING_WORDS = """
    attn_implementation bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation
    dataset_text_field dtype eval_strategy f_divergence_type importance_sampling_level kl_estimator
    logging_strategy lora_modules_to_save lora_target_modules lora_target_parameters lora_task_type
    loss_type lr_scheduler_type multi_objective_aggregation optim packing_strategy
    pad_to_multiple_of save_strategy scale_rewards train_sampling_strategy truncation_mode
    vllm_importance_sampling_mode vllm_mode
"""
TRAINING_WORDS = frozenset(_TRAINING_WORDS.split())
"""A word or several: a name of a choice, of a module, or of a column."""
TRAINING_TOKENS = frozenset({"eos_token", "pad_token", "stop_token"})
"""A token, as a tokenizer writes it."""
TRAINING_LISTS = frozenset({"loss_weights", "reward_weights"})
"""Numbers."""
TRAINING_SETTINGS = frozenset({"lr_scheduler_kwargs"})
"""Words with a number each."""
TRAINING_MOST = {"dataloader_num_workers": 16, "dataloader_prefetch_factor": 64}
"""Bounds of what starts processes or fills memory ahead."""
CONFIG = "config.json"
"""What a job calls the config that came with it."""
PLACES = ("model", "dataset", "reward_model_path", "teacher_model_name_or_path")
WORDS = ("dataset_config", "dataset_train_split", "dataset_test_split")
KNOBS = ("fixed", "recipe")
PLAIN = (
    *("method", "tuning", "precision", "weights", "objective", "learning_rate_scaling"),
    *("headroom", "global_batch_size", "max_length", "devices", "budget", "columns"),
)
"""Fields whose types and bounds say all: words of a list, numbers, names of columns."""
SPECIAL = ("reward_funcs", "training")
_WORD = re.compile(r"\w[\w.+-]{0,63}|[1-9]\d{0,9} tokens", re.ASCII)
_TOKEN = re.compile(r"[^\s\x00-\x1f/\\]{1,64}")
_TRL_REWARDS = re.compile(r"[a-z_]+_reward|get_soft_overlong_punishment", re.ASCII)
_MOST_VALUES, _MOST_TOGETHER = 64, 256
"""Values of one knob that varies, and combinations of all of them."""
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
"""Tokens of the longest rows that a run makes where there are no data: it makes 256 of them."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_MOST_ENTRIES = 50_000
_MOST_CARD = 2**18
"""Bytes of a data set's card: it is read during the request."""


def refused_fields(
    job: dict[str, Any], allowed: Allowed, *, plan: bool, config: bool
) -> Iterator[tuple[Path_, Problem]]:
    """Yield what breaks the rules, each with its field, before the job itself is read.

    Args:
        job: as its file has it, plain data.
        plan: whether it is only planned: a built-in model then needs no hub.
        config: whether a config.json came with it.
    """
    for field in PLACES:
        is_sent = field == "model" and config and job.get(field) in (CONFIG, f"./{CONFIG}")
        if not is_sent and not (field == "dataset" and isinstance(job.get(field), dict)):
            problems = refused_place(job.get(field), field, allowed, plan=plan)
            yield from (((field,), problem) for problem in problems)
    for field in WORDS:
        if isinstance(value := job.get(field), str) and not _is_word(value):
            yield _problem(f"`{field}: {value[:80]}` must be a word", field)
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
            yield _problem(f"`{'.'.join(path)}: {value}` is more than {most}", *path)
    if _rows(job.get("global_batch_size")) > _MOST_BATCH * 2**11:
        yield _too_large_a_batch()


def over_limits(
    job: Job, allowed: Allowed, kind: Kind, unsound: Collection[str]
) -> Iterator[tuple[Path_, Problem]]:
    """Yield what a job asks for beyond what it may have: each with its field.

    Args:
        unsound: fields that are wrong already, and skipped.
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
            yield _problem(f"{what} {minutes:g}", "budget", name, hint=hint)
    lengths = None if isinstance(job.dataset, str) or "dataset" in unsound else job.dataset.lengths
    if lengths is not None and lengths.max > _MOST_MADE_TOKENS:
        what = f"a run makes rows of at most {_MOST_MADE_TOKENS} tokens, and `max` is {lengths.max}"
        yield _problem(what, "dataset", "lengths", "max", hint="plan it, or give real data")


def _batches(job: Job) -> Iterator[tuple[Path_, Problem]]:
    for batch in job.batches:
        sequences = (
            batch
            if isinstance(batch, int)
            else job.with_batch(batch).batch_sequences(job.max_length)
        )
        if isinstance(sequences, int) and sequences > _MOST_BATCH:
            yield _too_large_a_batch()


def _problem(what: str, *path: str | int, hint: str | None = None) -> tuple[Path_, Problem]:
    return path, Problem(where=".".join(map(str, path)), what=what, hint=hint)


def _too_large_a_batch() -> tuple[Path_, Problem]:
    return _problem(
        f"a batch of more than {_MOST_BATCH} sequences is not taken", "global_batch_size"
    )


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
            yield _problem(what, "reward_funcs", *([index] if listed else []), hint=hint)


def _knobs(job: dict[str, Any], allowed: Allowed) -> Iterator[tuple[Path_, Problem]]:
    sizes = []
    for section in KNOBS:
        knobs = job.get(section)
        for name, value in (knobs if isinstance(knobs, dict) else {}).items():
            if name in allowed.training:
                continue
            if not _are_words(value) and not _are_lists_of_words(value):
                what = f"`{str(name)[:80]}` takes numbers and words over HTTP"
                yield _problem(what, section, name)
            elif section == "recipe" and isinstance(value, list):
                sizes.append(len(value))
    if prod(sizes) > _MOST_TOGETHER or max(sizes, default=0) > _MOST_VALUES:
        what = f"more than {_MOST_TOGETHER} combinations, or {_MOST_VALUES} values, are not taken"
        yield _problem(what, "recipe")


def _training(name: str, value: Any) -> Iterator[tuple[Path_, Problem]]:
    if name in TRAINING_NUMBERS:
        fits = _is_number(value) and not (_real(value) > TRAINING_MOST.get(name, float("inf")))
        kind = f"a number up to {TRAINING_MOST[name]}" if name in TRAINING_MOST else "a number"
    elif name in TRAINING_WORDS:
        fits, kind = _are_words(value), "a word"
    elif name in TRAINING_TOKENS:
        fits, kind = value is None or bool(_TOKEN.fullmatch(str(value))), "a token"
    elif name in TRAINING_LISTS:
        fits = value is None or (isinstance(value, list) and all(map(_is_number, value)))
        kind = "a list of numbers"
    elif name in TRAINING_SETTINGS:
        fits = isinstance(value, dict) and all(map(_is_word, value)) and _all_numbers(value)
        kind = "a word with a number each"
    else:
        if name in SECRETS:
            hint = "leave it out: the variable HF_TOKEN gives it to a launch"
            yield _problem(f"`{name}` is a secret", "training", name, hint=hint)
            return
        hint = "add it to the bundle later, or ask the operator: `allowed: {training: [...]}`"
        known = TRAINING_NUMBERS | TRAINING_WORDS | TRAINING_TOKENS | TRAINING_LISTS
        for near in difflib.get_close_matches(str(name)[:80], known, n=1, cutoff=0.85):
            hint = f"did you mean `{near}`?"
        yield _problem(_not_taken(name), "training", name, hint=hint)
        return
    if not fits:
        yield _problem(f"`{name}` must be {kind}", "training", name)


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
    """True if a value is a number, a word, or a list of these."""
    values = value if isinstance(value, list) else [value]
    return all(_is_number(one) or _is_word(one) for one in values)


def _are_lists_of_words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_are_words, value))


def refused_place(value: Any, field: str, allowed: Allowed, *, plan: bool) -> Iterator[Problem]:
    """Yield why a name is refused: it has to be a file in an allowed folder, an id on the hub where
    that is allowed, or a built-in model where it is only planned."""
    if not isinstance(value, str) or not value:
        return  # missing or of another type, which the job's own rules say
    if plan and field != "dataset" and known_model(value) is not None:
        return
    shown = value[:200]
    if value.startswith(("/", ".", "~")) or value.endswith((".json", ".jsonl")):
        if (why := _outside(value, allowed.folders)) is not None:
            yield Problem(where=field, what=f"`{field}: {shown}` {why}", hint=_hint(allowed))
    elif not allowed.hub:
        what = f"`{field}: {shown}` is in no folder that jobs over HTTP may name"
        hint = _hint(allowed)
        if field != "dataset":
            near = nearest_models(value) if plan else None
            hint = hint if near is None else f"{near}; or {hint}"
        else:
            hint += "; or give its lengths: `{lengths: {max: 2048, p50: 300, p99: 1500}}`"
        yield Problem(where=field, what=f"{what}, and the hub is not asked here", hint=hint)
    elif not _HUB_ID.fullmatch(value) or ".." in value:
        yield Problem(where=field, what=f"`{field}: {shown}` is not a hub id")
    elif field == "dataset" and "/" not in value:  # `json` and `text` mean files of the worker's
        what = f"`{field}: {shown}` is not the whole id of a data set"
        yield Problem(where=field, what=what, hint="write `owner/name`")


def _hint(allowed: Allowed) -> str:
    if not allowed.folders:
        return "the operator lists folders under `allowed.folders` of server.yaml"
    return f"name it by its path in one of these folders: {', '.join(allowed.folders)}"


def with_places(job: dict[str, Any], folders: list[str], *, config: bool) -> dict[str, Any]:
    """Return a job in which a relative path is that of the first allowed folder that has it.

    Args:
        config: whether a config.json came with it, which it may name so.
    """
    named = {field: job.get(field) for field in PLACES}
    if config and named["model"] in (CONFIG, f"./{CONFIG}"):
        del named["model"]
    found = {field: _found(value, folders) for field, value in named.items()}
    return {**job, **{field: place for field, place in found.items() if place is not None}}


def _found(value: Any, folders: list[str]) -> str | None:
    """Return a path in the folders; None: it is in none, or leads out of them."""
    path = Path(value) if isinstance(value, str) else Path()
    if path.is_absolute() or not path.parts or path.parts[0].startswith("~") or ".." in path.parts:
        return None
    places = (str(Path(folder) / path) for folder in folders)
    return next((place for place in places if _is_there(place, folders)), None)


def _is_there(place: str, folders: list[str]) -> bool:
    """True if a file or a folder is there, links followed, that lies in an allowed folder."""
    try:
        real = Path(place).resolve()
        inside = _is_below(real, [Path(folder).resolve() for folder in folders])
        return inside and (real.is_file() or real.is_dir())
    except (OSError, RuntimeError, ValueError):
        return False


def _outside(value: str, folders: list[str]) -> str | None:
    """Return why a path is not one in the folders; None: it is, with all that lies below it."""
    no = "is not under a folder that jobs over HTTP may name"
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts:
        return no
    try:
        roots = [Path(folder).resolve() for folder in folders]
        real = path.resolve()
        if not _is_below(real, roots):
            return no
        if not (real.is_file() or real.is_dir()):
            return "is not there"
        return _leads_out(real, roots) if real.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return no


def _is_below(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _leads_out(folder: Path, roots: list[Path]) -> str | None:
    """Return why a folder's content is not its own; None: it is. Links that stay inside are
    fine."""
    count = 0
    for here, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        if count > _MOST_ENTRIES:
            return f"has more than {_MOST_ENTRIES} files, too many to be looked through"
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not _is_below(path.resolve(), roots):
                return f"has a link that leads out of the allowed folders: {name}"
    try:
        check_card(folder, _MOST_CARD)
    except UserError as error:
        (problem,) = error.problems
        return f"has a {Path(problem.where).name} that is not taken: {problem.what}"
    return None
