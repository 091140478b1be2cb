"""The jobs of `examples/`, to be run for real: the architecture, the method and the knobs are the
example's own; the model, the rows and the batch are small.

The quickstart needs none: it is run as it is (`scripts/quickstart`).
"""

import json
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
TOKENIZER = EXAMPLES / "quickstart" / "build" / "model"
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 8192,
    "max_position_embeddings": 512,
}
ON_A_CPU = ("precision=fp32", "recipe.dtype=[float32]")
SHORT: dict[str, tuple[str, ...]] = {
    "sft-memory-by-length": (
        "dataset={lengths: {max: 70, p50: 20, rows: 200}}",
        "max_length=64",
        "recipe.max_length=[8, 16, 32, 64]",
    ),
    "sft-factorisations": (
        "precision=fp32",
        "max_length=64",
        "global_batch_size=4",
        "recipe.global_batch_size=[4, 8]",
    ),
    "reward-long-context": (*ON_A_CPU, "max_length=64", "recipe.max_length=[64]"),
    "grpo-7b-lora": (
        *ON_A_CPU,
        "global_batch_size=8",
        "num_generations=4",
        "max_completion_length=12",
    ),
    "ppo-memory": (*ON_A_CPU, "global_batch_size=8", "response_length=10"),
}


def give_tokenizer(model: Path) -> None:
    """Put the quickstart's tokenizer, of 8192 words, and a template for chats beside a model."""
    for file in TOKENIZER.glob("*token*.json*"):
        (model / file.name).write_bytes(file.read_bytes())
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")


def stand_in(name: str, folder: Path, *sets: str) -> list[str]:
    """The arguments of `autotune run` that run an example small; its model is put into `folder`.

    Args:
        sets: what the test changes beyond the sizes, as `--set` takes it.
    """
    config = json.loads((EXAMPLES / name / "model" / "config.json").read_text(encoding="utf-8"))
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({**config, **TINY}), encoding="utf-8")
    give_tokenizer(model)
    every = (f"model={model / 'config.json'}", *SHORT[name], *sets)
    flags = [part for one in every for part in ("--set", one)]
    return [str(EXAMPLES / name / "job.yaml"), *flags]
