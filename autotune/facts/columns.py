"""Columns of the data by TRL's names, where the data call them otherwise. Runs in a child only.

TRL's scripts load a data set by its name and rename nothing, so what is launched reads a copy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import nearest, user_error


def rename_columns(splits: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the splits with other names for columns.

    Args:
        splits: data sets by name.
        columns: TRL's name -> the data's.

    Raises:
        UserError: a split has no such column, or has one of the new name already.
    """
    return {name: _renamed(name, rows, columns) for name, rows in splits.items()}


def _renamed(split: str, rows: Any, columns: Mapping[str, str]) -> Any:
    names = list(rows.column_names)
    for name in columns.values():
        if name not in names:
            raise user_error(
                f"the split `{split}` has no column `{name}`; it has {', '.join(names)}",
                where="columns",
                hint=nearest(name, names),
            )
    for name in columns:
        if name in names and name not in columns.values():
            raise user_error(
                f"the split `{split}` has a column `{name}` of its own",
                where="columns",
                hint=f"leave `{name}` out, or rename its own one, too: `{{old_{name}: {name}}}`",
            )
    return rows.rename_columns({name: new for new, name in columns.items()})


def copy_splits(splits: Mapping[str, Any], folder: Path) -> str:
    """Write splits as a data set that `load_dataset` reads, all its rows; its folder."""
    for name, rows in splits.items():
        rows.to_parquet(folder / "data" / f"{name}-00000-of-00001.parquet")
    return str(folder)
