"""A job with a teacher: what it must say, and what becomes of it."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_file.load import load_job
from autotune.space.trl_config import settings
from autotune.training.rollout_plan import rollout_of
from tests.unit.builders import make_facts, make_job

TEACHER = "teacher_model_name_or_path"
BASE = ["model=qwen3-0.6b", "dataset=org/prompts", "method=distillation"]


def refused(*sets):
    with pytest.raises(UserError) as caught:
        load_job(None, [*BASE, *sets])
    (problem,) = caught.value.problems
    return problem


def taught(precision, dtype, batch=8, **training):
    """The first candidate of a job whose teacher's checkpoint is in `dtype`."""
    job = make_job(
        method="distillation",
        max_length=None,
        global_batch_size=batch,
        precision=precision,
        training=training,
        **{TEACHER: "large"},
    )
    facts = make_facts()
    teacher = replace(facts.model, path="/models/large", parameters=1000, dtype=dtype)
    facts = replace(facts, model=replace(facts.model, teacher=teacher))
    candidate = bind(load_definition("distillation"), job, facts).candidates[0]
    return settings(job, facts, candidate)


def test_a_teacher_is_named_as_a_model_is():
    job, _ = load_job(None, [*BASE, f"{TEACHER}=qwen3-8b"])
    assert job.teacher_model_name_or_path == job.second_model == "Qwen/Qwen3-8B"
    assert job.max_length is None


def test_there_has_to_be_one_and_only_there():
    assert "needs a teacher" in refused().what
    assert "is for `distillation`" in refused("method=sft", f"{TEACHER}=qwen3-8b").what
    assert "is for `grpo`" in refused(f"{TEACHER}=qwen3-8b", "reward_model_path=judge").what
    quantised = refused(f"{TEACHER}=qwen3-8b", "training.teacher_model_init_kwargs={dtype: auto}")
    assert "only its type can be said" in (quantised.hint or "")
    assert "vLLM" in (refused(f"{TEACHER}=qwen3-8b", "training.use_vllm=true").hint or "")


@pytest.mark.parametrize(
    ("precision", "stored", "held", "size"),
    [
        ("bf16", "bfloat16", "bfloat16", 2000),
        ("bf16", "float32", "float32", 4000),
        ("fp16", "bfloat16", "float16", 2000),
        ("fp32", "bfloat16", "float32", 4000),
    ],
)
def test_a_teacher_is_held_as_its_checkpoint_has_it(precision, stored, held, size):
    """Beside a student that is trained whole, in float32."""
    chosen = taught(precision, stored)
    assert chosen.config[TEACHER] == "/models/large"
    assert chosen.config["teacher_model_init_kwargs"] == {"dtype": held}
    assert chosen.config["dtype"] == "float32"
    assert chosen.teacher_bytes == size


def test_the_job_may_say_another_type():
    chosen = taught("bf16", "bfloat16", teacher_model_init_kwargs={"dtype": "float32"})
    assert chosen.config["teacher_model_init_kwargs"] == {"dtype": "float32"}
    assert chosen.teacher_bytes == 4000


def test_all_completions_of_a_step_are_generated_together():
    chosen = taught("fp32", None, batch=12)
    rollout = rollout_of(chosen.config, devices=1, seed=0)
    assert (rollout.completions, rollout.prompts, rollout.rounds) == (12, 12, 1)
    assert "num_generations" not in chosen.config
