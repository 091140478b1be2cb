"""The estimate of memory against the allocator of real steps, byte for byte.

A few of the combinations of `benchmarks/estimate_exactness`, which has many more and their table.
"""

import statistics

import pytest

from autotune.process.child_server import ChildServer
from benchmarks.estimate_exactness.cases import Case
from benchmarks.estimate_exactness.models import write_model
from benchmarks.estimate_exactness.run import compare
from tests.cpu.conftest import Sweep
from tests.guards import some_of

TIED = Case(model="qwen2", bf16=True, shape="1x17")
"""Two gradients of one embedding, added in place: hardly anything else is live at the peak."""

CHUNKED = Case(
    model="qwen2", loss="chunked_nll", labelled=0.4, shape="4 uneven", optimizer="adafactor"
)
FLAT = Case(model="qwen3", method="lora-and-head", bf16=True, shape="2 uneven", layout="flat")
LORA = Case(model="llama", method="lora-all-8", checkpointing="on", dtype="bfloat16", shape="1x17")
BASE = Case(
    model="llama",
    method="lora-all-8",
    checkpointing="on",
    dtype="bfloat16",
    bf16=True,
    shape="1x17",
)
"""Adapters in float32 on a base in bfloat16, under bf16: the default on a GPU."""
# Low precision only where there is little to multiply: processors without support for it are slow.
CASES = (
    TIED,
    CHUNKED,
    FLAT,
    Case(model="qwen3", optimizer="adamw-accumulated", checkpointing="on", shape="growing"),
    LORA,
    BASE,
    Case(model="llama", optimizer="sgd-momentum", attention="eager", shape="shrinking"),
    Case(model="llama-deep", optimizer="adamw_torch", shape="1x17", checkpointing="every 2nd"),
    Case(model="qwen3", checkpointing="selective", optimizer="adamw-accumulated"),
    Case(model="gemma", method="lora-attention-4", layout="flat", shape="3 uneven"),
    Case(model="gemma2", attention="eager", loss="chunked_nll", shape="2 uneven"),
    Case(model="gemma3", attention="eager", bf16=True, checkpointing="reentrant", shape="2 uneven"),
    Case(model="mistral", dtype="bfloat16", bf16=True, checkpointing="on", loss="chunked_nll"),
    Case(model="gpt2", dtype="bfloat16", optimizer="adamw_torch", shape="1x17"),
    Case(model="mixtral", method="lora-all-16", bf16=True, shape="2 uneven"),
    Case(model="qwen3-moe", shape="2 uneven"),
    Case(model="mixtral", shape="2 uneven"),
    Case(model="qwen3-moe", experts="batched_mm", shape="1x17"),
    Case(model="qwen3-moe", method="lora-experts-8", checkpointing="on", shape="2 uneven"),
    Case(model="gpt-oss", method="lora-all-16", attention="eager", checkpointing="on"),
    Case(model="gpt-oss", method="lora-experts-8", attention="eager", checkpointing="on"),
    Case(model="qwen2", training="reward", shape="4 uneven", checkpointing="on"),
    Case(model="llama", training="reward", method="lora-all-8", dtype="bfloat16"),
    Case(model="qwen3", training="dpo", shape="4 uneven", labelled=0.4, checkpointing="on"),
    Case(model="gpt2", training="dpo, reference before", optimizer="adamw-accumulated"),
    Case(model="qwen2-untied", training="kto", shape="4 uneven", labelled=0.4),
    Case(model="qwen2", training="kto, reference before", shape="growing"),
)


@pytest.fixture(scope="module")
def rows(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("exactness")
    for name in {case.model for case in CASES}:
        write_model(name, folder / "models" / name)
    return Sweep(
        lambda case: compare(case, server, folder / "models", folder / str(CASES.index(case)))
    )


@pytest.mark.parametrize(
    "case", some_of(CASES, {TIED, BASE}, "exactness"), ids=lambda case: case.name
)
def test_the_estimate_is_the_peak_of_the_real_steps(rows: Sweep, case: Case) -> None:
    row = rows[case]
    assert "failure" not in row, row["failure"]
    assert abs(row["error"]) < 0.005, row
    assert sum(row["parts"].values()) == row["estimate_bytes"]


@pytest.mark.nightly("exactness")
def test_half_of_the_estimates_are_off_by_less_than_two_in_ten_thousand(rows: Sweep) -> None:
    errors = [abs(rows[case]["error"]) for case in CASES]
    assert statistics.median(errors) < 0.0002


def test_without_merging_what_autograd_adds_in_place_the_estimate_is_too_high(
    rows: Sweep,
) -> None:
    raw = rows[TIED]["estimate_unmerged_bytes"] / rows[TIED]["real_bytes"] - 1
    assert raw > 0.01
    assert abs(rows[TIED]["error"]) < 0.0002


@pytest.mark.nightly("exactness")
def test_peaks_are_reached_in_different_places(rows: Sweep) -> None:
    """Or else only one place would have been checked."""
    assert len({rows[case]["peak_at"][1] for case in CASES}) >= 4
