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


def test_a_program_has_the_files_of_its_launch_beside_it(tmp_path: Path) -> None:
    names = {}
    for bundle in ("zero3", "cpu_lora"):
        out = tmp_path / bundle
        assert call("emit", RECORDED / bundle, "--format=python", "--out", out).exit_code == 0
        names[bundle] = sorted(file.name for file in out.iterdir())
    assert names["zero3"] == ["accelerate.yaml", "deepspeed.json", "train.py"]
    assert names["cpu_lora"] == ["train.py"]


def test_options_without_an_effect_are_refused() -> None:
    said = refused("emit", RECORDED / "zero3", "--format=trl", "--probe=1")
    assert "a bundle already belongs to one probe" in said
    assert "--format does not write deepspeed_auto.json" in refused(
        "emit", RECORDED / "zero3", "--format=deepspeed", "--auto"
    )


def test_json_has_files_and_what_is_lost() -> None:
    told = json.loads(call("emit", RECORDED / "dpo", "--format", "env", "--json").stdout)
    assert (told["format"], told["files"], told["lost"]) == ("env", {".env": ""}, {})


def test_a_form_that_cannot_say_it_is_refused() -> None:
    assert "cannot express `method: grpo`" in refused(
        "emit", RECORDED / "grpo", "--format=llamafactory"
    )
    assert "trains without DeepSpeed" in refused("emit", RECORDED / "dpo", "--format=deepspeed")
