"""Well-known models, whose shape is built in: `known_models.yaml` has them, and says whence.

A plan of one needs neither a hub nor weights. What trains it needs both, so a run does not come
here.
"""

import difflib
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

_FILE = "known_models.yaml"
_MIRROR = re.compile(r"[A-Za-z0-9][\w.-]*/([A-Za-z0-9][\w.-]*)")
"""A hub id of any owner."""
_DATE = re.compile(r"[-_ ](\d{4})$")
_KIND = re.compile(r"[-_ ](instruct|it|pt|base|chat|hf|v1\.0|v0\.\d)$")
_OWNER = re.compile(r"^meta[-_ ]?(?=llama)")


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model on the hub.

    Attributes:
        hub_id: such as `Qwen/Qwen2.5-7B`.
        parameters: how many it has, tied ones counted once.
        active_parameters: of a mixture of experts, those that a token passes; None: all are.
        config: what transformers makes the model of.
    """

    hub_id: str
    parameters: int
    active_parameters: int | None
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Short name, such as `qwen2.5-7b`."""
        return self.hub_id.rpartition("/")[2].lower()

    def write(self, folder: Path) -> Path:
        """Return a model folder with its config, without weights and tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1), encoding="utf-8")
        return folder


@functools.cache
def known_models() -> tuple[KnownModel, ...]:
    """Return all of them."""
    return tuple(
        KnownModel(
            hub_id=hub_id,
            parameters=shape["parameters"],
            active_parameters=shape.get("active_parameters"),
            config=_with_positions(shape["config"], positions),
        )
        for shape in _table()["models"]
        for hub_id, positions in shape["ids"].items()
    )


@functools.cache
def _table() -> Mapping[str, Any]:
    # Imported here: PyYAML costs the commands that need no table.
    from autotune.job.yaml_file import parse_yaml

    file = resources.files("autotune").joinpath("facts", _FILE)
    table: Mapping[str, Any] = parse_yaml(file.read_text(encoding="utf-8"), _FILE, shipped=True)[0]
    return table


def _with_positions(config: Mapping[str, Any], positions: int) -> dict[str, Any]:
    field = {"max_position_embeddings": positions}
    if "text_config" in config:
        return {**config, "text_config": {**config["text_config"], **field}}
    return {**config, **field}


def known_model(name: str) -> KnownModel | None:
    """Return the model of a hub id, of its last part in any usual spelling, or of that without its
    date and `instruct`; None: it is not known, or models of several sizes are called so."""
    lower = name.lower()
    exact = next((m for m in known_models() if lower in (m.name, m.hub_id.lower())), None)
    if exact is not None or "/" in name:
        return exact
    found = _by_spelling().get(_squeezed(name), ())
    return found[0] if len({model.parameters for model in found}) == 1 else None


def known_shape(name: str) -> KnownModel | None:
    """Return the model as which one on the hub is built: a mirror of another owner has the shape
    of the model whose name it bears; None: it is not known."""
    mirror = _MIRROR.fullmatch(name)
    return known_model(name) or (None if mirror is None else known_model(mirror[1]))


def nearest_models(name: str) -> str | None:
    """Return a hint that names the known models that are spelled most like `name`; None: none
    is."""
    keys = {key: models[0].name for key, models in reversed(_by_spelling().items()) if models}
    near = difflib.get_close_matches(_squeezed(name.rpartition("/")[2]), keys, n=6, cutoff=0.75)
    first, *others = dict.fromkeys(f"`{keys[key]}`" for key in near) or (None,)
    also = f" also: {', '.join(others[:3])}" if others else ""
    return None if first is None else f"did you mean {first}?{also}"


@functools.cache
def _by_spelling() -> dict[str, tuple[KnownModel, ...]]:
    """Map squeezed names to their models: whole names first, then what they are shortened to."""
    by_spelling: dict[str, tuple[KnownModel, ...]] = {}
    for shortened in (str, _dateless, lambda name: _KIND.sub("", _dateless(name))):
        longer = dict(by_spelling)
        for model in known_models():
            key = _squeezed(shortened(model.name))
            if key not in longer:
                by_spelling[key] = (*by_spelling.get(key, ()), model)
    named = {model.hub_id: model for model in known_models()}
    aliases = {_squeezed(a): (named[hub_id],) for a, hub_id in _table()["aliases"].items()}
    return by_spelling | aliases


def _dateless(name: str) -> str:
    return _DATE.sub("", name)


def _squeezed(name: str) -> str:
    """Return a name without case and separators; two numbers beside each other stay two."""
    lower = _OWNER.sub("", name.lower().strip())
    return re.sub(r"[-_ :]+", "", re.sub(r"(?<=\d)[-_ :]+(?=\d)", "|", lower))
