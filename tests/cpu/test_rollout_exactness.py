"""The estimate of online trainers against the allocator of real generation and training, by phase.

A few of the combinations of `benchmarks/rollout_exactness`, which has more and their table. Of the
trace six tokens are decoded, for real forty.
"""

import statistics
from typing import Any

import pytest

from autotune.facts.stack import missing
from autotune.process.child_server import ChildServer
from benchmarks.rollout_exactness.cases import Case
from benchmarks.rollout_exactness.ppo_cases import PpoCase
from benchmarks.rollout_exactness.run import compare, write_models
from benchmarks.rollout_exactness.worker import PHASES
from tests.cpu.conftest import Sweep
from tests.guards import some_of

GRPO = Case(beta=0.04, checkpointing=True)
TAUGHT = Case(method="distillation", teacher="qwen2-untied", beta=1.0, checkpointing=True)
CASES = (
    GRPO,
    Case(model="llama", lora=True, beta=0.04, batch="two rounds", ragged=False),
    Case(method="rloo", model="gemma", attention="eager", batch="two steps of a round"),
    Case(method="rloo", lora=True, beta=0.04, optimizer="adamw_torch", checkpointing=True),
    # Its scoring once was 3% too low: the logarithm of a sum of exponentials makes a copy.
    Case(beta=0.04, batch="no accumulation", checkpointing=True),
    Case(judged=True, beta=0.04, batch="two steps of a round"),
    Case(vllm=True, lora=True, checkpointing=True, beta=0.04, batch="two rounds"),
    *((TAUGHT,) if missing("distillation") is None else ()),
)
PPO = (PpoCase(), PpoCase(lora=True, batch="in parts", ragged=False, checkpointing=True))


@pytest.fixture(scope="module")
def rows(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("rollouts")
    every, teachers = (*CASES, *PPO), {TAUGHT.teacher}
    write_models(folder / "models", {case.model for case in every} | teachers)
    return Sweep(
        lambda case: compare(case, server, folder / "models", folder / str(every.index(case)))
    )


@pytest.mark.parametrize(
    "case", some_of((*CASES, *PPO), {GRPO, TAUGHT}, "exactness"), ids=lambda case: case.name
)
def test_the_estimate_is_the_peak_of_real_generation_and_training(rows: Sweep, case: Any) -> None:
    row = rows[case]
    assert "failure" not in row, row["failure"]
    assert abs(row["error"]) < 0.005, row
    before, decode = row["decode_bytes"]
    assert 0 < before < decode  # the caches of a later token are longer
    elsewhere = {"generation", "decode"} if getattr(case, "vllm", False) else set()
    assert row["phases"].keys() >= set(PHASES) - {"clip"} - elsewhere
    assert row["phases"] == pytest.approx(dict.fromkeys(row["phases"], 0.0), abs=0.01)


@pytest.mark.nightly("exactness")
def test_most_are_off_by_less_than_one_in_a_thousand(rows: Sweep) -> None:
    assert statistics.median(abs(rows[case]["error"]) for case in CASES) < 0.001
