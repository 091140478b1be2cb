"""Knobs in a job file: pinned, listed, owned by the job; and the exact global batch."""

from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.job.paths import resolve_path
from autotune.space.job_file.load import load_job
from tests.unit.loading import load, problems


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
@pytest.mark.parametrize("section", ["training", "fixed"])
def test_old_and_new_field_names_pin_the_same_knob(folder, name, section):
    job = load(folder, f"{section}: {{{name}: false}}\n")
    assert job.fixed == {"gradient_checkpointing": False}
    assert job.training == {}
    assert load(folder, "", f"{name}=true").fixed == {"gradient_checkpointing": True}


def test_eight_bits_are_a_choice_of_quantised_bases_alone(folder):
    job = load(folder, "tuning: qlora\ntraining: {load_in_8bit: true}\n")
    assert job.fixed == {"load_in_8bit": True}
    for text in ("fixed: {load_in_8bit: true}\n", "tuning: lora\nrecipe: {load_in_8bit: [true]}\n"):
        ((_, what, _),) = problems(folder, text)
        assert what == "`load_in_8bit` needs `tuning: qlora`"


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        (
            "fixed: {pin_memory: false}\n",
            "fixed: {distributed_type: DEEPSPEED, zero_stage: 2, offload_optimizer_device: cpu}",
        ),
        (
            "devices: {count: 2}\nfixed: {pin_memory: true, offload_optimizer_device: none,"
            " offload_param_device: none}\n",
            "fixed: {distributed_type: DEEPSPEED, zero_stage: 2, offload_optimizer_device: cpu}",
        ),
        ("recipe: {overlap_comm: [true, false]}\n", "fixed: {distributed_type: DEEPSPEED}"),
    ],
)
def test_settings_of_what_is_not_offloaded_are_refused(folder, text, requirement):
    ((_, what, _),) = problems(folder, text)
    name = next(n for n in ("pin_memory", "overlap_comm") if n in text)
    assert what == f"`{name}` needs `{requirement}`"


@pytest.mark.parametrize(
    "text",
    [
        "fixed: {offload_optimizer_device: cpu, pin_memory: false}\n",
        "devices: {count: 2}\nfixed: {pin_memory: false, overlap_comm: false}\n",
        "fixed: {num_processes: 1}\n",
    ],
)
def test_settings_of_what_may_be_offloaded_are_taken(folder, text):
    load(folder, text)


def test_knobs_that_were_removed_say_so(folder):
    reported = problems(folder, "fixed: {zero_hpz_partition_size: 4, nvme_path: /fast}\n")
    assert [(what, hint) for _, what, hint in reported] == [
        (f"no knob `{name}`", "it was removed: leave it out")
        for name in ("zero_hpz_partition_size", "nvme_path")
    ]
    ((_, what, hint),) = problems(folder, "fixed: {offload_optimizer_device: nvme}\n")
    assert what == "`offload_optimizer_device` cannot be `nvme`"
    assert hint == "choose from `none`, `cpu`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fixed: {per_device_train_batch_size: 5}\n", "divide the global batch of 14"),
        (
            "devices: {count: 2}\nfixed: {per_device_train_batch_size: 14}\n",
            "divide the 7 sequences of each of 2 processes (the global batch of 14)",
        ),
        (
            "devices: {count: 2}\nfixed: {per_device_train_batch_size: 4}\n"
            "recipe: {num_processes: [1, 2]}\n",
            "divide all 14 of one or the 7 sequences of each of 2 processes "
            "(the global batch of 14)",
        ),
        (
            "devices: {count: 2}\nfixed: {gradient_accumulation_steps: 14}\n",
            "divide the 7 sequences of each of 2 processes (the global batch of 14)",
        ),
    ],
)
def test_what_micro_batches_have_to_make_up_is_a_processs_share(folder, text, message):
    ((_, what, _),) = problems(folder, f"global_batch_size: 14\n{text}")
    assert what.endswith(f" not {message}")


