"""What is said of a config.json that no model can be made of: all of it, with the file."""

import json

import pytest

from autotune.facts.model_files import read_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def said(**changes: object) -> list[str]:
    config = {name: value for name, value in {**LLAMA, **changes}.items() if value != "gone"}
    return [problem.render() for problem in read_config(json.dumps(config), "m/config.json")[1]]


def test_a_sound_config_is_taken() -> None:
    assert said() == []
    assert said(num_key_value_heads=None) == []
    assert said(text_config={"hidden_size": 8, "num_attention_heads": 2}) == []


@pytest.mark.parametrize("value", [0, -1, "64", 64.0, True, [64], 10**12])
def test_sizes_are_whole_numbers_above_zero(value: object) -> None:
    (line,) = said(num_hidden_layers=value)
    assert line.startswith("m/config.json: `num_hidden_layers: ")
    assert "must be a whole number above 0" in line


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_kernels_of_a_hub_are_refused(name: str) -> None:
    assert said(**{name: "sdpa"}) == []
    assert "names code of a hub" in said(**{name: "stranger/kernel"})[0]
    assert "names code of a hub" in said(**{name: {"text_config": "stranger/kernel"}})[0]


def test_all_problems_are_told_at_once() -> None:
    lines = said(model_type="gone", hidden_size=-64, text_config={"vocab_size": "many"})
    assert len(lines) == 3
    assert "`model_type` is missing" in lines[0] and "text_config.vocab_size" in lines[2]


def test_a_type_of_model_is_a_word() -> None:
    assert said(model_type=7)[0].startswith("m/config.json: `model_type` must be a word")
    assert "`model_type` is missing" in said(model_type="")[0]


def test_heads_that_cannot_share_keys_are_refused() -> None:
    (line,) = said(num_key_value_heads=3)
    assert "`num_attention_heads: 4` is not a multiple of `num_key_value_heads: 3`" in line


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "[" * 100_000, '"word"', '{"model_type": "\\ud800"}']
)
def test_what_is_no_object_is_named_by_its_file(text: str) -> None:
    _, (problem,) = read_config(text, "m/config.json")
    assert problem.where.startswith("m/config.json")
