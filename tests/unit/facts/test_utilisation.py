"""Model FLOPs utilisation, against figures by hand; the table of what runs reached."""

from dataclasses import replace

import pytest

from autotune.facts.device_kinds import facts_of, find_kind
from autotune.facts.utilisation import flops_per_token, mfu_of, peak_of, reached, reached_on
from autotune.report.plan_answer import mfu_line
from benchmarks.utilisation.run import TABLE, runs, table
from tests.unit.builders import make_facts, make_job


def facts_on(device, parameters=7_000_000_000, mean_length=1000.0):
    facts = make_facts("cuda")
    model = replace(facts.model, parameters=parameters, layers=32, hidden_size=4096)
    data = replace(facts.data, mean_length=mean_length)
    return replace(facts, model=model, data=data, device=facts_of(find_kind(device), 16))


def test_a_token_takes_six_operations_a_parameter_and_twelve_of_attention():
    # 6 * 7e9 + 12 * 32 * 4096 * 1000 = 42e9 + 1.572864e9
    assert flops_per_token(7 * 10**9, 32, 4096, 1000, frozen=False) == 43_572_864_000
    # 4 * 7e9: no gradients of frozen weights
    assert flops_per_token(7 * 10**9, 32, 4096, 1000, frozen=True) == 29_572_864_000


def test_the_share_of_the_peak_is_of_all_devices():
    facts = facts_on("a100-80gb")
    # 43.572864e9 * 2864 / 312e12 = 0.39997
    assert mfu_of(make_job(), facts, 2864.0) == pytest.approx(0.39997, abs=1e-5)
    two = make_job(devices={"kind": "cuda", "count": 2})
    assert mfu_of(two, facts, 2864.0) == pytest.approx(0.199986, abs=1e-5)
    lora = make_job(tuning="lora")
    assert mfu_of(lora, facts, 2864.0) == pytest.approx(0.27146, abs=1e-5)


def test_rows_count_as_long_as_they_are_cut_and_pairs_as_two():
    job = make_job(max_length=500)
    exact = flops_per_token(7 * 10**9, 32, 4096, 500, frozen=False) * 1000 / 312e12
    assert mfu_of(job, facts_on("a100-80gb"), 1000.0) == pytest.approx(exact)
    pairs = make_job(method="reward", max_length=1000)
    assert mfu_of(pairs, facts_on("a100-80gb"), 1000.0) == pytest.approx(exact)


def test_without_bfloat16_it_is_of_the_peak_in_float16_which_is_said():
    peak = peak_of(facts_on("v100"))
    assert (peak.dtype, peak.flops_per_s) == ("float16", 125e12)
    line = mfu_line(make_job(), facts_on("v100"), 1000.0)
    assert line.startswith("MFU 35% of 125 TFLOP/s, the dense peak in float16; no run like it")


def test_it_is_not_known_of_what_is_not_counted():
    facts = facts_on("a100-80gb")
    assert mfu_of(make_job(method="dpo"), facts, 1000.0) is None
    assert mfu_of(make_job(), facts, None) is None
    assert mfu_of(make_job(), make_facts("cpu"), 1000.0) is None
    assert mfu_of(make_job(), make_facts("cuda"), 1000.0) is None  # a GPU of no table
    shapeless = replace(facts, model=replace(facts.model, layers=None))
    assert mfu_of(make_job(), shapeless, 1000.0) is None


def test_what_is_usual_is_of_the_kind_or_else_of_the_nearest():
    job, model = make_job(), facts_on("a100-80gb").model
    assert reached_on(find_kind("a100-80gb"), job, model).kind == "NVIDIA A100-SXM4-80GB"
    assert reached_on(find_kind("rtx-4090"), job, model).kind == "NVIDIA A100-SXM4-80GB"
    assert reached_on(find_kind("h200"), job, model).kind == "NVIDIA H200"
    assert reached_on(find_kind("b200"), job, model) is None
    small = facts_on("a100-80gb", parameters=10**8).model
    lora = make_job(tuning="lora")
    assert reached_on(find_kind("h200"), lora, small).kind == "NVIDIA H100 80GB HBM3"  # by size
    assert reached_on(find_kind("rtx-4090"), job, small).size == "1B and more"
    line = mfu_line(job, facts_on("rtx-4090"), 1000.0)
    assert "on one NVIDIA A100-SXM4-80GB, the nearest kind that is recorded, (full tuning" in line
    several = mfu_line(make_job(devices={"kind": "cuda", "count": 8}), facts_on("h100"), 9000.0)
    assert mfu_line(job, facts_on("h100"), 1.0).startswith("MFU below 1% of 989.4 TFLOP/s")
    assert several.startswith("MFU 5% of 8 x 989.4 TFLOP/s, the dense peak in bfloat16; 2 publish")
    assert "models of 1B and more) reached 10 to 21%" in several


def test_the_table_is_what_the_recorded_runs_give():
    measured = runs()
    assert TABLE.read_text(encoding="utf-8") == table(measured)
    assert sum(row.runs for row in reached()) == len(measured)
    assert all(0 < row.low <= row.middle <= row.high < 1 for row in reached())
