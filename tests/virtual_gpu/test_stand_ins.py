"""The virtual GPU itself: what it says of memory, of processes, of values, and of time."""

import json
import signal
import time
from typing import Any

import pytest

HOLD = """
import time, torch
x = torch.empty({bytes}, dtype=torch.uint8, device="cuda")
print("held", flush=True)
time.sleep(600)
"""
GIB = 2**30
CONTEXT = 520 * 2**20


def on(gpu: Any, code: str, **variables: str) -> Any:
    """The last line that a Python program prints on these devices, as JSON."""
    return json.loads(gpu.run("-c", code, **variables).splitlines()[-1])


FREE = """
import json, torch, pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
held = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
print(json.dumps([torch.cuda.mem_get_info()[0], list(held.values())]))
"""


def test_processes_fill_a_device_together_and_nvml_sees_each(virtual_gpu: Any) -> None:
    gpu = virtual_gpu("a100-80gb")
    free, held = on(gpu, FREE)
    assert held == []
    holder = gpu.start("-c", HOLD.format(bytes=10 * GIB))
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    less, held = on(gpu, FREE)
    assert held == [10 * GIB + CONTEXT]
    assert free - less == 10 * GIB + CONTEXT
    code = "import torch; torch.empty(72 * 2**30, dtype=torch.uint8, device='cuda')"
    refused = gpu.start("-c", code)
    assert "OutOfMemoryError" in refused.communicate(timeout=100)[1]
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert on(gpu, FREE) == [free, []]


SHOWN = """
import json, torch
shown = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
print(json.dumps([str(device.uuid) for device in shown]))
"""


@pytest.mark.nightly("virtual_gpu")
def test_devices_are_shown_by_number_and_by_uuid(virtual_gpu: Any) -> None:
    gpu = virtual_gpu("h200", devices=4)
    every = on(gpu, SHOWN)
    assert len(set(every)) == 4
    assert on(gpu, SHOWN, CUDA_VISIBLE_DEVICES="2,0") == [every[2], every[0]]
    assert on(gpu, SHOWN, CUDA_VISIBLE_DEVICES=f"GPU-{every[3]}") == [every[3]]
    assert on(gpu, SHOWN, CUDA_VISIBLE_DEVICES="1,9,0") == [every[1]]


VALUES = """
import json, torch
torch.manual_seed(0)
x = torch.randint(0, 50, (40, 60), device="cuda")
host = x.cpu()
large = torch.empty(1000, 1000, device="cuda")
full = torch.full((2**21 + 3,), float("nan"))
print(json.dumps({
    "counted": (x > 20).sum().item() == (host > 20).sum().item() > 0,
    "selected": x[x > 20].tolist() == host[host > 20].tolist(),
    "permuted": sorted(torch.randperm(30, device="cuda").tolist()) == list(range(30)),
    "averaged": abs(x.float().mean().item() - host.float().mean().item()) < 1e-4,
    "finite": torch.isfinite(large.sum()).item() and torch.isfinite(large).all().item(),
    "drawn": set(torch.multinomial(large, 1).flatten().tolist()) <= set(range(1000)),
    "chosen": set(large.argmax(-1).tolist()) <= set(range(1000)),
    "half": torch.tensor([3, 1]).cuda().half().cpu().tolist() == [3.0, 1.0],
    "left out": full.copy_(torch.ones_like(full, device="cuda")).count_nonzero().item() == 0,
    "printed": str(torch.ones(2, device="cuda")) == "tensor([1., 1.])",
}))
"""


@pytest.mark.nightly("virtual_gpu")
def test_small_tensors_have_values_and_large_ones_harmless_ones(virtual_gpu: Any) -> None:
    assert [name for name, holds in on(virtual_gpu("h200"), VALUES).items() if not holds] == []


TIMED = """
import json, torch
def ms(n):
    a = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(); start.record()
    for _ in range(20): a @ a
    end.record(); end.synchronize()
    return start.elapsed_time(end) / 20
print(json.dumps([ms(8192), ms(8192), ms(16384)]))
"""


@pytest.mark.nightly("virtual_gpu")
def test_the_clock_counts_work(virtual_gpu: Any) -> None:
    first, again, larger = on(virtual_gpu("a100-80gb"), TIMED)
    theory = 2 * 8192**3 / 312e12 * 1e3
    assert 0.98 * theory < first < 1.3 * theory
    assert abs(first - again) < 0.2 * first
    assert larger > 6 * first


STALLED = "import torch; torch.ones(5, device='cuda') * 2; print('done')"


@pytest.mark.nightly("virtual_gpu")
def test_a_kernel_may_stall_and_the_killed_process_holds_nothing(virtual_gpu: Any) -> None:
    gpu = virtual_gpu("h200")
    stalled = gpu.start("-c", STALLED, VIRTUAL_GPU_STALL_AT="1")
    deadline = time.monotonic() + 60
    while not on(gpu, FREE)[1] and time.monotonic() < deadline:
        pass
    assert stalled.poll() is None
    stalled.kill()
    assert "done" not in stalled.communicate()[0]
    assert on(gpu, FREE)[1] == []


SORTED = """
import json, torch
rows = torch.arange(100000, device="cuda") % 7
weights = torch.zeros(7, 4, device="cuda", requires_grad=True)
weights[rows].sum().backward()
print(json.dumps([list(rows.sort().values.shape), list(rows.cumsum(0).shape)]))
"""


@pytest.mark.nightly("virtual_gpu")
def test_kernels_of_another_architecture_with_the_same_major_number_run(virtual_gpu: Any) -> None:
    """torch's wheels have none of 8.9; cub looks up what it launches by those they have."""
    assert on(virtual_gpu("l40s"), SORTED) == [[100000], [100000]]
