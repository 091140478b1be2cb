"""`autotune emit --format`: a bundle in another form, and what that cannot say."""

import json
from pathlib import Path

from tests.unit.calling import call, refused

RECORDED = Path(__file__).parents[2] / "golden" / "recorded"


def test_the_text_goes_to_stdout_and_what_is_lost_to_stderr() -> None:
    result = call("emit", RECORDED / "zero3", "--format", "llamafactory")
    assert result.exit_code == 0, result.stderr
    assert "cutoff_len: 1024" in result.stdout
    assert "it needs deepspeed.json beside it: `--out DIR` writes all" in result.stderr
    assert "not in it: loss_type: LLaMA-Factory holds all logits" in result.stderr


def test_files_are_written_where_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "theirs"
    assert call("emit", RECORDED / "zero3", "--format", "axolotl", "--out", out).exit_code == 0
    assert sorted(file.name for file in out.iterdir()) == ["axolotl.yaml", "deepspeed.json"]
    again = refused("emit", RECORDED / "zero3", "--format", "axolotl", "--out", out)
    assert "the folder is not empty" in again


def test_an_option_without_an_effect_is_refused() -> None:
    said = refused("emit", RECORDED / "zero3", "--format=axolotl", "--probe=1")
    assert "a bundle already belongs to one probe" in said


def test_json_has_files_and_what_is_lost() -> None:
    told = json.loads(call("emit", RECORDED / "dpo", "--format", "axolotl", "--json").stdout)
    assert (told["format"], [*told["files"]]) == ("axolotl", ["axolotl.yaml"])
    assert "datasets" in told["lost"]


def test_a_form_that_cannot_say_it_is_refused() -> None:
    assert "cannot express `method: grpo`" in refused(
        "emit", RECORDED / "grpo", "--format=llamafactory"
    )
