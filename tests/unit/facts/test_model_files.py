"""Where a model is looked for, and what is said where it is not found."""

from pathlib import Path

import huggingface_hub.constants
import pytest

from autotune.errors import UserError
from autotune.facts.model_files import locate_model


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
