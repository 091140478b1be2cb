"""Make the quickstart example from what every machine has: Python's own standard library.

    python scripts/make_example.py OUT_DIR [--rows N]

writes

    OUT_DIR/data/{train,test}.jsonl      docstrings (prose) and definitions (code), one `text` a row
    OUT_DIR/pairs/{train,test}.jsonl     the first line of a definition as `prompt`, its body as
                                         `chosen`, another one's as `rejected`
    OUT_DIR/labelled/{train,test}.jsonl  the same one by one: `prompt`, `completion`, `label`
    OUT_DIR/prompts/{train,test}.jsonl   the same first lines alone
    OUT_DIR/model/                       a small Qwen2 model with random weights and its tokenizer

The rows are as uneven in length as real data: one-line docstrings beside functions of hundreds of
tokens. The same Python and the same stack give the same files. OUT_DIR appears complete or not at
all.
"""

import argparse
import ast
import json
import os
import random
import shutil
import statistics
import sys
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"  # else DeepSpeed, imported on saving a model, warns on stdout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROWS = 3000
TEST_ROWS = 100
PAIRS = 400
MIN_CHARS = 20
MAX_TOKENS = 1000
VOCAB_SIZE = 8192
PAD, END = "<|pad|>", "<|endoftext|>"

# Not the library's own prose and code: tests, other people's packages, generated tables.
SKIPPED_FOLDERS = {
    *("test", "tests", "idlelib", "turtledemo", "lib2to3", "encodings", "pydoc_data"),
    *("site-packages", "dist-packages", "ensurepip"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the quickstart example.")
    parser.add_argument("out_dir", type=Path, help="the folder to make")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"training rows (default {ROWS})")
    arguments = parser.parse_args()
    if arguments.rows < 1:
        parser.error(f"--rows must be at least 1, but got {arguments.rows}")
    out_dir = arguments.out_dir.resolve()
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        parser.error(f"{out_dir} is already there\n\nhint: remove it to make the example again")
    make_atomically(out_dir, arguments.rows)


def make_atomically(out_dir: Path, rows: int) -> None:
    """Build beside `out_dir` and rename, so that a half-made example is never taken for one."""
    unfinished = out_dir.with_name(f".{out_dir.name}-{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        make_example(unfinished, rows)
        unfinished.rename(out_dir)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def make_example(folder: Path, rows: int) -> None:
    texts = read_texts(Path(sysconfig.get_paths()["stdlib"]))
    random.Random(0).shuffle(texts)
    # Some texts turn out too long, so a few more than needed are tokenised.
    texts = texts[: 2 * (rows + TEST_ROWS)]
    tokenizer = train_tokenizer(texts)
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    kept = [(t, n) for t, n in zip(texts, lengths, strict=True) if n <= MAX_TOKENS]
    test, train = kept[:TEST_ROWS], kept[TEST_ROWS : TEST_ROWS + rows]
    if len(train) < rows:
        sys.exit(f"error: the standard library gave {len(train)} training rows, not {rows}")
    write_rows(folder / "data" / "train.jsonl", ({"text": text} for text, _ in train))
    write_rows(folder / "data" / "test.jsonl", ({"text": text} for text, _ in test))
    write_preferences(folder, [text for text, _ in kept])
    parameters = save_model(folder / "model", tokenizer)
    print(f"data   {len(train)} training rows, {len(test)} test rows")
    print(f"       tokens a row: {describe([n for _, n in train])}")
    print(f"model  Qwen2, {parameters:,} parameters, vocabulary {tokenizer.get_vocab_size()}")


def read_texts(library: Path) -> list[str]:
    """Every docstring and definition of the library once, in an order that is always the same."""
    texts: dict[str, None] = {}
    for path in sorted(library.rglob("*.py")):
        folders = path.relative_to(library).parts[:-1]
        if SKIPPED_FOLDERS.isdisjoint(folders):
            texts.update(dict.fromkeys(read_module(path)))
    return [text for text in texts if len(text) >= MIN_CHARS]


def read_module(path: Path) -> Iterator[str]:
    """The docstrings and the definitions in one file, which is parsed and never imported."""
    try:
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in somebody else's source
            source = file.read()
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):
        return
    lines = source.split("\n")  # as the parser counts them; splitlines() also cuts at form feeds
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))


def train_tokenizer(texts: list[str]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def write_preferences(folder: Path, texts: list[str]) -> None:
    """A few hundred rows of each kind that preference and online trainers take."""
    split = [text.partition("\n") for text in texts if text.startswith(("def ", "class "))]
    bodies = [(head + "\n", body) for head, _, body in split if body]
    pairs = [
        {"prompt": prompt, "chosen": body, "rejected": other}
        for (prompt, body), (_, other) in zip(bodies, bodies[1:], strict=False)
    ]
    for name, some in (("test", pairs[:20]), ("train", pairs[20 : 20 + PAIRS])):
        write_rows(folder / "pairs" / f"{name}.jsonl", some)
        labelled = [
            {"prompt": row["prompt"], "completion": row[column], "label": column == "chosen"}
            for row in some
            for column in ("chosen", "rejected")
        ]
        write_rows(folder / "labelled" / f"{name}.jsonl", labelled)
        prompts = ({"prompt": row["prompt"]} for row in some)
        write_rows(folder / "prompts" / f"{name}.jsonl", prompts)


def save_model(folder: Path, tokenizer: "Tokenizer") -> int:
    """An ordinary model folder, as `save_pretrained` writes it; the number of parameters."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.token_to_id(PAD),
        eos_token_id=tokenizer.token_to_id(END),
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        model_max_length=config.max_position_embeddings,
    ).save_pretrained(folder)
    return model.num_parameters()


def describe(lengths: list[int]) -> str:
    percentiles = statistics.quantiles(lengths, n=100, method="inclusive")
    shown = {"p50": percentiles[49], "p90": percentiles[89], "p99": percentiles[98]}
    shown["max"] = max(lengths)
    return "  ".join(f"{name} {value:.0f}" for name, value in shown.items())


if __name__ == "__main__":
    main()
