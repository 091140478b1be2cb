"""Where a model's files are: on the hub, in a folder, or around a bare config.json.

The functions here import huggingface_hub and run in a child process only.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import Problem, UserError, user_error
from autotune.facts.known_models import known_shape, nearest_models
from autotune.plain_data import is_writable

_CONFIG_AND_TOKENIZER = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken", "*.py"]
_TEXTS = ("*config.json", "*token*.json", "vocab*", "merges.txt", "*.model", "*.jinja")
"""What is read of a model besides its weights."""
MOST_CONFIG, MOST_BYTES = 2**22, 2**28
"""Of a config.json, and of any other text; tokenizers have up to 40 MiB."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of safetensors, as torch names them."""


def locate_model(
    name: str, folder: Path, revision: str | None, shape_suffices: bool
) -> tuple[str, bool]:
    """Return (what `from_pretrained` takes of a model, whether it is a built-in shape).

    Args:
        folder: for the files of a bare config, or of a built-in shape.
        shape_suffices: whether a built-in shape may take the place of a hub that does not answer.

    Raises:
        OSError: there is no such folder or file.
        UserError: the hub does not answer, or no model can be made of the config.json.
    """
    path = Path(name)
    if path.is_dir():
        _check_files(path)
        config, is_model = path / "config.json", has_weights(path)
        if config.is_file():
            _check_config(config)
        if is_model:
            return str(path), False
        path = config
    if path.is_file():
        _check_files(path.parent, path.name)
        return str(_folder_of_config(path, folder)), False
    if path.is_absolute():
        raise OSError(f"there is no model folder or config file {name}")
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(name, revision=revision, allow_patterns=_CONFIG_AND_TOKENIZER)
    except OSError as error:
        known = known_shape(name) if revision is None else None
        if known is None or not shape_suffices:
            raise _no_answer(name, error) from error
        return str(known.write(folder)), True
    return name, False


def _check_files(folder: Path, config: str = "config.json") -> None:
    """Refuse a model's folder with texts that are not files, or that are too large to be read.

    Raises:
        UserError: the first of them.
    """
    for file in sorted(folder.iterdir()):
        if file.is_dir() or not any(file.match(name) for name in (config, *_TEXTS, *_WEIGHTS)):
            continue
        most = MOST_CONFIG if file.name == config else MOST_BYTES
        if not file.is_file():
            kind = "a link that leads nowhere" if not file.exists() else "a pipe or a device"
            raise user_error(f"is {kind}, not a file of a model", where=str(file))
        if file.stat().st_size > most and not any(file.match(name) for name in _WEIGHTS):
            what = f"is larger than {most // 2**20} MiB, too large for a file of this name"
            raise user_error(what, where=str(file), hint="copy the file again")


def _no_answer(name: str, error: OSError) -> UserError:
    """Return the hub does not have a model, or does not answer."""
    reason = str(error).removeprefix("Got: ").strip().splitlines() or [type(error).__name__]
    steps = "download it on a machine with a network and name its folder"
    if known_shape(name) is not None:
        steps += "; `autotune plan` needs neither, as its shape is built in"
    elif near := nearest_models(name):
        steps = f"{near} (built-in shapes, for plans); or name a local folder or a bare config.json"
    return user_error(f"the hub does not give `{name}`: {reason[0][:200]}", hint=steps)


def _folder_of_config(config: Path, folder: Path) -> Path:
    """Return a model folder of ours around a bare config: the config, and the tokenizer beside it
    if any.

    Random weights may be saved into it later, so that the bundle can be launched.
    """
    _check_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.jinja"):
        for file in config.parent.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    shutil.copyfile(config, folder / "config.json")
    return folder


def _check_config(config: Path) -> None:
    """Refuse a config.json that no model can be made of.

    Raises:
        UserError: everything that is wrong with it, with its path.
    """
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise user_error(f"cannot be read as text: {error}", where=str(config)) from None
    _, problems = read_config(text, str(config))
    if problems:
        raise UserError(*problems)


def probed_weights(weights: str, path: str, revision: str | None) -> str:
    """Return `real` or `random`: the weights that a probe trains of a model at `path`.

    Raises:
        ValueError: real ones were asked for, and are not on this machine.
    """
    if weights == "random":
        return "random"
    if Path(path).is_dir():
        present = has_weights(Path(path))
    else:
        present = _hub_weights_cached(path, revision)
    if weights == "real" and not present:
        raise ValueError(
            f"`weights: real` was asked for, but {path} has no weights on this machine"
        )
    return "real" if present else "random"


def refuse_pickles(path: str, revision: str | None = None) -> None:
    """Refuse weights that only pickles hold, which a job has to ask for.

    Raises:
        UserError: they are.
    """
    folder = Path(path) if Path(path).is_dir() else _cached(path, revision)
    if folder is None or not has_weights(folder) or next(folder.glob(_WEIGHTS[0]), None):
        return
    raise user_error(
        f"the weights of {path} are pickles ({_WEIGHTS[1]}), which may hold code: without "
        "`weights: real` only safetensors are loaded",
        hint="`from_pretrained(...).save_pretrained(...)` of transformers writes safetensors; "
        "`weights: real` loads the pickles, as tensors alone",
    )


