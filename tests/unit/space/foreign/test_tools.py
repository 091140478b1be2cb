"""What each tool's fields mean in a job, by the tool's own defaults."""

import json
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from autotune.space.job_file.load import judge
from tests.unit.space.foreign.files import (
    AXOLOTL,
    LLAMA_FACTORY,
    TORCHTUNE,
    TRL,
    UNSLOTH,
    changed,
    fates,
    imported,
    read,
)

ALL = (LLAMA_FACTORY, AXOLOTL, TORCHTUNE, TRL, UNSLOTH)


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("as_is", [False, True])
def test_every_field_has_one_fate_and_the_job_can_be(text: str, as_is: bool) -> None:
    found = imported(text, as_is=as_is)
    names = [fate.field for fate in found.fates]
    assert len(set(names)) == len(names)
    given = read(text)
    assert {name.partition(".")[0] for name in names} == set(given)
    job = judge(found.job, "theirs.yaml", Path("/"))
    assert job.global_batch_size == found.job["global_batch_size"]
    assert not fates(found, "unknown")


def test_llama_factorys_lora() -> None:
    found = imported(LLAMA_FACTORY)
    job = found.job
    assert job["method"] == "sft"
    assert (job["tuning"], job["max_length"], job["global_batch_size"]) == ("lora", 2048, 8)
    assert job["precision"] == "bf16"
    assert job["fixed"] == {
        "lora_r": 8,
        "lora_target_modules": "all-linear",
        "dtype": "bfloat16",
    }
    assert job["training"]["lora_alpha"] == 16  # twice the rank, not TRL's 32
    assert job["training"]["lora_dropout"] == 0.0  # not TRL's 0.05
    assert job["training"]["warmup_steps"] == 0.1
    assert job["dataset"] == {"lengths": {"max": 2048}}
    assert fates(found, "searched").keys() == {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "dataloader_num_workers",
    }
    assert "trust_remote_code" in fates(found, "left")
    assert "trust_remote_code" not in job["training"]


def test_llama_factorys_defaults() -> None:
    without = ("cutoff_len", "lora_rank", "learning_rate", "per_device_train_batch_size", "bf16")
    job = imported(changed(LLAMA_FACTORY, without=without)).job
    assert job["max_length"] == 2048
    assert job["fixed"]["lora_r"] == 8
    assert job["training"]["learning_rate"] == 5e-5  # not TRL's 2e-5
    assert job["global_batch_size"] == 8 * 8
    assert job["precision"] == "fp32"


@pytest.mark.parametrize(
    ("lines", "method"),
    [
        (["stage: pt"], "sft"),
        (["stage: rm"], "reward"),
        (["stage: dpo", "pref_beta: 0.2", "pref_loss: sigmoid"], "dpo"),
        (["stage: kto", "pref_beta: 0.2"], "kto"),
        (["stage: ppo"], "ppo"),
    ],
)
def test_llama_factorys_stages(lines: list[str], method: str) -> None:
    job = imported(changed(LLAMA_FACTORY, lines, without=["stage"])).job
    assert job["method"] == method
    assert job["fixed"].get("packing", False) is (lines == ["stage: pt"])
    if method in ("dpo", "kto"):
        assert job["training"]["beta"] == 0.2


def test_llama_factorys_quantised_base() -> None:
    four = imported(changed(LLAMA_FACTORY, ["quantization_bit: 4"])).job
    eight = imported(changed(LLAMA_FACTORY, ["quantization_bit: 8"])).job
    assert (four["tuning"], eight["tuning"]) == ("qlora", "qlora")
    assert "load_in_8bit" not in four["fixed"]
    assert eight["fixed"]["load_in_8bit"] is True


def test_llama_factorys_full_training_keeps_float32_weights() -> None:
    full = changed(LLAMA_FACTORY, ["finetuning_type: full"], without=["finetuning_type"])
    assert "dtype" not in imported(full).job["fixed"]
    pure = imported(changed(full, ["pure_bf16: true"])).job
    assert (pure["fixed"]["dtype"], pure["precision"]) == ("bfloat16", "bf16")


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["finetuning_type: freeze"], "autotune cannot tune this: `finetuning_type: freeze`"),
        (
            ["finetuning_type: lora", "stage: dpo", "pref_loss: orpo"],
            "autotune cannot train this: `pref_loss: orpo`",
        ),
        (
            ["finetuning_type: lora", "stage: distill"],
            "autotune cannot train this: `stage: distill`",
        ),
    ],
)
def test_a_training_that_no_job_can_be_is_refused(lines: list[str], what: str) -> None:
    text = changed(LLAMA_FACTORY, lines, without=["finetuning_type", "stage"])
    with pytest.raises(UserError) as caught:
        imported(text)
    assert caught.value.problems[0].what.startswith(what)


def test_llama_factorys_registry_of_data() -> None:
    text = changed(LLAMA_FACTORY, ["dataset: mine"], without=["dataset"])
    plain = {"mine": {"file_name": "a.json", "columns": {"prompt": "q", "response": "a"}}}
    job = imported(text, json.dumps(plain)).job
    assert job["dataset"] == "data/a.json"
    assert job["columns"] == {"prompt": "q", "completion": "a"}
    joined = {"mine": {"file_name": "a.json"}}  # instruction and input become one prompt
    found = imported(text, json.dumps(joined))
    assert found.job["dataset"] == {"lengths": {"max": 2048}}
    assert "joined of two columns" in fates(found, "left")["dataset"]
    tags = {"role_tag": "role", "content_tag": "content"}
    chat = {"hf_hub_url": "org/chat", "formatting": "sharegpt", "tags": tags}
    job = imported(text, json.dumps({"mine": chat})).job
    assert (job["dataset"], job["columns"]) == ("org/chat", {"messages": "conversations"})


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        (["warmup_ratio: 0.1", "warmup_steps: 0"], 0.1),
        (["warmup_steps: 0", "warmup_ratio: 0.1"], 0.1),
        (["warmup_ratio: 0.1", "warmup_steps: 7"], 7),
        (["warmup_steps: 0"], 0),
    ],
)
def test_steps_of_warmup_go_before_their_share_unless_they_are_0(
    lines: list[str], steps: float
) -> None:
    found = imported(changed(TRL, lines))
    assert found.job["training"]["warmup_steps"] == steps


