"""What is expected of a candidate: its memory in parts, its speed, and how sure that is. Pure."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.protocol import PointReply
from autotune.estimate.records.events import (
    ACTIVATIONS,
    LOADING,
    MICRO_STEP,
    VLLM,
)
from autotune.estimate.residual import Residual
from autotune.estimate.speed.step_time import TimeParts
from autotune.estimate.variant import AT_MOST, UNTRACEABLE
from autotune.facts.devices import DeviceFacts
from autotune.plain_data import to_plain
from autotune.space.vllm.memory import ServerNeeds

FRAGMENTATION, CONTEXT = "fragmentation", "context"
MIB = 2**20
CUDA_PRIOR = Residual(
    offset_bytes=550 * MIB, sigma_bytes=120 * MIB, relative_sigma=0.02, bias_sigma=0.02
)
"""The prior before any probe on a GPU: published logs show contexts of 380 to 720 MiB."""
HOPPER_PRIOR = dataclasses.replace(CUDA_PRIOR, offset_bytes=750 * MIB, sigma_bytes=60 * MIB)
"""The same of an H100 or H200: their probes had 742 to 762 MiB
(`benchmarks/recorded/gpu-memory-h100-2026-11-26`, `gpu-memory-h200-2026-11-26`)."""
_HOPPER = (9, 0)
UNTESTED_PRIOR = dataclasses.replace(
    CUDA_PRIOR, sigma_bytes=400 * MIB, relative_sigma=0.05, bias_sigma=0.05
)
"""The same of other makers' GPUs, of which no log was read: assumed, and wider."""
NCCL_BYTES, NCCL_SIGMA = 400 * MIB, 200 * MIB
"""What NCCL takes for its channels outside the allocator; assumed, not measured."""
CPU_SIGMA = 0.08
"""The C library's allocator: one and the same probe differed by 15% from process to process, and
176 candidates of a tiny model by 8% around their estimates (`benchmarks/search/grids`)."""
CPU_BIAS, CPU_BIAS_SIGMA = 0.1, 0.15
"""What the C library holds beyond what tensors take: 5 to 11% of a 0.5B model, 36% of a tiny one
(`benchmarks/host_memory`, `benchmarks/search/grids`)."""
CPU_TRAINING = 160 * MIB
"""What only training starts in a process (threads, arenas): 130 to 230 MiB in four probes."""
GUESSED_SIGMA = 0.15
"""Where something else was traced in a knob's place."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected memory and time of a candidate. Bytes, seconds.

    Attributes:
        peak_memory_bytes: of the whole process: reserved and what lies outside the allocator.
        parts: by kind, fragmentation and context among them; they add up to the whole.
        method: how it was found; `adjusted trace` where a knob could not be traced.
        notes: what that means.
        p_oom: probability that it runs out of the memory it may take.
        fits: the replay under the limit went through, and it is more likely than not; the same of
            the host's memory.
        sigma_bytes: standard deviation of the expected peak.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_memory_bytes: int
    parts: Mapping[str, int]
    peak_operator: str
    peak_phase: str
    allocator_retries: int
    method: str
    notes: tuple[str, ...]
    sigma_bytes: int
    p_oom: float
    fits: bool
    missing_bytes: int | None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    time_parts: TimeParts | None = None
    """Parts of the optimizer step's time, which calibration corrects."""
    at_most: bool = False
    """Whether it is an upper bound: something that needs more was traced."""
    at_least: bool = False
    """Whether it is a lower bound, which alone is too large."""
    offloaded_bytes: int = 0
    """Activations that go to the host and back in the worst micro-step."""
    left_out: tuple[str, ...] = ()
    """Costs in time that are not known and not counted: its speed is at most what is estimated."""
    server: ServerNeeds | None = None
    """What a vLLM server needs of each of its own devices; None: there is none, or not of the
    job's. All else is of the devices that train; `fits` is of both."""
    continued_sigma: float = 0.0
    """Relative standard deviation of what follows from fewer layers of an engine, or from an order
    of rows that may be another."""
    host_bytes: int | None = None
    """What all processes take of the host together (`plan/host_memory.py`); None: the device is the
    host."""
    peak_while_loading_bytes: int | None = None
    """What a process takes on the device while its models are loaded; None: not known."""
    host_peak_while_loading_bytes: int | None = None
    """What all processes take of the host then; None: the device is the host."""
    p_host_oom: float | None = None
    """Probability that this is more than they may take; None: nothing is known of that."""
    host_missing_bytes: int | None = None
    """What the host lacks, where it is more likely than not that it does."""

    @property
    def vllm_bytes(self) -> int:
        """vLLM's share of the peak, in bytes."""
        return self.parts.get(VLLM, 0)

    @property
    def own_reserved_bytes(self) -> int:
        """Bytes that the training's allocator holds."""
        return self.peak_reserved_bytes - self.vllm_bytes

    @property
    def moved_share(self) -> float:
        """Share of a step's time that is copies and exchange which nothing is taken to hide."""
        parts = self.time_parts
        if parts is None or not parts.total:
            return 0.0
        return (parts.transfer_s + parts.exchange_s) / parts.total

    @property
    def traced(self) -> bool:
        """True if the candidate itself was traced, nothing in a knob's place."""
        return self.method in {"trace", "scaled trace"}

    def plain(self) -> dict[str, Any]:
        """Return the estimate as JSON data; `fits` is said beside it."""
        data: dict[str, Any] = to_plain(self)
        del data["fits"]
        data["p_oom"] = round(self.p_oom, 4)
        data["p_host_oom"] = None if self.p_host_oom is None else round(self.p_host_oom, 4)
        data["server"] = None if self.server is None else self.server.plain()
        return data


