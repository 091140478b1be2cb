import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from autotune.facts import Facts, facts_from_plain
from autotune.plan.variants import cuda_rules
from autotune.space.bind import bind
from autotune.space.checkpointing import value_in
from autotune.space.definition import load_definition
from autotune.space.trl_config import (
    CUDNN_LAST,
    Settings,
    resolve_dtype,
    settings,
    threads,
    without_none,
)
from tests.unit.builders import make_candidate, make_facts, make_job, make_space

OLD = frozenset({"gradient_checkpointing", "gradient_checkpointing_kwargs"})
NEW = OLD | {"activation_checkpointing", "activation_checkpointing_kwargs"}


def flat(job=None, facts=None, **values):
    job, facts = job or make_job(), facts or make_facts(fields=OLD)
    return settings(job, facts, make_candidate(**values), "/out").config


def test_checkpointing_never_reenters():
    config = flat(gradient_checkpointing=True)
    assert config["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert "gradient_checkpointing_kwargs" not in flat(gradient_checkpointing=False)


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("every_2", {"every_n_layers": 2}),
        ("selective", {"selective": True}),
        ("offload", {"offload": True}),
    ],
)
def test_checkpointing_between_none_and_all_is_an_argument(value, arguments):
    config = flat(gradient_checkpointing=value)
    assert config["gradient_checkpointing"] is True
    assert config["gradient_checkpointing_kwargs"] == {"use_reentrant": False, **arguments}
    assert value_in(config) == value


@pytest.mark.parametrize(("fields", "name"), [(OLD, "gradient"), (NEW, "activation")])
def test_fields_bear_the_name_that_the_stack_prefers(fields, name):
    config = flat(facts=make_facts(fields=fields), gradient_checkpointing=True)
    checkpointing = {key for key in config if "checkpointing" in key}
    assert checkpointing == {f"{name}_checkpointing", f"{name}_checkpointing_kwargs"}


@pytest.mark.parametrize("fields", [OLD, NEW])
@pytest.mark.parametrize("name", ["gradient", "activation"])
def test_the_users_own_checkpointing_arguments_win_under_either_name(fields, name):
    job = make_job(training={f"{name}_checkpointing_kwargs": {"use_reentrant": True}})
    config = flat(job, make_facts(fields=fields), gradient_checkpointing=True)
    values = [value for key, value in config.items() if key.endswith("checkpointing_kwargs")]
    assert values == [{"use_reentrant": True}]


def test_padding_free_turns_truncation_off_and_nothing_else_does():
    assert flat(padding_free=True)["max_length"] is None
    assert flat(padding_free=False)["max_length"] == 1024
    assert flat(max_length=None)["max_length"] is None


@pytest.mark.parametrize(
    ("value", "modules"),
    [
        ("attention", ["k_proj", "q_proj"]),
        ("all-linear", ["all-linear"]),
        (["up_proj"], ["up_proj"]),
    ],
)
def test_lora_targets_are_resolved_from_the_model(value, modules):
    config = flat(make_job(tuning="lora"), lora_target_modules=value, lora_r=8)
    assert config["lora_target_modules"] == modules
    assert (config["use_peft"], config["lora_r"], config["lora_alpha"]) == (True, 8, 32)
    assert "use_peft" not in flat()


def test_a_quantised_base_has_four_bits_unless_it_is_to_have_eight():
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    config = flat(make_job(tuning="qlora"), lora_r=8, load_in_8bit=False)
    assert four.items() <= config.items()
    assert (config["use_peft"], config["lora_r"], config["load_in_8bit"]) == (True, 8, False)
    config = flat(make_job(tuning="qlora"), lora_r=8, load_in_8bit=True)
    assert config["load_in_8bit"] is True
    assert not four.keys() & config.keys()
    plain = {"use_bnb_nested_quant": False}
    config = flat(make_job(tuning="qlora", training=plain), load_in_8bit=False)
    assert config.items() >= {**four, **plain}.items()
    assert not four.keys() & flat(make_job(tuning="lora"), lora_r=8).keys()


def test_the_users_training_fields_are_untouched():
    training = {"learning_rate": 1e-3, "lora_alpha": 5, "neftune_noise_alpha": 5, "seed": 1}
    training["per_device_eval_batch_size"] = 3
    config = flat(make_job(tuning="lora", training=training), lora_target_modules="attention")
    assert {name: config[name] for name in training} == training


def test_what_the_library_would_do_is_explicit():
    config = flat(micro_batch=2, accumulation=8)
    assert config["per_device_train_batch_size"] == 2
    assert config["gradient_accumulation_steps"] == 8
    assert config["per_device_eval_batch_size"] == 2
    assert config["learning_rate"] == 2e-5
    assert config["use_cpu"] is True
    assert (config["model_name_or_path"], config["dataset_name"]) == ("/models/some", "/data/some")
    assert config["output_dir"] == "/out"
    assert "auto" not in config.values()


