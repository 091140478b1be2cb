"""DataFacts: how long the rows are, as the trainer will see them.

The rows are tokenized once per run, by TRL itself, and kept in the run folder: every probe reads
the same rows. The functions here import datasets and TRL and run in a child process only.
"""

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import nearest, user_error
from autotune.facts.data_card import check_card
from autotune.facts.row_formats import A_TOKEN
from autotune.facts.tokenizing import (
    as_trained,
    check_rows,
    check_template,
    check_tokens,
    described,
    form,
    tokenize,
)
from autotune.job.methods import METHODS

RAW = "raw"
"""The untokenized rows, beside the folder of the tokenized ones."""
RENAMED = "renamed"
"""The copy of the data set whose columns are renamed, for what is launched; in the run's folder."""
SAMPLE_ROWS = 20_000
"""Rows that are tokenized at most; of a larger data set a random sample of this many."""
_NOT_READ = re.compile(r"::|[$\x00-\x1f]")
"""Names of files that `datasets` reads in place of, or not at all, as they stand."""
FEWEST_MADE, MOST_MADE, TOKENS_MADE = 256, 2000, 1_500_000
"""Rows that are made of stated lengths: of long ones fewer, as a tokenizer takes a second for each
million of tokens."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Facts of the data that are known before any probe; lengths in tokens, before truncation."""

    source: str
    """What `dataset_name` will be; empty where there is no data."""
    form: str
    """`text`, `prompt-completion`, `messages`, `tokenized`, `preference` or `lengths`."""
    rows: int
    rows_measured: int
    test_rows: int
    mean_length: float
    """Tokens of a row; of one with several sequences (pairs), of all of them."""
    quantiles: dict[str, int]
    """Of the longest sequence of each row."""
    longest: int
    """Longest sequence measured."""

    @property
    def sampled(self) -> bool:
        """True if longer rows than `longest` may exist unseen."""
        return self.rows_measured < self.rows

    @property
    def ragged(self) -> bool:
        """True if rows are of many lengths."""
        return self.quantiles.get("p1") != self.longest


def survey_data(
    request: Any, tokenizer: Any, folder: Path, vocabulary: int | None = None
) -> DataFacts:
    """Tokenize the data into `folder/rows` and tell its facts.

    Args:
        request: a `SurveyRequest` (see `probe/protocol.py`).
        tokenizer: of the model.
        folder: the run's data folder; also receives `raw`, the untokenized rows measured.
        vocabulary: of the model; None: not known.

    Raises:
        ValueError, UserError: the data cannot be what the method is trained on.
    """
    method = request.method
    if request.lengths is not None:
        raw, rows = _of_lengths(request, tokenizer, folder / "scratch", vocabulary)
        rows = described(method, rows)
        rows.save_to_disk(folder / "rows")
        if raw is not None:
            raw.save_to_disk(folder / RAW)
        return _facts("", "lengths", request.lengths["rows"], rows, 0)
    splits = load_splits(request.dataset, request.dataset_config)
    if request.train_split not in splits:
        raise ValueError(
            f"the data has no split `{request.train_split}`; it has {', '.join(splits)}"
        )
    used = {
        name: splits[name] for name in (request.train_split, request.test_split) if name in splits
    }
    splits = rename_columns(used, request.columns)
    train = splits[request.train_split]
    if not len(train):
        raise ValueError(f"the split `{request.train_split}` has no rows")
    raw = train
    if len(train) > SAMPLE_ROWS:
        raw = train.shuffle(seed=request.seed).select(range(SAMPLE_ROWS))
    check_rows(method, raw, request.training.get("dataset_text_field", "text"))
    check_template(method, raw, tokenizer, request.training)
    sampled_rows, raw = len(raw), as_trained(method, raw)
    rows = tokenize(method, raw, tokenizer, request.training, folder / "scratch")
    rows = described(method, rows)
    # With a template of another model TRL adds its tokens to the model.
    grows = bool(request.training.get("chat_template_path"))
    check_tokens(method, rows, None if grows else vocabulary, sampled=raw is not train)
    rows.save_to_disk(folder / "rows")
    raw.save_to_disk(folder / RAW)
    test = splits.get(request.test_split)
    kind = form(method, set(raw.column_names))
    total = len(train) * len(raw) // sampled_rows
    source = request.dataset
    if request.columns and not request.planned:
        source = copy_splits(splits, Path(request.run_folder) / RENAMED)
    return _facts(source, kind, total, rows, len(test) if test else 0)


