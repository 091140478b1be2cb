"""Speed knobs change time and memory only: the same rows move the weights the same way."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from tests.cpu.conftest import Bench

VARIANTS: dict[str, dict[str, Any]] = {
    "4x2": {"per_device_train_batch_size": 4},
    "2x4": {"per_device_train_batch_size": 2},
    "1x8": {"per_device_train_batch_size": 1},
    "checkpointing": {"gradient_checkpointing": True},
    "every-2nd": {"gradient_checkpointing": "every_2"},
    "every-4th": {"gradient_checkpointing": "every_4"},
    "selective": {"gradient_checkpointing": "selective"},
    "nll": {"loss_type": "nll"},
    "eager": {"attn_implementation": "eager"},
    "padding-free": {"padding_free": True},
    "padding-free-eager": {"padding_free": True, "attn_implementation": "eager"},
    "foreach": {"optim": "adamw_torch"},
}


def one_step(bench: Bench, name: str, **knobs: Any) -> dict[str, Any]:
    base = {"gradient_checkpointing": False, "per_device_train_batch_size": 8}
    # A schedule that does not start at zero, so that the one step moves the weights.
    job = bench.job.model_copy(
        update={"training": {"lr_scheduler_type": "constant", "learning_rate": 1e-3}}
    )
    request = bench.request(job=job, **{**base, **knobs})
    folder = replace(ChildFolder(path=bench.run.path / "steps" / name))
    folder.path.mkdir(parents=True)
    write_json(folder.request, request.plain())
    ending = bench.server.run(folder, "tests.cpu.workers:one_step", Limits(wall_s=120))
    reply = read_json(folder.reply)
    assert isinstance(reply, dict), (ending, folder.stderr.read_text(encoding="utf-8")[-2000:])
    return reply


@pytest.fixture(scope="module")
def reference(bench: Bench) -> dict[str, Any]:
    return one_step(bench, "reference")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_speed_knob_leaves_the_step_as_it_is(
    bench: Bench, reference: dict[str, Any], name: str
) -> None:
    found = one_step(bench, name, **VARIANTS[name])
    assert found["loss"] == pytest.approx(reference["loss"], rel=1e-5)
    assert found["moved"] == pytest.approx(reference["moved"], rel=2e-3)


def test_another_loss_does_move_the_weights_differently(
    bench: Bench, reference: dict[str, Any]
) -> None:
    found = one_step(bench, "dft", loss_type="dft")
    assert found["loss"] != pytest.approx(reference["loss"], rel=1e-2)
