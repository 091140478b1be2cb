"""Whether SDPA leaves out cuDNN's attention, which PyTorch prefers on Hopper and Blackwell. Pure.

cuDNN builds a plan for every shape it has not seen (pytorch/pytorch#155958): 0.44 and 0.55 s for
forward and backward on a B200 (modelscope/FunASR#3704), 0.12 to 0.14 s for both on an H100, where
without it no shape takes longer the first time (benchmarks/recorded/gpu-attention-h100-2026-11-26).
The first launch on an H200 ran at 51% of what its probe had promised on repeated shapes: 0.3 s more
for each micro-batch. With it left out, launches on an H100 keep what is promised. Known error:
whether shapes differ is read off the lengths of rows alone, not off how many shapes that makes
(`pad_to_multiple_of`, many rows of full length), nor off how often a long training meets them
again: with a mask the other kernels reach a third of cuDNN's rate.
"""

from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.facts.data import DataFacts
from autotune.facts.device_kinds import rules_of
from autotune.job.methods import METHODS

CUDNN_LAST = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
"""PyTorch reads it once, when SDPA is first called."""
USUAL_TORCH = "2.13"
"""What is assumed where the version is not known."""


def cudnn_environment(method: str, config: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    """Return the variable that leaves cuDNN's attention out, where PyTorch would take it for
    batches whose shapes differ; else none."""
    uses_sdpa = config.get("attn_implementation", "sdpa") == "sdpa"
    if not uses_sdpa or not cudnn_is_first(facts) or not _shapes_differ(method, config, facts.data):
        return {}
    return {CUDNN_LAST: "1"}


def cudnn_is_first(facts: Facts) -> bool:
    """True if PyTorch prefers cuDNN's attention on this device."""
    device = facts.device
    if device.kind != "cuda" or device.capability is None:
        return False
    torch = facts.stack.versions.get("torch") or USUAL_TORCH
    return rules_of(device.capability, torch).cudnn_sdpa_first


def _shapes_differ(method: str, config: Mapping[str, Any], data: DataFacts) -> bool:
    """True if rows are of different lengths, so that micro-batches are of different shapes."""
    if METHODS[method].online:  # completions are as long as they come
        return True
    if config.get("packing") and config.get("packing_strategy") == "wrapped":
        return False
    most = config.get("max_length") or data.longest
    return min(data.quantiles.get("p1", 0), most) < min(data.longest, most)
