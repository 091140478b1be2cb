"""A plan's child asked for points that an engine spreads: through `estimate`, as a plan asks."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.estimate.formula.offload import OffloadedTraining, offloaded_bytes
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.space.sharding.sharding import Sharding
from tests.cpu.conftest import LLAMA
from tests.cpu.test_estimate_scaling import (
    CUDA,
    Case,
    estimate_request,
    model_folder,
    write_rows,
)

pytestmark = [pytest.mark.slow, pytest.mark.nightly("exactness")]

LAYERS = 2
"""Few enough that a plan traces the engine itself."""

WORKER = "tests.cpu.test_sharded_estimates:answer"
EIGHT = {"distributed_type": "DEEPSPEED", "num_processes": 8, "zero_stage": 3}
SHARDINGS: dict[str, dict[str, Any]] = {
    "alone": {},
    "fsdp": {"distributed_type": "FSDP", "num_processes": 8},
    "zero 3": EIGHT,
    "zero 3, all off": EIGHT | {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
}
BF16 = {
    "model_name_or_path": "some model",
    "report_to": "none",
    "max_length": None,
    "dtype": "bfloat16",
    "bf16": True,
    "attn_implementation": "sdpa",
    "loss_type": "nll",
    "gradient_checkpointing": False,
    "optim": "adamw_torch_fused",
}


def deepspeed(sharding: Sharding) -> dict[str, Any] | None:
    """DeepSpeed's JSON; the sizes of batches in it are another candidate's."""
    if not sharding.zero_stage:
        return None
    zero: dict[str, Any] = {"stage": sharding.zero_stage, "overlap_comm": True}
    for kind in ("optimizer", "param"):
        device = getattr(sharding, f"offload_{kind}_device")
        if device != "none":
            zero[f"offload_{kind}"] = {"device": device, "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": 64,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }


def answer(path: Path) -> None:
    """The child: what a plan's child says."""
    from autotune.estimate.worker import estimate

    folder = ChildFolder(path=path)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(path / "compiled")
    asked: dict[str, Any] = read_json(folder.request) or {}
    case = Case(config=BF16, rows=2, accumulation=2, cuda=CUDA)
    request = estimate_request(case, asked["model"], write_rows(case, path / "rows"))
    sharding = Sharding(**asked["sharding"])
    told = None if sharding == Sharding() else sharding.plain()
    request = dataclasses.replace(
        request,
        layers=LAYERS,
        points=request.points[:1],
        sharding=told,
        deepspeed=deepspeed(sharding),
    )
    write_json(folder.request, request.plain())
    estimate(path)


def replies_of(
    server: ChildServer, place: Path, worker: str, shardings: dict[str, dict[str, Any]], layers: int
) -> dict[str, Any]:
    """What a child says of a model of so many layers, for each way to spread its training."""
    model = model_folder(place / "model", LLAMA, layers)
    found = {}
    for number, (name, sharding) in enumerate(shardings.items()):
        folder = ChildFolder(path=place / str(number))
        folder.path.mkdir()
        write_json(folder.request, {"model": str(model), "sharding": sharding})
        server.run(folder, worker, Limits(wall_s=900, stall_s=900))
        reply = read_json(folder.reply)
        assert reply, folder.stderr.read_text(encoding="utf-8")[-3000:]
        assert reply.get("problem") is None, folder.stderr.read_text(encoding="utf-8")[-3000:]
        assert not (folder.path / "compiled").exists(), "nothing is compiled for a trace"
        found[name] = reply
    return found


@pytest.fixture(scope="module")
def replies(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return replies_of(server, tmp_path_factory.mktemp("sharded"), WORKER, SHARDINGS, LAYERS)


def test_what_lasts_is_divided_among_the_devices(replies: dict[str, Any]) -> None:
    alone = replies["alone"]["points"][0]["parts"]
    for name in ("fsdp", "zero 3"):
        point = replies[name]["points"][0]
        assert point["method"] == "trace"
        assert sum(point["parts"].values()) == point["peak_allocated_bytes"]
        assert point["host_bytes"] == 0
        assert point["parts"]["weights"] < 0.3 * alone["weights"], name


def test_what_is_offloaded_is_on_the_host_and_not_on_the_device(replies: dict[str, Any]) -> None:
    there, here = (replies[name]["points"][0] for name in ("zero 3, all off", "zero 3"))
    assert there["host_bytes"] > 0
    assert "optimizer" in here["parts"]
    assert "optimizer" not in there["parts"]
    assert there["peak_allocated_bytes"] < here["peak_allocated_bytes"]


def test_the_formula_of_what_is_offloaded_is_the_trace(replies: dict[str, Any]) -> None:
    """In bfloat16, with accumulation; small weights are padded to whole parts."""
    name = "zero 3, all off"
    weights = replies["alone"]["points"][0]["parts"]["weights"] / 2
    largest = LLAMA["vocab_size"] * LLAMA["hidden_size"]
    kept = OffloadedTraining(
        parameters=weights, trained=weights, width=2, largest=largest, accumulates=True
    )
    formula = offloaded_bytes(Sharding(**SHARDINGS[name]), kept)
    assert replies[name]["points"][0]["host_bytes"] == pytest.approx(formula, rel=0.03)


def test_the_work_of_a_step_is_told_as_well(replies: dict[str, Any]) -> None:
    for name in ("fsdp", "zero 3"):
        (shape,) = replies[name]["shapes"]
        assert shape["rows"] == 2
        assert shape["work"]
        assert replies[name]["optimizer_work"][""]
