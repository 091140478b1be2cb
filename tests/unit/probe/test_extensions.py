"""What of DeepSpeed is compiled before a probe."""

from typing import Any

import pytest

from autotune.probe.extensions import extensions_of
from tests.unit.builders import make_probe_request

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
    request = make_probe_request(device_kind=device, sharding=sharding)
    assert extensions_of(request) == expected
