"""The table of choices: no column says the same in every row, and every row is a line."""

import functools
import io
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.cli.views.plan import plan_view
from autotune.report.choice_table import COLUMNS, ROWS, WITH, choice_table
from autotune.report.words import other_words
from tests.unit.builders import GIB, make_estimate, make_facts, make_job
from tests.unit.cli.views.test_answer import estimated, made, text_of

OFFLOADED = {"distributed_type": "DEEPSPEED", "zero_stage": 3, "offload_optimizer_device": "cpu"}


def sharded(count=8, **more):
    job = make_job(devices={"kind": "cuda", "count": count}, global_batch_size=count * 32, **more)
    return made(lambda c: replace(estimated(c), p_oom=0.01 * c.micro_batch), job)


def alike(candidate):
    """All fit surely, all as fast and large: only words differ."""
    return replace(make_estimate(4 * GIB, 9000.0), step_time_s=2.0)


MAKERS = {
    "one device": lambda: made(estimated),
    "eight devices": sharded,
    "fewer devices": lambda: sharded(4, recipe={"num_processes": [4, 2]}),
    "offloaded": lambda: sharded(fixed={**OFFLOADED, "offload_param_device": "cpu"}),
    "nothing but words": lambda: made(alike),
    "no speeds": lambda: made(lambda c: replace(estimated(c), tokens_per_s=None, step_time_s=None)),
    "long words": lambda: made(
        estimated,
        make_job(global_batch_size=8, recipe={"optim": ["adamw_torch_fused", "adamw_apex_fused"]}),
    ),
}


@functools.cache
def plan_of(name):
    return MAKERS[name]()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("rows", [2, ROWS, 40])
def test_no_column_is_the_same_in_all_rows_and_a_row_fits_a_line(name, rows):
    plan = plan_of(name)
    shown = plan.choices[:rows]
    table = choice_table(plan, shown)
    assert len(table.rows) == len(shown)
    for head, *cells in zip(table.heads, *table.rows, strict=True):
        assert len(set(cells)) > 1, head
    widths = [max(map(len, column)) for column in zip(table.heads, *table.rows, strict=True)]
    assert sum(widths) + 2 * (len(widths) - 1) <= COLUMNS


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_said_of_all_stands_in_no_row_and_no_word_is_lost(name):
    plan = plan_of(name)
    shown = plan.choices[:ROWS]
    table = choice_table(plan, shown)
    shared = set(table.shared[5:-1].split(", ")) - {""}
    cells = [row[-1] if WITH in table.heads else "" for row in table.rows]
    for choice, cell in zip(shown, cells, strict=True):
        own = set(cell.split(", ")) - {""}
        assert not own & shared
        if "+" not in cell:
            assert set(other_words(choice.candidate, plan.space)) <= own | shared


def test_at_most_twelve_rows_are_printed_each_on_one_line_at_80_columns():
    lines = text_of(plan_of("eight devices")).splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith(("batch", "sharding")))
    end = next(n for n, line in enumerate(lines) if line.startswith("... and"))
    assert end - head - 1 == ROWS
    asked = text_of(plan_of("eight devices"), top=3)
    assert f"... and {len(plan_of('eight devices').choices) - 3} more choices" in asked


def test_a_probability_is_a_column_only_where_it_is_neither_0_nor_1():
    sure = choice_table(plan_of("one device"), plan_of("one device").choices)
    assert "p(oom)" not in sure.heads and "fits" in sure.heads
    plan = made(lambda c: replace(estimated(c), p_oom=0.02 * c.micro_batch))
    assert "p(oom)" in choice_table(plan, plan.choices).heads
    plan = made(lambda c: replace(estimated(c), p_oom=0.3))
    table = choice_table(plan, plan.choices)
    assert "p(oom)" not in table.heads and "p(oom) 0.30" in table.shared


def test_what_all_share_is_one_line_above():
    plan = sharded(fixed={**OFFLOADED, "offload_param_device": "none"})
    shown = [c for c in plan.choices if c.safe and not c.candidate["gradient_checkpointing"]]
    table = choice_table(plan, shown)
    assert table.shared.startswith("All: 8 devices, ZeRO-3, without checkpointing, fits, optimizer")
    assert not {"sharding", "ckpt", "fits"} & set(table.heads)
    assert table.shared in " ".join(text_of(replace(plan, choices=tuple(shown))).split())


def test_a_single_row_keeps_its_figures():
    plan = plan_of("one device")
    table = choice_table(plan, plan.choices[:1])
    assert table.heads == ("batch", "tokens/s", "peak")
    assert table.shared == "All: without checkpointing, fits."


def test_words_that_make_a_row_too_long_are_counted():
    plan = made(estimated, facts=make_facts("cuda", installed=True))
    choice, other = plan.choices[:2]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*plan_view(plan, plan.ranked(), command="x"), highlight=False)
    long = {
        **choice.candidate.values,
        "optim": "o" * 40,
        "loss_type": "l" * 30,
        "attn_implementation": "a" * 30,
    }
    longer = replace(choice, candidate=replace(choice.candidate, values=long))
    table = choice_table(plan, [longer, other])
    first = dict(zip(table.heads, table.rows[0], strict=True))
    assert first[WITH].rpartition("+")[2].isdigit()
    assert table.notes[0].startswith("+1, +2, ...")
