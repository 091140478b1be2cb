"""ModelFacts: what a model is, from a hub id, a local folder or a bare config.json.

The functions here import transformers and run in a child process only. Parameters are counted on
the meta device: no weights are read or made.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import user_error
from autotune.facts.model_files import check_weights, locate_model, probed_weights, stored_dtype
from autotune.facts.stack import fused_head, version
from autotune.job.methods import METHODS

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk")
"""Fields of a mixture: its experts, and how many of them a token passes."""
PACKED = "mxfp4"
"""How gpt-oss has its experts."""
_TABLES_WITHOUT_WEIGHTS = {"codegen", "ctrl", "gptj", "mpt"}
"""Types of models whose positions are a computed table that ends."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts of the model that are known before any probe."""

    name: str
    """What the user called it."""
    path: str
    """What `from_pretrained` takes: a folder, or the hub id."""
    weights: str
    """`real` or `random`: what a probe trains."""
    architecture: str
    model_type: str
    parameters: int
    hidden_size: int | None
    layers: int | None
    vocab_size: int | None
    max_positions: int | None
    attention_modules: tuple[str, ...]
    """Names of the linear modules inside attention blocks (LoRA target set `attention`)."""
    sdpa: bool = True
    """Whether the architecture has sdpa attention."""
    flash_attention: bool = True
    flash_kernels: tuple[str, ...] = ()
    """The kernels of it that compute its attention, as transformers names them; empty: all do."""
    cache_bytes_per_token: int | None = None
    """Of keys and values in 16 bits, over all layers; None: not known of this architecture."""
    fixed_positions: bool = False
    """Whether the model fails beyond `max_positions`: it looks them up in a table."""
    attention_heads: int | None = None
    key_value_heads: int | None = None
    """Both of a layer; None: its config does not say."""
    built_in: bool = False
    """Whether the shape is one of `known_models.yaml`, because the hub did not answer."""
    reward_shape: str | None = None
    """Folder of the built-in shape of the model that rewards; None: it is where the job says."""
    unquantised: Mapping[str, int] = field(default_factory=dict)
    """How many weights a quantised base has that stay as they are, by what they are, most first."""
    active_parameters: int | None = None
    """Of a mixture of experts, those that a token passes, embeddings among them; None: all."""
    largest_weight: int | None = None
    """Numbers of the largest weight inside its layers; None: not known."""
    dtype: str | None = None
    """As which its checkpoint holds its weights, as torch names it; None: nothing says it."""
    expert_parameters: tuple[str, ...] = ()
    """Names of a mixture's weights that hold those of all experts of a layer."""
    expert_kernels: bool = False
    """Whether transformers computes its experts by kernels that can be chosen."""
    dequantized_from: str | None = None
    """How its checkpoint packs weights that are unpacked before a training (`mxfp4`); None: it
    packs none."""
    teacher: "ModelFacts | None" = None
    """The model that teaches it."""


def survey_model(
    name: str,
    weights: str,
    folder: Path,
    *,
    method: str,
    revision: str | None,
    trust_remote_code: bool,
    shape_suffices: bool = False,
) -> ModelFacts:
    """Return facts of the model called `name`; a bare config becomes a model folder in `folder`.

    Args:
        method: of training, which decides what is on top of the decoder.
        shape_suffices: whether, where the hub does not answer, a built-in shape takes its place.

    Raises:
        OSError, ValueError: transformers cannot make a model of it (its own message says why).
        UserError: it cannot be had, the method does not train such a model, or it is to give one
            reward, and gives several.
    """
    path, built_in = locate_model(name, folder, revision, shape_suffices)
    kinds = {"trust_remote_code": trust_remote_code, **({"revision": revision} if revision else {})}
    if METHODS[method].classifier:
        check_labels(path, **kinds)
    config = model_config(path, method, **kinds)
    check_architecture(config, method, name)
    text = _of_first_layer(config.get_text_config())
    try:
        model = build_on_meta(config, method)
    except KeyError as error:  # an activation, a kind of rotary embedding, a kind of layer
        what = f"transformers has no {error} that its config.json names"
        hint = "correct the config, or install another version"
        raise user_error(what, where=path, hint=hint) from None
    check_weights(path, revision)
    _check_backbone(model, method)
    positions, fixed_positions = _positions(model)
    return ModelFacts(
        name=name,
        path=path,
        weights=probed_weights(weights, path, revision),
        built_in=built_in,
        architecture=type(model).__name__,
        model_type=config.model_type,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        hidden_size=getattr(text, "hidden_size", None),
        layers=getattr(text, "num_hidden_layers", None),
        vocab_size=getattr(text, "vocab_size", None),
        max_positions=positions,
        **_attention(model),
        cache_bytes_per_token=_cache_bytes(text),
        fixed_positions=fixed_positions,
        attention_heads=(heads := getattr(text, "num_attention_heads", None)),
        key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        **_weights(model),
        **_experts(model),
        dequantized_from=_packed_as(config),
        dtype=_checkpoint_dtype(config) or stored_dtype(path, revision),
    )


