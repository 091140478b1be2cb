"""Shapes by arithmetic: as many parameters as the models have, and nothing that is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.facts.known_models import known_models
from autotune.facts.model import build_on_meta, model_config
from autotune.facts.model_shape import model_shape, shape_of

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 5000,
    "tie_word_embeddings": False,
}


def counted(config: dict[str, Any], folder: Path, method: str = "sft") -> int:
    """The parameters of the model that transformers makes of a config."""
    (folder / "config.json").write_text(json.dumps(config))
    model = build_on_meta(model_config(str(folder), method), method)
    return sum(parameter.numel() for parameter in model.parameters())


def test_built_in_models_have_as_many_parameters_as_their_files_less_norms_and_biases() -> None:
    errors = {}
    for model in known_models():
        shape = shape_of(model.config, model.name)
        if shape is not None:
            errors[model.name] = shape.facts.parameters / model.parameters - 1
    assert len(errors) >= 47
    assert all(-0.0003 < error <= 0 for error in errors.values()), errors


def test_nothing_is_said_of_a_mixture_of_experts() -> None:
    mixtures = [model for model in known_models() if model.active_parameters is not None]
    assert len(mixtures) > 5
    assert not any(shape_of(model.config, model.name) for model in mixtures)


@pytest.mark.parametrize("tied", [False, True])
def test_a_reward_model_has_one_output_in_place_of_the_vocabulary(
    tied: bool, tmp_path: Path
) -> None:
    config = {**SMALL, "tie_word_embeddings": tied}
    shape = shape_of(config, "small", classifier=True)
    assert shape is not None
    count = counted({**config, "pad_token_id": 0}, tmp_path, "reward")
    assert shape.facts.parameters == pytest.approx(count, rel=0.002)


def test_a_folder_and_a_bare_config_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "torch_dtype": "bfloat16"}))
    folder, file = model_shape(str(tmp_path)), model_shape(str(tmp_path / "config.json"))
    assert folder is not None
    assert file is not None
    assert folder.facts.parameters == file.facts.parameters
    assert folder.facts.dtype == "bfloat16"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "bloom"},
        {"model_type": ["llama"]},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"hidden_size": None},
        {"vocab_size": "many"},
        {"quantization_config": {"bits": 4}},
        {"model_type": "qwen3"},  # its size of a head has a default of its own
    ],
)
def test_of_what_is_not_plain_nothing_is_said(changes: dict[str, Any]) -> None:
    assert shape_of(SMALL, "small") is not None
    assert shape_of({**SMALL, **changes}, "small") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hidden_size": -1}'])
def test_a_broken_config_is_left_to_the_survey(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert model_shape(str(tmp_path)) is None


def test_a_name_that_only_the_hub_knows_has_no_shape() -> None:
    assert model_shape("somebody/something") is None
