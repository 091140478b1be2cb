"""`autotune import`, and other tools' files where a job is taken."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.space.job_file.load import load_job
from tests.unit.calling import call, refused
from tests.unit.space.foreign.files import (
    ACCELERATE,
    AXOLOTL,
    DEEPSPEED,
    LLAMA_FACTORY,
    TORCHTUNE,
    TRL,
)


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(LLAMA_FACTORY, encoding="utf-8")
    Path("accelerate.yaml").write_text(ACCELERATE, encoding="utf-8")
    Path("deepspeed.json").write_text(DEEPSPEED, encoding="utf-8")


def test_the_job_goes_to_stdout_and_what_became_of_each_field_to_stderr() -> None:
    result = call("import", "theirs.yaml")
    assert result.exit_code == 0, result.stderr
    Path("job.yaml").write_text(result.stdout, encoding="utf-8")
    job, _ = load_job(Path("job.yaml"))
    assert job.global_batch_size == 8
    assert "# - learning: template" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    for title in (
        "carried:",
        "searched instead:",
        "not carried, by what it may change:",
        "assumed:",
    ):
        assert title in result.stderr.splitlines()
    assert "18 of 30 fields carried, 3 searched instead" in result.stderr.splitlines()[-1]


def test_it_is_written_where_that_is_asked_for_and_nothing_is_written_over() -> None:
    assert call("import", "theirs.yaml", "--out", "new/job.yaml").exit_code == 0
    job, _ = load_job(Path("new/job.yaml"))
    assert job.method == "sft"
    assert "the file exists already" in refused("import", "theirs.yaml", "--out", "theirs.yaml")


def test_several_files_and_json() -> None:
    result = call("import", "theirs.yaml", "accelerate.yaml", "--as-is", "--json")
    told = json.loads(result.stdout)
    assert told["tool"] == "LLaMA-Factory"
    assert told["job"]["fixed"]["zero_stage"] == 3
    assert {field["fate"] for field in told["fields"]} == {"carried", "left"}
    result = call("import", "theirs.yaml", "deepspeed.json", "--devices", 4, "--json")
    assert json.loads(result.stdout)["job"]["global_batch_size"] == 32


def test_a_command_is_read_and_not_run() -> None:
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --learning_rate 1e-4"
    words = f"accelerate launch --config_file accelerate.yaml train.py {flags}".split()
    result = call("import", "--method", "sft", "--", *words)
    assert result.exit_code == 0, result.stderr
    assert "global_batch_size: 64" in result.stdout


def test_a_commands_text_and_its_secrets_are_written_nowhere() -> None:
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name org/rows --hub_token hf_abc"
    words = ["--", "WANDB_API_KEY=abc", "trl", "sft", *flags.split(), "--config", "more.yaml"]
    Path("more.yaml").write_text("learning_rate: 1e-4\n", encoding="utf-8")
    result = call("import", *words)
    assert result.exit_code == 0, result.stderr
    first = result.stdout.splitlines()[0]
    assert first == "# Made by `autotune import` of a command and more.yaml."
    everything = result.stdout + result.stderr + call("import", "--json", *words).stdout
    assert "abc" not in everything
    assert '"***"' in result.stderr
    assert "abc" not in refused("import", "--", "TOKEN=abc", "python", "train.py")
    assert "abc" not in refused("import", *words, "--max_length", "-1")


def test_axolotls_own_command_with_a_launchers_flags() -> None:
    Path("axolotl.yaml").write_text(AXOLOTL, encoding="utf-8")
    words = [
        "axolotl",
        "train",
        "axolotl.yaml",
        "--launcher",
        "torchrun",
        "--",
        "--nproc_per_node=2",
    ]
    assert "global_batch_size: 8" in call("import", "--", *words).stdout


def test_all_devices_are_counted_where_a_file_is_taken_for_a_job() -> None:
    Path("trl.yaml").write_text(f"{TRL}num_processes: 8\nnum_machines: 2\n", encoding="utf-8")
    assert "global batch 128, 8 devices;" in call("validate", "trl.yaml").stderr


def test_what_is_missing_can_be_said_by_flags() -> None:
    Path("args.json").write_text('{"learning_rate": 1e-4, "bf16": true}', encoding="utf-8")
    assert "does not name the training method" in refused("import", "args.json")
    assert "`model` is missing" in refused("import", "args.json", "--method", "sft")
    flags = ("--method", "dpo", "--model", "qwen2.5-0.5b", "--dataset", "org/pairs")
    told = json.loads(call("import", "args.json", *flags, "--json").stdout)
    assert (told["job"]["model"], told["job"]["dataset"]) == ("qwen2.5-0.5b", "org/pairs")


def test_commands_take_such_a_file_where_they_take_a_job() -> None:
    result = call("validate", "theirs.yaml", "--set", "devices.count=2")
    assert result.exit_code == 0, result.stderr
    assert "global_batch_size: 16" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("read as a configuration of LLaMA-Factory: 18 of 30 fields carried")
    assert line.endswith("global batch 16, 2 devices; `autotune import theirs.yaml` lists them")
    assert call("validate", "--space", "theirs.yaml", "--set", "devices.kind=cpu").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "stage: [\ntemplate: x\n",
        "stage: sft\nstage: dpo\ntemplate: x\n",
        "stage: sft\ntemplate: x\ncutoff_len: {a: 1}\nlora_rank: [1]\nlora_target: {}\n"
        "dataset: 7\nbf16: maybe\nmodel_name_or_path: 3\n",
        "stage: sft\ntemplate: x\nper_device_train_batch_size: " + "9" * 299 + "\n",
        "stage: sft\ntemplate: x\nquantization_bit: [4]\nfinetuning_type: {}\ndeepspeed: [1]\n",
        "base_model: {}\ndatasets: {}\nadapter: []\nsequence_len: -3\ntrl: 5\nload_in_8bit: x\n",
        "base_model: a\ndatasets: [[]]\nrl: [dpo]\nwarmup_ratio: x\n",
        "model: {_component_: [1]}\ntokenizer: 3\nloss: {_component_: {}}\n",
        "model_name: 3\nmax_seq_length: x\nr: -1\nload_in_4bit: []\n",
        f"{TRL}\nreport_to: &a [*a]\n",
    ],
)
def test_broken_files_are_refused_in_words(text: str) -> None:
    Path("broken.yaml").write_text(text, encoding="utf-8")
    assert "broken.yaml" in refused("import", "broken.yaml", "--model", "qwen2.5-0.5b")
    assert "broken.yaml" in refused("validate", "broken.yaml", "--model", "qwen2.5-0.5b")


CHAT = "model_name_or_path: Qwen/Qwen2.5-7B\ndataset_name: someone/chat\nmax_length: 2048\n"
ROWS = f"{CHAT}per_device_train_batch_size: 1\ngradient_accumulation_steps: 4\nbf16: true\n"
FSDP = "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\n"


def as_is(*words: object, **files: str) -> dict[str, Any]:
    """What `autotune import --as-is --json` says of files (`sft_yaml="..."`)."""
    for name, text in files.items():
        Path(name.replace("_", ".")).write_text(text, encoding="utf-8")
    result = call("import", "--as-is", "--json", *words)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def said(told: dict[str, Any]) -> str:
    return "\n".join(told["assumed"])


def zero(stage: int, *offloaded: str) -> str:
    offload = {f"offload_{what}": {"device": "cpu"} for what in offloaded}
    return json.dumps({"zero_optimization": {"stage": stage, **offload}})


def test_a_deepspeed_file_that_is_here_is_read_whatever_its_name_says() -> None:
    words = ("--method", "sft", "--devices", 4, "sft.yaml")
    both = zero(3, "optimizer", "param")
    told = as_is(*words, sft_yaml=f"{ROWS}deepspeed: mine.json\n", mine_json=both)
    offloads = ("offload_optimizer_device", "offload_param_device")
    assert [told["job"]["fixed"][n] for n in ("zero_stage", *offloads)] == [3, "cpu", "cpu"]
    Path("z3_offload.json").write_text(zero(2), encoding="utf-8")
    told = as_is(*words, sft_yaml=f"{ROWS}deepspeed: z3_offload.json\n")
    assert [told["job"]["fixed"][n] for n in ("zero_stage", *offloads)] == [2, "none", "none"]
    assert "zero_stage" not in said(told)
    flags = ("deepspeed", "--num_gpus=4", "train.py", "--deepspeed=mine.json", "sft.yaml")
    told = as_is("--method", "sft", "--", *flags, sft_yaml=ROWS)
    assert told["job"]["fixed"]["zero_stage"] == 3
    flags = ("accelerate", "launch", "--use_deepspeed", "--deepspeed_config_file=mine.json")
    told = as_is("--method", "sft", "--", *flags, "--num_processes=4", "train.py", "sft.yaml")
    assert told["job"]["fixed"]["zero_stage"] == 3


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        ("deepspeed: none.json\n", "`none.json` is not here: give it, too"),
        ("accelerate_config: nowhere.yaml\n", "`nowhere.yaml` is not here"),
        ("fsdp: full_shard\nfsdp_config: none.json\n", "`none.json` is not here: give it, too"),
        ("deepspeed: is.json\n", "`is.json` cannot be read: give it, too"),
        ("fsdp: full_shard\nfsdp_config: is.json\n", "`is.json` cannot be read"),
        ("fsdp: most_shard auto_wrap\n", "FSDP's `most_shard` is not known"),
    ],
)
def test_what_could_not_be_read_is_not_plain_ddp_without_a_word(launch: str, why: str) -> None:
    Path("is.json").mkdir()
    told = as_is("--method=sft", "--devices=4", "sft.yaml", sft_yaml=ROWS + launch)
    assert "distributed_type" not in told["job"]["fixed"]
    assert why in said(told)


@pytest.mark.parametrize("kind", ["MEGATRON_LM", "FSDP2", "DEEPSPED", "NOSUCH"])
def test_a_way_to_share_that_is_not_built_is_named(kind: str) -> None:
    words = ("--method=sft", "sft.yaml", "accelerate.yaml")
    launch = FSDP.replace("FSDP", kind)
    told = as_is(*words, sft_yaml=ROWS, accelerate_yaml=launch)
    assert "distributed_type" not in told["job"]["fixed"]
    why = "not built" if kind == "MEGATRON_LM" else "not known"
    assert f"distributed_type: {kind} is {why}" in said(told)


@pytest.mark.parametrize("count", ["0", "-2", "4.5", "1000000000000"])
def test_processes_are_counted_in_whole_numbers(count: str) -> None:
    Path("sft.yaml").write_text(ROWS, encoding="utf-8")
    text = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: "
    Path("accelerate.yaml").write_text(f"{text}{count}\n", encoding="utf-8")
    words = ("--method=sft", "sft.yaml", "accelerate.yaml")
    assert "num_processes: it must be a whole number" in refused("import", *words)
    told = as_is(*words, accelerate_yaml=f"{text}4.0\n")
    assert told["job"]["devices"] == {"count": 4}


@pytest.mark.parametrize("trainers", ["", "gradient_checkpointing: false\n"])
@pytest.mark.parametrize("prefix", ["", "fsdp_", "accelerate"])
def test_fsdps_own_checkpointing_is_on_whatever_the_trainer_says(
    trainers: str, prefix: str
) -> None:
    section = f"fsdp_config: {{{prefix}activation_checkpointing: true}}\n"
    sft, words = f"{ROWS}{trainers}", ["--method=sft", "--devices=2", "sft.yaml"]
    if prefix == "accelerate":
        text = f"{FSDP}{section.replace(prefix, 'fsdp_')}"
        Path("accelerate.yaml").write_text(text, encoding="utf-8")
        words.append("accelerate.yaml")
    else:
        sft += f"fsdp: full_shard\n{section}"
    told = as_is(*words, sft_yaml=sft)
    assert told["job"]["fixed"]["gradient_checkpointing"] is True
    assert "gradient_checkpointing: false" not in said(told)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("strategy", "reshards"),
    [
        ("full_shard", True),
        ("hybrid_shard", True),
        ("hybrid_shard_zero2", False),
        ("no_shard", None),
    ],
)
def test_strategies_of_fsdp_are_read_alike(strategy: str, reshards: bool, nodes: int) -> None:
    words = ["--method=sft", "--devices=2", f"--nodes={nodes}", "sft.yaml"]
    trainers = as_is(*words, sft_yaml=f"{ROWS}fsdp: {strategy} auto_wrap\n")
    launch = f"{FSDP}fsdp_config: {{fsdp_sharding_strategy: {strategy.upper()}}}\n"
    accelerates = as_is(*words, "accelerate.yaml", sft_yaml=ROWS, accelerate_yaml=launch)
    for told in (trainers, accelerates):
        fixed = told["job"]["fixed"]
        if "hybrid" in strategy and nodes == 2:
            assert "distributed_type" not in fixed and "on several machines" in said(told)
        elif strategy == "no_shard":
            assert fixed["distributed_type"] == "MULTI_GPU" and "NO_SHARD" in said(told)
        else:
            assert fixed["fsdp_reshard_after_forward"] is reshards


def test_trls_own_files_for_accelerate_are_read() -> None:
    sft = f"{ROWS}accelerate_config: zero3\n"
    fixed = as_is("--method=sft", "sft.yaml", sft_yaml=sft)["job"]["fixed"]
    assert (fixed["distributed_type"], fixed["zero_stage"]) == ("DEEPSPEED", 3)


def test_rewards_of_a_script_of_ones_own_stop_neither_import_nor_plan() -> None:
    rewards = "reward_funcs: [accuracy, format]\nreward_weights: [1.0, 0.5]\n"
    rows = "num_generations: 8\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n"
    text = f"model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct\n{rewards}{rows}"
    told = as_is("--method=grpo", "grpo.yaml", grpo_yaml=text)
    assert (told["job"]["global_batch_size"], told["job"]["fixed"]["num_generations"]) == (16, 8)
    left = {field["field"] for field in told["fields"] if field["fate"] == "left"}
    assert {"reward_funcs", "reward_weights"} <= left
    Path("job.json").write_text(json.dumps(told["job"]), encoding="utf-8")
    assert call("validate", "--set", "devices.kind=cpu", "job.json").exit_code == 0
    assert "needs something that rewards" in refused("probe", "job.json", "--set=devices.kind=cpu")


OWN_SCRIPT = (
    "accelerate launch --num_processes 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
    "--dataset_name someone/chat --bf16 True --packing True --per_device_train_batch_size 8 "
    "--gradient_accumulation_steps 4 --use_peft_lora True --lora_r 8 --lora_alpha 16 "
    "--lora_target_modules all-linear --use_4bit_quantization False"
)


def test_an_adapters_fields_say_that_one_is_trained_where_nothing_contradicts() -> None:
    told = as_is("--method=sft", "--", *OWN_SCRIPT.split())
    assert (told["job"]["tuning"], told["job"]["global_batch_size"]) == ("lora", 256)
    assert "tuning: lora (`lora_r` is an adapter's)" in told["assumed"]
    unknown = {field["field"] for field in told["fields"] if field["fate"] == "unknown"}
    assert unknown == {"use_peft_lora", "use_4bit_quantization"}


@pytest.mark.parametrize("words", [("--use_peft", "false"), ()])
def test_an_adapters_fields_without_an_adapter_do_nothing(words: tuple[str, ...]) -> None:
    """TRL's own program trains all weights, whatever the rank, unless `--use_peft` is there."""
    start = ("trl", "sft", "--model_name_or_path", "qwen2.5-0.5b", "--lora_r", "8", *words)
    told = as_is("--", *start)
    assert told["job"].get("tuning", "full") == "full"
    fates = {field["field"]: field for field in told["fields"]}
    assert (fates["lora_r"]["fate"], "tuning: full" in fates["lora_r"]["detail"]) == ("left", True)


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (("--method", "orpo", "sft.yaml"), "orpo"),
        (("--", "trl", "gkd", "--config", "sft.yaml"), "gkd"),
        (("--", "python", "examples/scripts/cpo.py", "--config", "sft.yaml"), "cpo"),
    ],
)
def test_a_method_that_is_not_built_is_named(words: tuple[str, ...], method: str) -> None:
    Path("sft.yaml").write_text(ROWS, encoding="utf-8")
    built = "sft, reward, dpo, kto, grpo, rloo, distillation, ppo"
    assert f"{method} is not a method of autotune ({built})" in refused("import", *words)


