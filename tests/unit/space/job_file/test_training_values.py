"""Values that a training field cannot have are told before the training, all at once."""

import pytest

from autotune.space.job_file.training_values import wrong_value
from tests.unit.loading import load, problems

WRONG = {
    "learning_rate: fast": "must be a number, but got `fast`",
    "num_train_epochs: -1": "must be above 0, but got `-1`",
    "lr_scheduler_type: foo": "cannot be `foo`",
    "seed: abc": "must be a whole number, but got `abc`",
    "weight_decay: heavy": "must be a number, but got `heavy`",
    "max_steps: '100'": "must be a whole number, but got `'100'`",
    "do_eval: no": "must be true or false",
    "save_strategy: false": "must be a text, but got `false`",
    "label_names: x": "must be a list of texts or null, but got `x`",
    "lora_alpha: 1.5": "must be a whole number, but got `1.5`",
    "adam_beta1: 2": "must be from 0 to 1, but got `2`",
    "report_to: [wandb, 3]": "must be a text or a list of texts or null",
    "logging_steps: null": "must be a number, but got `null`",
}


def test_all_wrong_values_are_told_at_once_with_their_lines(folder):
    lines = "".join(f"  {field}\n" for field in WRONG)
    found = problems(folder, f"training:\n{lines}")
    assert [where for where, _, _ in found] == [f"job:{4 + n}" for n in range(len(WRONG))]
    for (_, what, _), (field, told) in zip(found, WRONG.items(), strict=True):
        assert what.startswith(f"`{field.partition(':')[0]}` {told}")


@pytest.mark.parametrize(
    ("flag", "what", "hint"),
    [
        ("learning_rate=nan", "`learning_rate` must be a number, but got `nan`", ""),
        ("num_train_epochs=x", "`num_train_epochs` must be a number, but got `x`", ""),
        ("optim=foo", "`optim` cannot be `foo`", "choose from `adamw_torch`, "),
        ("optim=adamw_torch_fuse", "`optim` cannot be ", "did you mean `adamw_torch_fused`?"),
        ("dataloader_num_workers=-1", "`dataloader_num_workers` must be at least 0", ""),
        ("lr_scheduler_type=cosin", "`lr_scheduler_type` cannot be", "did you mean `cosine`?"),
        ("max_steps='5'", "`max_steps` must be a whole number", "write it without quotes"),
        ("seed=4294967296", "`seed` must be at most 4,294,967,295", ""),
    ],
)
def test_so_are_those_of_flags(folder, flag, what, hint):
    ((where, told, next_step),) = problems(folder, "", flag)
    assert where == "--set"
    assert told.startswith(what) and next_step.startswith(hint)


def test_every_value_of_a_list_is_judged(folder):
    ((where, what, _),) = problems(folder, "recipe: {optim: [adamw_torch, foo]}\n")
    assert (where, what) == ("job:3", "`optim` cannot be `foo`")


def test_what_a_trainer_takes_is_taken(folder):
    training = (
        "learning_rate: 1, num_train_epochs: 0.5, lr_scheduler_type: cosine, save_steps: 0.1, "
        "max_grad_norm: null, lr_scheduler_kwargs: {num_cycles: 2}, report_to: [wandb, tensorboard]"
    )
    job = load(folder, f"training: {{{training}}}\nfixed: {{optim: paged_adamw_8bit}}\n")
    assert job.training["num_train_epochs"] == 0.5
    assert load(folder, "method: dpo\ntraining: {loss_type: sigmoid}\n").method == "dpo"


@pytest.mark.parametrize(
    ("value", "type_text"),
    [
        ("x", None),
        ("x", "ParallelismConfig | None"),
        (None, "Optional[int]"),
        (5, "Union[int, str]"),
        ("k1", "Literal['k1', 'k3']"),
        ([0.9, 0.1], "tuple[float, float] | None"),
        ({"a": 1}, "dict[str, Any] | str | None"),
        (None, "bool"),
    ],
)
def test_types_are_read_as_the_stack_writes_them(value, type_text):
    assert wrong_value("field", value, type_text) is None


def test_a_literal_names_what_it_may_be():
    wrong = wrong_value("kl_estimator", "k2", "Literal['k1', 'k3']")
    assert wrong == ("`kl_estimator` must be `k1` or `k3`, but got `k2`", None)