def load_splits(dataset: str, config: str | None) -> Any:
    """Return the splits of a hub data set, a local folder, or a folder around one file.

    Raises:
        UserError: a card, or a name that is taken for a pattern, leads to data elsewhere.
    """
    from datasets import load_dataset, load_dataset_builder
    from datasets.exceptions import DatasetGenerationError

    if Path(dataset).is_dir():
        check_card(Path(dataset))
    try:
        files = load_dataset_builder(dataset, name=config).config.data_files or {}
        _check_places(dataset, [str(file) for split in files.values() for file in split])
        return load_dataset(dataset, name=config)
    except StopIteration:  # an empty file
        raise ValueError("the data has no rows") from None
    except (DatasetGenerationError, ValueError) as error:
        raise _unreadable(dataset, error) from error.__cause__


def _unreadable(dataset: str, error: Exception) -> Exception:
    """Return why data cannot be read: the first of their lines that holds no row, else the reason
    that their reader had."""
    for file in sorted(Path(dataset).rglob("*.jsonl")):
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = json.loads(line.decode().strip() or "{}")
                    what = "" if isinstance(row, dict) else f"it holds a {type(row).__name__}"
                except (ValueError, RecursionError) as wrong:
                    what = str(wrong)
                if what:
                    where = f"{file.resolve()}:{number}"
                    return user_error(f"cannot be read as a row of data: {what}", where=where)
    return ValueError(f"the data cannot be read: {error.__cause__ or error}")


def _check_places(dataset: str, files: Sequence[str]) -> None:
    """Refuse data that lie elsewhere than the data set's name says, before they are read."""
    folder = Path(dataset).resolve()
    if folder.is_dir():
        wrong = next((file for file in files if not Path(file).is_relative_to(folder)), None)
        names = (str(file.relative_to(folder)) for file in folder.rglob("*"))
        wrong = wrong or next((name for name in names if _NOT_READ.search(name)), None)
    else:
        wrong = next((file for file in files if not file.startswith("hf://")), None)
    if wrong is not None:
        what = f"`{dataset}` leads to {wrong}, which is not the data set that it names"
        raise user_error(what, where="dataset", hint="rename it, or name the folder of the data")


