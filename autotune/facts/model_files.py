"""Where a model's files are: on the hub, in a folder, or around a bare config.json.

The functions here import huggingface_hub and run in a child process only.
"""

import shutil
from pathlib import Path

from autotune.errors import UserError, user_error
from autotune.facts.known_models import known_model, nearest_model
from autotune.facts.model_config import read_config

_CONFIG_AND_TOKENIZER = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken", "*.py"]
_TEXTS = ("*config.json", "*token*.json", "vocab*", "merges.txt", "*.model", "*.jinja")
"""What is read of a model besides its weights."""
MOST_CONFIG, MOST_BYTES = 2**22, 2**28
"""Of a config.json, and of any other text; tokenizers have up to 40 MiB."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def locate_model(
    name: str, folder: Path, revision: str | None, shape_suffices: bool
) -> tuple[str, bool]:
    """(What `from_pretrained` takes of a model, whether it is a built-in shape).

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
        known = known_model(name) if revision is None else None
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
            what = f"is larger than {most // 2**20} MiB, which no file of this name is"
            raise user_error(what, where=str(file), hint="copy the file again")


def _no_answer(name: str, error: OSError) -> UserError:
    """Return the hub does not have a model, or does not answer."""
    reason = str(error).removeprefix("Got: ").strip().splitlines() or [type(error).__name__]
    steps = "download it on a machine with a network and name its folder"
    if known_model(name) is not None:
        steps += "; `autotune plan` needs neither, as its shape is built in"
    elif near := nearest_model(name):
        steps = f"{near} (its shape is built in, for plans); or name a local folder"
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
    """`real` or `random`: what a probe trains of a model at `path`.

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
