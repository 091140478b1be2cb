"""A plan of a model that the hub does not give, from its built-in shape."""

import json

import pytest

from tests.cpu.conftest import Command


def test_a_plan_takes_the_built_in_shape_and_says_so(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(autotune.folder / "nothing downloaded"))
    words = ["SmolLM2-135M", "--max-length", "64", "--device", "h200", "--json"]
    alone = ["--tuning", "full", "--only-default", "--set", "global_batch_size=16"]
    plan = json.loads(autotune.typed("plan", *words, *alone))
    (candidate,) = plan["candidates"]
    assert candidate["fits"]
    assert plan["model"]["parameters"] == 134515008
    note = "the shape of HuggingFaceTB/SmolLM2-135M is built in: the hub gave none"
    assert note in plan["notes"]


@pytest.mark.nightly("documents")
def test_what_judges_completions_may_be_a_built_in_shape(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(autotune.folder / "nothing downloaded"))
    words = ["SmolLM2-135M", "--method", "rloo", "--max-length", "32", "--global-batch-size", "16"]
    words += ["--tuning", "full", "--only-default"]
    sets = ["reward_model_path=smollm2-360m", "fixed.max_completion_length=16"]
    flags = [word for one in sets for word in ("--set", one)]
    plan = json.loads(autotune.typed("plan", *words, *flags, "--device", "h200", "--json"))
    (candidate,) = plan["candidates"]
    assert candidate["estimate"]["method"] in {"trace", "scaled trace"}, candidate
    # 135 million weights and the judge's 362, in float32; a judge of the policy's shape has 135.
    assert candidate["estimate"]["parts"]["weights"] > 4 * (134e6 + 300e6)
