"""Traces of sharded trainings against the allocators of real ranks.

A few of the combinations of `benchmarks/sharding_exactness`, which has more and their table.
"""

import json
import shutil
from typing import Any

import pytest

from benchmarks.sharding_exactness.cases import HIDDEN, Case
from benchmarks.sharding_exactness.run import compare
from tests.cpu.conftest import Sweep
from tests.guards import some_of

ACCUMULATING = Case(strategy="zero 1", accumulation=2)
"""The last rank holds gradients that the first has let go of; where logits are held whole (TRL
1.12), it needs 8% more."""
OFFLOADED = Case(strategy="zero 3, all off", checkpointing=True)
SHARDED = Case(strategy="fsdp", lora=True, model="qwen2")
QUANTISED = Case(strategy="zero 3", quantized=True)
WIDE = Case(strategy="zero 2", bucket=12 * HIDDEN**2, accumulation=2)
"""Two buckets of a whole layer each, in place of two of a matrix."""
CASES = (ACCUMULATING, OFFLOADED, SHARDED, QUANTISED, WIDE)
ENGINES = {
    ACCUMULATING: ("DEEPSPEED", "DeepSpeedEngine", "AdamW"),
    OFFLOADED: ("DEEPSPEED", "DeepSpeedEngine", "DeepSpeedCPUAdam"),
    SHARDED: ("FSDP", "FSDPPeftModelForCausalLM", "AdamW"),
    QUANTISED: ("DEEPSPEED", "DeepSpeedEngine", "AdamW"),
    WIDE: ("DEEPSPEED", "DeepSpeedEngine", "AdamW"),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("deepspeed_compiled"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="counts allocations with a C library"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    def find(case: Case) -> Any:
        folder = tmp_path_factory.mktemp("sharding")
        compare((case,), folder / "results.jsonl", folder)
        return json.loads((folder / "results.jsonl").read_text(encoding="utf-8"))

    return Sweep(find)


some = pytest.mark.parametrize(
    "case", some_of(CASES, {ACCUMULATING}, "exactness"), ids=lambda case: case.name
)


@some
def test_the_trace_is_the_peak_of_the_rank_with_most(rows: Sweep, case: Case) -> None:
    row = rows[case]
    assert "failure" not in row, row["failure"]
    assert abs(row["error"]) < 0.001, row
    assert sum(row["parts"].values()) == row["estimate_bytes"]


@some
def test_the_engine_that_ran_is_the_one_that_was_asked_for(rows: Sweep, case: Case) -> None:
    for rank in rows[case]["ranks"]:
        found = (rank["distributed_type"], rank["engine"], rank["optimizer"])
        assert found == ENGINES[case]


@pytest.mark.nightly("exactness")
def test_what_is_offloaded_is_counted_apart(rows: Sweep) -> None:
    """Of half the model: weights, a copy of them, two moments and gradients, in float32."""
    weights = rows[ACCUMULATING]["parts"]["weights"]  # of the whole model, in float32
    assert 2.5 * weights < rows[OFFLOADED]["host_bytes"] < 3.1 * weights
    assert "host" in rows[OFFLOADED]["parts"]
    assert "host" not in rows[ACCUMULATING]["parts"]
