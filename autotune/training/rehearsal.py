"""The data of a rehearsal: the few steps in which a bundle is verified by its own launch command.

The rows are the user's own, untokenized, so that loading, templates, tokenization, truncation and
packing are rehearsed too. Their order is fixed: a representative step, a step that ends with the
worst micro-batch, then representative steps, which are timed.
"""

import json
import random
from pathlib import Path
from typing import Any

from autotune.probe.protocol import (
    UNTIMED_STEPS,
    ProbeFolder,
    RehearsalRequest,
    read_json,
    write_json,
)
from autotune.training.batches import Rows, grouped_by_length, spread_over_lengths


def rehearsal(path: Path) -> None:
    """Write the data of `path/request.json` and, where there are none, random weights."""
    folder = ProbeFolder(path=path)
    request = RehearsalRequest.from_plain(read_json(folder.request) or {})
    rows = Rows(request.rows)
    source = _source(request)
    order, test = _order(request, rows)
    target = Path(request.target)
    target.mkdir(parents=True, exist_ok=True)
    for split, indices in (("train", order), ("test", test)):
        source.select(indices).to_json(target / f"{split}.jsonl")
    (target / "README.md").write_text(_card(request.dataset_config), encoding="utf-8")
    _make_weights(request)
    lengths = [min(rows.lengths[n], request.max_length or rows.lengths[n]) for n in order]
    write_json(folder.reply, {"timed": _timed_sizes(request, lengths)})


def _timed_sizes(request: RehearsalRequest, lengths: list[int]) -> list[int] | None:
    """Tokens with padding of each timed micro-batch; None where packing decides it."""
    if request.packed_to is not None:
        return None
    micro, start = request.micro_batch, UNTIMED_STEPS * request.global_batch
    batches = [lengths[n : n + micro] for n in range(start, len(lengths), micro)]
    return [sum(batch) if request.padding_free else micro * max(batch) for batch in batches]


def _source(request: RehearsalRequest) -> Any:
    from datasets import load_from_disk

    if Path(request.raw).is_dir():
        return load_from_disk(request.raw)
    return load_from_disk(request.rows).select_columns(["input_ids", "labels"])


def _order(request: RehearsalRequest, rows: Rows) -> tuple[list[int], list[int]]:
    """(row indices of all steps in order, row indices of the evaluation)."""
    size, micro = request.global_batch, request.micro_batch
    usable = rows.usable(request.max_length) or list(range(len(rows.lengths)))
    lengths = [rows.lengths[index] for index in usable]
    longest = sorted(usable, key=lambda index: -rows.lengths[index])

    def spread(count: int) -> list[int]:
        return [usable[n] for n in spread_over_lengths(lengths, count)]

    worst = _fill(longest, micro)
    test = _fill(longest, max(request.eval_batch, 4))
    if request.packed_to is not None:
        mean = sum(min(n, request.packed_to) for n in lengths) / len(lengths)
        steps = UNTIMED_STEPS + request.timed_steps
        needed = int(1.2 * steps * size * request.packed_to / mean)
        return _fill(spread(needed), needed), test
    count = request.timed_steps * size
    timed = _fill(spread(count), count)
    random.Random(request.seed).shuffle(timed)
    if request.grouped:
        keyed = [{"input_ids": [0] * rows.lengths[i], "index": [i]} for i in timed]
        timed = [one["index"][0] for one in grouped_by_length(keyed, size, request.rows_total)]
    warm = _fill(spread(size), size)
    return [*warm, *warm[: size - micro], *worst, *timed], test


def _fill(indices: list[int], count: int) -> list[int]:
    return [indices[n % len(indices)] for n in range(count)]


def _card(config: str | None) -> str:
    """So that the folder can be loaded under the name of the job's own configuration."""
    name = json.dumps(config or "default")
    return (
        f"---\nconfigs:\n- config_name: {name}\n  data_files:\n"
        "  - {split: train, path: train.jsonl}\n  - {split: test, path: test.jsonl}\n---\n"
    )


def _make_weights(request: RehearsalRequest) -> None:
    """Random weights for a model folder of ours that has none."""
    if request.make_weights is None:
        return
    import transformers

    from autotune.facts.model import model_class

    config = transformers.AutoConfig.from_pretrained(request.make_weights)
    model_class(config)._from_config(config).save_pretrained(request.make_weights)