def test_trls_example_of_ppo() -> None:
    command = (
        "accelerate launch --num_processes 1 examples/scripts/ppo/ppo.py --dataset_name some/rows "
        "--num_ppo_epochs 1 --num_mini_batches 1 --per_device_train_batch_size 1 "
        "--gradient_accumulation_steps 1 --total_episodes 1000 --model_name_or_path org/base "
        "--sft_model_path org/policy --reward_model_path org/judge --use_peft --lora_r 32 "
        "--max_grad_norm 1.0"
    )
    told = as_is("--method=ppo", "--", *command.split())
    job = told["job"]
    assert (job["model"], job["global_batch_size"]) == ("org/policy", 1)
    assert job["training"] == {"max_steps": 1000}  # and its trainer clips nothing
    assert "the policy begins as `sft_model_path`" in said(told)


def test_half_of_qlora_is_named() -> None:
    parts = "quantization_method: bnb\nquantization_type: nf4\ndouble_quantization: true\n"
    told = as_is("theirs.yaml", theirs_yaml=LLAMA_FACTORY + parts)
    assert told["job"]["tuning"] == "lora"
    assert "nothing is quantised: `quantization_bit: 4` is missing" in said(told)
    assert "bnb_4bit_quant_type" not in told["job"]["training"]
    trls = f"{ROWS}use_peft: true\nbnb_4bit_quant_type: nf4\n"
    told = as_is("--method=sft", "sft.yaml", sft_yaml=trls)
    assert "nothing is quantised: `load_in_4bit` is missing" in said(told)


