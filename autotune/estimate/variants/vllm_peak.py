"""The peak of a training that shares its device with vLLM. Pure."""

from typing import Any

from autotune.estimate.protocol import Point
from autotune.estimate.records.decoding import GENERATION
from autotune.estimate.records.events import VLLM


def with_vllm(fields: dict[str, Any], point: Point, resident: int) -> dict[str, Any]:
    """Return fields of a reply, with what vLLM has of the device at the peak of both.

    Args:
        resident: bytes of the training that are live when a generation begins.
    """
    if not point.vllm_bytes:
        return fields
    reserved = fields["peak_reserved_bytes"]
    vllm_bytes = point.vllm.added_peak(reserved, resident)
    if vllm_bytes > point.vllm.always_bytes:
        fields = {**fields, "phase": GENERATION, "operator": "vLLM, awake"}
    return {
        **fields,
        "peak_reserved_bytes": reserved + vllm_bytes,
        "peak_allocated_bytes": fields["peak_allocated_bytes"] + vllm_bytes,
        "parts": {**fields["parts"], VLLM: vllm_bytes},
    }
