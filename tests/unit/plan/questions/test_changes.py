import importlib
from dataclasses import replace

import pytest

from autotune.job.yaml_file import to_yaml
from autotune.plan.questions.changes import (
    changed_fields,
    more_devices,
    offloading,
    single_changes,
)
from autotune.server.pages.form import changed_job
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_file.load import load_job
from autotune.space.memory_order import expected_leanness
from tests.unit.builders import make_candidate, make_facts, make_job, shipped


def changes(job, **values):
    return list(single_changes(job, make_candidate(**values)))


def texts(job, **values):
    return [change.text for change in changes(job, **values)]


def test_pinned_speed_knobs_come_before_what_changes_the_learning(monkeypatch):
    """With a TRL that holds all logits of `nll`."""
    module = importlib.import_module("autotune.plan.questions.changes")
    monkeypatch.setattr(module, "fused_head", lambda: False)
    job = make_job(fixed={"gradient_checkpointing": False, "loss_type": "nll"})
    found = changes(job, loss_type="nll")
    assert [(change.kind, change.text) for change in found] == [
        ("speed", "`gradient_checkpointing: true` in place of the pinned `false`"),
        ("speed", "`loss_type: chunked_nll` in place of the pinned `nll`"),
        ("recipe", "weights in bfloat16 (`recipe: {dtype: [bfloat16]}`)"),
        ("recipe", "`tuning: lora`"),
        ("recipe", "`tuning: qlora` (the base in 4 bits)"),
        ("recipe", "moments in 8 bits (`recipe: {optim: [adamw_8bit]}`)"),
        ("recipe", "an optimizer with factored moments (`recipe: {optim: [adafactor]}`)"),
        ("recipe", "`max_length: 512`"),
        ("recipe", "`max_length: 256`"),
    ]


def test_each_change_is_one_change_of_the_job():
    fixed = {"gradient_checkpointing": False, "gradient_accumulation_steps": 4}
    job = make_job(fixed=fixed)
    by_text = {change.text.split("`")[1]: change.job for change in changes(job)}
    assert by_text["gradient_checkpointing: true"].fixed == {
        **fixed,
        "gradient_checkpointing": True,
    }
    assert by_text["per_device_train_batch_size: 1"].fixed == {
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 1,
    }
    assert by_text["tuning: lora"] == job.model_copy(update={"tuning": "lora"})
    assert by_text["max_length: 512"] == job.model_copy(update={"max_length": 512})
    assert job.fixed == fixed


def test_a_pin_on_the_weights_gives_way_to_bfloat16():
    job = make_job(fixed={"dtype": "float32", "packing": True})
    (change,) = [one for one in changes(job) if "bfloat16" in one.text]
    assert change.job.fixed == {"packing": True}
    assert change.job.recipe == {"dtype": ["bfloat16"]}


@pytest.mark.parametrize(
    ("pins", "pinned"),
    [
        ({"distributed_type": "DEEPSPEED", "zero_stage": 2}, "zero_stage: 2"),
        ({"distributed_type": "MULTI_GPU"}, "distributed_type: MULTI_GPU"),
    ],
)
def test_several_devices_that_are_pinned_to_divide_little_may_divide_all(pins, pinned):
    job = make_job(devices={"count": 8}, fixed={**pins, "packing": True})
    (change,) = [c for c in changes(job) if "ZeRO-3" in c.text]
    assert change.text.startswith(f"ZeRO-3 in place of the pinned `{pinned}`")
    assert change.kind == "speed"
    three = {"distributed_type": "DEEPSPEED", "zero_stage": 3, "packing": True}
    assert change.job.fixed == three
    assert not [c for c in changes(change.job) if "ZeRO-3" in c.text]
    assert not [c for c in changes(make_job(fixed=pins)) if "ZeRO-3" in c.text]


def test_nothing_that_is_lean_already_is_proposed():
    job = make_job(
        tuning="qlora",
        max_length=16,
        fixed={"gradient_checkpointing": True, "per_device_train_batch_size": 1},
    )
    lean = {"gradient_checkpointing": True, "micro_batch": 1, "dtype": "bfloat16"}
    assert texts(job, **lean, max_length=16) == []


def test_an_adapter_may_go_on_a_quantised_base():
    assert "`tuning: lora`" not in texts(make_job(tuning="lora"))
    assert "`tuning: qlora` (the base in 4 bits)" in texts(make_job(tuning="lora"))
    assert "`tuning: qlora` (the base in 4 bits)" in texts(make_job(method="ppo"))


def test_ppo_is_advised_to_do_with_fewer_rows_or_shorter_ones():
    job = make_job(method="ppo", max_length=None, global_batch_size=16)
    found = texts(job, response_length=64)
    assert "`response_length: 32`" in found
    assert "`global_batch_size: 8`" in found


def test_knobs_that_the_search_was_free_to_move_are_no_change():
    assert not [text for text in texts(make_job()) if "pinned" in text]


def test_another_loss_is_never_swapped_as_if_it_were_speed():
    job = make_job(fixed={"loss_type": "dft"})
    assert not [text for text in texts(job, loss_type="dft") if "loss_type" in text]


def test_a_shorter_length_keeps_a_batch_in_tokens_exact():
    job = make_job(global_batch_size="96 tokens", max_length=96, tuning="qlora")
    assert texts(job, dtype="bfloat16", max_length=96) == ["`max_length: 48`", "`max_length: 24`"]
    odd = make_job(global_batch_size="66 tokens", max_length=66, tuning="qlora")
    assert texts(odd, dtype="bfloat16", max_length=66) == ["`max_length: 33`"]
    endless = make_job(max_length=None, tuning="qlora")
    assert texts(endless, dtype="bfloat16", max_length=None) == []


@pytest.mark.parametrize("lengths", [[1024], [1024, 512]])
def test_every_changed_job_can_be_bound(lengths):
    job = make_job(
        fixed={"gradient_checkpointing": False, "per_device_train_batch_size": 4},
        recipe={"max_length": lengths},
    )
    facts = make_facts()
    facts = replace(facts, stack=replace(facts.stack, absent=()))
    for change in changes(job):
        space = bind(shipped(), change.job, facts)
        assert space.candidates
        assert change.job.plain()


@pytest.mark.parametrize(
    "fields",
    [
        {"fixed": {"gradient_checkpointing": False, "loss_type": "nll"}},
        {"recipe": {"max_length": [512, 1024], "dtype": ["float32", "bfloat16"]}},
        {"method": "grpo", "reward_funcs": ["accuracy_reward"]},
        {"method": "ppo"},
    ],
)
def test_a_change_is_written_down_as_fields_of_the_job_file(fields, tmp_path):
    before = {"model": "./m", "dataset": "./d", **fields}
    for name in ("m", "d"):
        (tmp_path / name).mkdir()
    file = tmp_path / "job.yaml"
    file.write_text(to_yaml(before), encoding="utf-8")
    job, _ = load_job(file, ())
    space = bind(load_definition(job.method), job, make_facts("cuda"))
    nearest = min(space.candidates, key=expected_leanness)
    found = [*single_changes(job, nearest), *offloading(job, "cuda"), *more_devices(job)]
    assert len(found) > 4
    for change in found:
        moved = changed_fields(job, change.job)
        assert moved, change.text
        file.write_text(changed_job(to_yaml(before), moved), encoding="utf-8")
        assert load_job(file, ())[0] == change.job, change.text
