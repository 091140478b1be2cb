import math
from pathlib import Path

import pytest
import yaml

from autotune.errors import UserError
from autotune.job.yaml_file import MOST_VALUES, parse_scalar, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1E5", 1e5),
        ("1.5", 1.5),
        ("-.5", -0.5),
        (".inf", math.inf),
        ("12", 12),
        ("-3", -3),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("[a, 1]", ["a", 1]),
        ("{a: 2e-5}", {"a": 2e-5}),
    ],
)
def test_a_scalar_is_what_it_looks_like(text, value):
    scalar = parse_scalar(text)
    assert scalar == value
    assert type(scalar) is type(value)


@pytest.mark.parametrize(
    "text", ["no", "yes", "on", "Off", "y", "1:30", "010", "2020-01-01", "2020-13-45", "0x_", "e5"]
)
def test_what_only_yaml_1_1_takes_for_something_else_is_a_word(text):
    assert parse_scalar(text) == text


def test_every_entry_has_the_line_it_stands_on():
    data, lines = parse_yaml("a: 1\n\n# note\nb:\n  c: 2\n  d:\n    - x\n    - {e: 3}\n", "job")
    assert data == {"a": 1, "b": {"c": 2, "d": ["x", {"e": 3}]}}
    assert lines == {
        ("a",): 1,
        ("b",): 4,
        ("b", "c"): 5,
        ("b", "d"): 6,
        ("b", "d", 0): 7,
        ("b", "d", 1): 8,
        ("b", "d", 1, "e"): 8,
    }


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_a_file_without_entries_is_an_empty_mapping(text):
    assert parse_yaml(text, "job") == ({}, {})


def test_all_doubled_keys_are_named_with_both_lines():
    with pytest.raises(UserError) as caught:
        parse_yaml("a: 1\nb: {c: 1,\n    c: 2}\na: 3\n", "job.yaml")
    assert [problem.where for problem in caught.value.problems] == ["job.yaml:3", "job.yaml:4"]
    assert "`b.c` is given twice" in caught.value.problems[0].what
    assert "line 1" in (caught.value.problems[1].hint or "")


def test_a_key_that_is_no_word_is_refused():
    with pytest.raises(UserError) as caught:
        parse_yaml("a: 1\n3: x\nnull: y\n", "job.yaml")
    assert [problem.where for problem in caught.value.problems] == ["job.yaml:2", "job.yaml:3"]


def test_a_merged_key_may_be_overridden():
    data, _ = parse_yaml("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\n", "job")
    assert data["b"] == {"x": 3, "y": 2}


@pytest.mark.parametrize("text", ["[1, 2]", "just words", "5", "null", "---"])
def test_what_is_no_mapping_is_refused(text):
    with pytest.raises(UserError, match="must be a mapping") as caught:
        parse_yaml(text, "job.yaml")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: [1\nc: 2\n", "job.yaml:3"),
        ("a: 1\n\tb: 2\n", "job.yaml:2"),
        ("a: {b: 'x\n", "job.yaml:2"),
        ("a: *nowhere\n", "job.yaml:1"),
        ("a: 1\n--- \nb: 2\n", "job.yaml:2"),
        ("a: !!python/object:os.system x\n", "job.yaml:1"),
        ("a: =\n", "job.yaml:1"),
        ("a: !!int x\n", "job.yaml"),
        ("a: !!bool maybe\n", "job.yaml"),
        ("a: !!timestamp x\n", "job.yaml"),
        ("a: \x07\n", "job.yaml"),
        ("? [a]\n: 1\n", "job.yaml:1"),
        ("a: &a [*a]\n", "job.yaml:1"),
        ("a: " + "9" * 5000, "job.yaml:1"),
    ],
)
def test_what_is_not_yaml_is_a_users_error_with_its_line(text, where):
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "job.yaml")
    assert caught.value.problems[0].where == where
    assert caught.value.exit_code == 2


def bomb(entry: str) -> str:
    """Some hundred bytes of aliases that stand for 9**12 values."""
    lines = ["v0: &v0 {x: 1}"]
    for n in range(12):
        lines.append(f"v{n + 1}: &v{n + 1} " + entry.format(",".join([f"*v{n}"] * 9)))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("entry", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_that_stand_for_more_than_memory_holds_are_refused_at_once(entry):
    with pytest.raises(UserError, match="each `.name` counted as all that it stands for") as caught:
        parse_yaml(bomb(entry), "job.yaml")
    assert caught.value.exit_code == 2
    flow = ", ".join(bomb(entry).splitlines())
    with pytest.raises(yaml.YAMLError, match="more than"):
        parse_scalar(f"{{{flow}}}")


def test_a_name_that_is_an_alias_bomb_is_refused_too():
    with pytest.raises(UserError):
        parse_yaml(bomb("[{}]") + "? *v12\n: 1\n", "job.yaml")


def test_a_file_has_so_many_values_and_no_more():
    def file(values: int) -> str:  # a mapping, its only key, a list, and what it holds
        return f"a: [{','.join(['1'] * (values - 3))}]"

    assert len(parse_yaml(file(MOST_VALUES), "job")[0]["a"]) == MOST_VALUES - 3
    with pytest.raises(UserError, match="more than 20,000 values"):
        parse_yaml(file(MOST_VALUES + 1), "job")


def test_an_alias_may_be_used_as_often_as_a_file_needs_it():
    data, _ = parse_yaml("a: &a [x, y]\nb: [*a, *a]\n", "job")
    assert data["b"] == [["x", "y"], ["x", "y"]]


ROOT = Path(__file__).parents[3]
TABLES = sorted(
    path
    for folder in ("search_spaces", "autotune/facts")
    for path in (ROOT / folder).glob("*.yaml")
)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML was built without libyaml")
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_table_of_ours_is_read_by_libyaml_as_a_file_of_the_users_is(path):
    text = path.read_text(encoding="utf-8")
    by_pyyaml, by_libyaml = (parse_yaml(text, path.name, shipped=ours) for ours in (False, True))
    assert repr(by_libyaml) == repr(by_pyyaml)
