"""Built-in shapes: what they are called, and that they are the published models."""

from pathlib import Path

import pytest

from autotune.facts.known_models import (
    KnownModel,
    known_model,
    known_models,
    known_shape,
    nearest_models,
)
from autotune.facts.model import active_parameters, build_on_meta, model_config

SHAPES = {(m.parameters, m.config["model_type"]): m for m in known_models()}
MIXTURES = {m.name: m for m in known_models() if m.active_parameters is not None}
PUBLISHED = {
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (117, 5.1),
    "llama-4-scout-17b-16e": (107.8, 17),
    "mixtral-8x7b-v0.1": (46.7, 12.9),
    "glm-4.5-air": (106, 12),
    "granite-4.0-h-small": (32, 9),
}
"""Billions in all and for a token, as the cards have them; Llama 4's is of its text model."""


@pytest.mark.parametrize("model", SHAPES.values(), ids=lambda model: model.name)
def test_a_built_in_shape_has_as_many_parameters_as_the_published_model(
    model: KnownModel, tmp_path: Path
) -> None:
    built = build_on_meta(model_config(str(model.write(tmp_path)), "sft"), "sft")
    assert sum(parameter.numel() for parameter in built.parameters()) == model.parameters
    assert active_parameters(built) == model.active_parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_token_passes_as_many_parameters_of_a_mixture_as_its_card_says(name: str) -> None:
    model, (everything, active) = MIXTURES[name], PUBLISHED[name]
    assert model.parameters / 1e9 == pytest.approx(everything, rel=0.01)
    # OpenAI and Zhipu leave the embedding of the words out.
    words = model.config["vocab_size"] * model.config["hidden_size"] / 1e9
    assert model.active_parameters is not None
    whole = model.active_parameters / 1e9
    card_without_words = name.startswith(("gpt-oss", "glm"))
    assert whole - card_without_words * words == pytest.approx(active, rel=0.07)


def test_at_least_50_shapes_are_built_in_and_no_two_models_share_a_name() -> None:
    assert len(SHAPES) >= 50
    names = [model.name for model in known_models()]
    assert len(set(names)) == len(names)


SPELLINGS = {
    "Qwen/Qwen2.5-7B": ["qwen2.5-7b", "Qwen2.5-7B", "qwen/qwen2.5-7b", "qwen2.5 7b", "qwen2.5:7b"],
    "Qwen/Qwen2.5-7B-Instruct": ["qwen2.5-7b-instruct", "Qwen2.5 7B Instruct"],
    "Qwen/Qwen3-30B-A3B": ["qwen3-30b-a3b", "Qwen3 30B A3B", "qwen3_30b_a3b", "qwen3-30b"],
    "meta-llama/Llama-3.1-8B": ["llama3.1-8b", "llama-3.1-8b", "Meta-Llama-3.1-8B"],
    "openai/gpt-oss-20b": ["gpt-oss 20b", "gptoss-20b", "GPT-OSS-20B"],
    "google/gemma-3-4b-it": ["gemma3-4b", "gemma-3-4b", "gemma3:4b"],
    "google/gemma-3-4b-pt": ["gemma-3-4b-pt"],
    "microsoft/phi-4": ["phi4", "phi-4"],
    "mistralai/Mistral-Small-24B-Instruct-2501": ["mistral-small-3", "mistral-small-24b-instruct"],
    "meta-llama/Llama-3.3-70B-Instruct": ["llama-3.3-70b"],
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": ["deepseek-r1-distill-qwen-7b"],
}


@pytest.mark.parametrize(
    ("hub_id", "name"), [(hub_id, name) for hub_id, names in SPELLINGS.items() for name in names]
)
def test_a_model_is_found_by_its_hub_id_or_the_last_part_in_any_spelling(
    hub_id: str, name: str
) -> None:
    model = known_model(name)
    assert model is not None
    assert model.hub_id == hub_id


@pytest.mark.parametrize(
    "name",
    ["qwen2-57b", "qwen3", "llama", "llama-3.18b", "qwen257b", "/models/qwen3-8b", "../phi-4"],
)
def test_no_name_picks_a_model_of_another_size(name: str) -> None:
    assert known_model(name) is None
    assert known_shape(name) is None


def test_a_mirror_has_the_shape_of_the_model_whose_name_it_bears() -> None:
    for name in ("unsloth/Llama-3.2-1B", "NousResearch/Meta-Llama-3.1-8B"):
        assert known_model(name) is None  # the hub id stays as it was written
        assert known_shape(name) == known_model(name.rpartition("/")[2])
    assert known_shape("unsloth/Llama-3.2-1B-bnb-4bit") is None


def test_what_differs_between_models_of_one_shape_is_their_positions() -> None:
    base, instruct = known_model("qwen2.5-7b"), known_model("qwen2.5-7b-instruct")
    assert base is not None
    assert instruct is not None
    positions = "max_position_embeddings"
    assert (base.config[positions], instruct.config[positions]) == (131072, 32768)
    assert {**base.config, positions: 0} == {**instruct.config, positions: 0}


def test_a_near_miss_is_answered_with_the_closest_names() -> None:
    assert known_model("qwen2.5-7") is None
    hint = nearest_models("qwen2.5-7") or ""
    assert hint.startswith("did you mean `qwen2.5-7b`? also: ")
    of_an_owner = nearest_models("meta-llama/Llama-3.1-8") or ""
    assert of_an_owner.startswith("did you mean `llama-3.1-8b`?")
    assert nearest_models("gpt-oss-2b") == "did you mean `gpt-oss-20b`? also: `gpt-oss-120b`"
    assert nearest_models("somebody/something-else") is None
