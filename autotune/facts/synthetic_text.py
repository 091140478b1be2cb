"""Text of stated lengths in tokens, where a trainer takes no tokenized rows, and the rows that it
makes of it. Pure."""

import random
from collections.abc import Sequence
from typing import Any

from autotune.facts.row_formats import A_TOKEN

WORDS = ("a", "the", "and", "x", "1", "<3>")
"""One of them, again and again, is one token each for about every tokenizer."""
PROMPT_SHARE = 0.5
"""Of the shorter sequence of a pair."""


def pairs_of_lengths(lengths: Sequence[tuple[int, int]], tokenizer: Any) -> list[dict[str, str]]:
    """Return rows of `prompt`, `chosen` and `rejected` whose sequences, with the end-of-sequence
    token that TRL adds, have these (chosen, rejected) lengths.

    Raises:
        ValueError: no word is known that this tokenizer makes one token of.
    """
    word, extra = one_token_word(tokenizer)
    order = random.Random(0)
    rows = []
    for chosen, rejected in lengths:
        prompt = max(1, round(PROMPT_SHARE * min(chosen, rejected)) - extra)
        completions = [max(n - extra - 1 - prompt, 1) for n in (chosen, rejected)]
        if order.random() < 0.5:
            completions.reverse()
        text = [" " + " ".join([word] * count) for count in completions]
        rows.append({"prompt": " ".join([word] * prompt), "chosen": text[0], "rejected": text[1]})
    return rows


def labelled_of_lengths(lengths: Sequence[int], tokenizer: Any) -> list[dict[str, Any]]:
    """Return rows of `prompt`, `completion` and `label` of these lengths, every second one wanted.

    Raises:
        ValueError: as above.
    """
    pairs = pairs_of_lengths([(length, length) for length in lengths], tokenizer)
    return [
        {"prompt": pair["prompt"], "completion": pair["chosen"], "label": index % 2 == 0}
        for index, pair in enumerate(pairs)
    ]


def prompts_of_lengths(lengths: Sequence[int], tokenizer: Any) -> list[dict[str, str]]:
    """Return rows of `prompt` of these lengths.

    Raises:
        ValueError: as above.
    """
    word, extra = one_token_word(tokenizer)
    return [{"prompt": " ".join([word] * max(length - extra, 1))} for length in lengths]


def tokens_of_texts(
    method: str, texts: Sequence[dict[str, Any]], tokenizer: Any
) -> dict[str, list[Any]]:
    """Return the columns that the method's trainer makes of such rows: with the right numbers of
    tokens, the tokens themselves as they come.

    Raises:
        ValueError: as above.
    """
    _, extra = one_token_word(tokenizer)
    counts = [
        {name: len(text.split()) for name, text in row.items() if name != "label"} for row in texts
    ]
    prompts = [row["prompt"] + extra for row in counts]
    columns: dict[str, list[Any]] = {}
    if method != "reward":
        columns["prompt_ids"] = [[A_TOKEN] * count for count in prompts]
    for name in sorted({"chosen", "rejected", "completion"} & counts[0].keys()):
        before = prompts if method == "reward" else [0] * len(counts)
        lengths = [start + row[name] + 1 for start, row in zip(before, counts, strict=True)]
        columns[f"{name}_ids"] = [[A_TOKEN] * length for length in lengths]
    if method == "kto":
        columns["label"] = [row["label"] for row in texts]
    return columns


def one_token_word(tokenizer: Any) -> tuple[str, int]:
    """(a word that is one token wherever it comes, tokens that the tokenizer adds to a text)."""
    for word in WORDS:
        short, long = (len(tokenizer(" ".join([word] * n))["input_ids"]) for n in (5, 40))
        if long - short == 35:
            return word, short - 5
    raise ValueError(
        "no text of a known number of tokens could be made for this tokenizer; give data in place "
        "of `lengths`"
    )
