"""The shapes of the models that others have trained, as their config.json has them."""

from typing import Any


def _qwen(hidden: int, inner: int, layers: int, heads: int, words: int) -> dict[str, Any]:
    """Qwen (2023) as a Qwen2 of the same size; its own code is no part of transformers."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": words,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }


MODELS: dict[str, dict[str, Any]] = {
    "santacoder": {
        "architectures": ["GPTBigCodeForCausalLM"],
        "model_type": "gpt_bigcode",
        "n_embd": 2048,
        "n_head": 16,
        "n_inner": 8192,
        "n_layer": 24,
        "n_positions": 2048,
        "vocab_size": 49280,
        "multi_query": True,
        "activation_function": "gelu_pytorch_tanh",
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "bos_token_id": 49152,
        "eos_token_id": 49152,
    },
    "powerlm-3b": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 40,
        "num_attention_heads": 36,
        "num_key_value_heads": 36,
        "vocab_size": 49152,
        "max_position_embeddings": 4096,
        "attention_dropout": 0.1,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.015625,
        "residual_multiplier": 0.22,
        "logits_scaling": 9.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "qwen2.5-0.5b": {
        **_qwen(896, 4864, 24, 14, 151936),
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "qwen1-1.8b": _qwen(2048, 5504, 24, 16, 151936),
    "qwen1-7b": _qwen(4096, 11008, 32, 32, 151936),
    "qwen1-14b": _qwen(5120, 13696, 40, 40, 152064),
    "bloomz-7b1": {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": 4096,
        "n_layer": 30,
        "n_head": 32,
        "vocab_size": 250880,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    },
}
