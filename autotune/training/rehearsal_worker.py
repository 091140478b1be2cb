"""The data of a rehearsal: the few steps in which a bundle is verified by its own launch command.

The rows are the user's own, untokenized, so that loading, templates, tokenization, truncation and
packing are rehearsed too. Their order is fixed: a representative step, a step that ends with the
worst micro-batch, then representative steps, which are timed.
"""

import contextlib
import json
import math
import os
import random
from pathlib import Path
from typing import Any

from autotune.job.methods import METHODS
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.training.batch_plan import (
    Batching,
    Rows,
    cut_lengths,
    grouped_by_length,
    spread_over_lengths,
)
from autotune.training.rehearsal import (
    LOGGING_STEPS,
    UNTIMED_STEPS,
    RehearsalReply,
    RehearsalRequest,
)
from autotune.training.rollout_plan import Rollout, dealt_order, rollout_plan


def rehearsal(path: Path) -> None:
    """Write the data of `path/request.json` and, where there are none, random weights."""
    folder = ChildFolder(path=path)
    request = RehearsalRequest.from_plain(read_json(folder.request))
    rows = Rows(request.rows, request.method)
    source = _source(request, request.method)
    if METHODS[request.method].online:
        order, test, reply = _prompts(request, Rollout(**request.batching), rows)
    else:
        batching = Batching(**request.batching)
        order, test = _order(request, batching, rows)
        sizes = _timed_sizes(batching, rows, order, request.processes)
        reply = RehearsalReply(untimed=UNTIMED_STEPS, timed=request.timed_steps, sizes=sizes)
    target = Path(request.target)
    target.mkdir(parents=True, exist_ok=True)
    for split, indices in (("train", order), ("test", test)):
        source.select(indices).to_json(target / f"{split}.jsonl")
    (target / "README.md").write_text(_card(request.dataset_config), encoding="utf-8")
    for model in request.make_weights:
        _make_weights(model, request)
    write_json(folder.reply, reply.plain())


def _timed_sizes(
    batching: Batching, rows: Rows, order: list[int], processes: int
) -> list[int] | None:
    """Return tokens with padding of each timed micro-batch, of the ranks' the largest; None where
    packing decides it."""
    if batching.packing:
        return None
    sizes, micro = [], batching.micro_batch
    for start in range(UNTIMED_STEPS * batching.global_batch, len(order), micro):
        every = [n for index in order[start : start + micro] for n in rows.lengths[index]]
        lengths = cut_lengths(every, batching.max_length)
        sizes.append(sum(lengths) if batching.padding_free else len(lengths) * max(lengths))
    return [max(sizes[n : n + processes]) for n in range(0, len(sizes), processes)]


def _source(request: RehearsalRequest, method: str) -> Any:
    from datasets import load_from_disk

    if Path(request.raw).is_dir():
        return load_from_disk(request.raw)
    return load_from_disk(request.rows).select_columns(list(METHODS[method].columns))


def _order(
    request: RehearsalRequest, batching: Batching, rows: Rows
) -> tuple[list[int], list[int]]:
    """Return (row indices of all steps in order, row indices of the evaluation)."""
    size, micro = batching.global_batch, batching.micro_batch
    usable = rows.usable(batching) or list(range(len(rows.lengths)))
    lengths = [rows.longest[index] for index in usable]
    longest = sorted(usable, key=lambda index: -rows.longest[index])

    def spread_indices(count: int) -> list[int]:
        return [usable[n] for n in spread_over_lengths(lengths, count)]

    worst_rows = _fill(longest, micro) * request.processes
    test = _fill(longest, max(request.eval_batch, 4))
    if batching.packing and batching.max_length is not None:
        mean = sum(cut_lengths(lengths, batching.max_length)) / len(lengths)
        steps = UNTIMED_STEPS + request.timed_steps
        rows_needed = int(1.2 * steps * size * batching.max_length / mean)
        return _fill(spread_indices(rows_needed), rows_needed), test
    count = request.timed_steps * size
    timed_indices = _fill(spread_indices(count), count)
    random.Random(batching.seed).shuffle(timed_indices)
    if batching.grouped:
        keyed_rows = [{"input_ids": [0] * rows.longest[i], "index": [i]} for i in timed_indices]
        timed_indices = [
            batch["index"][0] for batch in grouped_by_length(keyed_rows, size, request.rows_total)
        ]
    warm_up_indices = _fill(spread_indices(size), size)
    return [
        *warm_up_indices,
        *warm_up_indices[: size - len(worst_rows)],
        *worst_rows,
        *timed_indices,
    ], test


def _prompts(
    request: RehearsalRequest, rollout: Rollout, rows: Rows
) -> tuple[list[int], list[int], RehearsalReply]:
    """Return the same where completions are generated: a representative cycle, one from the longest
    prompts, then those that are timed; an evaluation of the longest. Whole cycles, and as steps are
    logged by twos an even number of steps."""
    plan = rollout_plan(rows.longest, rollout, request.rows_total)
    cycles = math.ceil(request.timed_steps / rollout.steps)
    cycles += cycles * rollout.steps % LOGGING_STEPS
    order = plan.timed + plan.longest * rollout.rounds + plan.timed * cycles
    reply = RehearsalReply(
        untimed=UNTIMED_STEPS * rollout.steps,
        timed=cycles * rollout.steps,
        sizes=None,
        tokens=cycles * plan.tokens * request.processes,
    )
    test = _fill(plan.longest, max(request.eval_batch // rollout.group, 1))
    return dealt_order(order, rollout, request.processes), test, reply


def _fill(indices: list[int], count: int) -> list[int]:
    return [indices[n % len(indices)] for n in range(count)]


def _card(config: str | None) -> str:
    """Return a data card: the folder can be loaded under the name of the job's own
    configuration."""
    name = json.dumps(config or "default")
    return (
        f"---\nconfigs:\n- config_name: {name}\n  data_files:\n"
        "  - {split: train, path: train.jsonl}\n  - {split: test, path: test.jsonl}\n---\n"
    )


def _make_weights(folder: str, request: RehearsalRequest) -> None:
    """Make random weights for a model folder of ours that has none; on the GPU if it has the room,
    as the host takes minutes for 7B."""
    import torch

    from autotune.facts.model import model_class, model_config

    config = model_config(folder, request.method)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # random weights are packed in no way
    kind = model_class(config, request.method)
    if request.environment:
        os.environ.update(request.environment)  # read when CUDA starts, which it has not yet
        with contextlib.suppress(RuntimeError), torch.device("cuda"):  # no room, or no use of it
            kind._from_config(config).save_pretrained(folder)
            return
    kind._from_config(config).save_pretrained(folder)
