"""What of DeepSpeed is compiled before a probe."""

from typing import Any

import pytest

from autotune.probe.extensions import extensions_of
from autotune.probe.protocol import ProbeRequest

ZERO = {"num_processes": 2, "distributed_type": "DEEPSPEED", "zero_stage": 3}


@pytest.mark.parametrize(
    ("sharding", "device", "expected"),
    [
        ({}, "cuda", []),
        ({"num_processes": 2, "distributed_type": "FSDP"}, "cuda", []),
        (ZERO, "cuda", []),
        (ZERO, "cpu", ["ShareMemCommBuilder"]),
        ({**ZERO, "offload_optimizer_device": "cpu"}, "cuda", ["CPUAdamBuilder"]),
    ],
)
def test_what_such_a_probe_calls(
    sharding: dict[str, Any], device: str, expected: list[str]
) -> None:
    request = ProbeRequest(
        method="sft",
        config={},
        environment={},
        weights="random",
        model_path="",
        device_kind=device,
        device_index=0,
        memory_limit_bytes=None,
        threads=1,
        rows="",
        rows_total=1,
        rows_sampled=False,
        global_batch=2,
        seed=0,
        sharding=sharding,
    )
    assert extensions_of(request) == expected
