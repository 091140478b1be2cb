import pytest

from autotune.space.knobs import Rule, condition_holds, value_label
from tests.unit.builders import make_candidate


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        (1, 1, True),
        (1, True, False),
        (True, 1, False),
        (False, 0, False),
        (None, None, True),
        ([1, "a"], "a", True),
        ([1, "a"], True, False),
        ({"not": None}, 5, True),
        ({"not": None}, None, False),
        ({"not": False}, 0, True),
        ({"above": 5}, 6, True),
        ({"above": 5}, 5, False),
        ({"above": 5}, None, False),
        ({"above": "bound"}, 8, True),
        ({"above": "bound"}, 7, False),
        ({"above": "unknown"}, 7, False),
        ({"contains": "x"}, ["x", "y"], True),
        ({"contains": "x"}, ["y"], False),
        ({"contains": "x"}, "xyz", False),
    ],
)
def test_a_condition_holds_for_its_values_and_their_type_only(condition, value, holds):
    assert condition_holds(condition, value, {"bound": 7}) is holds


def test_a_rule_excludes_where_all_its_conditions_hold_and_all_names_are_known():
    rule = Rule(forbid={"a": 1, "b": [2, 3]}, reason="so")
    assert rule.excludes({"a": 1, "b": 3, "c": 0})
    assert not rule.excludes({"a": 1, "b": 4})
    assert not rule.excludes({"a": 1})


def test_a_candidate_has_one_key_whatever_the_order_of_its_values():
    candidate = make_candidate()
    turned = type(candidate)(
        values=dict(reversed(candidate.values.items())), gradient_accumulation_steps=4
    )
    assert candidate.key == turned.key
    assert candidate.key != make_candidate(accumulation=2).key
    assert candidate.key != make_candidate(padding_free=0).key


def test_differences_are_what_this_one_has_and_the_other_has_not():
    first, second = make_candidate(2, 8, dtype="bfloat16"), make_candidate()
    assert first.differences(second) == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 8,
        "dtype": "bfloat16",
    }
    assert first.differences(first) == {}


@pytest.mark.parametrize(
    ("value", "label"), [(["a", "b"], "a,b"), (True, "true"), (None, "null"), (3, "3"), ("x", "x")]
)
def test_a_value_is_one_short_word(value, label):
    assert value_label(value) == label
