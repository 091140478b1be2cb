"""An answer at other lengths: which plans are asked for, and what a page gets of them."""

from typing import Any

from autotune.job.yaml_file import parse_yaml
from autotune.server.worker.lengths import lengths_jobs, lengths_points

JOB = """
model: qwen2.5-0.5b
dataset: {lengths: {max: 1000, p50: 300, p99: 900, rows: 50}}
recipe: {lora_r: [8, 16]}
max_length: 1000
"""
KNOBS: dict[str, Any] = {
    "max_length": 1000,
    "global_batch_size": 16,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "padding_free": True,
    "lora_r": 8,
}


def jobs(job: str = JOB, **knobs: Any) -> list[dict[str, Any]]:
    return [parse_yaml(text, "job")[0] for text in lengths_jobs(job, {**KNOBS, **knobs})]


def test_lengths_in_place_of_data_are_cut_to_each_length() -> None:
    asked = jobs()
    assert [job["max_length"] for job in asked] == [250, 500, 1000, 2000]
    assert [job["dataset"]["lengths"]["max"] for job in asked] == [250, 500, 1000, 2000]
    assert asked[0]["dataset"]["lengths"] == {"p50": 250, "p99": 250, "rows": 50, "max": 250}
    assert asked[3]["dataset"]["lengths"]["p99"] == 900
    for job in asked:
        assert job["fixed"] == {"padding_free": True, "lora_r": 8}
        assert "recipe" not in job and job["global_batch_size"] == 16


def test_data_are_truncated_where_rows_are_padded_and_left_alone_where_not() -> None:
    job = "model: m\ndataset: data\n"
    assert jobs(job) == []
    (asked,) = jobs(job, padding_free=False)
    assert asked["recipe"] == {"max_length": [250, 500, 1000]}


def test_no_plan_is_asked_for_where_no_length_can_vary() -> None:
    assert jobs("model: m\nmethod: grpo\ndataset: d\n") == []
    assert jobs("model: m\ndataset: d\nglobal_batch_size: 4096 tokens\n", padding_free=False) == []
    assert jobs("model: m\ndataset: d\nmax_length: null\n", max_length=None) == []


def test_points_of_several_plans_are_put_together() -> None:
    def result(length: int) -> dict[str, Any]:
        estimate = {"peak_memory_bytes": length, "p_oom": 0.0, "tokens_per_s": None, "parts": {}}
        knobs = {"max_length": length, "per_device_train_batch_size": 2}
        return {
            "device": {"limit_bytes": 9},
            "candidates": [{"knobs": knobs, "estimate": estimate}],
        }

    together = lengths_points([result(8), result(4)])
    assert together["lengths"] == [4, 8] and together["micro_batches"] == [2]
    assert [point["peak_memory_bytes"] for point in together["points"]] == [8, 4]
