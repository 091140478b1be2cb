"""The answer of a plan as people read it, and its table."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from autotune.cli.views.plan import plan_plain, plan_view
from autotune.estimate.speed.step_time import TimeParts
from autotune.plan.answer import OtherDtype, answer_of
from autotune.plan.choices import choices
from autotune.plan.plan import Plan
from autotune.report.choice_table import choice_table, peak_cell, signs_lines, speed_cell
from autotune.report.plan_answer import answer_plain
from autotune.units import format_speed
from tests.unit.builders import GIB, make_estimate, make_facts, make_job, make_space


def made(estimate_of, job=None, facts=None):
    """A plan of a job whose estimates are a function of the candidate."""
    job, facts = job or make_job(global_batch_size=8), facts or make_facts("cuda")
    space = make_space(job, facts)
    estimates = {candidate.key: estimate_of(candidate) for candidate in space.candidates}
    pairs = [(candidate, estimates[candidate.key]) for candidate in space.candidates]
    folded = choices(space, pairs, job.devices.total)
    return Plan(
        facts=facts,
        space=space,
        estimates=estimates,
        limit_bytes=24 * GIB,
        devices=job.devices.total,
        seconds=3.0,
        cached=False,
        choices=tuple(folded),
        answer=answer_of(folded, job, facts),
        assumed=("nothing else",),
    )


def estimated(candidate):
    """The more rows the faster; eight do not fit."""
    rows = candidate.micro_batch
    fits = rows < 8
    speed = 9000.0 * rows * (0.8 if candidate["gradient_checkpointing"] else 1)
    estimate = replace(make_estimate(4 * rows * GIB, speed), step_time_s=2.0, fits=fits)
    return replace(estimate, p_oom=0.0 if fits else 1.0, missing_bytes=None if fits else GIB)


def text_of(plan, width=80, **options):
    console = Console(width=width, record=True, file=io.StringIO())
    options = {"command": "`autotune run job.yaml`", **options}
    console.print(*plan_view(plan, plan.ranked(), **options), highlight=False)
    return console.export_text()


def test_the_first_line_says_what_to_use_and_what_it_takes():
    text = " ".join(text_of(made(estimated)).split())
    assert text.startswith("Use 4 x 2 without checkpointing")
    assert "36k tokens/s (estimated, +-30%), 16 GiB of 24 GiB; an epoch takes" in text


def test_it_says_what_is_kept_on_the_host_where_something_is_offloaded():
    pins = {"distributed_type": "DEEPSPEED", "zero_stage": 2, "offload_optimizer_device": "cpu"}
    job = make_job(global_batch_size=8, devices={"kind": "cuda", "count": 2}, fixed=pins)
    text = text_of(made(lambda c: replace(estimated(c), host_bytes=107 * GIB), job))
    assert "16 GiB of 24 GiB and 107 GiB of the host; an" in " ".join(text.split())
    assert "of the host" not in text_of(made(lambda c: replace(estimated(c), host_bytes=GIB)))


def test_it_says_what_limits_it_what_is_next_what_is_assumed_and_how_to_go_on():
    text = " ".join(text_of(made(estimated)).split())
    assert "Memory is the limit: 8 x 1 without checkpointing" in text
    assert "would be 100% faster, but needs 32 GiB" in text
    assert "Next best: 4 x 2 with checkpointing" in text and "20.0% slower, 16 GiB" in text
    assert "Assumed: nothing else." in text
    assert "Next: `autotune run job.yaml`" in text


@pytest.mark.parametrize(
    ("tuning", "held", "other", "words"),
    [
        (
            "lora",
            "bfloat16",
            "float32",
            "the base in bfloat16, as its checkpoint has it; in float32",
        ),
        (
            "lora",
            "float16",
            "float32",
            "the base in float16, in which the device computes (its checkpoint is in bfloat16)",
        ),
        ("full", "float32", "bfloat16", "weights in float32, which is TRL's default. In bfloat16"),
    ],
)
def test_it_says_as_what_weights_are_held_and_what_another_type_needs(tuning, held, other, words):
    facts = make_facts("cuda", capability=(7, 5) if held == "float16" else (9, 0))
    facts = replace(facts, model=replace(facts.model, dtype="bfloat16"))
    plan = made(estimated, make_job(global_batch_size=8, tuning=tuning), facts)
    assert plan.answer.choice.candidate["dtype"] == held
    alternative = OtherDtype(dtype=other, estimate=make_estimate(20 * GIB, 7000.0))
    plan = replace(plan, answer=replace(plan.answer, alternative=alternative))
    text = " ".join(text_of(plan).split())
    assert f"Assumed: {words}" in text
    assert "the same needs 20 GiB, at 7k tokens/s" in text
    plain = answer_plain(plan, plan.answer)["other_dtype"]
    assert (plain["dtype"], plain["estimate"]["peak_memory_bytes"]) == (other, 20 * GIB)


def test_the_table_has_a_row_for_each_choice_and_is_legible_at_80_columns():
    plan = made(estimated)
    lines = text_of(plan).splitlines()
    assert max(map(len, lines)) <= 80
    batches = tuple(f"{rows} x {8 // rows}" for rows in (1, 2, 4, 8))
    assert sum(line.startswith(batches) for line in lines) == len(plan.choices) == 8


def test_every_candidate_is_listed_on_request():
    plan = made(estimated)
    lines = text_of(plan, 160, every=True).splitlines()
    assert sum(line.startswith(("1x8", "2x4", "4x2", "8x1")) for line in lines) == len(
        plan.space.candidates
    )


def test_of_many_choices_twelve_are_shown_and_the_rest_is_counted():
    job = make_job(devices={"kind": "cuda", "count": 4}, global_batch_size=32)
    plan = made(estimated, job)
    assert len(plan.choices) > 12
    text = text_of(plan)
    assert f"... and {len(plan.choices) - 12} more choices (--all: every candidate)" in text
    assert "on 4 devices (" in " ".join(text.split())
    assert "\u2026" not in text  # nothing is cut at 80 columns


def test_where_nothing_fits_the_smallest_is_named_and_no_guess_is_made():
    def too_large(candidate):
        estimate = make_estimate(30 * candidate.micro_batch * GIB, 1.0)
        return replace(estimate, fits=False, p_oom=1.0, missing_bytes=6 * GIB)

    text = " ".join(text_of(made(too_large)).split())
    assert text.startswith("Nothing fits in 24 GiB. The smallest is 1 x 8")
    assert "It needs 30 GiB of 24 GiB, 30 GiB of that for weights" in text
    assert "autotune advise" in text and "lora" not in text


def test_what_is_not_safe_says_so():
    text = " ".join(text_of(made(lambda c: replace(estimated(c), p_oom=0.3))).split())
    assert "Nothing is safe: this runs out of memory with probability 30%." in text
    assert "maybe" in text


def test_packages_that_are_not_here_are_named():
    job = make_job(global_batch_size=8, fixed={"use_liger_kernel": True, "loss_type": "nll"})
    facts = make_facts("cuda")
    plan = made(estimated, job, replace(facts, stack=replace(facts.stack, assumed=True)))
    assert "Install on the training machine: liger-kernel." in " ".join(text_of(plan).split())
    assert plan.answer.packages == ("liger-kernel",)


def test_candidates_that_are_not_estimated_are_counted_with_their_reason():
    optimizers = ["adamw_torch_fused", "galore_adamw"]
    job = make_job(global_batch_size=8, recipe={"optim": optimizers})
    facts = make_facts("cuda")
    plan = made(estimated, job, replace(facts, stack=replace(facts.stack, assumed=True)))
    text = " ".join(text_of(plan).split())
    assert "candidates are not estimated: no trace can do without the package galore-torch" in text
    (left_out,) = plan_plain(plan, plan.ranked())["not_estimated"]
    assert left_out["count"] > 0 and "galore-torch" in left_out["reason"]


def test_a_cost_that_is_not_known_is_said_and_ranks_behind_what_is_as_fast():
    def unknown(candidate):
        estimate = replace(estimated(candidate), tokens_per_s=9000.0)
        cost = ("exchange",) if candidate.micro_batch == 1 else ()
        return replace(estimate, left_out=cost)

    plan = made(unknown)
    assert plan.answer.choice.candidate.micro_batch == 2  # the leaner one has the unknown cost
    text = " ".join(text_of(plan).split())
    assert (
        "<9k" in text and "<: at most; the time of exchange is not known, and not counted" in text
    )
    assert "<9000" in text_of(plan, 160, every=True)
    alone = made(lambda c: replace(estimated(c), left_out=("exchange",)))
    assert "Use 4 x 2" in text_of(alone)
    said = answer_plain(alone, alone.answer)
    assert (said["speed_error"], said["left_out"]) == (None, ["exchange"])
    assert "at most 36k tokens/s (estimated, error unknown)" in said["text"]
    assert "<" not in text_of(made(estimated))


@pytest.mark.parametrize(
    ("moved", "words"), [(0.0, "+-30%"), (0.2, "+-55%"), (0.5, "within a factor of 2.3")]
)
def test_the_more_is_moved_the_less_sure_is_the_speed(moved, words):
    parts = TimeParts(matmul_s=1 - moved, exchange_s=moved)
    plan = made(lambda c: replace(estimated(c), time_parts=parts))
    assert f"(estimated, {words})" in " ".join(text_of(plan).split())


def test_of_a_gpu_of_another_maker_no_error_is_claimed_and_no_run_promised():
    facts = make_facts("cuda")
    device = replace(facts.device, maker="AMD", capability=None)
    text = " ".join(text_of(made(estimated, facts=replace(facts, device=device))).split())
    assert "36k tokens/s (estimated, error unknown)" in text
    assert "Note: nothing was tested on a GPU of AMD" in text
    assert "`autotune run` knows no GPUs of AMD" in text


def test_programs_get_the_answer_as_an_object():
    plan = made(estimated)
    answer = plan_plain(plan, plan.ranked())["answer"]
    assert answer == answer_plain(plan, plan.answer)
    assert answer["knobs"]["per_device_train_batch_size"] == 4
    assert (answer["tokens_per_s"], answer["peak_memory_bytes"]) == (36000.0, 16 * GIB)
    assert answer["limited_by"]["knobs"]["per_device_train_batch_size"] == 8
    assert answer["text"].startswith("Use 4 x 2")
    nothing = made(lambda c: replace(estimated(c), fits=False, p_oom=1.0, missing_bytes=GIB))
    assert plan_plain(nothing, nothing.ranked())["answer"] is None


def test_programs_get_the_table_that_is_printed():
    plan = made(estimated)
    for fits, top in ((False, None), (True, None), (False, 2)):
        table = plan_plain(plan, plan.ranked(), fits=fits, top=top)["table"]
        view = plan_view(plan, plan.ranked(), command="", fits=fits, top=top)
        (printed,) = [part for part in view if isinstance(part, Table)]
        columns = [(column.header, *column.cells) for column in printed.columns]
        assert [table["heads"], *table["rows"]] == [*zip(*columns, strict=True)]
        assert len(table["rows"]) == (2 if top else len(table["rows"])) > 0
    nothing = made(lambda c: replace(estimated(c), fits=False, p_oom=1.0, missing_bytes=GIB))
    assert plan_plain(nothing, nothing.ranked())["table"]["rows"] == ()


@pytest.mark.parametrize(
    ("speed", "text"), [(12.34, "12.3"), (874.0, "874"), (45012.0, "45k"), (123456.0, "123k")]
)
def test_a_speed_has_three_digits(speed, text):
    assert format_speed(speed) == f"{text} tokens/s"


def test_a_table_of_unknown_speeds_has_none():
    plan = made(lambda c: replace(estimated(c), tokens_per_s=None, step_time_s=None))
    assert "tokens/s" not in choice_table(plan, plan.choices).heads
    assert "rates of this device are not known" in " ".join(text_of(plan).split())


def test_a_plan_that_was_stopped_says_so():
    plan = made(estimated)
    text = " ".join(text_of(replace(plan, unfinished=3)).split())
    assert "stopped: 3 more candidates have no estimate yet" in text
    text = " ".join(text_of(replace(plan, unfinished=0)).split())
    assert "stopped: all are estimated, the first ones not yet as closely" in text
    assert "stopped" not in text_of(plan)


def test_signs_in_a_table_are_explained_below_it_and_only_there():
    known = make_estimate(4 * GIB, 9000.0)
    at_least = replace(known, at_least=True)
    at_most = replace(known, left_out=("NVMe",))
    assert peak_cell(known) == peak_cell(at_least).removeprefix(">") == "4 GiB"
    assert peak_cell(at_least).startswith(">")
    assert speed_cell(at_most, "9k tokens/s") == "<9k"
    assert list(signs_lines([known])) == []
    assert [line[0] for line in signs_lines([known, at_least, at_most])] == ["<", ">"]
    assert "the time of NVMe is not known" in next(signs_lines([at_most, at_most]))