def test_the_last_of_a_key_that_is_there_twice_counts_where_its_trainer_takes_it() -> None:
    twice = f"{ROWS}save_strategy: false\nbf16: true\nmax_length: 512\n"
    told = as_is("--method=sft", "sft.yaml", sft_yaml=twice)
    assert told["job"]["max_length"] == 512
    assert told["job"]["training"]["save_strategy"] == "no"  # as YAML 1.1 has it
    assert "`max_length` is given twice: the last one counts (sft.yaml:9)" in told["assumed"]
    assert call("validate", "sft.yaml", "--set", "method=sft").exit_code == 0
    Path("job.yaml").write_text("method: sft\nmethod: sft\n", encoding="utf-8")
    assert "`method` is given twice" in refused("validate", "job.yaml")


PARALLEL = "dp_shard_size: 2\ncontext_parallel_size: 2\ntensor_parallel_size: 2\nfsdp_version: 2\n"


def test_a_row_over_several_devices_ends_in_words_or_is_planned_so() -> None:
    axolotl = "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 1\nsequence_len: 8192\n"
    for devices in ((), ("--devices", 8)):
        text = f"{axolotl}{PARALLEL}gradient_accumulation_steps: 1\n"
        Path("axolotl.yaml").write_text(text, encoding="utf-8")
        what = refused("import", "--as-is", "axolotl.yaml", *devices)
        assert "context parallelism of 2 and tensor parallelism of 2: not carried" in what
        assert "2 rows a step cannot be divided among 8 devices" in what
    text = f"{axolotl}{PARALLEL}gradient_accumulation_steps: 4\n"
    job = as_is("axolotl.yaml", axolotl_yaml=text)["job"]
    assert (job["global_batch_size"], job["devices"]["count"]) == (8, 8)
    assert job["fixed"]["distributed_type"] == "FSDP"
    sizes = "parallelism_config: {parallelism_config_cp_size: 2}\n"
    words = ("--method=sft", "sft.yaml", "accelerate.yaml")
    told = as_is(*words, sft_yaml=ROWS, accelerate_yaml=FSDP + sizes)
    assert (told["job"]["global_batch_size"], told["job"]["devices"]["count"]) == (4, 2)
    fixed = told["job"]["fixed"]
    assert (fixed["distributed_type"], fixed["cp_size"]) == ("FSDP", 2)


