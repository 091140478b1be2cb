"""A plan's own record of ZeRO in bfloat16 against the table of the ZeRO paper.

One row of `benchmarks/public_tables`, of a small model on eight ranks, which has more.
"""

from pathlib import Path
from typing import Any

import pytest

from autotune.probe.ending import Limits
from autotune.probe.protocol import ProbeFolder, read_json, write_json
from autotune.probe.runner import ProbeServer
from benchmarks.public_tables.cases import MODELS, Case, write_model
from benchmarks.public_tables.figures import FIGURE_1, PAPER, by_estimator, by_paper

WORKER = "tests.cpu.test_public_tables:answer"
CASES = {
    name: Case(table=PAPER, model="small", strategy=name, ranks=8)
    for name in ("ZeRO-1", "ZeRO-2", "ZeRO-3", "ZeRO-2, optimizer off")
}


def answer(path: Path) -> None:
    """The child: what is live on one device, for each strategy."""
    from autotune.estimate import fake_engines
    from benchmarks.public_tables.states import estimated, weights_of

    folder = ProbeFolder(path=path)
    write_model("small", path / "small")
    parameters, largest = weights_of(path / "small")
    found: dict[str, Any] = {"parameters": parameters, "largest": largest}
    found |= {name: estimated(case, path) for name, case in CASES.items()}
    fake_engines._CHECKED_FOR_OVERFLOW = ()  # a DeepSpeed that looks for overflows elsewhere
    try:
        found["left out"] = estimated(CASES["ZeRO-2"], path)
    except RuntimeError as error:
        found["left out"] = str(error)
    write_json(folder.reply, found)


@pytest.fixture(scope="module")
def found(server: ProbeServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = ProbeFolder(path=tmp_path_factory.mktemp("tables"))
    write_json(folder.request, {})
    server.run(folder, WORKER, Limits(wall_s=900, stall_s=900))
    reply = read_json(folder.reply)
    assert reply, folder.stderr.read_text(encoding="utf-8")[-3000:]
    return dict(reply)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_lasts_is_what_the_paper_says(found: dict[str, Any], stage: int) -> None:
    """All but the gradients of stage 2: a weight that is cut keeps the whole of its gradient."""
    paper = by_paper(found["parameters"], stage, 8)
    between = found[f"ZeRO-{stage}"]["between"]
    assert between["optimizer"] == pytest.approx(paper["optimizer"], rel=0.01)
    assert between["weights"] == pytest.approx(paper["weights"], rel=0.01)
    if stage == 2:
        cut = 2 * MODELS["small"]["vocab_size"] * MODELS["small"]["hidden_size"]
        assert paper["gradients"] * 0.99 < between["gradients"] < paper["gradients"] + cut
    else:
        assert between["gradients"] == pytest.approx(paper["gradients"], rel=0.01)


def test_an_offloaded_optimizer_keeps_its_states_on_the_host(found: dict[str, Any]) -> None:
    """DeepSpeed's estimator has 16 bytes for each weight of all ranks there, before its factor of
    1.5; with its own part of the gradients in two types each rank has a little more."""
    case, parameters = CASES["ZeRO-2, optimizer off"], found["parameters"]
    told = by_estimator(case.sharding, parameters, found["largest"], nodes=1)
    assert told is not None
    host = 8 * found["ZeRO-2, optimizer off"]["host_bytes"]
    assert 16 * parameters < host < 24 * parameters
    assert told["device"] == 2 * parameters
    assert found["ZeRO-2, optimizer off"]["between"]["weights"] == pytest.approx(
        told["device"], rel=0.01
    )


def test_a_step_that_is_left_out_is_no_estimate(found: dict[str, Any]) -> None:
    assert "left an optimizer step out" in found["left out"]


@pytest.mark.parametrize("stage", FIGURE_1)
def test_the_formula_is_the_one_of_figure_1(stage: int) -> None:
    told = sum(by_paper(7.5e9, stage, 64).values())
    assert round(told / 1e9, 1) == pytest.approx(FIGURE_1[stage], abs=0.06)