@pytest.mark.parametrize("value", ["lots", "-3", "true"])
def test_what_memory_looks_like_is_a_hint(folder, value):
    ((_, what, hint),) = problems(folder, f"devices: {{host_memory: {value}}}\n")
    assert what.startswith("`devices.host_memory`: ") and what.endswith(" is not a size")
    assert hint == "write for example `20GiB`"


def test_a_flag_under_the_new_name_overrides_a_pin_under_the_old_one(folder):
    text = "fixed: {gradient_checkpointing: true}\n"
    for flag in ("activation_checkpointing=false", "fixed.activation_checkpointing=false"):
        assert load(folder, text, flag).fixed == {"gradient_checkpointing": False}


@pytest.mark.parametrize(
    "text",
    [
        "fixed: {gradient_checkpointing: true, activation_checkpointing: true}\n",
        "fixed: {optim: adamw_torch}\ntraining: {optim: sgd}\n",
        "fixed: {dtype: float32}\nrecipe: {dtype: [bfloat16]}\n",
        "training: {dtype: float32}\nrecipe: {dtype: [bfloat16]}\n",
    ],
)
def test_a_knob_given_twice_is_refused(folder, text):
    assert len(problems(folder, text)) == 1


def test_a_knob_among_the_training_fields_is_pinned(folder):
    job = load(folder, "training: {optim: adafactor, seed: 1, per_device_train_batch_size: 2}\n")
    assert job.fixed == {"optim": "adafactor", "per_device_train_batch_size": 2}
    assert job.training == {"seed": 1}


@pytest.mark.parametrize(
    ("field", "owner"),
    [
        ("max_length: 5", "`max_length`"),
        ("bf16: true", "`precision`"),
        ("use_cpu: true", "`devices.kind`"),
        ("use_peft: true", "`tuning`"),
        ("load_in_4bit: true", "`tuning: qlora`"),
        ("model_name_or_path: x", "`model`"),
        ("deepspeed: x.json", "`fixed: {distributed_type: DEEPSPEED, zero_stage: 2}`"),
        ("fsdp: x", "`fixed: {distributed_type: FSDP}`"),
        ("auto_find_batch_size: true", "the search itself"),
    ],
)
def test_a_field_that_the_job_owns_is_refused_with_its_owner(folder, field, owner):
    ((where, what, _),) = problems(folder, f"training:\n  {field}\n")
    assert where == "job:4"
    assert f"belongs to {owner}" in what


def test_a_wrong_value_of_a_knob_names_its_choices(folder):
    ((where, _, hint),) = problems(folder, "fixed:\n  loss_type: mse\n")
    assert where == "job:4"
    assert hint == "choose from `chunked_nll`, `nll`, `dft`"


@pytest.mark.parametrize("section", ["fixed: {%s: 3}", "recipe: {%s: [attention, 3]}"])
def test_modules_are_named_by_texts(folder, section):
    ((_, what, _),) = problems(folder, f"tuning: lora\n{section % 'lora_target_modules'}\n")
    assert what == "`lora_target_modules` must be a text or a list of texts, but got `3`"


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_which_layers_are_checkpointed_is_the_knobs_to_say(folder, name):
    ((_, what, hint),) = problems(folder, f"training: {{{name}_kwargs: {{every_n_layers: 2}}}}\n")
    assert "says which layers are checkpointed" in what and "every_2" in hint
    load(folder, f"training: {{{name}_kwargs: {{use_reentrant: true}}}}\n")