def check_weights(path: str, revision: str | None = None) -> None:
    """Refuse weights that are cut, damaged or not all there, by the headers of their files.

    Raises:
        UserError: the first such file.
    """
    from safetensors import SafetensorError, safe_open

    folder = Path(path) if Path(path).is_dir() else _cached(path, revision)
    if folder is None:
        return
    # The hub gives the index of weights that it is not asked for, too.
    names, tensors, listed = {file.name for file in folder.glob(_WEIGHTS[0])}, set(), {}
    index = where = folder / "model.safetensors.index.json"
    try:
        if names and "model.safetensors" not in names and index.exists() and folder == Path(path):
            listed = json.loads(index.read_bytes())["weight_map"]
        for name in sorted({*names, *listed.values()}):
            where = folder / name
            with safe_open(where, framework="np") as file:
                tensors.update(file.keys())
        if lost := set(listed) - tensors:
            raise ValueError(f"no file has the tensor {min(lost)}")
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"holds no whole weights: {error}"
        hint = "copy the file again; for a plan its config.json is enough"
        raise user_error(what, where=str(where), hint=hint) from None


def stored_dtype(path: str, revision: str | None = None) -> str | None:
    """Return the type of the largest weight in the first safetensors file of a model, as torch
    names it; None: it has none, or one of another type."""
    from safetensors import safe_open

    folder = Path(path) if Path(path).is_dir() else _cached(path, revision)
    first = min(folder.glob(_WEIGHTS[0]), default=None) if folder is not None else None
    if first is None:
        return None
    with safe_open(first, framework="np") as file:
        names = list(file.keys())
        tensors = [file.get_slice(name) for name in names]
    largest = max(tensors, key=lambda tensor: math.prod(tensor.get_shape()), default=None)
    return None if largest is None else _DTYPES.get(largest.get_dtype())


def _hub_weights_cached(name: str, revision: str | None) -> bool:
    folder = _cached(name, revision)
    return folder is not None and has_weights(folder)


def _cached(name: str, revision: str | None) -> Path | None:
    """Return what this machine has of a model of the hub."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None


def has_weights(folder: Path) -> bool:
    """True if a model's folder has weights, of whatever format."""
    return any(next(folder.glob(pattern), None) for pattern in _WEIGHTS)


SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "n_embd",
    "n_layer",
    "n_head",
    "n_positions",
    "d_model",
    "n_layers",
    "n_heads",
    "num_layers",
)
"""Fields that are whole numbers above 0 in every architecture that has them."""
MOST = 1_000_000_000
"""Above it no size of a model can be."""
COUNTS = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 1024),
    "num_labels": 2**20,
    "vocab_size": 2**22,
}
"""Fields of what is made one by one, and the most there may be of it: years of layers else."""


KERNELS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
"""Fields that transformers takes a kernel's name from, or the repository of one."""


def read_config(text: str, file: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return what a config.json holds, and all that is wrong with it.

    Args:
        file: what a message calls it.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{file}:{error.lineno}"
        hint = "it is empty" if not text.strip() else "correct that place, or copy the file again"
        return {}, [Problem(where=where, what=f"not valid JSON: {error.msg}", hint=hint)]
    except RecursionError:
        return {}, [Problem(where=file, what="not a config: it is nested without end")]
    if not isinstance(data, dict):
        what = f"not a config: it holds a {type(data).__name__}, not an object"
        return {}, [Problem(where=file, what=what)]
    if not is_writable(json.dumps(data, ensure_ascii=False)):
        what = "not a config: it holds half of a character (a lone surrogate)"
        return {}, [Problem(where=file, what=what)]
    return data, list(config_problems(data, file))


def config_problems(data: Mapping[str, Any], file: str) -> Iterator[Problem]:
    """Yield all that is wrong with a config, sections for texts among it."""
    kind = data.get("model_type")
    if not isinstance(kind, str) or not kind:
        what = "`model_type` is missing" if not kind else "`model_type` must be a word"
        hint = "copy the config.json of a model as the hub has it"
        yield Problem(where=file, what=what, hint=hint)
    for name in KERNELS:
        if "/" in str(data.get(name, "")):
            what = f"`{name}` names code of a hub, which may be harmful"
            hint = "leave it out there; a job may choose: `fixed: {attn_implementation: ...}`"
            yield Problem(where=file, what=what, hint=hint)
    sections = {"": data, "text_config": data.get("text_config")}
    for name, section in sections.items():
        if isinstance(section, Mapping):
            yield from _size_problems(section, file, f"{name}." if name else "")


def _size_problems(section: Mapping[str, Any], file: str, prefix: str) -> Iterator[Problem]:
    sound = True
    for name in (*SIZES, *(name for name in COUNTS if name not in SIZES)):
        value = section.get(name)
        if value is None:
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 < value <= COUNTS.get(name, MOST):
            sound = False
            most = f", at most {COUNTS[name]:,}" if name in COUNTS and whole and value > 0 else ""
            shown = json.dumps(value)[:40]
            what = f"`{prefix}{name}: {shown}` must be a whole number above 0{most}"
            yield Problem(where=file, what=what)
    heads, groups = section.get("num_attention_heads"), section.get("num_key_value_heads")
    if not sound or heads is None:
        return
    if groups is not None and heads % groups:
        what = f"`{prefix}num_attention_heads: {heads}` is not a multiple of "
        yield Problem(where=file, what=f"{what}`num_key_value_heads: {groups}`")
