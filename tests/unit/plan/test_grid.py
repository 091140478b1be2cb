"""Checkpointing between none and all layers: estimated from these two, traced where it may win."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.estimate.protocol import EstimateReply, PointReply, ShapeWork
from autotune.plan.candidates import estimates_of
from autotune.plan.grid import BETWEEN, MOST, ends_of, traced_where_promising
from autotune.plan.variants import variant_tasks
from autotune.space.checkpointing import LEANEST_FIRST, value_in
from tests.unit.builders import GIB, make_facts, make_job, make_space
from tests.unit.run.test_expectations import CEILINGS

ROWS, LENGTH, LAYERS, HIDDEN = 4, 1000, 8, 1024
JOB = make_job(
    global_batch_size=8,
    fixed={
        "attn_implementation": "sdpa",
        "per_device_train_batch_size": ROWS,
        "expandable_segments": False,
        "padding_free": False,
        "activation_offloading": False,
        "optim": "adamw_torch_fused",
        "loss_type": "nll",
        "use_liger_kernel": False,
        "dataloader_num_workers": 0,
        "train_sampling_strategy": "random",
    },
)
FACTS = make_facts("cuda")
FACTS = replace(
    FACTS,
    model=replace(FACTS.model, layers=LAYERS, hidden_size=HIDDEN),
    stack=replace(FACTS.stack, checkpoints_every_n=True, checkpoints_selectively=True),
)
NONE, FULL = 32 * GIB, 8 * GIB
"""Peaks without checkpointing, and with it in all layers."""


def tasks():
    space = make_space(JOB, FACTS)
    return variant_tasks(
        [space.settings(one) for one in space.candidates],
        rows=Path("rows"),
        limit=2**40,
        cache=None,
    )


def value_of(task):
    return value_in(task.traced.config)


def reply_of(task, peaks):
    value = value_of(task)
    peak = peaks[value]
    again = {False: 0, True: LAYERS, "every_2": 4, "every_4": 2}.get(value, LAYERS)
    operator = ["aten::mm", "memory", "float32", [], 0, 10**6, 0, 3 * LAYERS + again]
    point = PointReply(
        peak_allocated_bytes=peak,
        peak_reserved_bytes=peak,
        parts={"weights": GIB, "activations": peak - GIB},
        operator="mm",
        phase="micro-step",
        oom=False,
        missing_bytes=None,
        retries=0,
        phases={"micro-step": peak, "step": 2 * GIB},
        sample=[(ROWS * LENGTH // 2, ROWS * LENGTH // 2, 1)],
        worst_tokens=ROWS * LENGTH,
        masked=False,
        method="trace",
        copied_bytes=2**20 if value == "offload" else 0,
    )
    shape = ShapeWork(rows=ROWS, length=LENGTH, masked=False, flat=False, work=[operator])
    return EstimateReply(
        process_bytes=1,
        points=[point for _ in task.request.points],
        shapes=[shape],
        optimizer_work={"": []},
    )


PEAKS = {False: NONE, True: FULL, "every_2": 20 * GIB, "every_4": 26 * GIB}
PEAKS |= {"selective": 9 * GIB, "offload": 7 * GIB}


def traced_at(limit, most=MOST, heard=None):
    """The values that are traced on a device with this limit, in their order, and all replies."""
    values, asked = [], tasks()

    def trace(some, name, hear):
        values.append([value_of(task) for task in some])
        replies = [reply_of(task, PEAKS) for task in some]
        for place, reply in enumerate(replies):
            hear(place, reply)
        return replies

    def estimates(task, reply):
        return estimates_of([task], [reply], limit, ceilings=CEILINGS)

    found = traced_where_promising(trace, estimates, most)(asked, "copies", heard)
    return values, dict(zip(map(value_of, asked), found, strict=True))


def test_each_value_between_has_both_ends():
    values = [value_of(task) for task in tasks()]
    assert set(values) == set(LEANEST_FIRST)
    ends = ends_of(tasks())
    assert {values[number] for number in ends} == {"every_2", "every_4", "selective", "offload"}
    assert {(values[none], values[every]) for none, every in ends.values()} == {(False, True)}
    alone = [task for task in tasks() if value_of(task) is not True]
    assert not ends_of(alone)


def test_where_none_fits_nothing_else_is_traced():
    values, _ = traced_at(80 * GIB)
    assert values == [[False, True]]


def test_values_that_may_win_are_traced_and_the_first_one_is_among_them():
    values, replies = traced_at(24 * GIB)
    assert values == [[False, True], ["every_2"]]  # of every fourth layer it does not fit
    methods = {value: reply.points[0].method for value, reply in replies.items()}
    assert methods["every_2"] == "trace"
    assert {value for value, method in methods.items() if method == BETWEEN} == {
        "every_4",
        "selective",
        "offload",
    }


def test_where_nothing_fits_the_leaner_is_traced():
    values, _ = traced_at(7 * GIB)
    assert values == [[False, True], ["offload"]]


def test_nothing_between_is_traced_where_no_trace_is_left_for_it():
    assert traced_at(24 * GIB, most=0)[0] == [[False, True]]


@pytest.mark.parametrize(("value", "share"), [("every_2", 0.5), ("every_4", 0.75)])
def test_every_nth_layer_is_on_the_line_between_none_and_all(value, share):
    _, replies = traced_at(80 * GIB)
    point, (shape,) = replies[value].points[0], replies[value].shapes
    assert point.peak_reserved_bytes == FULL + share * (NONE - FULL)
    assert sum(point.parts.values()) == point.peak_allocated_bytes
    assert sum(row[-1] for row in shape.work) == 3 * LAYERS + (1 - share) * LAYERS


def test_what_is_kept_or_offloaded_is_counted_by_layers_and_tokens():
    _, replies = traced_at(80 * GIB)
    inputs = LAYERS * ROWS * LENGTH * HIDDEN * 4  # of a stream in float32
    offloaded, selective = replies["offload"].points[0], replies["selective"].points[0]
    assert offloaded.copied_bytes == inputs
    assert offloaded.peak_allocated_bytes == FULL - inputs * (LAYERS - 1) // LAYERS
    assert offloaded.host_bytes == LAYERS * 2**24
    assert selective.peak_allocated_bytes == FULL + inputs // 2  # computed in 16 bits


def test_replies_are_handed_on_as_they_come():
    heard = []
    _, replies = traced_at(24 * GIB, heard=lambda number, reply: heard.append(number))
    assert len(heard) == len(replies) + 1  # that of the traced value twice