def test_torchtunes_lora() -> None:
    found = imported(TORCHTUNE)
    job = found.job
    assert job["model"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert (job["tuning"], job["global_batch_size"], job["max_length"]) == ("lora", 32, None)
    assert (job["precision"], job["fixed"]["dtype"]) == ("bf16", "bfloat16")
    modules = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert job["fixed"]["lora_target_modules"] == modules
    assert job["training"]["max_grad_norm"] is None  # `clip_grad_norm: null` does not clip
    assert job["training"]["learning_rate"] == 3e-4
    assert "enable_activation_checkpointing" in fates(found, "searched")


def test_torchtunes_dpo_and_quantised_base() -> None:
    loss = "  _component_: torchtune.rlhf.loss.DPOLoss\n  beta: 0.05"
    text = TORCHTUNE.replace("  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss", loss)
    job = imported(text.replace("lora_llama3_2_1b", "qlora_llama3_2_1b")).job
    assert (job["method"], job["tuning"], job["training"]["beta"]) == ("dpo", "qlora", 0.05)


def test_a_model_is_known_by_its_name_where_its_folder_is_not_here() -> None:
    text = TRL.replace("Qwen/Qwen2.5-0.5B\n", "/a/Qwen2.5-0.5B\n", 1)
    files = [GivenFile(name="a.yaml", data=read(text))]
    assert import_job(files, Wishes()).job["model"] == "Qwen/Qwen2.5-0.5B"
    here = import_job(files, Wishes(), exists=lambda path: path == "/a/Qwen2.5-0.5B")
    assert here.job["model"] == "/a/Qwen2.5-0.5B"


def test_trls_yaml() -> None:
    found = imported(TRL)
    job = found.job
    assert (job["method"], job["dataset"], job["tuning"]) == ("sft", "trl-lib/Capybara", "lora")
    assert job["fixed"] == {"packing": True, "lora_r": 32, "dtype": "bfloat16"}
    assert (job["global_batch_size"], job["max_length"]) == (16, 2048)
    assert "precision" not in job  # TRL's own choice: bf16 where the GPU can
    assert job["training"]["learning_rate"] == 2e-4


def test_a_base_is_held_as_its_checkpoint_is_unless_a_launch_is_planned_as_it_is() -> None:
    for lines in (["torch_dtype: auto"], []):
        text = changed(TRL, lines, without=("torch_dtype",))
        assert "dtype" not in imported(text).job["fixed"]
    files = [GivenFile(name="a.yaml", data=read(text))]
    as_is = import_job(files, Wishes(as_is=True))
    assert as_is.job["fixed"]["dtype"] == "float32"
    assert "fixed.dtype: float32 (TRL's default)" in as_is.assumed
    automatic = read(changed(TRL, ["torch_dtype: auto"], without=("torch_dtype",)))
    found = import_job([GivenFile(name="a.yaml", data=automatic)], Wishes(as_is=True))
    assert "dtype" not in found.job["fixed"]


def test_trls_method_is_known_by_its_fields_or_asked_for() -> None:
    lines = ["num_generations: 4", "scale_rewards: group", "reward_funcs: [accuracy_reward]"]
    without = ("packing", "max_length")
    assert imported(changed(TRL, lines, without=without)).job["method"] == "grpo"
    with pytest.raises(UserError) as caught:
        imported(changed(TRL, without=without))
    (problem,) = caught.value.problems
    assert problem.what == "it does not name the training method"
    assert "--method sft" in str(problem.hint)
    assert imported(changed(TRL, without=without), method="dpo").job["method"] == "dpo"


def test_unsloths_settings() -> None:
    job = imported(UNSLOTH).job
    assert (job["tuning"], job["max_length"], job["global_batch_size"]) == ("qlora", 8192, 32)
    assert (job["fixed"]["lora_r"], job["training"]["lora_alpha"]) == (64, 32)
    assert len(job["fixed"]["lora_target_modules"]) == 7
    assert job["fixed"]["optim"] == "adamw_8bit"
    assert job["training"]["weight_decay"] == 0.01
    assert job["training"]["warmup_steps"] == 5


def test_nothing_of_a_secret_is_kept() -> None:
    found = imported(changed(TRL, ["hub_token: hf_secret"]))
    assert "hf_secret" not in json.dumps(found.job)
    assert "secret" in fates(found, "left")["hub_token"]


def test_nothing_of_a_secret_inside_a_field_is_kept() -> None:
    found = imported(changed(TRL, ["model_init_kwargs: {api_key: hf_secret, revision: main}"]))
    assert "hf_secret" not in repr(found)
    assert "secret" in fates(found, "left")["model_init_kwargs"]


def test_a_file_of_no_tool_is_refused() -> None:
    with pytest.raises(UserError, match="this is not a configuration of a known tool"):
        imported("frobnicate: 3\n")


def test_fields_of_nobody_are_unknown_and_told() -> None:
    found = imported(changed(LLAMA_FACTORY, ["frobnicate: 3"]))
    assert fates(found, "unknown") == {"frobnicate": "nothing is known of it"}
