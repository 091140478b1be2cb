"""Tokenized rows of each method, made by TRL's own trainers. Runs in a child only.

The trainer is real; the model around which it is built is a throw-away of one layer, because
tokenization does not depend on it.
"""

from pathlib import Path
from typing import Any

from autotune.errors import user_error
from autotune.facts.row_formats import ROW_KINDS
from autotune.facts.stack import training_fields
from autotune.job.methods import METHODS

FIELDS = (
    "dataset_text_field",
    "completion_only_loss",
    "assistant_only_loss",
    "chat_template_path",
    "eos_token",
    "pad_token",
    "dataset_num_proc",
)
"""Training fields that change the tokens of a row, where a method has them."""
_TURNS = ("messages", "conversations", "prompt", "completion", "chosen", "rejected")
"""Columns that may hold conversations."""


def tokenize(method: str, raw: Any, tokenizer: Any, training: dict[str, Any], scratch: Path) -> Any:
    """Return rows of the method's columns, untruncated, as its trainer itself prepares them."""
    import trl

    if METHODS[method].online:
        map_arguments = {"tokenizer": tokenizer, "training": training}
        return raw.map(
            _prompt_ids, fn_kwargs=map_arguments, batched=True, remove_columns=raw.column_names
        )
    fields = {name: training[name] for name in FIELDS if name in training}
    arguments = getattr(trl, METHODS[method].config)(
        output_dir=str(scratch),
        max_length=None,
        bf16=False,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **({"packing": False, "loss_type": "nll"} if method == "sft" else {}),
        **fields,
    )
    reference = {"ref_model": _tiny(method, len(tokenizer))} if METHODS[method].reference else {}
    trainer = getattr(trl, METHODS[method].trainer)(
        model=_tiny(method, len(tokenizer)),
        args=arguments,
        train_dataset=raw,
        processing_class=tokenizer,
        **reference,
    )
    return trainer.train_dataset.select_columns(list(METHODS[method].columns))


def _prompt_ids(rows: Any, tokenizer: Any, training: dict[str, Any]) -> dict[str, Any]:
    """Token ids of prompts, as TRL's online trainers make them."""
    prompts = rows["prompt"]
    if isinstance(prompts[0], str):
        return {"prompt_ids": tokenizer(text=prompts)["input_ids"]}
    kwargs = training.get("chat_template_kwargs") or {}
    ids = tokenizer.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=True, **kwargs
    )
    return {"prompt_ids": ids["input_ids"]}


def as_trained(method: str, raw: Any) -> Any:
    """Return the rows one for one as the trainer has them: KTO makes two of each pair."""
    from trl import extract_prompt, unpair_preference_dataset

    if method != "kto" or not {"chosen", "rejected"} <= set(raw.column_names):
        return raw
    if "prompt" not in raw.column_names:
        raw = raw.map(extract_prompt)
    return unpair_preference_dataset(raw)


def _tiny(method: str, vocabulary: int) -> Any:
    from transformers import LlamaConfig

    from autotune.facts.model import model_class

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_labels=1,
        architectures=["LlamaForCausalLM"],
    )
    return model_class(config, method)(config)


def described(method: str, rows: Any) -> Any:
    """Return the rows with `lengths`, of their sequences, and `first_label` (see
    `row_formats.py`)."""
    kind = ROW_KINDS[method]
    descriptions = [(kind.lengths(row), kind.first_label(row)) for row in rows]
    rows = rows.add_column("lengths", [lengths for lengths, _ in descriptions])
    return rows.add_column("first_label", [first for _, first in descriptions])


def check_rows(method: str, rows: Any, text_field: str) -> None:
    """Say in our words what TRL would stumble over."""
    columns = set(rows.column_names)
    if method == "sft":
        column_sets: tuple[set[str], ...] = ({text_field}, {"messages"}, {"conversations"})
        column_sets += ({"prompt"}, {"input_ids"})
    elif method == "kto":
        column_sets = ({"prompt", "completion", "label"}, {"chosen", "rejected"})
    elif METHODS[method].online:
        column_sets = ({"prompt"},)
    else:
        column_sets = ({"chosen", "rejected"},)
    if not any(names <= columns for names in column_sets):
        raise ValueError(_what_is_missing(method, rows.column_names, text_field))
    text_columns = {text_field, "prompt", "completion", "input_ids", "labels"}
    text_columns |= {"messages", "conversations"}
    if method != "sft":
        text_columns = {"prompt", "completion", "chosen", "rejected", "label"}
    if METHODS[method].online:
        text_columns = {"prompt"}
    for name in sorted(text_columns & columns):
        for index, value in enumerate(rows[name][:]):
            if value is None:
                raise ValueError(f"`{name}` of row {index} is null")
            fits = isinstance(value, str) or (name != text_field and _is_chat(value))
            if name in (*_TURNS, text_field) and not fits:
                what = "neither text nor a list of messages"
                raise ValueError(f"the `{name}` of row {index} is {what}")
    if METHODS[method].online and not any(rows["prompt"][:]):
        raise ValueError("every `prompt` is empty")


