"""A script on a virtual GPU: its memory is the allocator's, under a limit that is enforced."""

import json
from typing import Any

import pytest

from tests.cpu.test_scripts import SCRIPTS

pytestmark = pytest.mark.nightly("virtual_gpu")

BASE = ("-m", "autotune", "run", "--script", str(SCRIPTS / "collator.py"))


def search(gpu: Any, name: str, memory: str, expect: int) -> dict[str, Any]:
    """What a search of one probe prints."""
    limits = ("--set", "budget.probes=1", "--set", f"devices.memory={memory}", "--no-verify")
    printed = gpu.run(*BASE, *limits, "--out", name, "--json", "--", "out", expect=expect)
    found: dict[str, Any] = json.loads(printed)
    return found


def test_a_script_is_measured_on_a_gpu_and_ends_at_its_limit(virtual_gpu: Any) -> None:
    gpu = virtual_gpu("a100-80gb")
    best = search(gpu, "roomy", "20GiB", 0)["measurement"]
    assert 0 < best["allocated_peak_bytes"] <= best["reserved_peak_bytes"]
    assert best["reserved_peak_bytes"] < best["peak_memory_bytes"] < 20 * 2**30
    found = search(gpu, "narrow", "520MiB", 1)
    assert found["outcome"] == "nothing_fits"
    nearest = found["nothing_fits"]["nearest"]["measurement"]
    assert nearest["outcome"] == "oom"
    assert nearest["missing_bytes"] > 0
