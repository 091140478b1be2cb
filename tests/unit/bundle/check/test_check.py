"""What is wrong between the files of a launch, each wrong thing by itself."""

import copy

import pytest

from autotune.bundle.check.files import LaunchFiles
from autotune.job.methods import METHODS
from tests.unit.bundle.check.asking import checked

TRAINER = {
    "model_name_or_path": "some/model",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
    "learning_rate": 2e-5,
    "bf16": True,
}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": True},
    "num_machines": 1,
    "num_processes": 8,
    "use_cpu": False,
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000},
}
FSDP = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "mixed_precision": "bf16",
    "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True},
    "num_processes": 2,
}


def put(data, path, value):
    """A copy with another value at `a.b.c`; None takes it out."""
    data = copy.deepcopy(data)
    *parts, last = path.split(".")
    inside = data
    for part in parts:
        inside = inside.setdefault(part, {})
    if value is None:
        inside.pop(last, None)
    else:
        inside[last] = value
    return data


def found(trainer=None, accelerate=None, deepspeed=DEEPSPEED, base=ACCELERATE, method="sft"):
    """All that is wrong after the changes, as text."""
    told = {"trainer": TRAINER, "accelerate": base, "deepspeed": deepspeed}
    for name, changes in (("trainer", trainer), ("accelerate", accelerate)):
        for path, value in (changes or {}).items():
            told[name] = put(told[name], path, value)
    files = LaunchFiles(
        **told,
        method=METHODS[method],
        trainer_file="sft_config.yaml",
    )
    return [problem.render() for problem in checked(files).problems]


def deepspeeds(trainer=None, accelerate=None, **changes):
    file = DEEPSPEED
    for path, value in changes.items():
        file = put(file, path.replace("__", "."), value)
    return found(trainer, accelerate, file)


def only(problems, where, *words):
    """There is one problem, at its place, and it says what it has to."""
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"{where}: ")
    for word in words:
        assert word in problems[0]


def test_files_that_agree_are_left_alone():
    assert found() == []
    assert found(deepspeed=None, base=FSDP) == []
    filled = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16__enabled": "auto",
        "zero_optimization__reduce_bucket_size": "auto",
    }
    assert deepspeeds(**filled) == []


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("train_micro_batch_size_per_gpu", 8, "per_device_train_batch_size: `4`"),
        ("gradient_accumulation_steps", 1, "gradient_accumulation_steps: `2`"),
        ("gradient_clipping", 1.0, "max_grad_norm: `0.5`"),
        ("optimizer__params__lr", 1e-3, "learning_rate: `2e-05`"),
        ("optimizer__params__eps", 1e-6, "adam_epsilon: `1e-08`"),
        ("optimizer__params__weight_decay", 0.1, "weight_decay: `0.0`"),
        ("optimizer__params__betas", [0.9, 0.95], "adam_beta1+adam_beta2"),
        ("scheduler__params__warmup_max_lr", 1e-3, "learning_rate: `2e-05`"),
        ("bf16__enabled", False, "bf16: `true`"),
        ("fp16", {"enabled": True}, "cannot be set to `bf16`"),
    ],
)
def test_a_value_that_both_say_has_to_be_one_value(name, value, field):
    where = f"deepspeed.json: {name.replace('__', '.')}"
    only(deepspeeds(**{name: value}), where, field)


def test_what_the_trainers_file_leaves_out_is_trls_default():
    lacks = {"per_device_train_batch_size": None, "bf16": None, "learning_rate": None}
    problems = deepspeeds(lacks, bf16__enabled=False, optimizer__params__lr=1e-3)
    assert len(problems) == 3
    assert "per_device_train_batch_size: `8` (its default)" in problems[0]
    assert "learning_rate: `2e-05`" in problems[1]
    assert "bf16: `true` (its default)" in problems[2]


def test_deepspeed_clips_only_where_its_own_file_says_so():
    where = "deepspeed.json: gradient_clipping"
    only(deepspeeds(gradient_clipping=None), where, "nothing is clipped", "max_grad_norm: 0.5")
    assert deepspeeds({"max_grad_norm": 0}, gradient_clipping=None) == []


