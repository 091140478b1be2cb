"""A bundle in other forms, read by those it is written for; where they do not install, by our own
importer: it must find the training that went out."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.bundle.formats.written import FORMATS, formatted
from autotune.cli.emit import FORMATS as NAMES
from autotune.errors import UserError
from autotune.job.yaml_file import parse_yaml
from autotune.space.foreign.command_line import parse_command
from autotune.space.foreign.importing import GivenFile, Wishes, import_job

RECORDED = Path(__file__).parent / "recorded"
BUNDLES = sorted(folder.name for folder in RECORDED.iterdir())
OTHERS = ("cpu_full", "cpu_lora", "cuda_bf16", "dpo", "dpo_qlora", "kto", "zero3", "zero2_alone")


def texts(name: str) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in (RECORDED / name).iterdir()}


def config(name: str) -> dict:
    (file,) = RECORDED.joinpath(name).glob("*_config.yaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def test_the_command_knows_every_form():
    assert tuple(FORMATS) == NAMES


@pytest.mark.parametrize("bundle", BUNDLES)
@pytest.mark.parametrize("form", FORMATS)
def test_every_bundle_has_a_form_or_a_reason(bundle, form):
    try:
        found = formatted(texts(bundle), form)
    except UserError as error:
        assert error.problems[0].where == "--format"
        return
    assert all(isinstance(text, str) for text in found.files.values())
    assert all(reason for reason in found.lost.values())


def spread(name: str, processes: int, machines: int) -> dict[str, str]:
    """A bundle for other machines."""
    own = texts(name)
    launch = yaml.safe_load(own["accelerate.yaml"])
    launch |= {"num_processes": processes, "num_machines": machines}
    return {**own, "accelerate.yaml": yaml.safe_dump(launch)}


@settings(deadline=None, max_examples=40)
@given(
    bundle=st.sampled_from(OTHERS),
    form=st.sampled_from(["axolotl", "llamafactory"]),
    machines=st.integers(1, 4),
    each=st.integers(1, 8),
)
def test_what_starts_it_starts_as_many_devices(bundle, form, machines, each):
    found = formatted(spread(bundle, machines * each, machines), form)
    name, text = next(iter(found.files.items()))
    head = text.splitlines()[1].removeprefix("# ").partition(", in this folder")[0]
    command = parse_command(head.split())
    assert command.files == [name]
    back = import_job([GivenFile(name=name, data=parse_yaml(text, name)[0])], Wishes(), command)
    sent = config(bundle)
    rows = sent["per_device_train_batch_size"] * sent["gradient_accumulation_steps"]
    assert back.job["global_batch_size"] == rows * machines * each
    devices = back.job.get("devices", {})
    assert (devices.get("count", 1), devices.get("nodes", 1)) == (each, machines)
    assert ("machines" in found.lost) is (machines > 1)


def test_processes_that_machines_cannot_share_are_refused():
    with pytest.raises(UserError, match="3 processes cannot be divided among 2 machines"):
        formatted(spread("zero3", 3, 2), "llamafactory")


def test_axolotl_chooses_the_kernel_where_the_bundle_says_none():
    own = texts("cpu_lora")
    sent = {n: v for n, v in config("cpu_lora").items() if n != "attn_implementation"}
    found = formatted({**own, "sft_config.yaml": yaml.safe_dump(sent)}, "axolotl")
    assert "attn_implementation" not in yaml.safe_load(found.files["axolotl.yaml"])


def test_a_folder_without_a_trainers_file_is_refused():
    with pytest.raises(UserError, match="not a bundle: the trainer's YAML"):
        formatted({"accelerate.yaml": ""}, "axolotl")


@pytest.mark.parametrize("bundle", OTHERS)
@pytest.mark.parametrize("form", ["axolotl", "llamafactory"])
def test_what_goes_out_comes_back(bundle, form):
    found = formatted(texts(bundle), form)
    name, text = next(iter(found.files.items()))
    processes = yaml.safe_load(texts(bundle)["accelerate.yaml"])["num_processes"]
    files = [GivenFile(name=name, data=parse_yaml(text, name)[0])]
    back = import_job(files, Wishes(devices=processes, as_is=True))
    assert not [fate for fate in back.fates if fate.kind == "unknown"]
    sent, fixed, training = config(bundle), back.job["fixed"], back.job["training"]
    micro, steps = sent["per_device_train_batch_size"], sent["gradient_accumulation_steps"]
    assert back.job["global_batch_size"] == micro * steps * processes
    assert fixed["per_device_train_batch_size"] == micro
    assert training["learning_rate"] == sent["learning_rate"]
    assert back.job["max_length"] == sent["max_length"] or sent["max_length"] is None
    assert back.job["method"] == bundle.partition("_")[0] or not bundle.startswith(("dpo", "kto"))
    assert (back.job["tuning"] == "full") is not sent.get("use_peft", False)
    if sent.get("use_peft"):
        assert fixed["lora_r"] == sent["lora_r"]
        assert training["lora_alpha"] == sent["lora_alpha"]
    checkpoints = sent.get("activation_checkpointing", sent.get("gradient_checkpointing"))
    assert fixed["gradient_checkpointing"] is checkpoints
    assert fixed["attn_implementation"] == sent["attn_implementation"]


FIELDS = {
    "learning_rate": st.floats(1e-7, 1e-2),
    "max_length": st.integers(8, 10**5),
    "num_train_epochs": st.integers(1, 20),
    "max_steps": st.integers(1, 10**5),
    "weight_decay": st.floats(0.0, 1.0),
    "max_grad_norm": st.floats(0.1, 10.0),
    "adam_beta1": st.floats(0.5, 0.99),
    "adam_beta2": st.floats(0.5, 0.99),
    "adam_epsilon": st.floats(1e-10, 1e-3),
    "warmup_steps": st.integers(1, 1000),
    "lr_scheduler_type": st.sampled_from(["linear", "cosine", "constant"]),
    "optim": st.sampled_from(["adamw_torch", "adamw_torch_fused", "adafactor", "sgd"]),
    "seed": st.integers(0, 2**31),
    "save_steps": st.integers(1, 10**5),
    "logging_steps": st.integers(1, 100),
    "per_device_eval_batch_size": st.integers(1, 64),
    "dataset_num_proc": st.integers(1, 64),
    "dataloader_num_workers": st.integers(1, 16),
    "neftune_noise_alpha": st.floats(0.1, 10.0),
}
METHOD = {"cpu_full": "sft", "cpu_lora": "sft", "dpo": "dpo", "kto": "kto"}
OF = {
    "cpu_full": {"packing": st.booleans()},
    "cpu_lora": {
        "lora_r": st.integers(1, 256),
        "lora_alpha": st.integers(1, 512),
        "lora_dropout": st.floats(0.01, 0.5),
        "lora_modules_to_save": st.just(["embed_tokens", "lm_head"]),
        "use_rslora": st.booleans(),
        "use_dora": st.booleans(),
    },
    "dpo": {"beta": st.floats(0.01, 1.0), "label_smoothing": st.floats(0.01, 0.4)},
    "kto": {
        "beta": st.floats(0.01, 1.0),
        "desirable_weight": st.floats(0.1, 2.0),
        "undesirable_weight": st.floats(0.1, 2.0),
    },
}


@pytest.mark.parametrize("form", ["axolotl", "llamafactory"])
@pytest.mark.parametrize("bundle", OF)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_every_field_that_is_not_called_lost_comes_back(bundle, form, data):
    values = data.draw(st.fixed_dictionaries({}, optional={**FIELDS, **OF[bundle]}))
    own = {
        **texts(bundle),
        f"{METHOD[bundle]}_config.yaml": yaml.safe_dump(config(bundle) | values),
    }
    found = formatted(own, form)
    name, text = next(iter(found.files.items()))
    files = [GivenFile(name=name, data=parse_yaml(text, name)[0])]
    job = import_job(files, Wishes(as_is=True)).job
    back = {**job, **job["training"], **job["fixed"]}
    assert {field: back.get(field) for field in values if field not in found.lost} == {
        field: value for field, value in values.items() if field not in found.lost
    }
