"""Where a model is looked for, and what is said where it is not found."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from autotune.errors import UserError
from autotune.facts.model_files import locate_model, read_config, stored_dtype


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What this machine has of the hub must not decide what these tests find."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def refused(name: str, folder: Path, *, shape_suffices: bool = True) -> str:
    with pytest.raises(UserError) as error:
        locate_model(name, folder, None, shape_suffices)
    return str(error.value)


def test_a_plan_has_the_built_in_shape_where_the_hub_does_not_answer(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert locate_model("Qwen/Qwen2.5-7B", folder, None, True) == (str(folder), True)
    assert [file.name for file in folder.iterdir()] == ["config.json"]


def test_what_is_trained_is_not_replaced_by_a_shape(tmp_path: Path) -> None:
    message = refused("Qwen/Qwen2.5-7B", tmp_path / "model", shape_suffices=False)
    assert "the hub does not give `Qwen/Qwen2.5-7B`: " in message
    assert "hint: download it on a machine with a network and name its folder" in message
    assert "`autotune plan` needs neither" in message


def test_another_revision_may_have_another_shape(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        locate_model("Qwen/Qwen2.5-7B", tmp_path / "model", "v2", True)


def test_a_near_miss_is_answered_with_the_closest_name(tmp_path: Path) -> None:
    assert "hint: did you mean `qwen2.5-7b`?" in refused("qwen2.5-7", tmp_path / "model")


def test_a_folder_of_that_name_is_taken_first(tmp_path: Path) -> None:
    (tmp_path / "phi-4").mkdir()
    (tmp_path / "phi-4" / "config.json").write_text('{"model_type": "llama"}')
    where, built_in = locate_model(str(tmp_path / "phi-4"), tmp_path / "model", None, True)
    assert (where, built_in) == (str(tmp_path / "model"), False)


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


def test_where_a_config_names_no_type_the_largest_weight_says_it(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    assert stored_dtype(str(tmp_path)) is None
    weights = {"norm": torch.ones(4), "layer": torch.ones(8, 8, dtype=torch.bfloat16)}
    save_file(weights, tmp_path / "model.safetensors")
    assert stored_dtype(str(tmp_path)) == "bfloat16"
    save_file({"layer": torch.ones(8, dtype=torch.int8)}, tmp_path / "model.safetensors")
    assert stored_dtype(str(tmp_path)) is None
