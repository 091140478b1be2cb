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


def test_what_judges_completions_may_be_a_built_in_shape(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(autotune.folder / "nothing downloaded"))
    words = [
        "--model",
        "SmolLM2-135M",
        "--method",
        "rloo",
        "--max-length",
        "32",
        "--device",
        "h200",
        "--json",
    ]
    judges = {}
    for judge in ("smollm2-135m", "smollm2-360m"):
        sets = ["--set", f"reward_model_path={judge}", "--set", "fixed.max_completion_length=16"]
        plan = json.loads(autotune.typed("plan", *words, *sets))
        (candidate,) = plan["candidates"]
        assert candidate["estimate"]["method"] in {"trace", "scaled trace"}, candidate
        judges[judge] = candidate["estimate"]["parts"]["weights"]
    # Of the larger one are 225 million more weights, in float32: 4 bytes each.
    assert judges["smollm2-360m"] - judges["smollm2-135m"] > 4 * 200e6
