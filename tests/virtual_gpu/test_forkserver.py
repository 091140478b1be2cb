"""What the stack asks of CUDA while it is imported, and what becomes of one that starts it.

On a GPU, virtual or real, with bitsandbytes and DeepSpeed installed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.facts import devices
from autotune.process.child_server import PRELOAD, ChildServer
from autotune.process.limits import Ending, Limits
from autotune.process.messages import ChildFolder, read_json, write_json

pytestmark = [
    pytest.mark.skipif(not devices.gpu_count(), reason="there is no GPU, nor a virtual one"),
    pytest.mark.nightly("virtual_gpu"),
]

ASKS = """
import torch
PROPERTIES = torch.cuda.get_device_properties(0)
SEEN = {
    "available": torch.cuda.is_available(),
    "count": torch.cuda.device_count(),
    "capability": torch.cuda.get_device_capability(torch.cuda.device(0)),
    "name": torch.cuda.get_device_name(),
    "bytes": PROPERTIES.total_memory,
}
"""
STARTS = "import torch\ntorch.cuda.get_device_properties(0).multi_processor_count\n"
PACKAGES = {"asks": ASKS, "starts": STARTS, "innocent": "import starts\n"}


def uses_the_gpu(folder: Path) -> None:
    """A worker: the GPU, and what a preloaded package was told of it."""
    import sys

    import torch

    properties = torch.cuda.get_device_properties(0)
    told = {
        "device": str(torch.zeros(8, device="cuda").device),
        "processors": properties.multi_processor_count,
        "is_forked": "autotune.process.forkserver" in Path("/proc/self/cmdline").read_text(),
        "is": {
            "available": torch.cuda.is_available(),
            "count": torch.cuda.device_count(),
            "capability": [properties.major, properties.minor],
            "name": properties.name,
        },
    }
    if "asks" in sys.modules:
        asks = sys.modules["asks"]
        told["seen"] = asks.SEEN
        told["later"] = asks.PROPERTIES.multi_processor_count
    write_json(ChildFolder(path=folder).reply, told)


@contextmanager
def server_of(folder: Path, preload: tuple[str, ...]) -> Iterator[ChildServer]:
    """A server that imports the packages made here, or others."""
    for name, text in PACKAGES.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([str(folder), root, os.environ.get("PYTHONPATH", "")])
    with ChildServer(folder / "server.log", preload, {"PYTHONPATH": path}) as server:
        yield server


def used_by_a_child(server: ChildServer, folder: Path) -> dict[str, Any]:
    probe = ChildFolder(path=folder / "probe")
    probe.path.mkdir()
    write_json(probe.request, {"device_kind": "cuda"})
    ending: Ending = server.run(probe, f"{__name__}:uses_the_gpu", Limits(wall_s=120.0))
    errors = probe.stderr.read_text(encoding="utf-8") if probe.stderr.exists() else ""
    assert ending.exit_code == 0, errors
    return read_json(probe.reply) or {}


def test_the_whole_stack_leaves_cuda_to_the_children(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    with server_of(tmp_path, (*PRELOAD, "bitsandbytes", "deepspeed")) as server:
        assert server.fresh is None
        assert server._process is not None
        maps = Path(f"/proc/{server._process.pid}/maps").read_text(encoding="utf-8")
        assert "libbitsandbytes_cuda" in maps and "/libcuda.so" not in maps
        told = used_by_a_child(server, tmp_path)
    assert told["device"] == "cuda:0" and told["is_forked"]


def test_a_package_that_asks_for_the_gpu_is_told_the_truth(tmp_path: Path) -> None:
    with server_of(tmp_path, ("torch", "asks")) as server:
        assert server.fresh is None
        told = used_by_a_child(server, tmp_path)
    assert told["is_forked"]
    assert told["seen"].pop("bytes") > 2**30
    assert told["seen"] == told["is"]
    assert told["later"] == told["processors"] > 0  # what NVML does not know, from CUDA


@pytest.mark.parametrize(
    ("package", "named"), [("starts", "`starts`"), ("innocent", "`starts`, through `innocent`")]
)
def test_a_package_that_starts_cuda_is_named_and_children_are_fresh_processes(
    tmp_path: Path, package: str, named: str
) -> None:
    with server_of(tmp_path, ("torch", package, "asks")) as server:
        assert server.fresh == f"importing {named} starts CUDA"
        assert server._process is not None
        held = [process.pid for process in devices.gpu(0).processes]
        assert server._process.pid not in held  # else every probe would end as `busy`
        told = used_by_a_child(server, tmp_path)
    assert told["device"] == "cuda:0" and not told["is_forked"]
    assert f"importing {named} starts CUDA" in (tmp_path / "server.log").read_text("utf-8")