def test_distributed_recipes_of_torchtune_are_fsdp() -> None:
    Path("tune.yaml").write_text(TORCHTUNE, encoding="utf-8")
    start = "tune run --nproc_per_node 8 lora_finetune_distributed --config tune.yaml"
    job = as_is("--", *start.split())["job"]
    assert (job["fixed"]["distributed_type"], job["global_batch_size"]) == ("FSDP", 256)
    assert as_is("tune.yaml", "--devices=2")["job"]["fixed"]["distributed_type"] == "FSDP"
    assert "distributed_type" not in as_is("tune.yaml")["job"]["fixed"]


@pytest.mark.parametrize(
    ("loss", "more", "micro", "batch"),
    [
        ("dev.grpo.loss.GRPOSimpleLoss", "grpo_samples: 16\nmax_generated_tokens: 512\n", 64, 128),
        ("rlhf.loss.PPOLoss", "compile: true\nppo_batch_size: 4\nmax_generated_tokens: 58\n", 2, 8),
    ],
)
def test_torchtunes_methods_that_generate(loss: str, more: str, micro: int, batch: int) -> None:
    text = TORCHTUNE.replace("modules.loss.CEWithChunkedOutputLoss", loss) + more
    steps = "gradient_accumulation_steps: "
    text = text.replace(f"{steps}8", f"{steps}{2 if 'PPO' in loss else 1}")
    told = as_is("tune.yaml", "--devices=2", tune_yaml=text.replace("compile: False\n", ""))
    job = told["job"]
    assert (job["fixed"]["per_device_train_batch_size"], job["global_batch_size"]) == (micro, batch)
    assert 512 in job["fixed"].values() or 58 in job["fixed"].values()
    assert "torch_compile" not in job["fixed"] | job["training"]


