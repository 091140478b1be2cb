"""Devices as data: what a GPU of each kind has, so that a job can be planned without the GPU.

The figures and where each comes from are in device_kinds.yaml. Memory is in bytes, rates are in
floating-point operations or bytes per second. A figure that no source gives is None, never 0.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from autotune.facts.devices import DeviceFacts

DTYPES = ("float32", "tf32", "bfloat16", "float16")
"""The number formats of the table's rates."""

_FILE = "device_kinds.yaml"
_OTHERS = "other_makers.yaml"
_MAKER = re.compile(r"(?:nvidia-|geforce-|tesla-)+")
# The driver's total moves by 2 % between its generations and by 1/16 with ECC on GDDR memory.
_SAME_MEMORY = 0.1


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
        """What copies between host and device reach in one direction."""
        return None if self.pcie_bytes_per_s is None else HOST_SHARE * self.pcie_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """A kind of GPU.

    `memory_bytes` is NVML's total, `cuda_total_bytes` the part of it that CUDA gives to programs
    where that is known. `matrix_flops_per_s` holds dense peak rates by number format: a missing
    format cannot be computed in, None is a rate that is not known. `capability` is NVIDIA's.
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

    @property
    def usable_bytes(self) -> int:
        """What programs get of its memory: as CUDA was seen to give it, else what it usually keeps
        less. Of other makers that is not known: all."""
        if self.cuda_total_bytes is not None or self.maker != "NVIDIA":
            return self.cuda_total_bytes or self.memory_bytes
        return self.memory_bytes - min(KEPT_BY_CUDA, self.memory_bytes // 16)


@dataclass(frozen=True, kw_only=True)
class ArchitectureRules:
    """What a capability and a PyTorch release decide together.

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
    return tuple(_kind(row) for row in _table(_FILE)["devices"])


@functools.cache
def kinds_of_other_makers() -> tuple[DeviceKind, ...]:
    """AMD's and Intel's, which can be planned for."""
    return tuple(_kind(row) for row in _table(_OTHERS)["devices"])


def kind_of(name: str, total_bytes: int) -> DeviceKind | None:
    """Return the kind of a device that NVML calls `name` and gives `total_bytes`; None: not in the
    table.

    A part of a GPU (MIG, vGPU) is not of the GPU's kind.
    """
    for kind in device_kinds():
        close = abs(total_bytes - kind.memory_bytes) <= _SAME_MEMORY * kind.memory_bytes
        if close and _plain(name) in _plain_names(kind):
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


@functools.cache
def _table(name: str) -> dict[str, Any]:
    # Imported here: PyYAML costs the commands that need no table.
    from autotune.job.yaml_file import parse_yaml

    file = resources.files("autotune").joinpath("facts", name)
    return parse_yaml(file.read_text(encoding="utf-8"), name, shipped=True)[0]


def _kind(row: Mapping[str, Any]) -> DeviceKind:
    links = row["interconnect"]
    return DeviceKind(
        name=row["name"],
        aliases=tuple(row["aliases"]),
        memory_bytes=row["memory_bytes"],
        memory_source=row["memory_source"],
        capability=None if row["capability"] is None else tuple(row["capability"]),
        maker=row.get("maker", "NVIDIA"),
        matrix_flops_per_s=dict(row["matrix_flops_per_s"]),
        multiprocessors=row["multiprocessors"],
        bandwidth_bytes_per_s=row["bandwidth_bytes_per_s"],
        cuda_total_bytes=row.get("cuda_total_bytes"),
        interconnect=Interconnect(
            nvlink_bytes_per_s=links["nvlink_bytes_per_s"],
            pcie_bytes_per_s=links["pcie_bytes_per_s"],
            network_bytes_per_s=links.get("network_bytes_per_s"),
        ),
        also_reported_as=tuple(row.get("also_reported_as", ())),
        source=tuple(row["source"]),
    )


def _plain(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` -> `rtx-4090`."""
    return _MAKER.sub("", re.sub(r"[\s_]+", "-", name.strip().lower()), count=1)


def _plain_names(kind: DeviceKind) -> tuple[str, ...]:
    return tuple(_plain(name) for name in (kind.name, *kind.also_reported_as))


def _release(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"[0-9]+", version)[:2]
    return int(major), int(minor)
