"""The shape of a decoder by arithmetic on its config.json, before anything of the stack is loaded.

Known families: layers of q, k, v, o and a gated MLP. Norms and biases are not counted. Of any other
architecture, mixtures of experts among them, nothing is said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from autotune.facts.known_models import known_model
from autotune.facts.model import ModelFacts
from autotune.facts.model_files import MOST_CONFIG, read_config
from autotune.job.text_file import is_readable

_LAYERS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_KEY_VALUES, _HEAD, _INNER = "num_key_value_heads", "head_dim", "intermediate_size"


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Rules by which transformers reads the config.json of a model type.

    Attributes:
        needed: fields whose default is no plain rule: without them nothing is said.
        tied: whether input and output embeddings are one, where it does not say.
        attention: names of the linear layers of attention.
        norms: how many a layer has of the residual stream.
        norms_heads: whether queries and keys are normed, too.
        sdpa: whether transformers has sdpa attention for it.
    """

    needed: tuple[str, ...] = ()
    tied: bool = False
    attention: tuple[str, ...] = ("k_proj", "o_proj", "q_proj", "v_proj")
    norms: int = 2
    norms_heads: bool = False
    sdpa: bool = True


_FAMILIES = {
    "llama": _Family(),
    "granite": _Family(),
    "olmo2": _Family(norms_heads=True),
    "olmo3": _Family(norms_heads=True),
    "smollm3": _Family(needed=(_KEY_VALUES,), tied=True),
    "phi3": _Family(attention=("o_proj", "qkv_proj")),
    "mistral": _Family(needed=(_KEY_VALUES,)),
    "qwen2": _Family(needed=(_KEY_VALUES,)),
    "qwen3": _Family(needed=(_KEY_VALUES, _HEAD), norms_heads=True),
    "gemma2": _Family(needed=(_KEY_VALUES, _HEAD), tied=True, norms=4, sdpa=False),
    "gemma3_text": _Family(needed=(_KEY_VALUES, _HEAD), tied=True, norms=4, norms_heads=True),
}
"""By `model_type`."""


class Linear(NamedTuple):
    """Linear layers of one size, so many in each of a model's layers."""

    inputs: int
    outputs: int
    number: int = 1

    @property
    def weights(self) -> int:
        """The weights of one."""
        return self.inputs * self.outputs


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model's facts, and what a token passes through in each of its layers.

    Attributes:
        facts: as a survey finds them, but for what only the model itself tells.
        linears: of one layer.
        inner: how wide the MLP of one layer is.
        normed: numbers of a token that the norms of one layer take.
        head_dim: the size of a head of attention.
    """

    facts: ModelFacts
    linears: tuple[Linear, ...]
    inner: int
    normed: int
    head_dim: int

    def adapter_parameters(self, rank: int) -> int:
        """Return the number of parameters of LoRA's adapters on all linear layers."""
        each = sum(one.number * (one.inputs + one.outputs) for one in self.linears)
        return rank * each * (self.facts.layers or 1)


def model_shape(name: str, *, classifier: bool = False) -> ModelShape | None:
    """Return the shape of a built-in model, of a local folder or of a config.json; None: it is not
    known without the stack, or the survey will say what is wrong with it.

    Args:
        classifier: whether one output takes the place of the vocabulary.
    """
    path = Path(name)
    if not path.exists():
        known = known_model(name)
        if known is None:
            return None
        count = known.parameters
        return shape_of(known.config, name, classifier=classifier, parameters=count)
    file = path / "config.json" if path.is_dir() else path
    if not is_readable(file, MOST_CONFIG):
        return None
    config, problems = read_config(file.read_bytes().decode(errors="replace"), str(file))
    return None if problems else shape_of(config, name, classifier=classifier)


def shape_of(
    config: Mapping[str, Any], name: str, *, classifier: bool = False, parameters: int | None = None
) -> ModelShape | None:
    """Return the shape that a config describes; None: its architecture is not known here.

    Args:
        parameters: how many the model has, with all of its outputs; None: they are counted.
    """
    kind, names = config.get("model_type"), config.get("architectures") or [""]
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None or not _is_plain(config, family, names):
        return None
    hidden, layers, heads, words = (config[field] for field in _LAYERS)
    key_values, head = config.get(_KEY_VALUES) or heads, config.get(_HEAD) or hidden // heads
    attention = (
        Linear(hidden, head * heads),
        Linear(hidden, head * key_values, 2),
        Linear(head * heads, hidden),
    )
    inner = config[_INNER]
    mlp = Linear(hidden, inner, 2), Linear(inner, hidden)  # gate and up, and down
    in_layers = layers * sum(one.number * one.weights for one in (*attention, *mlp))
    tied = config.get("tie_word_embeddings", family.tied)
    total = parameters or in_layers + words * hidden * (1 if tied else 2)
    if classifier:
        total += hidden - (0 if tied else words * hidden)
    return ModelShape(
        facts=ModelFacts(
            name=name,
            path=name,
            weights="random",
            architecture=names[0],
            model_type=str(kind),
            parameters=total,
            hidden_size=hidden,
            layers=layers,
            vocab_size=words,
            max_positions=config.get("max_position_embeddings"),
            attention_modules=family.attention,
            sdpa=family.sdpa,
            cache_bytes_per_token=2 * 2 * layers * key_values * head,
            attention_heads=heads,
            key_value_heads=key_values,
            built_in=parameters is not None,
            unquantised={"embeddings": total - in_layers},
            dtype=config.get("dtype") or config.get("torch_dtype"),
        ),
        linears=(*attention, *mlp),
        inner=inner,
        normed=family.norms * hidden + family.norms_heads * head * (heads + key_values),
        head_dim=head,
    )


def _is_plain(config: Mapping[str, Any], family: _Family, names: Any) -> bool:
    """True if all sizes are there, and each layer is like the others."""
    sizes = [config.get(field) for field in (*_LAYERS, *family.needed, _INNER)]
    return (
        isinstance(names, list)
        and str(names[0]).endswith("ForCausalLM")
        and all(type(size) is int and size > 0 for size in sizes)
        and not config.get("quantization_config")
    )
