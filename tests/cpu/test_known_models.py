"""A plan of a model that the hub does not give, from its built-in shape."""

import json

import pytest

from tests.cpu.conftest import Command


def test_a_plan_takes_the_built_in_shape_and_says_so(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(autotune.folder / "nothing downloaded"))
    words = ["--model", "SmolLM2-135M", "--max-length", "64", "--device", "h200", "--json"]
    plan = json.loads(autotune.typed("plan", *words))
    (candidate,) = plan["candidates"]
    assert candidate["fits"]
    assert plan["model"]["parameters"] == 134515008
    note = "the shape of HuggingFaceTB/SmolLM2-135M is built in: the hub gave none"
    assert note in plan["notes"]
