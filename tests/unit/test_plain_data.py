"""Values as JSON data and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from autotune.plain_data import from_plain, to_plain


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True, kw_only=True)
class Inner:
    share: float
    names: Mapping[int, str] = field(default_factory=dict)
    point: Point | None = None
    anything: Any = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    pair: tuple[int, int] | None
    inners: dict[str, tuple[Inner, ...]] = field(default_factory=dict)


VALUE = Outer(
    inner=Inner(share=0.5, names={1: "x"}, point=Point(1, 2.0), anything=[1, {"a": None}]),
    pair=(1, 2),
    inners={"a": (Inner(share=1.0),)},
)


def test_a_value_survives_json() -> None:
    assert from_plain(Outer, json.loads(json.dumps(to_plain(VALUE)))) == VALUE


def test_a_field_of_a_later_version_is_left_out() -> None:
    assert from_plain(Outer, {**to_plain(VALUE), "later": 1}) == VALUE


@pytest.mark.parametrize(
    "damage",
    [
        {"pair": [1, 2, 3]},
        {"pair": [1, "2"]},
        {"pair": [1, True]},
        {"pair": [1, 2**63]},
        {"inner": {"share": float("nan")}},
        {"inner": {"share": "0.5"}},
        {"inner": {"share": 1, "anything": [float("inf")]}},
        {"inner": {"share": 1, "names": {"1": "\ud800"}}},
        {"inner": {"share": 1, "names": {"one": "x"}}},
        {"inner": {"share": 1, "point": [1]}},
        {"inner": None},
        {"inner": []},
    ],
)
def test_what_is_no_such_value_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_plain(Outer, {**to_plain(VALUE), **damage})


@pytest.mark.parametrize("data", [None, [], "text", 1, {}])
def test_other_data_are_refused(data: Any) -> None:
    with pytest.raises(ValueError):
        from_plain(Outer, data)
