"""Small models of many architectures, as config files: a few MB each, random weights.

Half of them have a small vocabulary, so that the peak is not always where the logits are.
"""

import json
from pathlib import Path
from typing import Any

VOCABULARY = 8009
FEW_WORDS = {"vocab_size": 1009}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")

_DECODER: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 696,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_OWN_HEAD = {"tie_word_embeddings": False}


def _decoder(architecture: str, kind: str, **others: Any) -> dict[str, Any]:
    return {**_DECODER, "architectures": [architecture], "model_type": kind, **others}


CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": _decoder("Qwen2ForCausalLM", "qwen2"),
    "qwen2-untied": _decoder("Qwen2ForCausalLM", "qwen2", **_OWN_HEAD, num_hidden_layers=4),
    "qwen3": _decoder("Qwen3ForCausalLM", "qwen3", **FEW_WORDS, num_key_value_heads=4),
    "llama": _decoder("LlamaForCausalLM", "llama", **_OWN_HEAD, num_attention_heads=4, head_dim=64),
    "llama-deep": _decoder("LlamaForCausalLM", "llama", **FEW_WORDS, num_hidden_layers=8),
    "gemma": _decoder("GemmaForCausalLM", "gemma", num_key_value_heads=1, num_hidden_layers=4),
    "gemma2": _decoder(
        "Gemma2ForCausalLM",
        "gemma2",
        num_hidden_layers=4,
        query_pre_attn_scalar=32,
        sliding_window=48,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    ),
    "gemma3": _decoder(
        "Gemma3ForCausalLM",
        "gemma3_text",
        **FEW_WORDS,
        num_hidden_layers=4,
        query_pre_attn_scalar=32,
        sliding_window=48,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    ),
    "mistral": _decoder(
        "MistralForCausalLM", "mistral", **_OWN_HEAD, **FEW_WORDS, sliding_window=64
    ),
    "phi3": _decoder("Phi3ForCausalLM", "phi3", **_OWN_HEAD, original_max_position_embeddings=2048),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 256,
        "n_layer": 3,
        "n_head": 8,
        **FEW_WORDS,
        "n_positions": 2048,
        "bos_token_id": 1,
        "eos_token_id": 1,
    },
    "qwen2-moe": _decoder(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=160,
        shared_expert_intermediate_size=256,
    ),
    "mixtral": _decoder(
        "MixtralForCausalLM",
        "mixtral",
        **_OWN_HEAD,
        **FEW_WORDS,
        num_local_experts=4,
        intermediate_size=256,
        sliding_window=None,
    ),
    "qwen3-moe": _decoder(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        **_OWN_HEAD,
        **FEW_WORDS,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=96,
    ),
    "gpt-oss": _decoder(
        "GptOssForCausalLM",
        "gpt_oss",
        **_OWN_HEAD,
        **FEW_WORDS,
        num_hidden_layers=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        intermediate_size=256,
        sliding_window=48,
    ),
}

_ATTENTION_MODULES = {"phi3": ("qkv_proj", "o_proj"), "gpt2": ("attn.c_attn", "attn.c_proj")}


def attention_modules(model: str) -> list[str]:
    """Names of the linear modules of attention."""
    return list(_ATTENTION_MODULES.get(model, _ATTENTION))


def write_model(name: str, folder: Path, *, cache: bool = False) -> Path:
    """A model folder: config and tokenizer, no weights; `cache`: whether it generates with one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[name], "use_cache": cache}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    words = {"<pad>": 0, "<eos>": 1} | {f"<{number}>": number for number in range(2, 64)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    return folder
