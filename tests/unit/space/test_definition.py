import pytest

from autotune.facts.stack import training_fields
from autotune.job.methods import METHODS
from autotune.space import definition as words
from autotune.space.bind import space_facts
from autotune.space.definition import knob_types, load_definition
from autotune.space.job_file.training_values import is_plain, wrong_value
from autotune.space.job_shape import JobShape
from tests.unit.builders import make_facts, make_job

WORDS = {value for value in vars(words).values() if isinstance(value, str) and " " in value}
KEYS = {"kind", "values", "choices", "default", "in", "only_if", "why"}
MAY_BE_NULL = (
    *("lora_target_parameters", "max_length", "torch_empty_cache_steps"),
    "vllm_gpu_memory_utilization",
)


def lists_of(knob):
    return list(knob.values.values()) if isinstance(knob.values, dict) else [knob.values]


@pytest.mark.parametrize("method", METHODS)
def test_the_shipped_space_is_whole(method):
    definition = load_definition(method)
    assert definition.method == method
    assert definition.knob("per_device_train_batch_size") is definition.knobs[0]
    assert all(definition.knob(name) for name in METHODS[method].knobs)
    assert len({knob.name for knob in definition.knobs}) == len(definition.knobs) > 10
    assert len(definition.rules) >= 6
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


@pytest.mark.parametrize("method", METHODS)
def test_what_a_knob_says_is_known(method):
    types = knob_types(method)
    for knob in load_definition(method).knobs:
        assert knob.kind in ("speed", "recipe") and set(lists_of(knob)[0])
        assert knob.place in ("config", "environment", "batch", "launch", "model")
        if isinstance(knob.values, dict):
            assert knob.values.keys() == {"cpu", "cuda"}
        for listed in lists_of(knob):
            assert isinstance(listed, list) or listed in WORDS, knob.name
            for value in listed if isinstance(listed, list) else ():
                assert is_plain(value) and not (value is None and knob.name not in MAY_BE_NULL)
                kind = types.get(knob.name, "bool | int | float | str | None | list[str]")
                assert wrong_value(knob.name, value, kind) is None, knob.name


@pytest.mark.parametrize("method", METHODS)
def test_rules_and_conditions_ask_for_knobs_and_facts_that_there_are(method):
    job = make_job(method=method, max_length=None if METHODS[method].online else 64)
    definition = load_definition(method)
    known = {*space_facts(JobShape.of(job), make_facts()), *(k.name for k in definition.knobs)}
    asked = [*(rule.forbid for rule in definition.rules), *(k.only_if for k in definition.knobs)]
    for name, condition in (pair for conditions in asked for pair in conditions.items()):
        assert name in known, name
        if isinstance(condition, dict):
            ((operator, operand),) = condition.items()
            assert operator in ("not", "above", "contains")
            assert operator != "above" or not isinstance(operand, str) or operand in known
