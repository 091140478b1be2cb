"""Built-in shapes: what they are called, and that they are the published models."""

from pathlib import Path

import pytest

from autotune.facts.known_models import KnownModel, known_model, known_models, nearest_model
from autotune.facts.model import build_on_meta, model_config

SHAPES = {(m.parameters, m.config["hidden_size"]): m for m in known_models()}


@pytest.mark.parametrize("model", SHAPES.values(), ids=lambda model: model.name)
def test_a_built_in_shape_has_as_many_parameters_as_the_published_model(
    model: KnownModel, tmp_path: Path
) -> None:
    built = build_on_meta(model_config(str(model.write(tmp_path)), "sft"), "sft")
    assert sum(parameter.numel() for parameter in built.parameters()) == model.parameters


def test_at_least_25_shapes_are_built_in_and_no_two_models_share_a_name() -> None:
    assert len(SHAPES) >= 25
    names = [model.name for model in known_models()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["qwen2.5-7b", "Qwen2.5-7B", "Qwen/Qwen2.5-7B", "qwen/qwen2.5-7b"])
def test_a_model_is_found_by_its_hub_id_or_the_last_part_in_any_case(name: str) -> None:
    model = known_model(name)
    assert model is not None
    assert (model.hub_id, model.name) == ("Qwen/Qwen2.5-7B", "qwen2.5-7b")


def test_what_differs_between_models_of_one_shape_is_their_positions() -> None:
    base, instruct = known_model("qwen2.5-7b"), known_model("qwen2.5-7b-instruct")
    assert base is not None
    assert instruct is not None
    positions = "max_position_embeddings"
    assert (base.config[positions], instruct.config[positions]) == (131072, 32768)
    assert {**base.config, positions: 0} == {**instruct.config, positions: 0}


def test_a_near_miss_is_answered_with_the_closest_name() -> None:
    assert known_model("qwen2.5-7") is None
    assert nearest_model("qwen2.5-7") == "did you mean `qwen2.5-7b`?"
    assert nearest_model("meta-llama/Llama-3.1-8") == "did you mean `meta-llama/Llama-3.1-8B`?"
    assert nearest_model("somebody/something-else") is None