def prior_residual(device: DeviceFacts, process_bytes: int, devices: int = 1) -> Residual:
    """Return the residual of a device's processes that is assumed before any was measured.

    Args:
        process_bytes: of the host's memory, what an empty training process takes.
        devices: how many train; NCCL takes its part of each.
    """
    if device.kind == "cuda":
        prior = CUDA_PRIOR if device.maker == "NVIDIA" else UNTESTED_PRIOR
        if device.capability == _HOPPER:
            prior = HOPPER_PRIOR
        if devices == 1:
            return prior
        return dataclasses.replace(
            prior,
            offset_bytes=prior.offset_bytes + NCCL_BYTES,
            sigma_bytes=math.hypot(prior.sigma_bytes, NCCL_SIGMA),
        )
    offset = process_bytes + CPU_TRAINING
    return Residual(
        offset_bytes=offset,
        sigma_bytes=64 * MIB,
        relative_sigma=CPU_SIGMA,
        bias=CPU_BIAS,
        bias_sigma=CPU_BIAS_SIGMA,
    )


def estimated(
    point: PointReply,
    replaced: Sequence[str],
    residual: Residual,
    limit_bytes: int,
    layers: int,
) -> Estimate:
    """Return the estimate of a candidate whose variant, but for `replaced`, was traced as
    `point`."""
    parts = {name: size for name, size in point.parts.items() if size}
    reserved = point.peak_reserved_bytes
    offloaded = point.host_bytes if point.copied_bytes else 0
    loading = point.phases.get(LOADING)
    if "activation_offloading" in replaced:
        parts, reserved, offloaded = _offload_parts(point, layers)
    allocated = sum(parts.values())
    parts[FRAGMENTATION] = reserved - allocated
    # What vLLM has is what it is given: nothing is learned of it, and nothing unsure.
    vllm = parts.get(VLLM, 0)
    training_bytes, training_limit = reserved - vllm, limit_bytes - vllm
    expected = residual.corrected(training_bytes) + vllm
    parts[CONTEXT] = round(expected) - reserved
    if replaced:
        residual = _less_sure(residual)
    residual = residual.with_noise(point.sigma)
    p_oom = residual.probability_above(training_bytes, training_limit)
    missing = max(round(expected) - limit_bytes, 1) if p_oom >= 0.5 else None
    if point.oom and not replaced:
        missing = max(missing or 0, point.missing_bytes or 1)
        p_oom = max(p_oom, 0.5)
    return Estimate(
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_memory_bytes=round(expected),
        parts=parts,
        peak_operator=point.operator,
        peak_phase=point.phase,
        allocator_retries=point.retries,
        method="adjusted trace" if replaced else point.method,
        notes=tuple(f"{name}: {UNTRACEABLE[name][1]}" for name in replaced),
        sigma_bytes=round(residual.sigma(training_bytes)),
        p_oom=p_oom,
        fits=missing is None,
        missing_bytes=missing,
        at_most=any(name in AT_MOST for name in replaced),
        at_least=point.at_least,
        offloaded_bytes=offloaded,
        continued_sigma=point.sigma,
        peak_while_loading_bytes=loading and round(residual.corrected(loading)),
    )


def _offload_parts(point: PointReply, layers: int) -> tuple[dict[str, int], int, int]:
    """Return the parts and reserved bytes with the activations of all but two layers on the host,
    and the bytes that go there.

    A closed form, not a trace: of activations A of L layers, A (1 - 2 / L) go to the host. The
    peaks of other phases, where no activations live, stay. Its error is not measured: it is taken
    for `GUESSED_SIGMA`.
    """
    parts = {name: size for name, size in point.parts.items() if size}
    activations = max((parts.get(ACTIVATIONS, 0) for parts in point.micro_peaks), default=0)
    copied = activations - round(activations * min(2 / max(layers, 1), 1.0))
    other_peak = max(
        (peak for phase, peak in point.phases.items() if phase != MICRO_STEP), default=0
    )
    saved_bytes = min(
        copied, parts.get(ACTIVATIONS, 0), max(point.peak_allocated_bytes - other_peak, 0)
    )
    parts[ACTIVATIONS] = parts.get(ACTIVATIONS, 0) - saved_bytes
    return parts, point.peak_reserved_bytes - saved_bytes, copied


def _less_sure(residual: Residual) -> Residual:
    relative = max(residual.relative_sigma, GUESSED_SIGMA)
    return dataclasses.replace(residual, relative_sigma=relative)
