"""What is emitted, read by those it is emitted for: TRL's own parser and accelerate's loader."""

import os
import warnings
from dataclasses import fields, replace

import pytest
import yaml
from bundle_cases import CASES

from autotune.api.trainer_arguments import peft_config, training_arguments
from autotune.facts.stack import RENAMED, field_name, fused_head, training_fields
from autotune.job.methods import METHODS
from autotune.space.trl_config import settings
from autotune.training.registry import family
from tests.guards import ppo_apart

GPU = (
    *("cuda_bf16", "distillation", "grpo_server", "grpo_split"),
    *("zero3", "machines", "zero2_alone", "fsdp2", "sequence", "context"),
)
SEVERAL = {
    "zero3": ("DEEPSPEED", 8),
    "machines": ("DEEPSPEED", 16),
    "zero2_alone": ("DEEPSPEED", 1),
    "fsdp2": ("FSDP", 2),
    "sequence": ("DEEPSPEED", 8),
    "context": ("FSDP", 8),
    "grpo_split": ("DEEPSPEED", 4),
}
CPU = ppo_apart(name for name in CASES if name not in GPU)
CUSTOM_TRAINING = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "neftune_noise_alpha": 5,
    "completion_only_loss": False,
    "run_name": "1e-4",
    "logging_steps": 0.25,
    "report_to": ["none"],
}