def test_numbers_that_have_to_be_there_are_missed():
    name = "train_micro_batch_size_per_gpu"
    only(deepspeeds(**{name: None}), "deepspeed.json", name, "needs to be provided")
    name = "gradient_accumulation_steps"
    only(deepspeeds(**{name: None}), f"deepspeed.json: {name}", "means `1`", ": `2`")
    assert deepspeeds({name: 1}, **{name: None}) == []
    assert deepspeeds(train_batch_size=64, train_micro_batch_size_per_gpu=None) == []


def test_a_number_that_yaml_reads_as_a_word_is_a_number():
    assert deepspeeds({"learning_rate": "2e-5"}, optimizer__params__lr=2e-5) == []


def test_the_whole_batch_is_what_makes_it_up():
    assert deepspeeds(train_batch_size=64) == []
    only(
        deepspeeds(train_batch_size=32),
        "deepspeed.json: train_batch_size",
        "(of all processes): `64`",
    )


def test_who_makes_optimizer_and_schedule_is_said():
    adam = {"optimizer__type": "AdamW"}
    assert deepspeeds(**adam) == []
    where = "deepspeed.json: optimizer.type"
    only(deepspeeds({"optim": "adafactor"}, **adam), where, "`AdamW`", "`adafactor`")
    only(deepspeeds(optimizer__type="Lion"), where, "`Lion`")
    assert deepspeeds(scheduler__type="WarmupDecayLR") == []
    where = "deepspeed.json: scheduler.type"
    only(deepspeeds({"lr_scheduler_type": "cosine"}, scheduler__type="WarmupLR"), where, "`cosine`")


def test_an_offloaded_optimizer_is_adamw_or_something_else_than_asked_for():
    offload = {"zero_optimization__offload_optimizer__device": "cpu"}
    assert deepspeeds(**offload) == []
    only(deepspeeds({"optim": "adamw_8bit"}, **offload), "sft_config.yaml: optim", "plain Adam")
    assert deepspeeds({"optim": "adamw_8bit"}, zero_force_ds_cpu_optimizer=False, **offload) == []


def test_weights_are_offloaded_at_stage_three_alone():
    changes = {"zero_optimization__stage": 2, "zero_optimization__offload_param__device": "cpu"}
    where = "deepspeed.json: zero_optimization.offload_param.device"
    only(deepspeeds(**changes), where, "at stage 2 weights stay on the GPU")


@pytest.mark.parametrize("stage", [4, -1, "three", 2.5])
def test_there_are_four_stages(stage):
    where = "deepspeed.json: zero_optimization.stage"
    only(deepspeeds(zero_optimization__stage=stage), where, "should be 0, 1, 2")


def test_states_are_kept_where_deepspeed_can():
    (problem,) = deepspeeds(zero_optimization__offload_param={"device": "ram"})
    assert problem.startswith("deepspeed.json: zero_optimization.offload_param.device: is `ram`")
    own = {"deepspeed_config": {"zero_stage": "four", "offload_optimizer_device": "disk"}}
    stage, device = found(accelerate=own, deepspeed=None)
    assert stage.startswith("accelerate.yaml: deepspeed_config.zero_stage: ")
    assert device.startswith("accelerate.yaml: deepspeed_config.offload_optimizer_device: ")


def test_auto_stands_only_where_somebody_fills_it_in():
    where = "deepspeed.json: zero_optimization.allgather_bucket_size"
    only(deepspeeds(zero_optimization__allgather_bucket_size="auto"), where, "without `auto`")


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("gradient_acumulation_steps", "gradient_accumulation_steps"),
        ("zero_optimization__stage3_prefetch_bucket", "stage3_prefetch_bucket_size"),
        ("zero_optimization__offload_param__pin_mem", "pin_memory"),
        ("fp16__initial_scale", "initial_scale_power"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, close):
    where = f"deepspeed.json: {name.replace('__', '.')}"
    only(deepspeeds(**{name: 1}), where, f"did you mean `{close}`?")


