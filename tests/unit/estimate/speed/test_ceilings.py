import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.speed.ceilings import (
    AttentionRate,
    Bandwidth,
    Ceilings,
    MatmulRate,
    OperatorRate,
    ceilings_of_kind,
    interpolate,
)
from autotune.facts.device_kinds import device_kinds, find_kind
from autotune.plain_data import from_plain, to_plain

SIZES = st.integers(1, 1 << 18)
RECORDED = Path(__file__).parents[4] / "benchmarks" / "recorded"


def make_ceilings(**changes):
    fields = {
        "device": "some device",
        "kind": "cpu",
        "measured": True,
        "matmul": tuple(
            MatmulRate("float32", m, k, n, 1e9 * m)
            for m in (16, 256, 4096)
            for k in (16, 256)
            for n in (16, 256)
        ),
        "attention": tuple(
            AttentionRate("float32", length, backward, masked, (1 + masked) * 1e9 * length)
            for length in (64, 1024)
            for backward in (False, True)
            for masked in (False, True)
        ),
        "bandwidth": (Bandwidth(1000, 1e9), Bandwidth(1_000_000, 1e10)),
        "operators": (
            OperatorRate("aten::exp", "float32", 2e9),
            OperatorRate("aten::nll", "float32", 1e11),
        ),
        "overhead_s_per_operator": 5e-6,
    }
    return Ceilings(**{**fields, **changes})


def test_ceilings_come_back_from_json_as_they_were():
    ceilings = make_ceilings()
    ceilings.matmul_flops_per_s("float32", 5, 5, 5)  # what a lookup keeps is not written
    again = from_plain(Ceilings, json.loads(json.dumps(to_plain(ceilings))))
    assert again == ceilings
    assert again.matmul[0].flops_per_s == 16e9 and again.bandwidth[1].moved_bytes == 1_000_000


