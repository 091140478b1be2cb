"""What a script is when its training begins."""

import dataclasses
import sys
from statistics import fmean
from typing import Any

from autotune.script.child.calls import other_trainings
from autotune.script.child.rows import RowLengths, row_lengths
from autotune.script.protocol import TOKENS, Look

ONLINE = "_generate_and_score_completions"
PLAIN = (bool, int, float, str, type(None))
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
"""What versions of transformers call it."""


def look_at(trainer: Any, watch: Any) -> Look:
    """Return what is seen of a trainer; `watch` knows what the script did before."""
    args, model = trainer.args, trainer.model
    rows = row_lengths(trainer.train_dataset)
    parameters = list(model.parameters())
    config: Any = getattr(model, "config", None)
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return Look(
        trainer=_name(type(trainer)),
        kinds=[kind.__name__ for kind in type(trainer).__mro__],
        arguments=_plain_fields(args),
        arguments_class=_name(type(args)),
        processes=int(args.world_size),
        devices_per_process=max(int(args.n_gpu), 1) if args.world_size == 1 else 1,
        device_kind=str(args.device.type),
        model=type(bare).__name__,
        model_type=str(getattr(config, "model_type", "")),
        parameters=sum(_count(p) for p in parameters),
        trainable=sum(_count(p) for p in parameters if p.requires_grad),
        attention=getattr(config, "_attn_implementation", None),
        checkpointing=bool(getattr(model, "supports_gradient_checkpointing", False))
        and not _checkpoints_by_itself(trainer),
        shape={name: _number(text, field) for name, field in SHAPE.items()},
        peft=hasattr(model, "peft_config"),
        rows=None if rows is None else len(trainer.train_dataset),
        lengths={} if rows is None or not rows.known else _quantiles(rows),
        unit=TOKENS if rows is None else rows.unit,
        groups="input_ids" in (getattr(trainer.train_dataset, "column_names", None) or ()),
        online=hasattr(trainer, ONLINE),
        flags=any(isinstance(args, kind) for kind in watch.parsed),
        command_line=list(sys.argv),
        notes=_notes(trainer, rows, watch),
        again=other_trainings(),
    )


SHAPE = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
}


def _notes(trainer: Any, rows: RowLengths | None, watch: Any) -> list[str]:
    notes = []
    if rows is None:
        notes.append(
            "its data are a stream: probes train on rows as they come, and the longest rows of the "
            "data may take more memory than any that was seen"
        )
    elif not rows.known:
        notes.append(
            "how long its rows are is not known: probes train on rows spread over the data, and "
            "the longest may take more memory than any that was seen"
        )
    elif len(rows.indices) < len(trainer.train_dataset):
        notes.append(f"the lengths of {len(rows.indices)} of its rows were looked at")
    if rows is not None and not _is_of_library(type(trainer).get_train_dataloader):
        notes.append(
            "it makes its own data loader: probes train on rows in its order, and the longest rows "
            "of the data may take more memory than any that was seen"
        )
    if _checkpoints_by_itself(trainer):
        notes.append(
            "it switches checkpointing on by itself, so that its arguments cannot switch it off: "
            "where it has a setting of its own for that, compare it by hand"
        )
    if watch.trainers > 1:
        notes.append(
            f"it makes {watch.trainers} trainers: what is measured is the first that trains"
        )
    return notes


def checkpointing_of(model: Any) -> bool | None:
    """Return whether a model checkpoints, whatever switched that on; None: it does not say."""
    values = [getattr(model, f"is_{name}", None) for name in CHECKPOINTING]
    flags = [value for value in values if isinstance(value, bool)]
    return flags[0] if flags else None


def _is_of_library(function: Any) -> bool:
    return function.__module__.split(".")[0] in ("transformers", "trl")


def _checkpoints_by_itself(trainer: Any) -> bool:
    """True if the script has switched checkpointing on, and its arguments say nothing of it."""
    return bool(checkpointing_of(trainer.model)) and not trainer.args.gradient_checkpointing


def _plain_fields(args: Any) -> dict[str, Any]:
    """Return fields that are plain values; an enumeration by its value."""
    values = {f.name: getattr(args, f.name, None) for f in dataclasses.fields(args)}
    values = {name: getattr(value, "value", value) for name, value in values.items()}
    return {name: v for name, v in values.items() if isinstance(v, PLAIN) and "token" not in name}


def _quantiles(rows: RowLengths) -> dict[str, float]:
    ranked = sorted(rows.lengths)
    places = {"p1": 0.01, "p50": 0.5, "p99": 0.99}
    quantiles = {n: float(ranked[int(q * (len(ranked) - 1))]) for n, q in places.items()}
    return {**quantiles, "longest": float(ranked[-1]), "mean": fmean(ranked)}


def _count(parameter: Any) -> int:
    """Return the number of elements of a parameter, also where DeepSpeed or bitsandbytes hold it in
    another form."""
    whole = getattr(parameter, "ds_numel", None) or parameter.numel()
    return int(whole) * (2 if type(parameter).__name__ == "Params4bit" else 1)


def _number(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
