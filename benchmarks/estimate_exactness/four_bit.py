"""The same for adapters on bitsandbytes' quantised bases, where that package is installed.

pip install bitsandbytes && python benchmarks/estimate_exactness/four_bit.py
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.command import parser_of, run_and_tell  # noqa: E402
from benchmarks.estimate_exactness.cases import Case  # noqa: E402
from benchmarks.estimate_exactness.run import HEAD, line, run  # noqa: E402

CASES = (
    Case(model="llama", base="4-bit nested", method="lora-all-16"),
    Case(model="llama", base="4-bit", method="lora-all-8", checkpointing="on", shape="4 uneven"),
    Case(model="llama", base="8-bit", method="lora-all-16", shape="4x96"),
    Case(model="llama", base="4-bit nested", method="lora-all-8", dtype="bfloat16"),
    Case(model="llama", base="8-bit", method="lora-all-8", dtype="bfloat16", shape="1x384"),
    Case(model="llama", base="4-bit nested", method="lora-all-8", bf16=True, shape="1x17"),
    Case(
        model="qwen2-untied",
        base="4-bit nested",
        method="lora-all-16",
        dtype="bfloat16",
        bf16=True,
        checkpointing="on",
        loss="chunked_nll",
        shape="4 uneven",
    ),
    Case(model="llama-deep", base="4-bit nested", method="lora-all-16", shape="1x17"),
    Case(model="llama-deep", base="4-bit", method="lora-all-16", shape="1x17", dtype="bfloat16"),
    Case(model="llama-deep", base="8-bit", method="lora-attention-4", shape="1x17"),
    Case(model="llama-deep", base="8-bit", method="lora-all-16", checkpointing="on"),
    Case(model="qwen2", base="4-bit nested", method="lora-all-16", loss="chunked_nll"),
    Case(model="qwen2", base="8-bit", method="lora-all-8", checkpointing="on", shape="growing"),
    Case(model="qwen2-untied", base="4-bit", method="lora-attention-16", shape="shrinking"),
    Case(model="qwen2-untied", base="4-bit nested", method="lora-all-8", layout="flat"),
    Case(model="qwen3", base="4-bit nested", method="lora-all-8", attention="eager", bf16=True),
    Case(model="gemma", base="4-bit nested", method="lora-attention-4", shape="3 uneven"),
    Case(model="gemma", base="8-bit", method="lora-all-16", bf16=True, loss="chunked_nll"),
    Case(model="gemma3", base="4-bit nested", method="lora-all-16", checkpointing="reentrant"),
    Case(model="mistral", base="4-bit nested", method="lora-all-16", optimizer="adamw_torch"),
    Case(model="phi3", base="4-bit", method="lora-attention-4", optimizer="adamw-accumulated"),
    Case(model="mixtral", base="4-bit nested", method="lora-all-16"),
    Case(model="qwen2-moe", base="8-bit", method="lora-attention-4"),
    Case(model="gpt2", base="4-bit nested", method="lora-all-16", shape="4 uneven"),
    Case(model="gpt2", base="8-bit", method="lora-attention-4", shape="2 uneven"),
    Case(
        model="llama",
        base="4-bit nested",
        method="lora-all-16",
        training="reward",
        dtype="bfloat16",
    ),
    Case(
        model="qwen2",
        base="8-bit",
        method="lora-all-8",
        training="reward",
        shape="4 uneven",
        bf16=True,
    ),
    Case(model="qwen2", base="4-bit nested", method="lora-all-16", training="dpo"),
    Case(
        model="llama",
        base="8-bit",
        method="lora-attention-16",
        training="dpo",
        checkpointing="on",
        shape="4 uneven",
    ),
    Case(model="qwen3", base="4-bit", method="lora-all-8", training="kto", shape="4 uneven"),
)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown: all, by base, and each."""
    rows = [row for row in rows if "failure" not in row]
    text = "# Estimate against the real CPU allocator: quantised bases\n\n"
    text += "Size of the relative error of the peak. Made by `four_bit.py`.\n\n" + HEAD
    text += line("all", rows)
    for base in ("4-bit nested", "4-bit", "8-bit"):
        text += line(base, [row for row in rows if row["case"]["base"] == base])
    text += "\n| error | real peak | combination |\n|---|---|---|\n"
    for row in rows:
        size = row["real_bytes"] / 2**20
        text += f"| {row['error']:+.4%} | {size:.1f} MiB | {row['name']} |\n"
    return text


def main() -> None:
    """Run what is missing, then write and print the table."""
    options = parser_of(__doc__, Path(__file__).with_suffix(".jsonl")).parse_args()
    run_and_tell(
        options,
        lambda results: run(CASES, results, packages=["bitsandbytes"]),
        table,
    )


if __name__ == "__main__":
    main()