@pytest.mark.parametrize(
    "field",
    ["gradient_accumulation_steps", "gradient_clipping", "zero_stage", "zero3_save_16bit_model"],
)
def test_accelerate_refuses_what_belongs_in_the_file(field):
    where = f"accelerate.yaml: deepspeed_config.{field}"
    only(found(accelerate={f"deepspeed_config.{field}": 2}), where, "deepspeed_config_file")


def test_accelerate_refuses_a_precision_beside_the_file():
    only(found(accelerate={"mixed_precision": "bf16"}), "accelerate.yaml: mixed_precision")


def test_without_a_file_accelerates_own_section_counts():
    own = {
        "deepspeed_config": {
            "zero_stage": 2,
            "offload_param_device": "cpu",
            "gradient_accumulation_steps": 1,
            "zero3_init_flag": True,
        }
    }
    (accumulation,) = found(accelerate=own, deepspeed=None)
    assert accumulation.startswith("accelerate.yaml: deepspeed_config.gradient_accumulation_steps")
    assert "gradient_accumulation_steps: `2`" in accumulation


def test_somebody_has_to_read_deepspeeds_file():
    where = "accelerate.yaml: distributed_type"
    gpus = {"distributed_type": "MULTI_GPU", "deepspeed_config": None}
    only(found(accelerate=gpus), where, "deepspeed.json is never read")
    assert found({"deepspeed": "deepspeed.json"}, gpus) == []
    where = "accelerate.yaml: deepspeed_config.deepspeed_config_file"
    only(
        found(accelerate={"deepspeed_config.deepspeed_config_file": None}),
        where,
        "deepspeed.json is never read",
    )
    only(found(deepspeed=None), where, "no such file")
    both = found({"deepspeed": "other.json"})
    only(both, "sft_config.yaml: deepspeed", "names one, too")


@pytest.mark.parametrize("where", ["sft_config.yaml", "accelerate.yaml"])
def test_use_cpu_would_make_plain_ddp_of_deepspeed(where):
    told = {"use_cpu": True}
    problems = found(told) if where == "sft_config.yaml" else found(accelerate=told)
    only(problems, f"{where}: use_cpu", "plain DDP of DeepSpeed", "ddp_backend: gloo")


def test_fsdp_on_cpus_shards_nothing():
    told = {"ddp_backend": "gloo"}
    only(found(told, deepspeed=None, base=FSDP), "sft_config.yaml: ddp_backend", "GPUs alone")
    told = {"use_cpu": True}
    only(found(told, deepspeed=None, base=FSDP), "sft_config.yaml: use_cpu", "plain DDP of FSDP")


def test_there_is_one_engine():
    only(found({"fsdp": True}), "sft_config.yaml: fsdp", "DeepSpeed, too")
    only(found(accelerate={"fsdp_config": FSDP["fsdp_config"]}), "accelerate.yaml: fsdp_config")


def test_mixed_precision_is_the_trainers():
    where = "accelerate.yaml: mixed_precision"
    only(found({"bf16": False}, deepspeed=None, base=FSDP), where, "`bf16`", "`no`")
    no = {"mixed_precision": "no"}
    only(found({"bf16": None}, no, deepspeed=None, base=FSDP), where, "(TRL's default)")
    only(found({}, {"mixed_precision": False}, deepspeed=None, base=FSDP), where, "quoted")
    only(found({}, {"mixed_precision": "fp8"}, deepspeed=None, base=FSDP), where, "`fp8`", "`bf16`")


def test_a_base_that_no_engine_divides_and_a_batch_that_is_divided_again_are_said():
    where = "sft_config.yaml: bnb_4bit_quant_storage"
    four = {"load_in_4bit": True}
    only(found(four), where, "each device keeps the whole base")
    only(found(four, deepspeed=None, base=FSDP), where, "`dtype`")
    assert found({**four, "bnb_4bit_quant_storage": "bfloat16"}, deepspeed=None, base=FSDP) == []
    splits = {"accelerator_config": {"split_batches": True}}
    (said,) = [one for one in found(splits) if "split_batches" in one]
    assert "the processes share a batch" in said


