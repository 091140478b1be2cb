"""The CPU as it is here, and GPUs as a made-up NVML tells of them."""

import os
import sys
from types import SimpleNamespace

import pytest

from autotune.errors import MachineError
from autotune.facts import devices, host
from autotune.facts.devices import driver_state, gpus_on_bus


class FakeNvml:
    """What `devices.py` uses of pynvml."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NoPermission(NVMLError):
        pass

    def __init__(self, gpus=1, processes=(), fails=()):
        self._gpus, self._fails = gpus, fails
        self._processes = [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in processes]
        self.open = 0

    def nvmlInit(self):
        if "init" in self._fails:
            raise self.NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return self._gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{'abc'[handle]}0000000-0000"

    def nvmlDeviceGetMemoryInfo(self, handle):
        if "memory" in self._fails:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(total=80, free=70 - handle, used=10)

    def nvmlDeviceGetName(self, handle):
        return b"NVIDIA Something"

    def nvmlSystemGetDriverVersion(self):
        return "570.1"

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return [9, 0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if "processes" in self._fails:
            raise self.NVMLError_NotSupported("Not Supported")
        if "permission" in self._fails:
            raise self.NVMLError_NoPermission("Insufficient Permissions")
        return self._processes

    def nvmlSystemGetProcessName(self, pid):
        if pid == 13:
            raise self.NVMLError("gone")
        return f"/bin/program{pid}"


@pytest.fixture
def nvml(monkeypatch):
    """Puts a made-up NVML in place, which must be closed as often as it was opened."""
    handles = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**fields):
        handles.append(FakeNvml(**fields))
        monkeypatch.setitem(sys.modules, "pynvml", handles[-1])

    yield install
    assert [fake.open for fake in handles] == [0] * len(handles)


def test_the_cpu_has_memory_and_cores():
    facts = devices.cpu()
    assert facts.kind == "cpu"
    assert 0 < facts.free_bytes <= facts.total_bytes
    assert facts.total_bytes > 100 * 2**20
    assert facts.cores == len(os.sched_getaffinity(0))
    assert facts.name
    assert not facts.is_busy


def test_a_control_group_bounds_what_the_cpu_has(monkeypatch):
    cpu = devices.cpu()
    limit, used_bytes = cpu.total_bytes // 4, cpu.total_bytes // 5
    monkeypatch.setattr(host, "memory_limits", lambda: iter([(limit, used_bytes)]))
    bounded = devices.cpu()
    assert bounded.total_bytes == limit
    assert bounded.free_bytes <= limit - used_bytes
    monkeypatch.setattr(host, "memory_limits", lambda: iter([(limit, 2 * limit)]))
    assert devices.cpu().free_bytes == 0


def test_a_gpu_is_told_with_its_free_memory(nvml):
    nvml(gpus=2)
    facts = devices.gpu(1)
    assert (facts.kind, facts.index, facts.name) == ("cuda", 1, "NVIDIA Something")
    assert (facts.total_bytes, facts.free_bytes) == (80, 69)
    assert (facts.driver, facts.capability) == ("570.1", (9, 0))
    assert not facts.is_busy


def test_other_processes_are_named_and_this_one_is_left_out(nvml):
    nvml(processes=[(os.getpid(), 5), (12, 7), (13, None)])
    facts = devices.gpu(0)
    assert facts.is_busy
    assert [(process.pid, process.used_bytes, process.name) for process in facts.processes] == [
        (12, 7, "/bin/program12"),
        (13, None, None),
    ]


def test_a_gpu_that_runs_only_this_process_is_not_busy(nvml):
    nvml(processes=[(os.getpid(), 5)])
    assert not devices.gpu(0).is_busy


def test_what_nvml_does_not_tell_is_none(nvml):
    nvml(processes=[(12, 7), (13, None)])
    assert devices.gpu_process_bytes(0, 12) == 7
    assert devices.gpu_process_bytes(0, 13) is None
    assert devices.gpu_process_bytes(0, 99) is None
    assert devices.gpu_used_bytes(0) == 10
    for refusal in ("processes", "permission"):
        nvml(fails=[refusal])
        assert devices.gpu_process_bytes(0, 12) is None
        assert devices.gpu(0).processes == ()


def test_without_a_driver_there_is_no_gpu_and_the_cpu_is_taken(nvml):
    nvml(fails=["init"])
    assert devices.gpu_count() == 0
    assert devices.gpu_used_bytes(0) is None
    assert devices.gpu_process_bytes(0, 1) is None
    assert devices.detect("auto", 0).kind == "cpu"


def test_auto_takes_the_gpu_where_there_is_one_and_cpu_means_cpu(nvml):
    nvml(gpus=2)
    assert devices.detect("auto", 1).index == 1
    assert devices.detect("cuda", 0).kind == "cuda"
    assert devices.detect("cpu", 0).kind == "cpu"


@pytest.mark.parametrize(
    ("environment", "visible"),
    [
        (None, (0, 1, 2)),
        ("2,0", (2, 0)),
        (" 1 , 2", (1, 2)),
        ("1", (1,)),
        ("GPU-c0000000-0000,GPU-a", (2, 0)),
        ("GPU-b,0", (1, 0)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("1,-1,2", (1,)),
        ("1,7,2", (1,)),
        ("1,1", ()),
        ("GPU-", ()),
        ("GPU-d,0", ()),
        ("1x,2y", (1, 2)),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(nvml, monkeypatch, environment, visible):
    nvml(gpus=3)
    if environment is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", environment)
    assert devices.visible_gpus() == visible


def test_the_index_counts_among_the_visible_gpus_and_the_device_bears_nvmls_number(
    nvml, monkeypatch
):
    nvml(gpus=3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c,1")
    assert devices.detect("auto", 0).index == 2
    facts = devices.detect("cuda", 1)
    assert (facts.index, facts.free_bytes) == (1, 69)
    with pytest.raises(
        MachineError,
        match="GPU 2 is asked for, but this machine has 3, .*CUDA_VISIBLE_DEVICES=GPU-c,1 shows 2",
    ):
        devices.detect("cuda", 2)


def test_hidden_gpus_are_not_there(nvml, monkeypatch):
    nvml(gpus=3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.detect("auto", 0).kind == "cpu"
    with pytest.raises(MachineError, match="CUDA_VISIBLE_DEVICES= shows 0"):
        devices.detect("cuda", 0)


def test_a_slice_of_a_gpu_is_refused_unless_the_cpu_is_asked_for(nvml, monkeypatch):
    nvml(gpus=3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    assert devices.detect("cpu", 0).kind == "cpu"
    for kind in ("auto", "cuda"):
        with pytest.raises(MachineError, match=r"names a slice of a GPU \(MIG\)"):
            devices.detect(kind, 0)


@pytest.mark.parametrize(
    ("fields", "index", "message"),
    [
        ({"fails": ["init"]}, 0, "GPU 0 is asked for, but this machine has no NVIDIA GPU"),
        ({"gpus": 2}, 2, "GPU 2 is asked for, but this machine has 2, numbered from 0"),
        ({"fails": ["memory"]}, 0, "GPU is lost"),
    ],
)
def test_a_gpu_that_is_not_there_is_the_machines_error(nvml, fields, index, message):
    nvml(**fields)
    with pytest.raises(MachineError, match=message) as caught:
        devices.detect("cuda", index)
    assert caught.value.exit_code == 3


class TalkingNvml(FakeNvml):
    """An NVML that tells what the simplest one does not."""

    def nvmlSystemGetCudaDriverVersion_v2(self):
        return 12080


def test_a_driver_is_told_with_each_gpu(monkeypatch):
    nvml = TalkingNvml(gpus=2)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    state = driver_state()
    assert (state.version, state.cuda) == ("570.1", (12, 8))
    assert [gpu.index for gpu in state.gpus] == [0, 1]
    assert nvml.open == 0


def test_a_gpu_that_cannot_be_read_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", TalkingNvml(gpus=2, fails=["memory"]))
    state = driver_state()
    assert (state.version, state.gpus) == ("570.1", ())
    assert state.problem.startswith("devices: NVML cannot read GPU 0: GPU is lost")


def test_without_a_driver_the_bus_alone_tells(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fails=["init"]))
    state = driver_state()
    assert (state.version, state.cuda, state.gpus) == (None, None, ())
    assert state.on_bus == gpus_on_bus()


def test_gpus_on_the_bus_are_nvidias_displays(tmp_path):
    found = {
        "0": ("0x10de", "0x030200"),
        "1": ("0x10de", "0x030000"),
        "2": ("0x10de", "0x040300"),  # the sound of a graphics card
        "3": ("0x8086", "0x030000"),
        "4": ("0x10de", None),
    }
    for name, (maker, kind) in found.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{maker}\n", encoding="ascii")
        if kind:
            (tmp_path / name / "class").write_text(f"{kind}\n", encoding="ascii")
    assert gpus_on_bus(tmp_path) == 2
    assert gpus_on_bus(tmp_path / "none") == 0