def _attention(model: Any) -> dict[str, Any]:
    """Return what computes a model's attention."""
    return {
        "attention_modules": _attention_modules(model),
        "sdpa": bool(getattr(model, "_supports_sdpa", False)),
        "flash_attention": bool(getattr(model, "_supports_flash_attn", False)),
        "flash_kernels": tuple(getattr(model, "_compatible_flash_implementations", None) or ()),
    }


def _checkpoint_dtype(config: Any) -> str | None:
    """Return the type of the weights by a config, or by its part for texts (`torch_dtype` of older
    ones is read as `dtype` by transformers)."""
    kinds = (getattr(part, "dtype", None) for part in (config, config.get_text_config()))
    return next((str(kind).removeprefix("torch.") for kind in kinds if kind is not None), None)


def _cache_bytes(text: Any) -> int | None:
    """Return what a token takes in a cache that holds it in every layer. Known error: windows, and
    layers without attention, are taken to hold all; heads of several sizes to be of the smaller."""
    heads, hidden = getattr(text, "num_attention_heads", None), getattr(text, "hidden_size", None)
    layers = getattr(text, "num_hidden_layers", None)
    if not (heads and hidden and layers):
        return None
    size = getattr(text, "head_dim", None) or hidden // heads
    return int(2 * 2 * layers * (getattr(text, "num_key_value_heads", None) or heads) * size)


def _of_first_layer(text: Any) -> Any:
    """Return the fields of a config; of one whose layers differ (Gemma 4) those of its first."""
    return text.per_layer_config[0] if getattr(text, "is_heterogeneous", False) else text


