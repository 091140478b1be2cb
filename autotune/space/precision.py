"""Which mixed precision `auto` means on a device, and why. Pure."""

from autotune.facts.devices import DeviceFacts
from autotune.job.job import Job


def resolve_precision(job: Job, device: DeviceFacts) -> tuple[str, str]:
    """(`fp32` | `bf16` | `fp16`, reason)."""
    if job.precision != "auto":
        return job.precision, "the job says so"
    if device.kind == "cpu":
        return "fp32", "on the CPU, bf16 changes the numerics and is rarely faster"
    if device.maker != "NVIDIA":
        return "bf16", "the GPU computes in bf16, as all of other makers that are known here do"
    if device.capability is not None and device.capability >= (8, 0):
        return "bf16", "the GPU computes in bf16 (compute capability 8.0 or newer)"
    return "fp16", "the GPU is older than bf16 (compute capability below 8.0)"
