"""Files of other tools and bare configs, pasted in place of a job."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.job.yaml_file import parse_yaml
from autotune.server.access.untrusted import MOST_TEXT
from tests.unit.server.conftest import Served
from tests.unit.space.foreign import files

QWEN = {
    **{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896},
    **{"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    **{"intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
}
UNSLOTH = files.UNSLOTH.replace("unsloth/llama-3-8b", "unsloth/Llama-3.1-8B")
PASTED = {
    "LLaMA-Factory": files.LLAMA_FACTORY,
    "Axolotl": files.AXOLOTL,
    "TRL or TrainingArguments": files.TRL,
    "Unsloth": UNSLOTH,
    "torchtune": files.TORCHTUNE,
}


def planned(served: Served, job: Any, **fields: Any) -> tuple[dict[str, Any], str]:
    """The job that a submission became, and its text."""
    answer = served.submit(job, **fields)
    assert answer.status_code == 202, answer.text
    work = served.service.works.get(answer.json()["id"])
    assert work is not None
    return parse_yaml(work.job, "job")[0], work.job


@pytest.mark.parametrize("name", PASTED)
def test_a_file_of_another_tool_is_planned_and_says_what_was_not_carried(
    served: Served, name: str
) -> None:
    job, text = planned(served, PASTED[name], device="rtx-4090")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("\n".join(comments)) and len(comments) > 3
    assert comments[0] == f"# Made of a file of {name}."
    assert set(job["dataset"]) == {"lengths"} and job["model"].startswith(("meta-llama/", "Qwen/"))
    untaken = [line for line in comments if line.startswith("# Not taken over HTTP: ")]
    assert len(untaken) == ("output_dir" in PASTED[name])
    assert "`--" not in text, "a page has no command line"
    as_data = parse_yaml(PASTED[name], "theirs")[0]
    assert planned(served, as_data, device="rtx-4090")[0] == job


def test_a_pasted_file_is_judged_by_the_rules_and_limits_of_a_job(served: Served) -> None:
    refused = served.refusals(files.LLAMA_FACTORY, "run")
    assert {"job:3", "job:23"} <= set(refused), "model and output_dir, by their lines"
    many = files.LLAMA_FACTORY.replace("cutoff_len: 2048", f"cutoff_len: {2**30}")
    assert "more than" in str(served.refusals(many))
    unknown = files.AXOLOTL.replace("NousResearch/Llama-3.2-1B", "/etc/passwd")
    assert list(served.refusals(unknown)) == ["job:2"]
    assert served.submit(files.AXOLOTL + "#" * MOST_TEXT).status_code == 422
    assert served.submit(files.AXOLOTL + "x: &x [1]\ny: *x\n").status_code == 422


def test_nothing_that_a_pasted_file_names_is_read(served: Served, tmp_path: Path) -> None:
    stage = tmp_path / "mine.json"
    texts = []
    for there in (False, True):
        if there:
            stage.write_text('{"zero_optimization": {"stage": 3}, "x": 1}', encoding="utf-8")
        texts.append(planned(served, f"{files.AXOLOTL}deepspeed: {stage}\n")[1])
    assert texts[0] == texts[1]


def test_a_bare_config_is_the_model_of_a_job(served: Served) -> None:
    for pasted in (QWEN, json.dumps(QWEN, indent="\t")):
        job, text = planned(served, pasted, device="h200")
        assert job["model"] == "config.json" and job["global_batch_size"] == 32
        assert text.startswith("# Made of a config.json.\n# Assumed: ")
        work = served.client.get("/api/v1/plans").json()["items"][0]
        assert (work["model"], work["events"]) == ("Qwen2ForCausalLM", 1)
        assert json.loads(str(served.service.works.model_config_json(work["id"]))) == QWEN
    assert "config.json" in served.refusals({**QWEN, "num_hidden_layers": 10**9})


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"zero_optimization": {"stage": 3}}, "DeepSpeed"),
        ({"compute_environment": "LOCAL_MACHINE", "num_processes": 8}, "accelerate"),
        ({"alpaca": {"file_name": "alpaca.json"}}, "LLaMA-Factory"),
    ],
)
def test_what_only_launches_says_what_is_missing(
    served: Served, part: dict[str, Any], name: str
) -> None:
    (problem,) = served.submit(part).json()["errors"]
    assert name in problem["what"] and "the trainer's file" in problem["hint"]
    assert "autotune" not in problem["hint"]
