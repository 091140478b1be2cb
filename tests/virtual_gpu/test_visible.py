"""`CUDA_VISIBLE_DEVICES` of a scheduler: the device that it names, as NVML sees a probe on it."""

import json
from typing import Any

import pytest

from tests.cpu.conftest import LLAMA, write_model
from tests.virtual_gpu.test_stand_ins import HOLD, on

pytestmark = pytest.mark.nightly("virtual_gpu")

KIND = "a100-80gb"
MIB = 2**20
NVML = """
import json, os, time, pynvml
pynvml.nvmlInit()
every = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
"""
UUIDS = NVML + "print(json.dumps([pynvml.nvmlDeviceGetUUID(one) for one in every]))"
WATCH = (
    NVML
    + """
used = {}
print("watching", flush=True)
while os.getppid() != 1 and not os.path.exists("done"):
    for n, one in enumerate(every):
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(one):
            used.setdefault(process.pid, set()).add(n)
    time.sleep(0.02)
print(json.dumps([[pid, sorted(seen)] for pid, seen in used.items()]))
"""
)
"""Which process was on which devices, until the file `done` is there."""
SETS = (
    "model=model/config.json",
    "global_batch_size=4",
    "max_length=32",
    "devices.kind=cuda",
    "dataset={lengths: {max: 32, p50: 16, p99: 30, rows: 100}}",
    "per_device_train_batch_size=4",
)
PROBE = ("probe", *(word for field in SETS for word in ("--set", field)))


FOUND = """
import json
from autotune.facts import devices
from autotune.probe.measure import describe_processes
found = devices.detect("cuda", 0)
print(json.dumps([found.index, describe_processes(found)]))
"""


def holder_of(gpu: Any, visible: str) -> Any:
    """Another process, on one device."""
    holder = gpu.start("-c", HOLD.format(bytes=64 * MIB), CUDA_VISIBLE_DEVICES=visible)
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_probe_uses_the_device_of_the_uuid_and_no_other(virtual_gpu: Any) -> None:
    """The job's index counts among those that are shown; what is shown first stays alone, too."""
    gpu = virtual_gpu(KIND, devices=3)
    write_model(gpu.folder / "model", {**LLAMA, "num_hidden_layers": 1})
    holder = holder_of(gpu, "0")  # a probe that looked at the first device would be `busy`
    watcher = gpu.start("-c", WATCH)
    assert watcher.stdout.readline() == "watching\n"
    _, second, third = on(gpu, UUIDS)
    shown = f"{third},{second}"
    command = (*PROBE, "--set", "devices.index=1")
    measured = gpu.autotune(*command, CUDA_VISIBLE_DEVICES=shown)["measurement"]
    (gpu.folder / "done").touch()
    used = dict(json.loads(watcher.communicate(timeout=60)[0]))
    holder.kill()
    holder.communicate()
    assert measured["outcome"] == "ok", measured["reason"]
    assert measured["peak_memory_bytes"] == measured["reserved_peak_bytes"] + 520 * MIB
    assert used.pop(holder.pid) == [0]
    assert used and list(used.values()) == [[1]] * len(used)


def test_the_device_is_named_with_who_is_on_it(virtual_gpu: Any) -> None:
    gpu = virtual_gpu(KIND, devices=2)
    first, second = on(gpu, UUIDS)
    holder = holder_of(gpu, second)
    for visible in ("1", second, f"{second},{first}"):
        number, told = on(gpu, FOUND, CUDA_VISIBLE_DEVICES=visible)
        assert number == 1
        assert told.startswith(f"GPU 1 is in use by pid {holder.pid} ")
        assert told.endswith("holds 584 MiB")
    holder.kill()
    holder.communicate()
    for visible in ("0", first, "0,1"):
        assert on(gpu, FOUND, CUDA_VISIBLE_DEVICES=visible)[0] == 0
