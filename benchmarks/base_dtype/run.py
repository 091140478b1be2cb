"""Adapters on a base in float32 and in bfloat16, as its checkpoint has it: what both learn.

    python benchmarks/base_dtype/run.py           # minutes on two cores; goes on
    python benchmarks/base_dtype/run.py --table   # results.md from results.jsonl again

A small Llama is trained on this project's documents and kept in bfloat16, as nearly all checkpoints
are. Then adapters learn other documents, by TRL's SFTTrainer under bf16, the same rows in the same
order: only how the base is held differs.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.command import (  # noqa: E402
    Results,
    Rows,
    about_this_run,
    parser_of,
    run_and_tell,
)

HERE = Path(__file__).parent
TYPES = ("float32", "bfloat16")
SEEDS = (1, 2, 3)
WORDS, LENGTH, BATCH = 1024, 128, 8
BASE_STEPS, STEPS, LAST = 400, 80, 10
TAUGHT = "docs/*.md"
LEARNED = ("docs/decisions/*.md", "docs/estimates/*.md", "docs/tasks/*.md", "examples/*/README.md")
SHAPE = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "vocab_size": WORDS,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """A training of adapters."""

    dtype: str
    seed: int

    @property
    def name(self) -> str:
        """Both in words."""
        return f"base in {self.dtype}, seed {self.seed}"


def cases() -> Iterator[Case]:
    """Yield both types by turns, for each seed."""
    for seed in SEEDS:
        for dtype in TYPES:
            yield Case(dtype, seed)


def run(results: Results) -> None:
    """Train the base, then the adapters that `results` lacks."""
    waiting = results.waiting(cases())
    with tempfile.TemporaryDirectory(prefix="base-dtype-") as scratch:
        folder = Path(scratch)
        write_base(folder / "base")
        rows, held_out = rows_of_texts(folder / "base", *LEARNED)
        for case in waiting:
            found = adapters_learn(case, folder / "base", rows, held_out)
            results.add({"name": case.name, **found, "case": asdict(case), **_about()})
            print(f"{case.name}: eval {found['eval_before']:.4f} -> {found['eval_after']:.4f}")


def _about() -> dict[str, Any]:
    return {"about": about_this_run()}


def write_base(base: Path) -> None:
    """Write a model that knows some documents, in bfloat16, and its tokenizer."""
    import torch
    import transformers

    base.mkdir()
    texts = [file.read_text(encoding="utf-8") for file in sorted(ROOT.glob(TAUGHT))]
    tokenizer_of(texts).save_pretrained(base)
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    rows, held_out = rows_of_texts(base, TAUGHT)
    arguments = {"max_steps": BASE_STEPS, "learning_rate": 2e-3, "seed": 0}
    trainer = trainer_of(model, base, rows, held_out, **arguments)
    trainer.train()
    trainer.model.to(torch.bfloat16).save_pretrained(base)


def tokenizer_of(texts: list[str]) -> Any:
    """Return a tokenizer of bytes and pairs of the texts."""
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    pairs = ByteLevelBPETokenizer()
    pairs.train_from_iterator(texts, WORDS, special_tokens=["<pad>", "<eos>"])
    ends = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<eos>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pairs._tokenizer, **ends)


def rows_of_texts(base: Path, *patterns: str) -> tuple[Any, Any]:
    """Return rows of `LENGTH` tokens of files, and each eighth of them apart."""
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    files = [file for pattern in patterns for file in sorted(ROOT.glob(pattern))]
    ids = tokenizer("\n".join(file.read_text(encoding="utf-8") for file in files))["input_ids"]
    parts = [ids[n : n + LENGTH] for n in range(0, len(ids) - LENGTH + 1, LENGTH)]
    kept = [part for n, part in enumerate(parts) if n % 8]
    return (
        datasets.Dataset.from_dict({"input_ids": kept}),
        datasets.Dataset.from_dict({"input_ids": parts[::8]}),
    )


def trainer_of(
    model: Any, base: Path, rows: Any, held_out: Any, peft_config: Any = None, **fields: Any
) -> Any:
    """Return TRL's trainer, with the tokenizer that lies in `base`."""
    import transformers
    from trl import SFTConfig, SFTTrainer

    usual = {
        "output_dir": str(base.parent / "out"),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "max_length": LENGTH,
        "lr_scheduler_type": "linear",
        "warmup_steps": 5,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    arguments = SFTConfig(**{**usual, **fields})
    return SFTTrainer(
        model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
        peft_config=peft_config,
    )


def adapters_learn(case: Case, base: Path, rows: Any, held_out: Any) -> dict[str, Any]:
    """Return the losses of a training of adapters on a base that is held in the type of `case`."""
    from peft import LoraConfig

    trainer = trainer_of(
        str(base),
        base,
        rows,
        held_out,
        bf16=True,
        model_init_kwargs={"dtype": case.dtype},
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        max_steps=STEPS,
        learning_rate=2e-3,
        seed=case.seed,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    types = {
        "base": sorted({str(p.dtype) for p in trainer.model.parameters() if not p.requires_grad}),
        "adapters": sorted({str(p.dtype) for p in trainer.model.parameters() if p.requires_grad}),
    }
    return {
        "losses": losses,
        "eval_before": before,
        "eval_after": trainer.evaluate()["eval_loss"],
        "types": types,
    }


def table(rows: Rows) -> str:
    """Return the results as Markdown."""
    text = "# Adapters on a base in float32 and in bfloat16\n\n"
    text += f"Loss of the last {LAST} of {STEPS} steps, and of held-out rows before and after.\n\n"
    text += "| base | seed | first step | last steps | held out before | after |\n"
    text += "|---|---|---|---|---|---|\n"
    for row in rows:
        figures = (row["losses"][0], _last(row), row["eval_before"], row["eval_after"])
        cells = " | ".join(f"{figure:.4f}" for figure in figures)
        text += f"| {row['case']['dtype']} | {row['case']['seed']} | {cells} |\n"
    text += "\n| base | last steps, mean of seeds | spread | held out, mean of seeds | spread |\n"
    text += "|---|---|---|---|---|\n"
    for dtype in TYPES:
        some = [row for row in rows if row["case"]["dtype"] == dtype]
        pairs = ([_last(row) for row in some], [row["eval_after"] for row in some])
        cells = [f"{statistics.mean(n):.4f} | {max(n) - min(n):.4f}" for n in pairs if n]
        text += f"| {dtype} | {' | '.join(cells)} |\n"
    return text + "\n" + _differences(rows)


def _last(row: dict[str, Any]) -> float:
    return statistics.mean(row["losses"][-LAST:])


def _differences(rows: Rows) -> str:
    """Return bfloat16 less float32, seed by seed."""
    after = {(row["case"]["dtype"], row["case"]["seed"]): row["eval_after"] for row in rows}
    both = [seed for seed in SEEDS if all((dtype, seed) in after for dtype in TYPES)]
    gaps = [f"{after['bfloat16', seed] - after['float32', seed]:+.4f}" for seed in both]
    return f"Held out, bfloat16 less float32, seed by seed: {', '.join(gaps)}.\n"


if __name__ == "__main__":
    run_and_tell(parser_of(__doc__, HERE / "results.jsonl").parse_args(), run, table)