def active_parameters(model: Any) -> int | None:
    """Return the parameters that a token passes: of the experts that it chooses among, its share;
    None: there are none to choose among."""
    text = model.config.get_text_config()
    experts, chosen = (
        next((n for n in (getattr(text, name, None) for name in names) if n), 0)
        for names in (_EXPERTS, _CHOSEN)
    )
    sizes = [(name.split("."), weight.numel()) for name, weight in model.named_parameters()]
    routed = sum(count for parts, count in sizes if "experts" in parts)
    if not routed or not experts or not 0 < chosen < experts:
        return None
    everything = sum(count for _, count in sizes)
    return int(everything - routed * (experts - chosen) // experts)


def _experts(model: Any) -> dict[str, Any]:
    """Return what LoRA and transformers can tell apart of a mixture's experts."""
    from transformers import PreTrainedModel

    parts = [(name.split(".")[-2:], weight) for name, weight in model.named_parameters()]
    fused = {".".join(names) for names, weight in parts if "experts" in names and weight.ndim == 3}
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    kernels = any(getattr(m, "_can_set_experts_implementation", bool)() for m in models)
    return {"expert_parameters": tuple(sorted(fused)), "expert_kernels": bool(fused and kernels)}


def _packed_as(config: Any) -> str | None:
    """Return how a checkpoint packs weights that are unpacked before a training."""
    packing = getattr(config, "quantization_config", None) or {}
    kind = packing if isinstance(packing, Mapping) else vars(packing)
    return PACKED if kind.get("quant_method") == PACKED else None


def _weights(model: Any) -> dict[str, Any]:
    """Return what counts of a model's weights."""
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    apart = {id(weight) for end in ends if end is not None for weight in end.parameters()}
    inner = (p.numel() for p in model.parameters() if id(p) not in apart)
    return {
        "unquantised": unquantised_weights(model),
        "active_parameters": active_parameters(model),
        "largest_weight": max(inner, default=None),
    }


def model_config(path: str, method: str, **kinds: Any) -> Any:
    """Return the model's configuration, as the method's trainer has it."""
    import transformers

    if METHODS[method].classifier:
        kinds["num_labels"] = 1  # the only output is the reward
    return transformers.AutoConfig.from_pretrained(path, **kinds)


def check_labels(path: str, **kinds: Any) -> None:
    """Refuse a reward model of several outputs: its weights do not load as such.

    Raises:
        UserError: it is a classifier of several labels.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(path, **kinds)
    classifier = any("ForSequenceClassification" in name for name in config.architectures or [])
    if classifier and config.num_labels != 1:
        raise user_error(
            f"a reward model has one label, but {path} has {config.num_labels}: TRL loads it with "
            "`num_labels=1`, which its weights do not fit",
            hint="take one that was trained with `num_labels: 1`; `method: reward` makes one of a "
            "causal model",
        )


def build_on_meta(config: Any, method: str) -> Any:
    """Return the model without storage."""
    import torch

    with torch.device("meta"):
        return model_class(config, method)._from_config(config)


def _check_backbone(model: Any, method: str) -> None:
    """Refuse a model whose layers TRL's fused head does not find: Llama 4's attribute for them is
    another than its `base_model_prefix` says.

    Raises:
        UserError: so it is.
    """
    if fused_head() and not METHODS[method].classifier and model.base_model is model:
        raise user_error(
            f"TRL {version('trl')} does not train `{type(model).__name__}`: its fused head takes "
            f"the layers from `{model.base_model_prefix}`, and the model has none there",
            hint="take another model; TRL 1.12 fails on this one, too",
        )


def model_class(config: Any, method: str) -> Any:
    """Return the class TRL would build: for a reward the sequence classifier of the config's type;
    else the config's own architecture, or else the causal LM of its type.

    Raises:
        ValueError: transformers has no such class for this type of model.
    """
    import transformers

    if METHODS[method].classifier:
        classes = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
        if type(config) not in classes:
            raise ValueError(
                f"transformers has no sequence classifier for `{config.model_type}`, but a reward "
                "model needs one"
            )
        return classes[type(config)]
    name = (config.architectures or [None])[0]
    architecture = getattr(transformers, name, None) if name else None
    if architecture is not None:
        return architecture
    return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _positions(model: Any) -> tuple[int | None, bool]:
    """Return (positions of a model, whether it fails beyond them); None where its config does not
    say."""
    import torch

    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(
        config, "max_seq_len", None
    )
    if positions is None:
        return None, False
    words = model.get_input_embeddings()
    for module in model.modules():
        if not isinstance(module, torch.nn.Embedding) or module is words:
            continue
        if module.num_embeddings - getattr(module, "offset", 0) == positions:
            # RoBERTa's kin count from behind the padding's own position.
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            return positions - offset, True
    return positions, config.model_type in _TABLES_WITHOUT_WEIGHTS


def _attention_modules(model: Any) -> tuple[str, ...]:
    """Leaf names of linear layers inside attention."""
    import torch
    from transformers.pytorch_utils import Conv1D

    names = set()
    for path, module in model.named_modules():
        *parents, leaf = path.split(".")
        inside = any("attn" in parent or "attention" in parent for parent in parents)
        if inside and isinstance(module, torch.nn.Linear | Conv1D):
            names.add(leaf)
    return tuple(sorted(names))


_TRAINED = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT")
"""What transformers lists the architectures for that go on with a text."""
_OTHERS = {
    "MASKED_LM": ("it fills in words that are masked, and does not go on with a text", ""),
    "SEQUENCE_CLASSIFICATION": ("it labels texts, and writes none", "; `method: reward` trains it"),
}
"""What else they are for: why they are not trained, and what trains them."""
_NO_HEAD = "it has no layer that gives the next word"


def check_architecture(config: Any, method: str, name: str) -> None:
    """Hold a model's configuration against what the method's trainer takes.

    Args:
        config: of transformers.
        name: what the user called the model.

    Raises:
        UserError: the trainer does not train such a model.
    """
    refusal = _why_not(config, METHODS[method].classifier)
    if refusal is None:
        return
    reason, trained_by = refusal
    architecture = (config.architectures or [config.model_type])[0]
    raise user_error(
        f"`method: {method}` does not train `{architecture}`, which {name} is: {reason}",
        hint=f"take a model whose config.json names an architecture ...ForCausalLM{trained_by}",
    )


def _why_not(config: Any, classifier: bool) -> tuple[str, str] | None:
    """Return (why a model is not trained, what trains it); None: it is."""
    import transformers
    from transformers.models.auto import modeling_auto

    if config.is_encoder_decoder:
        reason = "it reads one text and writes another, and the trainer gives it one"
        return reason, "; transformers' Seq2SeqTrainer trains this one"
    if classifier:
        return None  # made of what the type has
    name = (config.architectures or [""])[0]
    if not hasattr(transformers, name):
        if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            return None
        return f"transformers has no language model of the type `{config.model_type}`", ""

    def listed_for(task: str) -> bool:
        # By name: the classes of a mapping are imported one by one, which takes seconds.
        return name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values()

    if any(map(listed_for, _TRAINED)):
        return None
    return next((why for task, why in _OTHERS.items() if listed_for(task)), (_NO_HEAD, ""))


def quantised_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, layer) of each layer that bitsandbytes quantises: plain linear ones, without
    those that transformers' own rule keeps (the output head, tied layers, a classifier's last one).

    Anything else stays as it is loaded; transformers 5 has the experts of a mixture as parameters
    of three dimensions.
    """
    import torch
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    excluded_names = HfQuantizer.get_modules_to_not_convert(
        model, None, model._keep_in_fp32_modules
    )
    for name, module in list(model.named_modules()):
        plain = type(module) is torch.nn.Linear or isinstance(module, Conv1D)
        if plain and should_convert_module(name, excluded_names):
            yield name, module


def unquantised_weights(model: Any) -> dict[str, int]:
    """Return how many weights stay as they are, by the last two parts of their names, most
    first."""
    packed = {id(layer.weight) for _, layer in quantised_layers(model)}
    sizes: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if id(parameter) not in packed:
            sizes[".".join(name.split(".")[-2:]).removesuffix(".weight")] += parameter.numel()
    return dict(sizes.most_common())