def check_template(method: str, rows: Any, tokenizer: Any, training: dict[str, Any]) -> None:
    """Refuse conversations without a template that turns them into tokens.

    Raises:
        UserError: there is none.
    """
    chats = [name for name in _TURNS if name in rows.column_names and _is_chat(rows[0][name])]
    if not chats or tokenizer.chat_template or training.get("chat_template_path"):
        return
    ways = "take a model with one, put a `chat_template.jinja` beside its tokenizer"
    if "chat_template_path" in training_fields(method):
        ways += ", name one with `training: {chat_template_path: ...}`"
    raise user_error(
        f"`{chats[0]}` holds conversations, but the model's tokenizer has no chat template to make "
        "text of them",
        where="dataset",
        hint=f"{ways}, or give plain text",
    )


def _is_chat(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _what_is_missing(method: str, columns: list[str], text_field: str) -> str:
    name = "chosen" if method in ("reward", "dpo") else "prompt"
    has = f"the data has {', '.join(columns)} (`columns: {{{name}: {columns[0]}}}` renames)"
    if method == "sft":
        return (
            f"no column `{text_field}` (nor `messages`, `prompt`/`completion`, `input_ids`); "
            f"{has}; `training: {{dataset_text_field: ...}}` names another"
        )
    if method == "kto":
        return f"`method: kto` takes `prompt`, `completion` and `label`, or pairs; {has}"
    if METHODS[method].online:
        return f"`method: {method}` takes a column `prompt`; {has}"
    return f"`method: {method}` takes pairs, of the columns `chosen` and `rejected`; {has}"


def form(method: str, columns: set[str]) -> str:
    """Return what the rows are, in TRL's words."""
    if method == "kto":
        return "unpaired preference"
    if METHODS[method].online:
        return "prompt-only"
    if method in ("reward", "dpo"):
        return "preference" if "prompt" in columns else "preference, implicit prompt"
    if "input_ids" in columns:
        return "tokenized"
    if {"prompt", "completion"} <= columns:
        return "prompt-completion"
    return "messages" if columns & {"messages", "conversations"} else "text"


_IGNORED = -100
"""A label that does not count."""


def check_tokens(method: str, rows: Any, vocabulary: int | None, *, sampled: bool) -> None:
    """Hold tokenized rows against the model's vocabulary.

    Args:
        rows: with their `lengths`.
        vocabulary: of the model; None: not known.
        sampled: whether they are in another order than the data's, so that numbers say nothing.

    Raises:
        UserError: a row that is empty, that has more or fewer labels than tokens, or that has an
            id beyond the vocabulary.
    """
    import pyarrow

    table = rows.with_format("arrow")[:]
    for number, lengths in enumerate(table.column("lengths").to_pylist()):
        if 0 in lengths:
            raise user_error(
                f"{_named(number, sampled)} has no tokens",
                where="dataset",
                hint="remove it, or fill it in",
            )
    for column in table.select(METHODS[method].columns).itercolumns():
        kind = getattr(column.type, "value_type", None)
        if kind is not None and not pyarrow.types.is_integer(kind):
            raise user_error(f"tokens are whole numbers, but these are {kind}", where="dataset")
    if "labels" in METHODS[method].columns:
        _check_labels(table.column("input_ids"), table.column("labels"), sampled)
    if vocabulary is None:
        return
    for name in METHODS[method].columns:
        if name == "labels" or name.endswith("_ids"):
            _check_ids(name, table.column(name), vocabulary, sampled)


def _check_labels(ids: Any, labels: Any, sampled: bool) -> None:
    import pyarrow.compute

    tokens, labelled = (pyarrow.compute.list_value_length(column) for column in (ids, labels))
    counted = pyarrow.compute.not_equal(pyarrow.compute.list_flatten(labels), _IGNORED)
    if not pyarrow.compute.any(counted).as_py():
        what = f"no token counts in the loss: all labels are {_IGNORED}, or masked"
        raise user_error(what, where="dataset")
    number = pyarrow.compute.index(pyarrow.compute.not_equal(tokens, labelled), True).as_py()
    if number >= 0:
        raise user_error(
            f"{_named(number, sampled)} has {tokens[number]} `input_ids` and {labelled[number]} "
            "`labels`",
            where="dataset",
            hint=f"give each token a label, {_IGNORED} where it does not count",
        )


def _named(number: int, sampled: bool) -> str:
    return "a row" if sampled else f"row {number} (counted from 0)"


def _check_ids(name: str, column: Any, vocabulary: int, sampled: bool) -> None:
    import pyarrow.compute

    ids = pyarrow.compute.list_flatten(column)
    if name == "labels":
        ids = ids.filter(pyarrow.compute.not_equal(ids, _IGNORED))
    bounds = pyarrow.compute.min_max(ids).as_py()
    if bounds["max"] is None or 0 <= bounds["min"] <= bounds["max"] < vocabulary:
        return
    wrong = bounds["max"] if bounds["max"] >= vocabulary else bounds["min"]
    number = next(n for n, row in enumerate(column) if wrong in (row.as_py() or ()))
    raise user_error(
        f"`{name}` of {_named(number, sampled)} has the token {wrong}, and the model knows 0 to "
        f"{vocabulary - 1}",
        where="dataset",
        hint="the rows were tokenized for another model, or its tokenizer is another model's",
    )