@pytest.fixture(scope="module")
def trl():
    """TRL, imported once."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl
    return trl


def parsed_fields(trl, text, folder, method="sft"):
    """Every field that `trl METHOD` makes of a configuration."""
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    arguments = ["--config", str(file)]
    arguments_class = family(method).training_arguments()
    kinds = (
        family(method).script_arguments,
        arguments_class,
        trl.ModelConfig,
        trl.DatasetMixtureConfig,
    )
    parts = trl.TrlParser(kinds).parse_args_and_config(arguments, fail_with_unknown_args=True)
    return {entry.name: getattr(part, entry.name) for part in parts for entry in fields(part)}


def emitted(name, **training):
    """The case on the installed stack, and the flat configuration it was rendered from."""
    case = CASES[name]().installed()
    if training:
        job = case.job.model_copy(update={"training": training})
        case = replace(case, job=job)
    candidate = case.recommendation.chosen.candidate
    return case, settings(case.job, case.facts, candidate, case.output_dir).config


def as_trl_has_it(loss):
    """With a fused head `chunked_nll` is an old name of `nll`, and no space offers it."""
    return "nll" if fused_head() and loss == "chunked_nll" else loss


@pytest.mark.parametrize("name", CPU)
def test_every_field_arrives_in_trl_with_its_value_and_type(name, trl, tmp_path):
    case, config = emitted(name)
    fields = parsed_fields(trl, case.config, tmp_path, case.job.method)
    sent_fields = {key: value for key, value in config.items() if value is not None}
    sent_fields["report_to"] = []  # transformers' own word for `none`
    if "loss_type" in sent_fields:
        sent_fields["loss_type"] = as_trl_has_it(sent_fields["loss_type"])
    assert {key: fields[key] for key in sent_fields} == sent_fields
    # A word may arrive as an enumeration of words; a number never as a word.
    assert not [
        key for key, value in sent_fields.items() if not isinstance(fields[key], type(value))
    ]


@pytest.mark.parametrize("name", CPU)
def test_every_knob_arrives_in_trl(name, trl, tmp_path):
    case, _ = emitted(name)
    fields = parsed_fields(trl, case.config, tmp_path, case.job.method)
    knobs = dict(case.recommendation.chosen.candidate.knobs)
    assert knobs.pop("expandable_segments") is False
    targets = knobs.pop("lora_target_modules", None)
    if "loss_type" in knobs:  # DPO's is a list
        assert as_trl_has_it(knobs.pop("loss_type")) == fields["loss_type"]
    if targets is not None:
        assert fields["lora_target_modules"] == list(case.facts.model.attention_modules)
    names = training_fields(case.job.method)
    assert {key: fields[field_name(key, names)] for key in knobs} == knobs


@pytest.mark.parametrize("name", CPU)
def test_a_program_is_given_what_trl_reads(name, trl, tmp_path):
    case, _ = emitted(name)
    candidate = case.recommendation.chosen.candidate
    chosen = settings(case.job, case.facts, candidate, case.output_dir)
    given = training_arguments(chosen, {"max_steps": 2})
    read = parsed_fields(trl, case.config, tmp_path, case.job.method)
    values = {entry.name: getattr(given, entry.name) for entry in fields(given)}
    differing = {name for name, value in values.items() if value != read[name]}
    assert differing <= {"max_steps", "model_init_kwargs"}
    assert (given.max_steps, type(given).__name__) == (2, METHODS[case.job.method].config)
    if "model_init_kwargs" in values:
        loading = values["model_init_kwargs"]
        assert loading["dtype"] == read["dtype"]
        assert ("quantization_config" in loading) == (case.job.tuning == "qlora")
    adapters = peft_config(chosen)
    assert (adapters is None) == (case.job.tuning == "full")
    assert adapters is None or adapters.r == read["lora_r"]


def test_checkpointing_reaches_the_trainer_without_reentry(trl, tmp_path):
    case, _ = emitted("cpu_full")
    fields = parsed_fields(trl, case.config, tmp_path)
    checkpointing = field_name("gradient_checkpointing", training_fields())
    assert fields[checkpointing] is True
    kwargs = fields[field_name("gradient_checkpointing_kwargs", training_fields())]
    assert kwargs == {"use_reentrant": False}
    other_case, _ = emitted("cpu_lora")
    assert parsed_fields(trl, other_case.config, tmp_path)[checkpointing] is False


def test_no_length_limit_arrives_as_none(trl, tmp_path):
    case = CASES["no_data"]().installed()
    job = case.job.model_copy(update={"max_length": None})
    candidate = case.recommendation.chosen
    candidate.candidate.values["max_length"] = None
    text = replace(case, job=job).config
    assert "\nmax_length: null\n" in text
    fields = parsed_fields(trl, text, tmp_path)
    assert fields["max_length"] is None
    assert fields["dataset_name"] is None


@pytest.mark.parametrize("name", ["all-linear", "attention", ("up_proj", "down_proj")])
def test_lora_targets_arrive(name, trl, tmp_path):
    case = CASES["cpu_lora"]().installed()
    value = list(name) if isinstance(name, tuple) else name
    case.recommendation.chosen.candidate.values["lora_target_modules"] = value
    fields = parsed_fields(trl, case.config, tmp_path)
    assert fields["use_peft"] is True
    expected = {"attention": ["k_proj", "o_proj", "q_proj", "v_proj"]}.get(name, value)
    assert fields["lora_target_modules"] == expected


def test_the_users_training_fields_arrive_untouched(trl, tmp_path):
    case, _ = emitted("cpu_full", **CUSTOM_TRAINING)
    fields = parsed_fields(trl, case.config, tmp_path)
    sent_fields = {key: value for key, value in CUSTOM_TRAINING.items() if key != "report_to"}
    assert {key: fields[key] for key in sent_fields} == sent_fields
    assert isinstance(fields["run_name"], str)


def test_a_field_that_trl_does_not_have_would_be_refused(trl, tmp_path):
    text = CASES["cpu_full"]().installed().config
    with pytest.raises(ValueError, match="no_such_field"):
        parsed_fields(trl, text + "no_such_field: 1\n", tmp_path)


def test_only_one_name_of_a_renamed_field_is_emitted():
    for name in CASES:
        text = CASES[name]().installed().config
        keys = yaml.safe_load(text).keys()
        for old, new in RENAMED.items():
            assert not {old, new} <= keys


@pytest.mark.parametrize("name", CASES)
def test_accelerate_loads_its_configuration(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate.commands.config.config_args import load_config_from_file
    file = tmp_path / "accelerate.yaml"
    file.write_text(CASES[name]().files()["accelerate.yaml"], encoding="utf-8")
    config = load_config_from_file(str(file))
    gpu = name in GPU
    kind, processes = SEVERAL.get(name, ("NO", 1))
    precision = "bf16" if gpu else "no"
    # Beside DeepSpeed's own file accelerate takes no precision, not even the right one.
    assert config.mixed_precision == (None if kind == "DEEPSPEED" else precision)
    assert config.use_cpu is not gpu
    assert (config.num_processes, config.num_machines) == (processes, 1)
    assert config.distributed_type == kind


@pytest.mark.parametrize("method", ppo_apart(METHODS))
def test_what_is_made_explicit_is_what_trl_does_anyway(method, trl, tmp_path):
    fields = parsed_fields(trl, "output_dir: out\nbf16: false\n", tmp_path, method)
    explicit = {n: value for n, value in METHODS[method].defaults.items() if value is not None}
    assert {name: fields[name] for name in explicit} == explicit
