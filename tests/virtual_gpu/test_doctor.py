"""`autotune doctor` where there are GPUs, of which some are used or hidden."""

from typing import Any

import pytest

from tests.virtual_gpu.test_stand_ins import HOLD

pytestmark = pytest.mark.nightly("virtual_gpu")

KIND = "a100-80gb"
MIB = 2**20


def doctor(gpu: Any, **variables: str) -> dict[str, list[tuple[str, str]]]:
    """(State, what was found) of each finding of a name."""
    found: dict[str, list[tuple[str, str]]] = {}
    told = gpu.autotune("doctor", expect=None, **variables)
    for finding in told["findings"]:
        found.setdefault(finding["name"], []).append((finding["state"], finding["found"]))
    assert told["fail"] == sum(s == "fail" for values in found.values() for s, _ in values)
    return found


def test_torch_computes_on_each_gpu_and_the_driver_is_told(virtual_gpu: Any) -> None:
    gpu = virtual_gpu(KIND, devices=2)
    found = doctor(gpu)
    ((state, words),) = found["driver"]
    assert (state, words.partition(";")[0]) == ("ok", "580.00.00, takes CUDA up to 13.0")
    assert words.endswith("; 2 x NVIDIA A100-SXM4-80GB")
    assert [state for name in ("GPU 0", "GPU 1") for state, _ in found[name]] == ["ok"] * 2
    assert all(found[name][0][1].endswith("added 64 ones") for name in ("GPU 0", "GPU 1"))
    assert found["torch and CUDA"][0][0] == "ok"
    assert "is built for CUDA" in found["torch and CUDA"][0][1]
    assert found["other processes"] == [("ok", "no other process uses the GPUs")]
    assert any("kernels is not installed" in words for _, words in found["packages"])


def test_a_gpu_that_others_use_is_left_alone_and_the_other_is_computed_on(virtual_gpu: Any) -> None:
    gpu = virtual_gpu(KIND, devices=3)
    holder = gpu.start("-c", HOLD.format(bytes=64 * MIB), CUDA_VISIBLE_DEVICES="1")
    assert holder.stdout.readline() == "held\n"
    found = doctor(gpu, CUDA_VISIBLE_DEVICES="2,1")
    holder.kill()
    holder.communicate()
    assert "GPU 0" not in found
    assert (found["GPU 1"][0][0], found["GPU 2"][0][0]) == ("unknown", "ok")
    ((state, words),) = found["other processes"]
    assert state == "warn" and words.startswith(f"GPU 1 is in use by pid {holder.pid} ")
    assert found["visible GPUs"] == [("ok", "CUDA_VISIBLE_DEVICES=2,1 shows 2 of 3")]


def test_hidden_gpus_fail(virtual_gpu: Any) -> None:
    hidden = doctor(virtual_gpu(KIND), CUDA_VISIBLE_DEVICES="")
    assert hidden["visible GPUs"] == [("fail", "CUDA_VISIBLE_DEVICES= shows 0 of 1")]
    assert "GPU 0" not in hidden
