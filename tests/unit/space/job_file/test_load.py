"""Job files and flags: what is right becomes a Job, what is wrong is told at once with its line."""

import json

import pytest
import yaml

from autotune.errors import UserError
from autotune.space.job_file.load import load_job
from tests.unit.loading import load, problems


def test_a_whole_job_file_is_read(folder):
    job = load(
        folder,
        """tuning: lora
global_batch_size: 32
devices: {kind: cpu, memory: 3GiB}
budget: 5m
recipe: {lora_r: [8, 16], lora_target_modules: [attention, [q_proj]]}
training: {learning_rate: 2e-4, lr_scheduler_type: cosine}
fixed: {packing: true}
""",
    )
    assert job.devices.memory == 3 * 2**30
    assert job.budget.minutes == 5
    assert job.recipe["lora_target_modules"] == ["attention", ["q_proj"]]
    assert job.training == {"learning_rate": 2e-4, "lr_scheduler_type": "cosine"}
    assert job.fixed == {"packing": True}


def test_a_resolved_job_reads_back_as_the_same_job(folder):
    job = load(folder, "global_batch_size: 4096 tokens\nbudget: 7\nmax_length: 512\n")
    second_file = folder / "again.yaml"
    second_file.write_text(yaml.safe_dump(job.plain()), encoding="utf-8")
    assert load_job(second_file)[0] == job


@pytest.mark.parametrize("name", ["name", "no_data", "[key]"])
def test_an_unknown_key_called_as_pydantic_marks_places_is_refused_too(folder, name):
    ((where, what, _),) = problems(folder, f"tuning: full\n'{name}': x\n")
    assert where.endswith(":4") and what == f"unknown field `{name}`"


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(folder):
    ((where, what, hint),) = problems(folder, "tuning: full\nglobal_batch_sise: 4\n")
    assert where == "job:4"
    assert "`global_batch_sise`" in what
    assert hint == "did you mean `global_batch_size`?"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("devices: {knid: cpu}", "kind"),
        ("budget: {minute: 3}", "minutes"),
        ("training: {learning_rat: 1}", "learning_rate"),
        ("fixed: {los_type: nll}", "loss_type"),
        ("recipe: {lora_rank: [1]}", "lora_r"),
    ],
)
def test_an_unknown_name_in_a_section_gets_its_nearest_name(folder, text, name):
    reported = problems(folder, text)
    assert ("job:3", f"did you mean `{name}`?") in [(where, hint) for where, _, hint in reported]


def test_all_problems_are_told_at_once(folder):
    reported = problems(
        folder,
        """bogus: 1
tuning: prefix
headroom: 2
budget: {probes: 0, colour: red}
training:
  max_length: 5
  learning_rat: 1
fixed:
  per_device_train_batch_size: 3
  loss_type: mse
recipe: {lora_r: [8]}
""",
        "nonsense",
        "los_type=nll",
    )
    lines = sorted(where for where, _, _ in reported)
    assert lines == sorted(
        ["--set", "--set", *(f"job:{n}" for n in (3, 4, 5, 6, 6, 8, 9, 11, 12))]
    ), reported