def test_activations_are_checkpointed_by_one_of_the_two():
    own = {"fsdp_config.fsdp_activation_checkpointing": True}
    where = "accelerate.yaml: fsdp_config.fsdp_activation_checkpointing"
    only(found({}, own, deepspeed=None, base=FSDP), where, "can't both be set to True")
    old, new = {"gradient_checkpointing": False}, {"activation_checkpointing": False}
    assert found(old, own, deepspeed=None, base=FSDP) == []
    assert found(new, own, deepspeed=None, base=FSDP) == []


def test_fsdp_of_version_two_reshards_or_does_not():
    own = {"fsdp_config.fsdp_reshard_after_forward": "FULL_SHARD"}
    where = "accelerate.yaml: fsdp_config.fsdp_reshard_after_forward"
    only(found({}, own, deepspeed=None, base=FSDP), where, "full_shard")


def test_parts_of_weights_cannot_be_all_that_is_saved():
    own = {"fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT"}
    where = "sft_config.yaml: save_only_model"
    only(found({"save_only_model": True}, own, deepspeed=None, base=FSDP), where, "SHARDED")


def test_no_batch_finder_with_zero_three():
    only(found({"auto_find_batch_size": True}), "sft_config.yaml: auto_find_batch_size", "Zero-3")


def test_processes_are_started_and_spread():
    gpus = {"distributed_type": "NO", "deepspeed_config": None}
    problems = found(accelerate=gpus | {"mixed_precision": "bf16"}, deepspeed=None)
    only(problems, "accelerate.yaml: distributed_type", "accelerate starts one process")
    lacks = found(accelerate={"distributed_type": None, "deepspeed_config": None}, deepspeed=None)
    assert (
        "accelerate.yaml: accelerate launch refuses it: A `distributed_type` must be" in lacks[-1]
    )
    only(found(accelerate={"num_machines": 3}), "accelerate.yaml: num_processes", "3 machines")
    only(found(accelerate={"num_procesess": 8}), "accelerate.yaml: num_procesess", "num_processes")


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_completions_of_a_prompt_are_made_together_by_all_processes(method):
    def groups(**told):
        return found(told, method=method)

    assert groups(num_generations=8) == []
    assert groups(num_generations=8, generation_batch_size=32) == []
    only(groups(num_generations=7), "sft_config.yaml: num_generations", "(64) must be divisible")
    only(
        groups(num_generations=8, generation_batch_size=48),
        "sft_config.yaml: generation_batch_size",
        "divisible by the global batch size (32)",
    )


def test_groups_are_known_by_their_field_where_the_method_is_not():
    files = LaunchFiles(
        trainer=TRAINER | {"num_generations": 7}, accelerate=ACCELERATE, deepspeed=DEEPSPEED
    )
    (problem,) = checked(files).problems
    assert problem.where == "the trainer's file: num_generations"


def test_everything_is_said_at_once():
    problems = deepspeeds(
        {"use_cpu": True}, gradient_clipping=1.0, train_batch_size=1, zero_optimization__stages=2
    )
    assert len(problems) == 4


@pytest.mark.parametrize(
    "broken",
    [
        {"zero_optimization": True},
        {"zero_optimization": {"stage": "three"}},
        {"zero_optimization": {"stage": "auto"}},
        {"optimizer": "AdamW"},
        {"bf16": True},
        {"train_micro_batch_size_per_gpu": [4]},
        {"train_batch_size": "many"},
        {},
    ],
)
def test_values_of_another_kind_are_no_reason_to_fail(broken):
    assert isinstance(found(deepspeed=broken), list)
    strange = {"num_processes": "eight", "num_machines": None, 3: 4, "deepspeed_config": None}
    files = LaunchFiles(trainer={1: 2, "bf16": "x"}, accelerate=strange, deepspeed=broken)
    assert checked(files).problems
