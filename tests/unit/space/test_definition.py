import pytest

from autotune.errors import UserError
from autotune.facts.stack import training_fields
from autotune.job.methods import METHODS
from autotune.space.definition import load_definition, parse_definition

MICRO = "  per_device_train_batch_size: {kind: speed, values: [1, 2]}\n"


def problems(text: str):
    with pytest.raises(UserError) as caught:
        parse_definition(text, "mine.yaml")
    return [(problem.where, problem.what) for problem in caught.value.problems]


@pytest.mark.parametrize("method", METHODS)
def test_the_shipped_space_is_whole(method):
    definition = load_definition(method)
    assert definition.method == method
    assert definition.knob("per_device_train_batch_size") is definition.knobs[0]
    assert len({knob.name for knob in definition.knobs}) == len(definition.knobs) > 10
    assert len(definition.rules) >= 8
    assert all(knob.why for knob in definition.knobs)
    assert all(rule.reason for rule in definition.rules)


@pytest.mark.parametrize("method", METHODS)
def test_every_config_knob_bears_the_name_of_a_field_of_the_installed_trl(method):
    for knob in load_definition(method).knobs:
        if knob.place == "config":
            assert knob.name in training_fields(method), knob.name


@pytest.mark.parametrize("method", METHODS)
def test_every_default_of_the_shipped_space_may_be_chosen(method):
    for knob in load_definition(method).knobs:
        if knob.choices is not None and knob.default is not None:
            assert knob.default in knob.choices, knob.name


def test_all_problems_of_a_space_are_told_with_their_lines():
    reported = problems(
        "method: sft\n"
        "kobs: 1\n"
        "knobs:\n" + MICRO + "  a: {kind: sped, values: [1]}\n"
        "  b: {kind: speed, values: []}\n"
        "  c: 5\n"
        "  d: {kind: speed, values: [1], colour: red}\n"
        "  e: {kind: speed, values: [1], in: cellar}\n"
        "  f: {kind: speed, values: {cpu: [1]}}\n"
        "  g: {kind: speed, values: [1], choices: some}\n"
        "  h: {kind: speed, values: [1], only_if: {job.tunning: lora}}\n"
        "  i: {kind: speed, values: [1], only_if: 5}\n"
        "  j: {kind: speed, values: divisors of the global batch}\n"
        "rules:\n"
        "  - forbid: {optim: 1}\n"
        "    reason: no such knob\n"
        "  - forbid: {a: {over: 3}}\n"
        "    reason: no such operator\n"
        "  - forbid: {a: {above: data.rowz}}\n"
        "    reason: no such fact\n"
        "  - forbid: {a: {above: [1]}}\n"
        "    reason: no number\n"
        "  - {forbid: {}, reason: nothing}\n"
        "  - {forbid: {a: 1}}\n"
        "  - words\n"
    )
    lines = [2, *range(5, 15), 16, 18, 20, 22, 24, 25, 26]
    assert sorted(where for where, _ in reported) == sorted(f"mine.yaml:{n}" for n in lines), (
        reported
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "method: sft\n",
        "method: sft\nknobs: 5\n",
        "method: sft\nknobs: {}\n",
        "knobs:\n" + MICRO,
        "method: sft\nknobs:\n" + MICRO + "rules: 5\n",
        "method: sft\nknobs:\n" + MICRO + "rules: {forbid: 1}\n",
        "method: sft\nknobs:\n  per_device_train_batch_size: {kind: speed, values: [a]}\n",
        "method: sft\nknobs:\n  per_device_train_batch_size: {kind: speed, values: [0]}\n",
        "method: sft\nknobs:\n  per_device_train_batch_size: {kind: speed}\n",
        "method: sft\nknobs:\n" + MICRO + "  max_length: {kind: recipe, values: [x]}\n",
        "method: sft\nknobs:\n" + MICRO + "  a: {kind: [speed], values: [1]}\n",
        "method: sft\nknobs:\n" + MICRO + "  a: {kind: speed, values: {gpu: [1], cpu: [1]}}\n",
        "method: sft\nknobs:\n" + MICRO + "  5: {kind: speed, values: [1]}\n",
        "method: sft\nknobs: [\n",
    ],
)
def test_a_malformed_space_is_a_users_error(text):
    assert problems(text)


@pytest.mark.parametrize("name", ["missing.yaml", "", "a\0b"])
def test_a_space_that_cannot_be_read_is_a_users_error(tmp_path, name):
    with pytest.raises(UserError, match="cannot read the search space|not a search space"):
        load_definition("sft", f"{tmp_path}/{name}")


def test_a_space_of_another_method_is_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("method: dpo\nknobs:\n" + MICRO, encoding="utf-8")
    with pytest.raises(UserError, match="is for method `dpo`"):
        load_definition("sft", str(file))


SENSELESS = ["[]", "{}", "''", ".nan", "null", "true", "[1]", "1.5", "-1", ".inf"]


@pytest.mark.parametrize("value", SENSELESS)
def test_values_of_a_global_batch_are_batches(value):
    text = f"  global_batch_size: {{kind: recipe, in: batch, values: [8, {value}]}}\n"
    ((where, what),) = problems("method: sft\nknobs:\n" + MICRO + text)
    assert where == "mine.yaml:4" and what.startswith("`global_batch_size`: ")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", ["[]", "{a: 1}", ".nan", "[[]]", "1.5"])
def test_values_are_of_the_types_of_what_they_set(method, value):
    """Of every knob that we know, whether it sets a field or not; all problems at once."""
    known = [knob for knob in load_definition(method).knobs if knob.name != MICRO.split(":")[0][2:]]
    may_be_a_number = {"beta", "vllm_gpu_memory_utilization"} if value == "1.5" else set()
    may_be_empty = {"lora_target_modules"} if value == "[]" else set()
    names = [knob.name for knob in known if knob.name not in may_be_a_number | may_be_empty]
    lines = [f"  {name}: {{kind: recipe, choices: [{value}], values: [8]}}\n" for name in names]
    reported = problems(f"method: {method}\nknobs:\n" + MICRO + "".join(lines))
    assert {where for where, _ in reported} == {f"mine.yaml:{n + 4}" for n in range(len(names))}
