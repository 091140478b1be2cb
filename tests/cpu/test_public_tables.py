"""A plan's own record of ZeRO in bfloat16 against the table of the ZeRO paper.

One row of `benchmarks/public_tables`, of a small model on eight ranks, which has more.
"""

from pathlib import Path
from typing import Any

import pytest

from autotune.estimate.formula.offload import OffloadedTraining, offloaded_bytes
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from benchmarks.public_tables.cases import Case, write_model
from benchmarks.public_tables.figures import FIGURE_1, PAPER, by_paper

WORKER = "tests.cpu.test_public_tables:answer"
OFFLOADED = "ZeRO-2, optimizer off"
CASES = {
    name: Case(table=PAPER, model="small", strategy=name, ranks=8)
    for name in ("ZeRO-1", "ZeRO-2", "ZeRO-3", OFFLOADED)
}


def answer(path: Path) -> None:
    """The child: what is live on one device, for each strategy."""
    from autotune.estimate.tracing import engines
    from benchmarks.public_tables.states import estimated, weights_of

    folder = ChildFolder(path=path)
    write_model("small", path / "small")
    parameters, largest = weights_of(path / "small")
    found: dict[str, Any] = {"parameters": parameters, "largest": largest}
    found |= {name: estimated(case, path) for name, case in CASES.items()}
    engines._CHECKED_FOR_OVERFLOW = ()  # a DeepSpeed that looks for overflows elsewhere
    try:
        found["left out"] = estimated(CASES["ZeRO-2"], path)
    except RuntimeError as error:
        found["left out"] = str(error)
    write_json(folder.reply, found)


@pytest.fixture(scope="module")
def found(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = ChildFolder(path=tmp_path_factory.mktemp("tables"))
    write_json(folder.request, {})
    server.run(folder, WORKER, Limits(wall_s=900, stall_s=900))
    reply = read_json(folder.reply)
    assert reply, folder.stderr.read_text(encoding="utf-8")[-3000:]
    return dict(reply)


@pytest.mark.nightly("exactness")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_lasts_is_what_the_paper_says(found: dict[str, Any], stage: int) -> None:
    """All but the gradients of stage 2: a weight that is cut keeps the whole of its gradient."""
    paper = by_paper(found["parameters"], stage, 8)
    parts = found[f"ZeRO-{stage}"]["before_step" if stage == 2 else "between"]
    assert parts["optimizer"] == pytest.approx(paper["optimizer"], rel=0.01)
    assert parts["weights"] == pytest.approx(paper["weights"], rel=0.01)
    if stage == 2:
        cut = 2 * found["largest"]
        assert paper["gradients"] * 0.99 < parts["gradients"] < paper["gradients"] + cut
    else:
        assert parts["gradients"] == pytest.approx(paper["gradients"], rel=0.01)


@pytest.mark.nightly("exactness")
def test_an_offloaded_optimizer_keeps_its_states_on_the_host(found: dict[str, Any]) -> None:
    """The formula does not know of the whole gradient of a weight that is cut."""
    case, parameters, largest = CASES[OFFLOADED], found["parameters"], found["largest"]
    kept = OffloadedTraining(
        parameters=parameters, trained=parameters, width=2, largest=largest, accumulates=True
    )
    formula = offloaded_bytes(case.sharding, kept)
    assert formula < found[OFFLOADED]["host_bytes"] < formula + 2 * largest
    assert found[OFFLOADED]["between"]["weights"] == pytest.approx(2 * parameters, rel=0.01)
    assert "optimizer" not in found[OFFLOADED]["between"]


@pytest.mark.nightly("exactness")
def test_a_step_that_is_left_out_is_no_estimate(found: dict[str, Any]) -> None:
    assert "left an optimizer step out" in found["left out"]


@pytest.mark.parametrize("stage", FIGURE_1)
def test_the_formula_is_the_one_of_figure_1(stage: int) -> None:
    told = sum(by_paper(7.5e9, stage, 64).values())
    assert round(told / 1e9, 1) == pytest.approx(FIGURE_1[stage], abs=0.06)
