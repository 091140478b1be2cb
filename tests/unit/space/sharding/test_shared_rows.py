"""Rows that processes share: the batch, what is refused and why, what is launched, what is sent."""

import dataclasses

import pytest
import yaml

from autotune.bundle.configuration import accelerate_config
from autotune.errors import UserError
from autotune.estimate.formula.communication import (
    SharedRows,
    row_buffers_bytes,
    shared_rows_bytes,
)
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_shape import rows_of_step
from autotune.space.sharding.sharding import (
    Sharding,
    engine_name,
    parallelism_environment,
    sharding_of,
)
from autotune.space.trl_config import settings
from tests.unit.builders import make_facts, make_job, make_space


def space(**fields):
    job = make_job(**{"devices": {"count": 8, "kind": "cuda"}, "global_batch_size": 16, **fields})
    facts = make_facts("cuda")
    model = dataclasses.replace(facts.model, attention_heads=8, key_value_heads=4)
    return job, bind(load_definition(job.method), job, dataclasses.replace(facts, model=model))


def reasons(**fields):
    try:
        return {one.reason for one in space(**fields)[1].exclusions}
    except UserError as error:
        return {str(error)}


@pytest.mark.parametrize(("knob", "engine"), [("cp_size", "FSDP"), ("sp_size", "DEEPSPEED")])
def test_the_batch_stays_and_each_group_has_its_part(knob, engine):
    job, bound = space(fixed={knob: 4})
    assert {candidate["distributed_type"] for candidate in bound.candidates} == {engine}
    assert {rows_of_step(one, 8) for one in bound.candidates} == {16}
    assert {one.micro_batch for one in bound.candidates} == {1, 2, 4, 8}
    chosen = bound.settings(bound.candidates[0])
    assert (chosen.processes, chosen.sharding.replicas) == (8, 2)
    assert chosen.config["pad_to_multiple_of"] == (8 if knob == "cp_size" else 4)
    assert engine_name(chosen.sharding).endswith(f", {knob} 4")
    assert "cp_size" not in space()[1].candidates[0].values
    assert any("weigh alike" in note for note in bound.notes) == (knob == "sp_size")


def test_what_the_stack_refuses_is_refused_with_its_reason():
    packed = {"recipe": {"packing": [False, True]}}
    assert any("TRL refuses packing" in text for text in reasons(fixed={"cp_size": 2}, **packed))
    assert any("sdpa attention alone" in text for text in reasons(fixed={"cp_size": 2}))
    assert any("no dft loss" in t for t in reasons(fixed={"sp_size": 2, "loss_type": "dft"}))
    both = reasons(fixed={"cp_size": 2, "sp_size": 2})
    assert any("one of the two ways" in text for text in both)
    grpo = reasons(method="grpo", fixed={"cp_size": 2}, max_length=None, reward_funcs=["a.b"])
    assert any("where completions are generated" in text for text in grpo)
    assert any("in SFTTrainer alone" in t for t in reasons(method="dpo", fixed={"sp_size": 2}))
    eight = reasons(fixed={"sp_size": 8}, recipe={"num_processes": [8, 4]})
    assert any("4 processes cannot be divided into groups of 8" in text for text in eight)


def test_accelerate_is_told_of_it():
    values = {"distributed_type": "FSDP", "cp_size": 4}
    sharding = sharding_of(values, 8)
    one = settings(make_job(), make_facts("cuda"), make_space(make_job()).default())
    text = accelerate_config(dataclasses.replace(one, sharding=sharding))
    fields = {"parallelism_config_dp_shard_size": 2, "parallelism_config_cp_size": 4}
    assert yaml.safe_load(text)["parallelism_config"] == fields
    assert parallelism_environment(sharding)["PARALLELISM_CONFIG_CP_SIZE"] == "4"
    assert parallelism_environment(Sharding(num_processes=8)) == {}


def test_what_is_sent_by_hand():
    rows = SharedRows(tokens=100, queries=32, keys=8, layers=3, width=2, recomputes=False)
    ring = Sharding(distributed_type="FSDP", num_processes=8, cp_size=4)
    # Keys and values of three others, twice, and their gradients.
    assert shared_rows_bytes(ring, rows) == 3 * 3 * 2 * 8 * 100 * 3 * 2
    heads = Sharding(distributed_type="DEEPSPEED", num_processes=8, sp_size=4)
    assert shared_rows_bytes(heads, rows) == 2 * 0.75 * 2 * (32 + 8) * 100 * 3 * 2
    again = dataclasses.replace(rows, recomputes=True)
    assert shared_rows_bytes(heads, again) == 1.5 * shared_rows_bytes(heads, rows)
    assert row_buffers_bytes(ring, rows) == (2 * 2 * 8 * 4 * 2 + 4 * 32) * 100


def test_layers_are_compiled_where_rows_have_one_length():
    def values(longest, **fields):
        facts = make_facts("cuda", longest=longest)
        quantiles = {**facts.data.quantiles, "p1": 1000}
        data = dataclasses.replace(facts.data, quantiles=quantiles)
        job = make_job(**fields)
        bound = bind(load_definition("sft"), job, dataclasses.replace(facts, data=data))
        return {one["torch_compile"]: bound.settings(one) for one in bound.candidates}

    assert values(1024).keys() == {False}
    for even in (values(1000), values(1024, training={"pad_to_multiple_of": 64})):
        assert even.keys() == {False, True}
        regions = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"
        assert regions in even[True].environment and regions not in even[False].environment
    compiled = accelerate_config(even[True])
    assert yaml.safe_load(compiled)["dynamo_config"] == {"dynamo_use_regional_compilation": True}