@pytest.mark.parametrize(
    ("kind", "capability", "mixed_precision", "bf16", "fp16"),
    [
        ("cpu", (9, 0), "auto", False, False),
        ("cuda", (9, 0), "auto", True, False),
        ("cuda", (8, 0), "auto", True, False),
        ("cuda", (7, 5), "auto", False, True),
        ("cuda", (9, 0), "fp32", False, False),
        ("cpu", (9, 0), "bf16", True, False),
    ],
)
def test_precision_follows_the_device_unless_the_job_says_it(
    kind, capability, mixed_precision, bf16, fp16
):
    config = flat(make_job(precision=mixed_precision), make_facts(kind, capability=capability))
    assert (config["bf16"], config["fp16"]) == (bf16, fp16)


def test_the_environment_pins_the_gpu_and_the_allocator():
    def environment(kind, **values):
        return settings(make_job(), make_facts(kind), make_candidate(**values), "/out").environment

    assert environment("cpu", expandable_segments=False) == {}
    gpu = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1", CUDNN_LAST: "1"}
    assert environment("cuda", expandable_segments=False) == gpu
    expandable = {**gpu, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert environment("cuda", expandable_segments=True) == expandable


def test_every_field_of_every_shipped_candidate_is_one_that_trl_has():
    job, facts = make_job(global_batch_size=2, tuning="lora"), make_facts("cuda", installed=True)
    fields = {*facts.stack.training_fields, "dataset_name", "dataset_train_split"}
    fields |= {"dataset_test_split", "dataset_config"}
    for candidate in make_space(job, facts).candidates:
        assert settings(job, facts, candidate, "/out").config.keys() <= fields


def test_an_own_space_without_the_usual_knobs_keeps_the_jobs_length():
    bare = dataclasses.replace(make_candidate(), values={"per_device_train_batch_size": 4})
    job = make_job(tuning="lora", max_length=77)
    config = settings(job, make_facts(fields=OLD), bare, "/out").config
    assert config["max_length"] == 77
    assert config["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert config["lora_target_modules"] == ["all-linear"]


def test_threads_are_all_cores_where_the_training_computes_on_them():
    assert threads(make_facts("cpu")) == 8
    assert threads(make_facts("cuda")) == 4


def test_unset_fields_are_left_out_but_for_the_length():
    assert without_none({"a": None, "max_length": None, "b": 0}) == {"max_length": None, "b": 0}


def test_facts_come_back_from_their_record():
    for facts in (make_facts("cuda"), make_facts("cpu", sampled=True)):
        assert facts_from_plain(facts.plain()) == facts


@pytest.mark.parametrize(
    ("kind", "knobs", "expected"),
    [
        ("cpu", {"distributed_type": "MULTI_CPU"}, {"use_cpu": True, "ddp_backend": "gloo"}),
        ("cpu", {"distributed_type": "DEEPSPEED"}, {"use_cpu": False, "ddp_backend": "gloo"}),
        ("cpu", {"distributed_type": "FSDP"}, {"use_cpu": False, "ddp_backend": "gloo"}),
        ("cuda", {"distributed_type": "DEEPSPEED"}, {"use_cpu": False}),
    ],
)
def test_several_processes_are_told_what_they_compute_on(kind, knobs, expected):
    job = make_job()
    job = job.model_copy(update={"devices": job.devices.model_copy(update={"count": 2})})
    config = flat(job, make_facts(kind), zero_stage=3, **knobs)
    assert {n: config[n] for n in ("use_cpu", "ddp_backend") if n in config} == expected
    assert not config.keys() & {"distributed_type", "zero_stage"}


def test_each_process_gets_a_gpu_and_its_part_of_the_cores():
    job = make_job()
    job = job.model_copy(update={"devices": job.devices.model_copy(update={"count": 4})})
    candidate = make_candidate(distributed_type="MULTI_GPU")
    facts = make_facts("cuda")
    facts = replace(facts, device=replace(facts.device, peers=(4, 6, 7)))
    environment = settings(job, facts, candidate, "/out").environment
    assert environment["CUDA_VISIBLE_DEVICES"] == f"{facts.device.index},4,6,7"
    cores = make_facts().device.cores
    assert threads(make_facts(), 2) == max(cores // 2, 1)
    assert threads(make_facts(), 10 * cores) == 1


def test_deepspeed_on_cpus_sees_no_gpu():
    job = make_job()
    job = job.model_copy(update={"devices": job.devices.model_copy(update={"count": 2})})
    candidate = make_candidate(distributed_type="DEEPSPEED", zero_stage=2)
    environment = settings(job, make_facts(), candidate, "/out").environment
    assert environment == {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


HOPPER, AMPERE = (9, 0), (8, 0)


def chosen(facts: Facts, method: str = "sft", **values: Any) -> Settings:
    job: dict[str, Any] = {"method": method}
    if method == "grpo":
        job |= {"reward_funcs": ["accuracy_reward"], "dataset": "data"}
        values |= {"num_generations": 4, "max_completion_length": 64}
    training = {"packing_strategy": "wrapped"} if values.get("packing") == "wrapped" else {}
    values |= {"packing": True} if "packing" in values else {}
    return settings(make_job(**job, training=training), facts, make_candidate(**values))


def facts_with(lengths: dict[str, int], **changes: Any) -> Facts:
    facts = make_facts("cuda", **changes)
    return replace(facts, data=replace(facts.data, quantiles={**facts.data.quantiles, **lengths}))


@pytest.mark.parametrize(
    ("made", "left_out"),
    [
        (chosen(facts_with({"p1": 20})), True),
        (chosen(facts_with({"p1": 20}), padding_free=True), True),
        (chosen(facts_with({"p1": 20}), packing="bfd"), True),
        (chosen(facts_with({"p1": 1000})), False),
        (chosen(facts_with({"p1": 600}), max_length=512), False),
        (chosen(facts_with({"p1": 20}), packing="wrapped"), False),
        (chosen(facts_with({"p1": 1000}), "grpo"), True),
        (chosen(facts_with({"p1": 20}, capability=AMPERE)), False),
        (chosen(make_facts("cpu")), False),
    ],
)
def test_cudnn_plans_no_attention_anew_for_each_batch(made: Settings, left_out: bool) -> None:
    assert (made.environment.get(CUDNN_LAST) == "1") is left_out


def test_a_trace_takes_the_kernels_that_the_environment_leaves() -> None:
    same, different = (chosen(facts_with({"p1": p1}, capability=HOPPER)) for p1 in (1000, 20))
    found = [cuda_rules(made) for made in (same, different)]
    assert [rules and rules["cudnn_first"] for rules in found] == [True, False]
    assert cuda_rules(chosen(make_facts("cpu"))) is None


GRPO = {
    "method": "grpo",
    "max_length": None,
    "reward_funcs": ["get_soft_overlong_punishment"],
}
PPO = {"method": "ppo", "max_length": None}
WHOLE = {"lora_modules_to_save": ["lm_head"]}
TYPES = (
    # kind, capability, job, type of the checkpoint, type of the weights
    ("cuda", (9, 0), {"tuning": "lora"}, "bfloat16", "bfloat16"),
    ("cuda", (9, 0), {"tuning": "qlora"}, "bfloat16", "bfloat16"),
    ("cuda", (9, 0), {"tuning": "lora"}, "float16", "bfloat16"),
    ("cuda", (9, 0), {"tuning": "lora"}, "float32", "float32"),
    ("cuda", (9, 0), {"tuning": "lora"}, None, "float32"),
    ("cuda", (9, 0), {"tuning": "full"}, "bfloat16", "float32"),
    ("cuda", (9, 0), {"tuning": "lora", "precision": "fp32"}, "bfloat16", "float32"),
    (
        "cuda",
        (9, 0),
        {"tuning": "lora", **PPO},
        "bfloat16",
        "float32",
    ),
    ("cuda", (9, 0), {"tuning": "lora", **GRPO}, "bfloat16", "bfloat16"),
    ("cuda", (7, 5), {"tuning": "lora"}, "bfloat16", "float16"),
    ("cuda", (9, 0), {"tuning": "lora", "method": "reward"}, "bfloat16", "bfloat16"),
    ("cuda", (7, 5), {"tuning": "lora", "method": "reward"}, "bfloat16", "float32"),
    ("cuda", (9, 0), {"tuning": "lora", "training": WHOLE}, "bfloat16", "float32"),
    ("cpu", (9, 0), {"tuning": "lora"}, "bfloat16", "float32"),
    ("cpu", (9, 0), {"tuning": "lora", "precision": "bf16"}, "bfloat16", "bfloat16"),
)


@pytest.mark.parametrize(("kind", "capability", "fields", "stored", "expected"), TYPES)
def test_a_base_that_is_not_trained_is_held_as_its_checkpoint_is(
    kind, capability, fields, stored, expected
):
    facts = make_facts(kind, capability=capability)
    facts = replace(facts, model=replace(facts.model, dtype=stored))
    job = make_job(**fields)
    dtype, why = resolve_dtype(job, facts)
    assert (dtype, bool(why)) == (expected, True)
    space = bind(load_definition(job.method), job, facts)
    assert {candidate["dtype"] for candidate in space.candidates} == {expected}
    assert space.default()["dtype"] == expected


def test_the_type_that_a_job_says_goes_before_that_of_the_checkpoint():
    facts = make_facts("cuda")
    facts = replace(facts, model=replace(facts.model, dtype="bfloat16"))
    for fields in ({"fixed": {"dtype": "float32"}}, {"recipe": {"dtype": ["float32"]}}):
        job = make_job(tuning="lora", **fields)
        assert {c["dtype"] for c in bind(load_definition("sft"), job, facts).candidates} == {
            "float32"
        }


def test_facts_of_an_earlier_version_say_no_type_of_the_checkpoint():
    plain = make_facts().plain()
    del plain["model"]["dtype"]
    assert facts_from_plain(plain).model.dtype is None
