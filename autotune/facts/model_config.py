"""What has to hold of a model's config.json before transformers makes a model of it. Pure.

transformers reads what it is given: a model of minus one layer is one without layers to it, and the
message of a wrong type names a class, not the file.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.errors import Problem
from autotune.plain_data import is_writable

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
        what = "not a config: half of a character (a lone surrogate) is in it"
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
            what = f"`{name}` names code of a hub, which nobody has looked at"
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