def test_a_trainers_fsdp_offloads_as_it_says() -> None:
    text = f'{ROWS}fsdp: "full_shard offload"\n'
    told = as_is("--method=sft", "--devices=2", "sft.yaml", sft_yaml=text)
    assert told["job"]["fixed"]["distributed_type"] == "FSDP"
    changes = {field["field"]: field["changes"] for field in told["fields"]}
    assert changes["fsdp_offload_params"] == "memory"
    config = "{fsdp_offload_params: true, fsdp_sharding_strategy: SHARD_GRAD_OP}"
    axolotl = f"{AXOLOTL}\nfsdp_config: {config}\nattention: flash\n".replace(
        "flash_attention: true", ""
    )
    told = as_is("axolotl.yaml", "--devices=2", axolotl_yaml=axolotl)
    fixed = told["job"]["fixed"]
    assert (fixed["distributed_type"], fixed["fsdp_reshard_after_forward"]) == ("FSDP", False)
    assert fixed["attn_implementation"] == "flash_attention_2"
    assert "fsdp_offload_params" in {field["field"] for field in told["fields"]}


@pytest.mark.parametrize(("bits", "kind"), [("4", "FSDP"), ("8", "MULTI_GPU")])
def test_fsdp_divides_a_base_of_four_bits_and_none_of_eight(bits: str, kind: str) -> None:
    trainer = f"{ROWS}use_peft: true\nload_in_{bits}bit: true\n"
    words = ("--method=sft", "sft.yaml", "accelerate.yaml")
    told = as_is(*words, sft_yaml=trainer, accelerate_yaml=FSDP)
    assert told["job"]["tuning"] == "qlora"
    assert told["job"]["fixed"]["distributed_type"] == kind
    assert ("this quantised base is not divided" in said(told)) == (bits == "8")