def test_a_missing_model_and_a_wrong_field_and_a_missing_path_are_told_together(folder):
    file = folder / "job.yaml"
    file.write_text("dataset: ./nowhere\nheadroom: x\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file)
    assert len(caught.value.problems) == 3
    assert "the field `model` is missing" in str(caught.value)
    assert f"there is no {folder}/nowhere" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "model: 3",
        "model: ''",
        "dataset: 5",
        "dataset: {lenghts: {max: 5}}",
        "dataset: {lengths: {max: 0}}",
        "dataset: {lengths: {max: 5, p99: 3}}",
        "dataset: {lengths: {max: 5, p50: 6}}",
        "dataset: {lengths: 5}",
        "dataset: {}",
    ],
)
def test_a_wrong_model_or_dataset_is_a_users_error(folder, text):
    file = folder / "job.yaml"
    rest_of_job = "dataset: ./d\n" if text.startswith("model") else "model: ./m\n"
    file.write_text(rest_of_job + text + "\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_job(file)
    assert {problem.where for problem in caught.value.problems} == {f"{file}:2"}


@pytest.mark.parametrize(
    "text",
    [
        "training: [1]",
        "training: {max_grad_norm: .inf}",
        "training: {data_seed: !!binary aGk=}",
        "fixed: 4",
        "fixed: {optim: {a: 1}}",
        "fixed: {lora_target_modules: [1]}",
        "fixed: {packing: 1}",
        "fixed: {per_device_train_batch_size: true}",
        "fixed: {gradient_accumulation_steps: 0}",
        "recipe: {dtype: bfloat16}",
        "recipe: {dtype: []}",
        "recipe: {dtype: [bfloat16, bfloat16]}",
        "recipe: {max_length: [a]}",
        "recipe: {max_length: [0]}",
        "recipe: {per_device_train_batch_size: [x]}",
        "tuning: lora\nrecipe: {lora_r: [0.5]}",
        "recipe: 3",
        "recipe:",
        "budget: 0",
        "budget: 5x",
        "budget: {minutes: .inf}",
        "budget: [1]",
        "headroom: 2",
        "headroom: .nan",
        "global_batch_size: true",
        "global_batch_size: 1.5",
        "global_batch_size: x tokens",
        "global_batch_size: 0",
        "global_batch_size: 0 tokens",
        "global_batch_size: [1]",
        "max_length: 0",
        "max_length: 010",
        "devices: 3",
        "devices: {memory: 5q}",
        "devices: {memory: -1}",
        "devices: {index: -1}",
        "tuning: [lora]",
        "method: bpo",
        "precision: int8",
        "dataset_config: 5",
    ],
)
def test_a_wrong_value_is_one_users_error_with_its_line(folder, text):
    ((where, _, _),) = problems(folder, text)
    assert where == f"job:{2 + len(text.splitlines())}"


def test_the_error_of_one_section_does_not_hide_another(folder):
    reported = problems(
        folder, "fixed: 4\ntraining: {optim: adamw_torch}\nrecipe: {packing: [1]}\n"
    )
    assert [where for where, _, _ in reported] == ["job:3", "job:5"]


def test_a_set_value_is_a_job_field_a_part_of_one_a_knob_or_a_training_field(folder):
    job = load(
        folder,
        "devices: {kind: cpu}\nrecipe: {dtype: [float32, bfloat16]}\n",
        "tuning=lora",
        "devices.memory=2GiB",
        "dtype=bfloat16",
        "per_device_train_batch_size=4",
        "gradient_accumulation_steps=4",
        "learning_rate=2e-4",
        "training.seed=3",
        "fixed.packing=false",
        "budget=5m",
        "budget.probes=3",
    )
    assert job.tuning == "lora"
    assert (job.devices.kind, job.devices.memory) == ("cpu", 2**31)
    assert job.recipe == {}
    assert job.fixed == {
        "dtype": "bfloat16",
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "packing": False,
    }
    assert job.training == {"learning_rate": 2e-4, "seed": 3}
    assert (job.budget.minutes, job.budget.probes) == (5, 3)


def test_a_total_budget_is_a_duration_and_is_kept_as_it_was_meant(folder):
    job = load(folder, "budget: {probes: 3, total: 30m}\n", "budget.minutes=5")
    assert (job.budget.total, job.budget.minutes, job.budget.probes) == (1800.0, 5, 3)
    again = load(folder, f"budget: {json.dumps(job.plain()['budget'])}\n")
    assert again.budget == job.budget
    assert load(folder, "", "budget.total=90s").budget.total == 90.0
    for wrong in ("30", "soon", "[1]"):
        ((where, what, hint),) = problems(folder, f"budget: {{total: {wrong}}}\n")
        assert where.startswith("job:") and "is not a duration" in f"{what} {hint}"


def test_a_set_max_length_takes_the_place_of_several(folder):
    job = load(folder, "recipe: {max_length: [64, 128]}\n", "max_length=32")
    assert job.max_length == 32
    assert job.recipe == {}


@pytest.mark.parametrize(
    "sets",
    [
        ["nonsense"],
        ["=5"],
        ["per_device_train_batch_sise=4"],
        ["devices=3", "devices.count=1"],
        ["model.x=1"],
        ["dataset.lengths.max=5"],
        ["training.a.b=1"],
        ["training=5", "learning_rate=1"],
        ["fixed=5", "packing=true"],
        ["fixed.a.b=1"],
        ["optim=[["],
        ["headroom=!!int x"],
        ["max_length=none"],
        ["devices.count=0"],
        ["recipe={3: 4}"],
    ],
)
def test_a_wrong_set_value_is_a_users_error(folder, sets):
    for where, _, _ in problems(folder, "", *sets):
        assert where == "--set"


def test_only_what_was_set_is_blamed_on_the_flag(folder):
    reported = problems(folder, "fixed: {loss_type: mse}\n", "packing=3")
    assert sorted(where for where, _, _ in reported) == ["--set", "job:3"]


@pytest.mark.parametrize("text", ["method=dpo", 'method="dpo"', "method='dpo'"])
def test_a_quoted_method_has_its_own_space_too(folder, text):
    file = folder / "job.yaml"
    file.write_text("model: ./m\ndataset: ./d\n", encoding="utf-8")
    job, definition = load_job(file, [text])
    assert (job.method, definition.name) == ("dpo", "search_spaces/dpo.yaml")
