"""Fields of other tools that are carried, named or refused, through `autotune import`."""

import json
from pathlib import Path

import pytest

from tests.unit.calling import call, refused
from tests.unit.cli.test_import import ROWS, as_is, said
from tests.unit.space.foreign.files import AXOLOTL, LLAMA_FACTORY, TORCHTUNE


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("how", ["offload", "unsloth", "offload_disk"])
def test_axolotls_checkpointing_that_offloads_is_both(how: str) -> None:
    text = AXOLOTL.replace("gradient_checkpointing: true", f"gradient_checkpointing: {how}")
    told = as_is("axolotl.yaml", axolotl_yaml=text)
    both = told["job"]["fixed"] | told["job"]["training"]
    assert (both["gradient_checkpointing"], both["activation_offloading"]) == (True, True)
    assert f"`gradient_checkpointing: {how}` keeps them off the GPU" in said(told)


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ("{every_n_layers: 4, use_reentrant: false}", "every_4"),
        ("{selective: true}", "selective"),
        ("{offload: true}", "offload"),
        ("{use_reentrant: false}", True),
    ],
)
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_trls_levels_of_checkpointing_are_values_of_the_knob(
    name: str, arguments: str, level: object
) -> None:
    text = f"{ROWS}{name}: true\n{name}_kwargs: {arguments}\n"
    told = as_is("--method=sft", "sft.yaml", sft_yaml=text)
    assert told["job"]["fixed"]["gradient_checkpointing"] == level
    Path("job.yaml").write_text(json.dumps(told["job"]), "utf-8")
    assert call("validate", "job.yaml").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--", "trl", "orpo", "--model_name_or_path", "m"],
        ["--", "python", "-m", "trl.experimental.orpo.orpo", "--model_name_or_path", "m"],
        ["gkd.yaml", "--method", "distillation"],
        ["axolotl.yaml"],
    ],
)
def test_trainers_that_no_method_is_for_end_in_the_way_that_remains(words: list[str]) -> None:
    teacher = "teacher_model_name_or_path: m\nlmbda: 0.5\n"
    Path("gkd.yaml").write_text(ROWS + teacher, "utf-8")
    Path("axolotl.yaml").write_text(f"{AXOLOTL}rl: orpo\n", "utf-8")
    assert "docs/not_supported.md" in refused("import", *words)


@pytest.mark.parametrize(("more", "length"), [("max_new_tokens: 512\n", 512), ("", 1024)])
def test_llama_factorys_ppo_generates_and_takes_prompts_as_long_as_it_says(
    more: str, length: int
) -> None:
    text = LLAMA_FACTORY.replace("stage: sft", "stage: ppo\nreward_model: org/judge") + more
    told = as_is("theirs.yaml", theirs_yaml=text)
    assert told["job"]["fixed"]["response_length"] == length
    assert told["job"]["dataset"] == {"lengths": {"max": 2048}}


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ("teacher_model", "knowledge distillation"),
        ("kd_loss", "knowledge distillation"),
        ("quantizer", "quantization-aware training"),
    ],
)
def test_recipes_of_torchtune_that_no_method_is_for_are_named(section: str, what: str) -> None:
    Path("tune.yaml").write_text(f"{TORCHTUNE}{section}:\n  _component_: some.Class\n", "utf-8")
    assert f"{what} is not a method of autotune" in refused("import", "tune.yaml")


def test_a_data_set_that_a_flag_names_leaves_no_lengths_assumed() -> None:
    text = ROWS.replace("dataset_name: someone/chat\n", "")
    assert "dataset: every row" in said(as_is("--method=sft", "sft.yaml", sft_yaml=text))
    told = as_is("--method=sft", "--dataset=my/x", "sft.yaml")
    assert (told["job"]["dataset"], "every row" in said(told)) == ("my/x", False)


def test_torchtunes_fsdp_as_its_file_has_it() -> None:
    text = f"{TORCHTUNE}fsdp_reshard_after_forward: false\ndata_parallel_replicate_dim: 2\n"
    told = as_is("tune.yaml", "--devices=4", tune_yaml=text)
    fixed = told["job"]["fixed"]
    assert (fixed["distributed_type"], fixed["fsdp_reshard_after_forward"]) == ("FSDP", False)
    changes = {field["field"]: field["changes"] for field in told["fields"]}
    assert changes["data_parallel_replicate_dim"] == "memory"


@pytest.mark.parametrize(
    "line", ["bf16: 2", "use_peft: maybe", "packing: 2", "gradient_checkpointing: maybe"]
)
def test_a_value_that_is_no_switch_is_refused(line: str) -> None:
    name, _, value = line.partition(": ")
    Path("sft.yaml").write_text(f"{ROWS.replace('bf16: true', '')}{line}\n", encoding="utf-8")
    told = refused("import", "--method=sft", "sft.yaml")
    assert name in told
    assert f"must be true or false, but got `{value}`" in told


def test_lengths_under_older_names() -> None:
    text = ROWS.replace("max_length: 2048", "model_max_length: 4096\nmax_prompt_length: 512")
    told = as_is("--method=dpo", "sft.yaml", sft_yaml=text)
    assert told["job"]["max_length"] == 4096
    changes = {field["field"]: field["changes"] for field in told["fields"]}
    assert changes["max_prompt_length"] == "memory"
    told = as_is("--method=dpo", "sft.yaml", sft_yaml=f"{text}max_length: 256\n")
    assert told["job"]["max_length"] == 256


def test_digits_are_switches_as_a_trainers_parser_has_them() -> None:
    text = f"{ROWS.replace('bf16: true', 'bf16: 1')}packing: 0\nuse_peft: 1\n"
    job = as_is("--method=sft", "sft.yaml", sft_yaml=text)["job"]
    assert (job["precision"], job["tuning"], job["fixed"]["packing"]) == ("bf16", "lora", False)