def test_which_of_two_precisions_counts_is_said() -> None:
    launch = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 2\n"
    half = LLAMA_FACTORY.replace("bf16: true", "fp16: true")
    told = as_is("theirs.yaml", "accelerate.yaml", theirs_yaml=half, accelerate_yaml=launch)
    assert told["job"]["precision"] == "fp16"
    assert "the trainer's file's (fp16) counts, not accelerate's (bf16)" in said(told)
    off = LLAMA_FACTORY.replace("bf16: true", "bf16: false")
    told = as_is("theirs.yaml", "accelerate.yaml", theirs_yaml=off)
    assert told["job"]["precision"] == "bf16"
    assert "accelerate's (bf16) counts" in said(told)


def test_devices_are_those_of_each_machine_everywhere() -> None:
    words = ("--method=sft", "sft.yaml")
    told = as_is(*words, "--devices=8", "--nodes=2", sft_yaml=ROWS)
    assert told["job"]["devices"] == {"count": 8, "nodes": 2}
    assert told["job"]["global_batch_size"] == 4 * 16
    assert "16 in all, 8 on each of 2" in said(told)


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ("torch_compile: false\ntorch_compile_backend: inductor\n", "torch_compile_backend"),
        ("torch_empty_cache_steps: 4\n", "torch_empty_cache_steps"),
        ("use_vllm: false\nvllm_mode: colocate\n", "vllm_mode"),
        ("use_peft: false\nlora_r: 8\n", "lora_r"),
        ("use_peft: false\nload_in_8bit: true\n", ""),
        ("activation_offloading: true\ngradient_checkpointing: false\n", ""),
        ("report_to: false\neval_strategy: false\n", ""),
        ("fsdp: ''\nfsdp_config: {min_num_params: 0}\n", "fsdp_config"),
    ],
)
def test_what_another_setting_switches_off_is_dormant_and_no_error(lines: str, field: str) -> None:
    told = as_is("--method=sft", "sft.yaml", sft_yaml=ROWS + lines)
    left = {one["field"] for one in told["fields"] if one["fate"] == "left"}
    assert field in {*left, ""}
