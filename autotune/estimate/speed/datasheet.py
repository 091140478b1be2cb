"""Ceilings of a GPU one does not have, from its data sheet. Pure."""

from autotune.estimate.speed.ceilings import AttentionRate, Bandwidth, Ceilings, MatmulRate
from autotune.facts.device_kinds import DeviceKind

_SIZES = tuple(4**n for n in range(2, 9))
"""16 to 65536: what matmuls are tabled at, in each dimension."""
_LENGTHS = tuple(4**n for n in range(3, 9))
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MATMUL_SHARE = 0.8
"""Share of the peak that large matmuls reach: 788 of 989 TFLOP/s measured on an H200 (8192^3,
bf16)."""
BANDWIDTH_SHARE = 0.85
"""Share of the specified bandwidth: 4.3 of 4.8 TB/s measured for a copy on an H200, less for
others."""
KERNEL_S = 2e-6
"""Seconds by which a kernel takes longer than its work at full rate, to fill and drain a GPU.
A guess; it decides what small operators reach."""
ATTENTION_SHARE = {False: 0.55, True: 0.45}
"""Share of the peak for long rows, forward and backward. FlashAttention-2 (arXiv 2307.08691)
reports 50 to 73% of an A100's peak forward, less backward, at head sizes of 64 and 128."""
_HALF_LENGTH = 256
"""Length at which attention reaches half of that, read off the same paper's plots (rough)."""
MASKED_SHARE = 0.5
"""What the kernels that take a mask reach of those that do not. A guess."""
OVERHEAD_S = 6e-6
"""The host's time for one dispatched operator. Accounts of PyTorch's way from Python to the launch
of a kernel say 5 to 25 us; views, a third of the operators of a training step, launch none and take
less. Known error: on an H200's host steps that hung on it went as if it were about 13 (a 1.5B model
with one row: 2.2 times too fast; benchmarks/recorded/gpu-memory-h200-2026-11-26)."""


def ceilings_of_kind(kind: DeviceKind) -> Ceilings | None:
    """The ceilings of a GPU one does not have; None where its rates are not known.

    A matmul takes its operations at `MATMUL_SHARE` of the peak plus `KERNEL_S`, and not less than
    its bytes take. Known error: not measured on any device but for the shares quoted above; expect
    a factor of 2 for small operators and for the host. Ranks that hang on it are not to be trusted
    before a probe. Against 28 runs that others have measured on an A100: 0.88 to 1.18 of their
    tokens/s (`benchmarks/published_runs`).
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
            MatmulRate(dtype, m, k, n, _tabled_matmul(dtype, (m, k, n), peak, bandwidth))
            for dtype, peak in peaks.items()
            for m in _SIZES
            for k in _SIZES
            for n in _SIZES
        ),
        attention=tuple(
            AttentionRate(
                dtype, length, backward, masked, _tabled_attention(length, backward, masked) * peak
            )
            for dtype, peak in peaks.items()
            for length in _LENGTHS
            for backward in (False, True)
            for masked in (False, True)
        ),
        bandwidth=tuple(
            Bandwidth(size, size / (size / (BANDWIDTH_SHARE * bandwidth) + KERNEL_S))
            for size in (4**n for n in range(5, 18))
        ),
        overhead_s_per_operator=OVERHEAD_S,
        host_bytes_per_s=kind.interconnect.host_bytes_per_s,
    )


def _tabled_matmul(dtype: str, shape: tuple[int, int, int], peak: float, bandwidth: float) -> float:
    m, k, n = shape
    flops, moved_bytes = 2 * m * k * n, _BYTES[dtype] * (m * k + k * n + m * n)
    computing = flops / (MATMUL_SHARE * peak)
    return flops / (max(computing, moved_bytes / (BANDWIDTH_SHARE * bandwidth)) + KERNEL_S)


def _tabled_attention(length: int, backward: bool, masked: bool) -> float:
    share = ATTENTION_SHARE[backward] * length / (length + _HALF_LENGTH)
    return share * (MASKED_SHARE if masked else 1.0)
