"""The driver's state, as a made-up NVML and a made-up PCI bus tell of it."""

import sys

from autotune.facts.devices import driver_state, gpus_on_bus
from tests.unit.facts.test_devices import FakeNvml


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
    devices = {
        "0": ("0x10de", "0x030200"),
        "1": ("0x10de", "0x030000"),
        "2": ("0x10de", "0x040300"),  # the sound of a graphics card
        "3": ("0x8086", "0x030000"),
        "4": ("0x10de", None),
    }
    for name, (maker, kind) in devices.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{maker}\n", encoding="ascii")
        if kind:
            (tmp_path / name / "class").write_text(f"{kind}\n", encoding="ascii")
    assert gpus_on_bus(tmp_path) == 2
    assert gpus_on_bus(tmp_path / "none") == 0