def test_lora_knobs_need_lora(folder):
    ((_, what, _),) = problems(folder, "recipe: {lora_r: [8]}\n")
    assert what == "`lora_r` needs `tuning: lora`"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("global_batch_size: 24\nfixed: {per_device_train_batch_size: 5}", "4 or 6"),
        ("global_batch_size: 24\nfixed: {gradient_accumulation_steps: 7}", "6 or 8"),
        ("global_batch_size: 24\nfixed: {per_device_train_batch_size: 48}", "24"),
        ("global_batch_size: 1000 tokens\nmax_length: 300", "`900 tokens` or `1200 tokens`"),
        ("global_batch_size: 100 tokens\nmax_length: 300", "`300 tokens`"),
    ],
)
def test_a_batch_that_cannot_be_exact_names_the_nearest_values(folder, text, nearest):
    ((where, _, hint),) = problems(folder, text + "\n")
    assert where in ("job:3", "job:4")
    assert hint.endswith(f"are {nearest}")


def test_a_batch_in_tokens_is_judged_at_every_length_asked_for(folder):
    text = "global_batch_size: 1024 tokens\nrecipe: {max_length: [128, 100, 96]}\n"
    assert len(problems(folder, text)) == 2
    job = load(folder, "global_batch_size: 1_024 tokens\nmax_length: 128\n")
    assert job.batch_sequences(128) == 8
    assert job.batch_sequences(None) is None
    ((_, what, _),) = problems(folder, "global_batch_size: 64 tokens\nmax_length: null\n")
    assert "needs a `max_length`" in what


def test_paths_are_relative_to_the_job_file(nasty_dir: Path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("a model", "data"):
        (nasty_dir / name).mkdir()
    file = nasty_dir / "job.yaml"
    file.write_text(
        "model: a model\ndataset: data\ntraining: {output_dir: out}\n", encoding="utf-8"
    )
    job, _ = load_job(Path(nasty_dir.name) / "job.yaml")
    assert job.model == str(nasty_dir / "a model")
    assert job.dataset == str(nasty_dir / "data")
    assert job.training["output_dir"] == str(nasty_dir / "out")


def test_a_job_can_be_given_wholly_by_flags(nasty_dir: Path, monkeypatch):
    monkeypatch.chdir(nasty_dir)
    name = "mo#del: [x"
    (nasty_dir / name).mkdir()
    (nasty_dir / " #2").mkdir()
    job, _ = load_job(None, [f"model={name}", "dataset= #2", "global_batch_size=4"])
    assert job.model == str(nasty_dir / name)
    assert job.dataset == str(nasty_dir / " #2")
    by_lengths, _ = load_job(None, ["model=org/name", "dataset={lengths: {max: 9}}"])
    assert by_lengths.model == "org/name"
    assert by_lengths.dataset.lengths.max == 9


def test_a_name_that_is_no_path_is_a_hub_id(tmp_path):
    assert resolve_path("org/name", tmp_path) == "org/name"
    assert resolve_path("x" * 300, tmp_path) == "x" * 300
    assert resolve_path("data.jsonl", tmp_path) == str(tmp_path / "data.jsonl")
    assert resolve_path("~nobody-of-that-name/x", tmp_path).startswith(str(tmp_path))
    assert resolve_path("./~", tmp_path) == str(tmp_path / "~")


@pytest.mark.parametrize(
    ("method", "training", "word"),
    [
        ("kto", "train_sampling_strategy=random", "sequential"),
        ("dpo", "train_sampling_strategy=group_by_length", "cannot group by length"),
        ("reward", "train_sampling_strategy=group_by_length", "cannot group by length"),
        ("dpo", "padding_free=true", "pads all the same"),
    ],
)
def test_what_a_trainer_takes_and_cannot_do_is_refused(method, training, word):
    base = ["model=some/model", "dataset={lengths: {max: 64}}", f"method={method}"]
    load_job(None, base)
    with pytest.raises(UserError) as caught:
        load_job(None, [*base, training])
    assert word in caught.value.problems[0].hint


def test_choices_of_the_cpu_and_of_gpus_are_named_once(folder):
    ((_, what, hint),) = problems(folder, "devices: {count: 2}\nfixed: {distributed_type: ZeRO}\n")
    assert what == "`distributed_type` cannot be `ZeRO`"
    assert hint == "choose from `MULTI_CPU`, `DEEPSPEED`, `FSDP`, `NO`, `MULTI_GPU`"
