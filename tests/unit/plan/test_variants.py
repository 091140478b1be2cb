"""Which candidates share a trace."""

from dataclasses import replace
from pathlib import Path

from autotune.plan.variants import TRLS_REWARD, VariantTask, variant_tasks
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_facts, make_job


def tasks_of(method: str, folder: Path, **fields: object) -> list[VariantTask]:
    job, facts = make_job(method=method, **fields), make_facts()
    facts = replace(facts, model=replace(facts.model, path=str(folder)))
    space = bind(load_definition(method), job, facts)
    return variant_tasks(
        [space.settings(one) for one in space.candidates], rows=folder, limit=2**34, cache=None
    )


def test_each_size_of_a_generation_is_a_task_of_its_own(tmp_path: Path) -> None:
    """They share no trace: as tasks they are traced beside each other."""
    found = tasks_of("grpo", tmp_path, reward_funcs=["accuracy_reward"], global_batch_size=16)
    sizes = [
        {point.batching["completions"] for point in task.request.points if point.batching}
        for task in found
    ]
    assert all(len(of_task) == 1 for of_task in sizes)
    assert len(set.union(*sizes)) > 1


def test_a_trace_without_rewards_has_one_of_trls_own(tmp_path: Path) -> None:
    found = tasks_of("grpo", tmp_path, global_batch_size=16)
    assert {tuple(task.request.config["reward_funcs"]) for task in found} == {(TRLS_REWARD,)}


def test_micro_batches_of_one_variant_share_a_task(tmp_path: Path) -> None:
    found = tasks_of("sft", tmp_path)
    assert any(len({p.batching["micro_batch"] for p in t.request.points}) > 1 for t in found)
