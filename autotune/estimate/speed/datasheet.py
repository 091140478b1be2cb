"""Ceilings of a GPU one does not have, from its data sheet. Pure."""

from collections.abc import Iterator

from autotune.estimate.speed.ceilings import AttentionRate, Bandwidth, Ceilings, MatmulRate
from autotune.facts.device_kinds import DeviceKind, rules_of
from autotune.space.cudnn_attention import USUAL_TORCH

_SIZES = tuple(4**n for n in range(2, 9))
"""16 to 65536: what matmuls are tabled at, in each dimension."""
_LENGTHS = tuple(4**n for n in range(3, 9))
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MATMUL_SHARE = 0.8
"""Share of the peak that large matmuls reach: 792 of 989 TFLOP/s measured on an H200 (8192^3,
bf16)."""
_HOPPER_MATMUL_SHARE = 0.68
"""The same in a training on what prefers cuDNN, which does not keep the clock of ten milliseconds:
with 0.8, 13 trainings on an H100 took 1.13 times as long as estimated, in the median; with this
1.06. Taken from there for Blackwell."""
BANDWIDTH_SHARE = 0.85
"""Share of the specified bandwidth: 4.3 of 4.8 TB/s measured for a copy on an H200, less for
others."""
KERNEL_S = 2e-6
"""Seconds by which a kernel takes longer than its work at full rate, to fill and drain a GPU: 1.9
to 2.6 us of products of 0.8 to 13 MB on an H100 and an H200. Of matmuls a guess."""
_HOPPER_MATMUL_S = 4e-6
"""That of a matmul on what prefers cuDNN: with it and a share of 0.8, 32 shapes of 0.2 GFLOP and
more in bf16 are 7% off what an H100 and an H200 reach, in the median; with 2 us 24%."""
ATTENTION_SHARE = {False: 0.55, True: 0.45}
"""Share of the peak for long rows, forward and backward. FlashAttention-2 (arXiv 2307.08691)
reports 50 to 73% of an A100's peak forward, less backward, at head sizes of 64 and 128."""
_HALF_LENGTH = 256
"""Length at which attention reaches half of that, read off the same paper's plots (rough)."""
MASKED_SHARE = 0.5
"""What the kernels that take a mask reach of those that do not. A guess."""
_HOPPER_ATTENTION_SHARE, _HOPPER_MASKED_SHARE = {False: 0.20, True: 0.23}, 0.41
"""The same two on what prefers cuDNN and has outgrown these kernels: an H100, heads of 64, in 16
bits. Taken from there for Blackwell."""
_CUDNN_ATTENTION_SHARE, _CUDNN_MASKED_SHARE = {False: 0.36, True: 0.36}, 0.74
"""Those of cuDNN's attention, of an H200."""
OVERHEAD_S = 6e-6
"""The host's time for one dispatched operator. Accounts of PyTorch's way from Python to the launch
of a kernel say 5 to 25 us; views, a third of the operators of a training step, launch none and take
less. It is the host's and not the GPU's: expect a factor of 2."""
_HOPPER_OVERHEAD_S = 13e-6
"""That of the servers that these are in: on an H200's host steps that hung on it went as if it were
about 13 us; on an H100's 15 were measured."""


def ceilings_of_kind(kind: DeviceKind) -> Ceilings | None:
    """Return the ceilings of a GPU one does not have; None where its rates are not known.

    A matmul takes its operations at a share of the peak plus the time of a kernel, and not less
    than its bytes take. Known error: of 13 trainings on an H100, most of them at its memory's
    limit, steps take 0.75 to 1.04 of the measured time, 0.94 in the median; of 18 on an H200 0.70
    to 1.30, 0.90. Expect a factor of 2 for small operators and for the host: ranks that hang on it
    are not to be trusted before a probe. Against 28 runs that others have measured on an A100: 0.88
    to 1.18 of their tokens/s (`benchmarks/published_runs`).
    """
    bandwidth = kind.bandwidth_bytes_per_s
    peaks = {d: r for d, r in kind.matrix_flops_per_s.items() if r is not None and d in _BYTES}
    if bandwidth is None or not peaks:
        return None
    return Ceilings(
        device=kind.name,
        kind="cuda",
        measured=False,
        matmul=tuple(
            MatmulRate(dtype, m, k, n, _tabled_matmul(kind, dtype, (m, k, n), peak, bandwidth))
            for dtype, peak in peaks.items()
            for m in _SIZES
            for k in _SIZES
            for n in _SIZES
        ),
        attention=tuple(
            AttentionRate(dtype, length, backward, masked, share * _filled(length) * peak, cudnn)
            for dtype, peak in peaks.items()
            for length in _LENGTHS
            for backward, masked, cudnn, share in _attention_shares(kind, dtype)
        ),
        bandwidth=tuple(
            Bandwidth(size, size / (size / (BANDWIDTH_SHARE * bandwidth) + KERNEL_S))
            for size in (4**n for n in range(5, 18))
        ),
        overhead_s_per_operator=_HOPPER_OVERHEAD_S if _prefers_cudnn(kind) else OVERHEAD_S,
        host_bytes_per_s=kind.interconnect.host_bytes_per_s,
    )


def _tabled_matmul(
    kind: DeviceKind, dtype: str, shape: tuple[int, int, int], peak: float, bandwidth: float
) -> float:
    share, kernel_s = MATMUL_SHARE, KERNEL_S
    if _prefers_cudnn(kind, dtype):
        share, kernel_s = _HOPPER_MATMUL_SHARE, _HOPPER_MATMUL_S
    m, k, n = shape
    flops, moved_bytes = 2 * m * k * n, _BYTES[dtype] * (m * k + k * n + m * n)
    return flops / (
        max(flops / (share * peak), moved_bytes / (BANDWIDTH_SHARE * bandwidth)) + kernel_s
    )


def _prefers_cudnn(kind: DeviceKind, dtype: str = "bfloat16") -> bool:
    """True if PyTorch takes cuDNN's attention first: on Hopper and data-centre Blackwell."""
    if kind.capability is None or dtype == "float32":
        return False
    return rules_of(kind.capability, USUAL_TORCH).cudnn_sdpa_first


def _filled(length: int) -> float:
    """Return the part of its rate for long rows that attention reaches."""
    return length / (length + _HALF_LENGTH)


def _attention_shares(kind: DeviceKind, dtype: str) -> Iterator[tuple[bool, bool, bool, float]]:
    """(backward, masked, cudnn, share of the peak for long rows)."""
    kernels = [(False, ATTENTION_SHARE, MASKED_SHARE)]
    if _prefers_cudnn(kind, dtype):
        kernels = [
            (False, _HOPPER_ATTENTION_SHARE, _HOPPER_MASKED_SHARE),
            (True, _CUDNN_ATTENTION_SHARE, _CUDNN_MASKED_SHARE),
        ]
    for cudnn, causal, masked in kernels:
        for backward, share in causal.items():
            yield backward, False, cudnn, share
            yield backward, True, cudnn, masked * share