def _facts(source: str, form: str, total: int, rows: Any, test_rows: int) -> DataFacts:
    sequences = sequence_lengths(rows)
    if not sequences:
        raise ValueError("no row is left after tokenization")
    lengths = sorted(map(max, sequences))
    return DataFacts(
        source=source,
        form=form,
        rows=total if form == "lengths" or total > len(lengths) else len(lengths),
        rows_measured=total if form == "lengths" else len(lengths),
        test_rows=test_rows,
        mean_length=round(sum(map(sum, sequences)) / len(sequences), 3),
        quantiles={f"p{q}": lengths[(len(lengths) - 1) * q // 100] for q in (1, 10, 50, 90, 99)},
        longest=lengths[-1],
    )


def sequence_lengths(rows: Any) -> list[list[int]]:
    """Return tokens of each sequence of each row."""
    lengths: list[list[int]] = rows.with_format("arrow")[:].column("lengths").to_pylist()
    return lengths


def _of_lengths(
    request: Any, tokenizer: Any, scratch: Path, vocabulary: int | None
) -> tuple[Any, Any]:
    """Return (text to launch with, or None; tokenized rows) with the stated lengths.

    A plan launches nothing: no text is tokenized for it.
    """
    import pyarrow
    from datasets import Dataset

    lengths: dict[str, Any] = request.lengths
    generator = random.Random(request.seed)
    drawn_lengths = draw_lengths(lengths, rows_made(lengths))
    generator.shuffle(drawn_lengths)
    if request.method == "sft":
        most = min(len(tokenizer), vocabulary or len(tokenizer))
        words = range(min(2, most - 1), most)
        ids = [generator.choices(words, k=length) for length in drawn_lengths]
        return None, Dataset.from_dict({"input_ids": ids, "labels": ids})
    if METHODS[request.method].online:
        texts = prompts_of_lengths(drawn_lengths, tokenizer)
    elif request.method == "kto":
        texts = labelled_of_lengths(drawn_lengths, tokenizer)
    else:
        rejected_lengths = [max(1, round(n * generator.uniform(0.6, 1.0))) for n in drawn_lengths]
        texts = pairs_of_lengths(list(zip(drawn_lengths, rejected_lengths, strict=True)), tokenizer)
    if request.planned:
        columns = tokens_of_texts(request.method, texts, tokenizer)
        return None, Dataset(pyarrow.table(columns))
    raw = Dataset.from_list(texts)
    return raw, tokenize(request.method, raw, tokenizer, request.training, scratch)


def rows_made(lengths: dict[str, Any]) -> int:
    """Return how many rows are made of stated lengths."""
    typical = TOKENS_MADE // int(lengths.get("p50") or lengths["max"])
    return min(int(lengths["rows"] or 1), max(FEWEST_MADE, min(typical, MOST_MADE)))


def draw_lengths(lengths: dict[str, int | None], count: int) -> list[int]:
    """Return `count` lengths at even quantiles; log-linear between p50, p99 and max, mirrored below
    p50.

    Without p50 all rows are `max` long: the safe reading of an unknown distribution.
    """
    longest, median, high = lengths["max"], lengths.get("p50"), lengths.get("p99")
    assert longest is not None
    if median is None or count == 1:
        return [longest] * count
    if high is None:
        high = max(median, round(math.sqrt(median * longest)))
    low = max(1, median * median // max(high, 1))
    knots = [(0.0, max(1, low // 2)), (0.01, low), (0.5, median), (0.99, high), (1.0, longest)]
    return [_interpolated(knots, index / max(count - 1, 1)) for index in range(count)]


def _interpolated(knots: list[tuple[float, int]], share: float) -> int:
    for (x0, y0), (x1, y1) in zip(knots, knots[1:], strict=False):
        if share <= x1:
            part = (share - x0) / (x1 - x0)
            return round(math.exp(math.log(y0) * (1 - part) + math.log(max(y1, y0)) * part))
    return knots[-1][1]


def rename_columns(splits: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the splits with other names for columns.

    TRL's scripts load a data set by its name and rename nothing, so what is launched reads a copy.

    Args:
        splits: data sets by name.
        columns: TRL's name -> the data's.

    Raises:
        UserError: a split has no such column, or has one of the new name already.
    """
    return {name: _renamed(name, rows, columns) for name, rows in splits.items()}


def _renamed(split: str, rows: Any, columns: Mapping[str, str]) -> Any:
    names = list(rows.column_names)
    for name in columns.values():
        if name not in names:
            raise user_error(
                f"the split `{split}` has no column `{name}`; it has {', '.join(names)}",
                where="columns",
                hint=nearest(name, names),
            )
    for name in columns:
        if name in names and name not in columns.values():
            raise user_error(
                f"the split `{split}` has a column `{name}` of its own",
                where="columns",
                hint=f"leave `{name}` out, or rename its own one, too: `{{old_{name}: {name}}}`",
            )
    return rows.rename_columns({name: new for new, name in columns.items()})


def copy_splits(splits: Mapping[str, Any], folder: Path) -> str:
    """Write splits as a data set that `load_dataset` reads, all its rows; its folder."""
    for name, rows in splits.items():
        rows.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")
    return str(folder)


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
    """Return (a word that is one token everywhere, tokens that the tokenizer adds to a text)."""
    for word in WORDS:
        short, long = (len(tokenizer(" ".join([word] * n))["input_ids"]) for n in (5, 40))
        if long - short == 35:
            return word, short - 5
    raise ValueError(
        "no text of a known number of tokens could be made for this tokenizer; give data in place "
        "of `lengths`"
    )
