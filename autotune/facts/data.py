"""DataFacts: how long the rows are, as the trainer will see them.

The rows are tokenized once per run, by TRL itself, and kept in the run folder: every probe reads
the same rows. The functions here import datasets and TRL and run in a child process only.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_ROWS = 20_000
"""Rows that are tokenized at most; of a larger data set a random sample of this many."""

TOKENIZING_FIELDS = (
    "dataset_text_field",
    "completion_only_loss",
    "assistant_only_loss",
    "chat_template_path",
    "eos_token",
    "pad_token",
    "dataset_num_proc",
)
"""Fields of SFTConfig that change the tokens of a row."""


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What is known of the data before any probe; lengths in tokens, before truncation."""

    source: str
    """What `dataset_name` will be; empty where there is no data."""
    form: str
    """`text`, `prompt-completion`, `messages`, `tokenized` or `lengths`."""
    rows: int
    rows_measured: int
    test_rows: int
    mean_length: float
    quantiles: dict[str, int]
    longest: int
    """Longest row measured."""

    @property
    def sampled(self) -> bool:
        """Whether longer rows than `longest` may exist unseen."""
        return self.rows_measured < self.rows


def survey_data(request: Any, tokenizer: Any, folder: Path) -> DataFacts:
    """Tokenize the data into `folder/rows` and tell its facts.

    Args:
        request: a `SurveyRequest` (see `probe/protocol.py`).
        tokenizer: of the model.
        folder: the run's data folder; also receives `raw`, the untokenized rows measured.
    """
    if request.lengths is not None:
        rows = _rows_of_lengths(request.lengths, len(tokenizer), request.seed)
        with_first_label(rows).save_to_disk(folder / "rows")
        return _facts("", "lengths", request.lengths["rows"], rows, 0)
    splits = load_splits(request.dataset, request.dataset_config)
    if request.train_split not in splits:
        raise ValueError(
            f"the data has no split `{request.train_split}`; it has {', '.join(splits)}"
        )
    train = splits[request.train_split]
    if not len(train):
        raise ValueError(f"the split `{request.train_split}` has no rows")
    raw = train
    if len(train) > SAMPLE_ROWS:
        raw = train.shuffle(seed=request.seed).select(range(SAMPLE_ROWS))
    _check_rows(raw, request.training.get("dataset_text_field", "text"))
    rows = tokenize(raw, tokenizer, request.training, folder / "scratch")
    with_first_label(rows).save_to_disk(folder / "rows")
    raw.save_to_disk(folder / "raw")
    test = splits.get(request.test_split)
    return _facts(request.dataset, _form(raw), len(train), rows, len(test) if test else 0)


def with_first_label(rows: Any) -> Any:
    """The rows with `first_label`: where the first token stands that counts in the loss."""

    def first(labels: list[int]) -> int:
        return next((n for n, one in enumerate(labels) if n > 0 and one != -100), len(labels))

    return rows.add_column("first_label", [first(labels) for labels in rows["labels"]])


def load_splits(dataset: str, config: str | None) -> Any:
    """The splits of a hub data set, a local folder, or a folder around one file."""
    from datasets import load_dataset

    return load_dataset(dataset, name=config)


def tokenize(raw: Any, tokenizer: Any, training: dict[str, Any], scratch: Path) -> Any:
    """Rows of `input_ids` and `labels`, untruncated, as SFTTrainer itself prepares them.

    The trainer is real; the model around which it is built is a throw-away of one layer, because
    tokenization does not depend on it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    tiny = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    chosen = {name: training[name] for name in TOKENIZING_FIELDS if name in training}
    arguments = SFTConfig(
        output_dir=str(scratch),
        max_length=None,
        packing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        loss_type="nll",
        disable_tqdm=True,
        **chosen,
    )
    trainer = SFTTrainer(
        model=LlamaForCausalLM(tiny),
        args=arguments,
        train_dataset=raw,
        processing_class=tokenizer,
    )
    return trainer.train_dataset.select_columns(["input_ids", "labels"])


def _check_rows(rows: Any, text_field: str) -> None:
    """Say in our words what TRL would stumble over."""
    columns = rows.column_names
    known = {"messages", "conversations", "prompt", "input_ids", text_field}
    if not known & set(columns):
        raise ValueError(
            f"no column `{text_field}` (nor `messages`, `prompt`/`completion`, `input_ids`); the "
            f"data has {', '.join(columns)}; `training: {{dataset_text_field: ...}}` names another"
        )
    for name in {text_field, "prompt", "completion"} & set(columns):
        if None in rows[name][:]:
            raise ValueError(f"row {rows[name][:].index(None)} has no `{name}` (null)")


def _form(rows: Any) -> str:
    columns = set(rows.column_names)
    if "input_ids" in columns:
        return "tokenized"
    if {"prompt", "completion"} <= columns:
        return "prompt-completion"
    return "messages" if columns & {"messages", "conversations"} else "text"


def _facts(source: str, form: str, total: int, rows: Any, test_rows: int) -> DataFacts:
    lengths = sorted(row_lengths(rows))
    if not lengths:
        raise ValueError("no row is left after tokenization")
    return DataFacts(
        source=source,
        form=form,
        rows=total if form == "lengths" or total > len(lengths) else len(lengths),
        rows_measured=total if form == "lengths" else len(lengths),
        test_rows=test_rows,
        mean_length=round(sum(lengths) / len(lengths), 3),
        quantiles={f"p{q}": lengths[(len(lengths) - 1) * q // 100] for q in (1, 10, 50, 90, 99)},
        longest=lengths[-1],
    )


def row_lengths(rows: Any) -> list[int]:
    """Tokens of each row."""
    import pyarrow.compute as pc

    table = rows.with_format("arrow")[:]
    lengths: list[int] = pc.list_value_length(table.column("input_ids")).to_pylist()
    return lengths


def _rows_of_lengths(lengths: dict[str, int | None], vocabulary: int, seed: int) -> Any:
    """Random tokens in rows whose lengths have the stated quantiles."""
    from datasets import Dataset

    generator = random.Random(seed)
    drawn = draw_lengths(lengths, min(int(lengths["rows"] or 1), 2000))
    generator.shuffle(drawn)
    ids = [
        [generator.randrange(min(2, vocabulary - 1), vocabulary) for _ in range(length)]
        for length in drawn
    ]
    return Dataset.from_dict({"input_ids": ids, "labels": ids})


def draw_lengths(lengths: dict[str, int | None], count: int) -> list[int]:
    """`count` lengths at even quantiles; log-linear between p50, p99 and max, mirrored below p50.

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
    return [_between(knots, index / max(count - 1, 1)) for index in range(count)]


def _between(knots: list[tuple[float, int]], share: float) -> int:
    for (x0, y0), (x1, y1) in zip(knots, knots[1:], strict=False):
        if share <= x1:
            part = (share - x0) / (x1 - x0)
            return round(math.exp(math.log(y0) * (1 - part) + math.log(max(y1, y0)) * part))
    return knots[-1][1]
