"""Distillation: tiny students and teachers on the CPU, from a job to a trained model."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UserError
from autotune.facts.stack import missing
from autotune.process.child_server import ChildServer
from tests.cpu.conftest import LLAMA, Bench, Command, open_bench, write_model
from tests.cpu.stand_ins import give_tokenizer
from tests.cpu.test_online import prompts
from tests.cpu.test_run import assert_launched, probes_of, write_job

pytestmark = pytest.mark.skipif(missing("distillation") is not None, reason="TRL 1.16 has it")
TEACHER = {**LLAMA, "hidden_size": 96, "num_hidden_layers": 3, "vocab_size": 8192}
PINS = {
    "attn_implementation": "sdpa",
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "per_device_train_batch_size": 2,
    "max_completion_length": 12,
}


@pytest.mark.nightly("launches")
def test_a_job_with_a_teacher_becomes_a_verified_bundle_that_trains(autotune: Command) -> None:
    """Conversations with their own template; both models are bare configs, and the launch loads
    both from files."""
    folder = autotune.folder
    text = "\n".join(json.dumps({"prompt": row["prompt"]}) for row in prompts()) + "\n"
    (folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    own = {"dataset": "prompts.jsonl", "max_length": None, "budget": 1, "fixed": PINS}
    write_job(
        folder, method="distillation", teacher_model_name_or_path="teacher/config.json", **own
    )
    (folder / "model" / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 8192}))
    write_model(folder / "teacher", TEACHER)
    give_tokenizer(folder / "model")
    result = json.loads(autotune("run", "job.yaml", "--out", "run", "--json", expect=None))
    assert result["outcome"] == "recommended", result
    assert_launched(result["verification"])
    (probe,) = probes_of(autotune, "run")[:1]
    assert probe["outcome"] == "ok" and probe["generation_s"] > 0 and probe["update_s"] > 0
    launched = (folder / "run" / "bundle" / "distillation_config.yaml").read_text(encoding="utf-8")
    assert "teacher_model_init_kwargs:\n  dtype: float32\n" in launched


def opened(folder: Path, server: ChildServer, teacher: dict[str, Any]) -> Bench:
    sets = [
        "dataset={lengths: {max: 40, p50: 12, p99: 30, rows: 400}}",
        "method=distillation",
        "max_length=null",
        f"teacher_model_name_or_path={write_model(folder / 'teacher', teacher)}",
        "max_completion_length=16",
    ]
    return open_bench(folder, server, LLAMA, sets)


def test_a_teacher_with_other_words_is_refused(server: ChildServer, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        opened(tmp_path, server, TEACHER)
    (problem,) = caught.value.problems
    assert "509" in problem.what and "8192" in problem.what
    assert problem.where == "teacher_model_name_or_path"


def test_a_larger_teacher_takes_more_memory(server: ChildServer, tmp_path: Path) -> None:
    """By its weights: nothing else of it is trained or kept."""
    peaks = []
    for width in (64, 1024):
        folder = tmp_path / str(width)
        teacher = {**LLAMA, "hidden_size": width, "intermediate_size": 4 * width}
        bench = opened(folder, server, teacher)
        peaks.append((bench.probe("one").peak_memory_bytes, bench.space.settings))
        facts = bench.facts.model.teacher
        assert facts is not None and facts.hidden_size == width
        last = facts.parameters
    assert peaks[1][0] - peaks[0][0] > 0.9 * 4 * last
