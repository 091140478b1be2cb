"""The first line of a plan: by formula, with nothing loaded, and none where something is open."""

import io
import json
import subprocess
import sys
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from autotune.cli.views.console import EstimatesShown, PlainConsole
from autotune.cli.views.events import RunEvents
from autotune.facts.device_kinds import find_kind
from autotune.job.job import Job
from autotune.plan.device import placed
from autotune.plan.first_estimate import first_estimate, show_first
from autotune.plan.progress import MEMORY_ERROR, SPEED_ERROR, FirstEstimate
from autotune.space.definition import load_definition
from tests.unit.builders import make_job
from tests.unit.facts.test_model_shape import SMALL

FOLDER = Path(__file__).parents[3] / "benchmarks" / "first_line"
LORA = {"model": "qwen2.5-7b", "tuning": "lora", "global_batch_size": 16}


def of(device: str, job: Job) -> FirstEstimate | None:
    definition = load_definition(job.method)
    kind = None if device == "cpu" else find_kind(device)
    return first_estimate(placed(job, device)[0], definition, kind, assume=True)


def line_of(device: str, job: Job) -> str:
    file, definition = io.StringIO(), load_definition(job.method)
    shown = EstimatesShown(PlainConsole(file=file, width=200))
    show_first(placed(job, device)[0], definition, find_kind(device), shown, assume=True)
    return file.getvalue()


def test_the_line_names_the_best_and_its_errors() -> None:
    line = line_of("h100", make_job(**LORA))
    errors = f"memory +-{MEMORY_ERROR:.0%}, speed +-{SPEED_ERROR:.0%}"
    assert line.startswith(f"so far (by formula, {errors}): ")
    assert "tokens/s, " in line
    assert line.endswith(" GiB\n")


def test_where_nothing_fits_the_line_says_what_the_smallest_needs() -> None:
    line = line_of("l4", make_job(model="qwen2.5-7b"))
    assert "): nothing fits in 22 GiB; the smallest needs 1" in line
    first = of("l4", make_job(model="qwen2.5-7b"))
    assert first is not None
    # Weights, gradients and two moments in float32.
    assert first.best.estimate.peak_memory_bytes > 4 * 4 * 7.6e9


def test_data_that_are_not_looked_at_have_rows_of_full_length() -> None:
    line = line_of("h100", make_job(**LORA, dataset="some/data", max_length=2048))
    assert ", rows of 2,048 tokens): " in line


def test_it_is_an_event_too() -> None:
    class Kept:
        def __init__(self) -> None:
            self.events: list[tuple[str, dict[str, Any]]] = []

        def write(self, kind: str, **data: Any) -> None:
            self.events.append((kind, data))

    kept, first = Kept(), of("h100", make_job(**LORA))
    assert first is not None
    RunEvents(kept).by_formula(first)
    ((kind, data),) = kept.events
    assert kind == "by_formula"
    assert data["fits"]
    assert data["memory_error"] == MEMORY_ERROR
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize(
    ("device", "changes"),
    [
        ("cpu", {}),
        ("h100", {"devices": {"count": 2}}),
        ("h100", {"method": "grpo", "reward_funcs": ["accuracy_reward"]}),
        ("h100", {"model": "somebody/something"}),
        ("h100", {"dataset": "some/data", "max_length": None}),
        ("h100", {"fixed": {"attn_implementation": "eager"}}),
        ("h100", {"training": {"model_revision": "v2"}}),
        ("h100", {"devices": {"memory": "200GiB"}}),
    ],
)
def test_where_something_is_open_there_is_no_line(device: str, changes: dict[str, Any]) -> None:
    assert of(device, make_job(**{**LORA, **changes})) is None


def test_of_a_mixture_of_experts_and_of_a_tiny_model_there_is_no_line(tmp_path: Path) -> None:
    names = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32}
    large = {**SMALL, "hidden_size": 2048, "vocab_size": 50_000}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps({**large, **names, **experts}))
    assert of("h100", make_job(model=str(tmp_path))) is None
    (tmp_path / "config.json").write_text(json.dumps(large))
    assert of("h100", make_job(model=str(tmp_path))) is not None
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert of("h100", make_job(model=str(tmp_path))) is None, "none so small was compared"


def test_nothing_of_the_stack_is_loaded_for_it() -> None:
    code = """
import sys
from autotune.facts.device_kinds import find_kind
from autotune.job.job import Job
from autotune.plan.first_estimate import first_estimate
import autotune.plan.plan
from autotune.space.definition import load_definition
job = Job(model="qwen2.5-0.5b", dataset={"lengths": {"max": 512}}, devices={"kind": "cpu"})
assert first_estimate(job, load_definition("sft"), find_kind("h100"), assume=True)
print([name for name in ("torch", "transformers", "trl", "optuna", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_more_rows_at_once_take_more_memory_and_less_time_each() -> None:
    def estimate(rows: int) -> Any:
        fixed = {"per_device_train_batch_size": rows, "gradient_checkpointing": True}
        first = of("h100", make_job(**LORA, fixed=fixed))
        assert first is not None
        return first.best.estimate

    one, eight = estimate(1), estimate(8)
    assert one.peak_memory_bytes < eight.peak_memory_bytes
    assert one.tokens_per_s < eight.tokens_per_s
    assert sum(eight.parts.values()) == eight.peak_memory_bytes


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("place", [0, 1], ids=["memory", "speed"])
def test_the_errors_in_the_line_are_those_of_the_benchmark(place: int) -> None:
    groups: dict[str, list[float]] = {"named": []}
    for row in rows_of("results.jsonl"):
        if row["named_traced"] and row["fits"][0]:
            groups["named"].append(row["named_over_traced"][place])
    for row in rows_of("measured.jsonl"):
        ratio = row[("memory", "speed")[place]]
        if ratio is not None and row["source"] != "several GPUs":
            groups.setdefault(row["source"], []).append(ratio)
    assert len(groups["named"]) >= 17
    assert len(groups) == 4
    for ratios in groups.values():
        errors = [abs(ratio - 1) for ratio in ratios]
        assert quantiles(errors, n=10, method="inclusive")[-1] <= (MEMORY_ERROR, SPEED_ERROR)[place]