@pytest.mark.parametrize("name", ["matmul", "attention", "bandwidth"])
def test_a_table_without_rates_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` of some device holds no rate"):
        make_ceilings(**{name: ()})


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_refused(rate):
    with pytest.raises(ValueError, match="above 0"):
        make_ceilings(bandwidth=(Bandwidth(1000, rate),))


def test_a_known_matmul_has_about_its_own_rate():
    rate = make_ceilings().matmul_flops_per_s("float32", 256, 256, 16)
    assert rate == pytest.approx(256e9, rel=0.1)


@given(SIZES, SIZES, SIZES)
def test_an_unknown_matmul_lies_between_the_known_rates(m, k, n):
    rates = [row.flops_per_s for row in make_ceilings().matmul]
    rate = make_ceilings().matmul_flops_per_s("float32", m, k, n)
    assert min(rates) * 0.999 <= rate <= max(rates) * 1.001


def test_between_known_sizes_a_matmul_has_a_rate_between_theirs():
    ceilings = make_ceilings()
    rates = [ceilings.matmul_flops_per_s("float32", m, 64, 64) for m in (16, 64, 256, 1024, 4096)]
    assert rates == sorted(rates) and len(set(rates)) == 5


def test_attention_is_looked_up_by_length_direction_and_mask():
    ceilings = make_ceilings()
    at = ceilings.attention_flops_per_s
    assert at("float32", 64, backward=False, masked=False) == pytest.approx(64e9)
    assert at("float32", 256, backward=True, masked=True) == pytest.approx(512e9)
    assert at("float32", 9999, backward=True, masked=False) == pytest.approx(1024e9)
    # A row of 16 takes as long as one of 64, so it reaches a sixteenth of its rate.
    assert at("float32", 16, backward=False, masked=False) == pytest.approx(4e9)


def test_an_operator_has_its_own_ceiling_below_the_bandwidth_or_above_it():
    at = make_ceilings().bytes_per_s
    assert at("aten::mul.Tensor", "float32", 1_000_000) == pytest.approx(1e10)
    assert at("aten::exp", "float32", 1_000_000) == pytest.approx(2e9)  # it computes
    assert at("aten::exp", "float32", 1000) == pytest.approx(1e9)
    assert at("aten::exp", "bfloat16", 1_000_000) == pytest.approx(2e9)  # the only one known
    assert at("aten::nll", "float32", 1000) == pytest.approx(1e11)  # it reads a part


def test_a_dtype_without_rates_gets_those_of_another():
    half = tuple(MatmulRate("bfloat16", 16, 16, 16, 9e9) for _ in range(1))
    ceilings = make_ceilings(matmul=(*make_ceilings().matmul, *half))
    assert ceilings.dtype_for("float16") == "bfloat16"
    assert ceilings.matmul_flops_per_s("float16", 16, 16, 16) == pytest.approx(9e9)
    assert ceilings.dtype_for("float64") == "float32"
    assert ceilings.attention_flops_per_s(
        "float16", 64, backward=False, masked=False
    ) == pytest.approx(64e9)
    assert ceilings.dtype_for("int64") == "float32"


def test_without_float32_the_first_known_dtype_stands_in():
    ceilings = make_ceilings(matmul=(MatmulRate("bfloat16", 16, 16, 16, 9e9),))
    assert ceilings.dtype_for("float32") == "bfloat16"


@given(st.floats(1.0, 1e12))
def test_interpolation_passes_through_its_points_and_stays_between_them(x):
    points = [(10.0, 5.0), (1000.0, 50.0), (1e6, 20.0)]
    assert 5.0 * 0.999 <= interpolate(points, x) <= 50.0 * 1.001
    for point_x, value in points:
        assert interpolate(points, point_x) == pytest.approx(value)
    assert interpolate(points, 100.0) == pytest.approx(math.sqrt(250))


# -- devices one does not have


@pytest.mark.parametrize("kind", device_kinds(), ids=lambda kind: kind.name)
def test_every_known_gpu_has_ceilings_below_its_peaks(kind):
    ceilings = ceilings_of_kind(kind)
    assert ceilings is not None and not ceilings.measured and ceilings.kind == "cuda"
    peaks = kind.matrix_flops_per_s
    assert all(row.flops_per_s < peaks[row.dtype] for row in ceilings.matmul)
    assert all(row.flops_per_s < peaks[row.dtype] for row in ceilings.attention)
    assert all(row.bytes_per_s < kind.bandwidth_bytes_per_s for row in ceilings.bandwidth)
    assert "tf32" not in {row.dtype for row in ceilings.matmul}


def test_a_gpu_known_by_its_memory_alone_has_no_ceilings():
    assert ceilings_of_kind(find_kind("memory=23GiB")) is None


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_tabled_rates_are_near_those_that_were_measured(name):
    file = RECORDED / f"gpu-smoke-{name}-2026-11-26" / "ceilings.json"
    measured = from_plain(Ceilings, json.loads(file.read_text(encoding="utf-8")))
    tabled = ceilings_of_kind(find_kind(name))

    def ratio(method, *arguments, **options):
        return getattr(tabled, method)(*arguments, **options) / getattr(measured, method)(
            *arguments, **options
        )

    assert 0.8 < ratio("bytes_per_s", "aten::mul.Tensor", "float32", 1 << 29) < 1.1
    # A training does not keep the clock of a short measurement.
    assert 0.8 < ratio("matmul_flops_per_s", "bfloat16", 8192, 8192, 8192) < 0.95
    kernels = {"cudnn": name == "h200"}  # whose kernels that machine's figures are of
    for length, backward, masked in itertools.product((2048, 8192), *[(False, True)] * 2):
        at = {"backward": backward, "masked": masked}
        tabled_rate = tabled.attention_flops_per_s("bfloat16", length, **at, **kernels)
        assert 0.6 < tabled_rate / measured.attention_flops_per_s("bfloat16", length, **at) < 1.4


def test_attention_of_cudnn_has_rates_of_its_own_where_they_are_known():
    slow = AttentionRate("bfloat16", 64, False, True, 1e9)
    fast = AttentionRate("bfloat16", 64, False, True, 3e9, cudnn=True)
    half = MatmulRate("bfloat16", 16, 16, 16, 9e9)
    for rates, expected in (((slow, fast), 3e9), ((slow,), 1e9)):
        ceilings = from_plain(Ceilings, to_plain(make_ceilings(matmul=(half,), attention=rates)))
        found = ceilings.attention_flops_per_s(
            "bfloat16", 64, backward=False, masked=True, cudnn=True
        )
        assert found == expected


def test_small_matmuls_reach_less_of_a_tabled_peak():
    ceilings = ceilings_of_kind(find_kind("a100"))
    rates = [ceilings.matmul_flops_per_s("bfloat16", n, n, n) for n in (64, 256, 1024, 4096)]
    assert rates == sorted(rates)
    assert rates[0] < 0.01 * rates[-1]
    # A thin matmul is bound by the bytes it reads.
    thin = ceilings.matmul_flops_per_s("bfloat16", 16384, 4096, 16)
    assert thin < 0.2 * ceilings.matmul_flops_per_s("bfloat16", 16384, 4096, 4096)


def test_where_float32_is_not_known_the_rates_of_another_dtype_are_taken():
    ceilings = ceilings_of_kind(find_kind("a10g"))
    assert ceilings.dtype_for("float32") == ceilings.dtype_for("bfloat16") == "bfloat16"


def test_what_writes_in_place_does_not_pay_for_new_results():
    """Fused Adam over all weights at once was estimated seven times too slow on a CPU."""
    rates = tuple(
        Bandwidth(size, rate) for size, rate in ((2**20, 5e10), (2**25, 2e10), (2**28, 2e9))
    )
    ceilings = replace(ceilings_of_kind(find_kind("h200")), bandwidth=rates, operators=())
    large = 2**27
    assert ceilings.bytes_per_s("aten::mul", "float32", large) < 6e9
    assert ceilings.bytes_per_s("aten::_fused_adamw_", "float32", large) > 1e10
    assert ceilings.bytes_per_s("aten::_fused_adamw_", "float32", 2**20) == 5e10
