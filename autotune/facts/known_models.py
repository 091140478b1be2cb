"""Well-known models, whose shape is built in: `known_models.yaml` has them, and says whence.

A plan of one needs neither a hub nor weights. What trains it needs both, so a run does not come
here.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.errors import nearest

_FILE = "known_models.yaml"


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model on the hub.

    Attributes:
        hub_id: such as `Qwen/Qwen2.5-7B`.
        parameters: how many it has, tied ones counted once.
        config: what transformers makes the model of.
    """

    hub_id: str
    parameters: int
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
    # Imported here: PyYAML costs the commands that need no table.
    from autotune.job.yaml_file import parse_yaml

    file = resources.files("autotune").joinpath("facts", _FILE)
    shapes = parse_yaml(file.read_text(encoding="utf-8"), _FILE, shipped=True)[0]["models"]
    return tuple(
        KnownModel(
            hub_id=hub_id,
            parameters=shape["parameters"],
            config={**shape["config"], "max_position_embeddings": positions},
        )
        for shape in shapes
        for hub_id, positions in shape["ids"].items()
    )


def known_model(name: str) -> KnownModel | None:
    """Return the model of a hub id or of its last part, in upper or lower case; None: it is not
    known."""
    lower = name.lower()
    return next((m for m in known_models() if lower in (m.name, m.hub_id.lower())), None)


def nearest_model(name: str) -> str | None:
    """Return a hint that names the known model that is spelled most like `name`; None: none is."""
    if "/" in name:
        return nearest(name, {model.hub_id for model in known_models()})
    return nearest(name.lower(), {model.name for model in known_models()})
