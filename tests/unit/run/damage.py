"""Damage to files, drawn at random: bytes, values of JSON and YAML, rows of a run's study."""

import contextlib
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        7,
        2**63,
        10**400,
        0.0,
        -1.5,
        1e300,
        5e-324,
        "",
        "7",
        "\ud800",
        "x" * 5000,
    ),
    *([], {}, [None], [[]], {"a": 1}, {"": []}, ["\x1b[31m"], "[red]", float("inf"), float("nan")),
)
TEXTS = (b"", b"{", b"[]", b"null", b"7", b'""', b"\xff\xfe", b"[" * 100_000, b"{}" * 2)
TABLES = ("studies", "trials", "trial_params", "trial_values", "trial_user_attributes")
CELLS: tuple[Any, ...] = (
    *(None, 0, -1, 99, 2**62, 1e308, "", "null", "7", "[]", "{}", '{"outcome": "ok"}', "NaN"),
    *('{"outcome": "ok", "reason": "x", "tokens_per_s": 0}', b"\xff\x00", "COMPLETE", "x" * 3000),
)


def damage(file: Path, rng: random.Random) -> str:
    """Damage a file of a run; how, for who has to repeat it."""
    if file.name == "study.db" and rng.random() < 0.6:
        return _damage_rows(file, rng)
    if file.suffix in (".json", ".jsonl", ".yaml") and rng.random() < 0.6:
        return _damage_values(file, rng)
    return _damage_bytes(file, rng)


def _damage_bytes(file: Path, rng: random.Random) -> str:
    data = bytearray(file.read_bytes())
    at, length = rng.randrange(max(len(data), 1)), rng.choice((1, 4, 100, 4096))
    way = rng.choice(("cut", "text", "drop", "zero", "noise", "twice"))
    if way == "cut":
        data = data[:at]
    elif way == "text":
        data = bytearray(rng.choice(TEXTS))
    elif way == "drop":
        del data[at : at + length]
    elif way == "twice":
        data += data[at:]
    else:
        length = min(length, len(data) - at)
        data[at : at + length] = bytes(length) if way == "zero" else rng.randbytes(length)
    file.write_bytes(data)
    return f"{way} at {at}"


def _damage_values(file: Path, rng: random.Random) -> str:
    data = _read(file)
    holder, key = rng.choice(list(_places(data)))
    if rng.random() < 0.2:
        del holder[key]
        said = f"without {key!r}"
    else:
        value = rng.choice(JUNK)
        holder[key] = value
        said = f"{key!r}: {str(value)[:40]!r}"
    if file.suffix == ".jsonl":
        text = "\n".join(map(json.dumps, data))
    elif file.suffix == ".json":
        text = json.dumps(data)
    else:
        text = yaml.safe_dump(data, allow_unicode=False)
    file.write_text(text, encoding="utf-8")
    return said


def _read(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key in data if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _places(data[key])


def _damage_rows(file: Path, rng: random.Random) -> str:
    with contextlib.closing(sqlite3.connect(file)) as study, study:
        table = rng.choice(TABLES)
        way = rng.random()
        if way < 0.1:
            study.execute(f"DROP TABLE {table}")
            return f"without table {table}"
        rows = [row[0] for row in study.execute(f"SELECT rowid FROM {table}")]
        if not rows or way < 0.2:
            study.execute(f"DELETE FROM {table}")
            return f"without rows in {table}"
        columns = [row[1] for row in study.execute(f"PRAGMA table_info({table})")]
        column, row, value = rng.choice(columns), rng.choice(rows), rng.choice(CELLS)
        with contextlib.suppress(sqlite3.IntegrityError):
            study.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
        if column == "value_json" and rng.random() < 0.7:
            _damage_attribute(study, row, rng)
        return f"{table}.{column} of row {row}: {str(value)[:40]!r}"


def _damage_attribute(study: sqlite3.Connection, row: int, rng: random.Random) -> None:
    """A value deep in what a trial carries."""
    query = "SELECT rowid, value_json FROM trial_user_attributes"
    rows = [(number, text) for number, text in study.execute(query) if number != row]
    number, text = rng.choice(rows)
    data = json.loads(text)
    if isinstance(data, dict) and data:
        data[rng.choice(list(data))] = rng.choice(JUNK)
        statement = "UPDATE trial_user_attributes SET value_json = ? WHERE rowid = ?"
        study.execute(statement, (json.dumps(data), number))
