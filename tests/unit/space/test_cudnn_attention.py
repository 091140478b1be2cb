"""cuDNN's attention is left out where batches are of many shapes, on devices that would take it."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.facts import Facts
from autotune.plan.variants import cuda_rules
from autotune.space.settings import CUDNN_LAST, Settings, settings
from tests.unit.builders import make_candidate, make_facts, make_job

HOPPER, AMPERE = (9, 0), (8, 0)


def chosen(facts: Facts, method: str = "sft", **values: Any) -> Settings:
    job: dict[str, Any] = {"method": method}
    if method == "grpo":
        job |= {"reward_funcs": ["accuracy_reward"], "dataset": "data"}
        values |= {"num_generations": 4, "max_completion_length": 64}
    training = {"packing_strategy": "wrapped"} if values.get("packing") == "wrapped" else {}
    values |= {"packing": True} if "packing" in values else {}
    return settings(make_job(**job, training=training), facts, make_candidate(**values))


def facts_with(lengths: dict[str, int], **changes: Any) -> Facts:
    facts = make_facts("cuda", **changes)
    return replace(facts, data=replace(facts.data, quantiles={**facts.data.quantiles, **lengths}))


@pytest.mark.parametrize(
    ("made", "left_out"),
    [
        (chosen(facts_with({"p1": 20})), True),
        (chosen(facts_with({"p1": 20}), padding_free=True), True),
        (chosen(facts_with({"p1": 20}), packing="bfd"), True),
        (chosen(facts_with({"p1": 1000})), False),
        (chosen(facts_with({"p1": 600}), max_length=512), False),
        (chosen(facts_with({"p1": 20}), packing="wrapped"), False),
        (chosen(facts_with({"p1": 1000}), "grpo"), True),
        (chosen(facts_with({"p1": 20}, capability=AMPERE)), False),
        (chosen(make_facts("cpu")), False),
    ],
)
def test_cudnn_plans_no_attention_anew_for_each_batch(made: Settings, left_out: bool) -> None:
    assert (made.environment.get(CUDNN_LAST) == "1") is left_out


def test_a_trace_takes_the_kernels_that_the_environment_leaves() -> None:
    same, different = (chosen(facts_with({"p1": p1}, capability=HOPPER)) for p1 in (1000, 20))
    found = [cuda_rules(made) for made in (same, different)]
    assert [rules and rules["cudnn_first"] for rules in found] == [True, False]
    assert cuda_rules(chosen(make_facts("cpu"))) is None
