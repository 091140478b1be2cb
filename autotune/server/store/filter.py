"""Which works somebody wants to see, as statements that are made once for each filter."""

import functools
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, or_, select

from autotune.server.store.tables import WorkRow
from autotune.server.store.values import Kind, State, Work

PER_PAGE = 50
_OF_WORK = tuple(WorkRow.__table__.columns[name] for name in Work.model_fields)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which works are wanted; None: any."""

    kind: Kind | None = None
    state: State | None = None
    method: str | None = None
    text: str | None = None
    """A part of the model's or the device's name, or of the id."""
    submitter: str | None = None


@functools.lru_cache(maxsize=256)
def page_of(wanted: Filter, number: int, per_page: int) -> Select[Any]:
    """Return the newest works that fit, without what they came to, which may be large."""
    statement = _filtered(select(*_OF_WORK), wanted).order_by(WorkRow.created.desc())
    return statement.offset((number - 1) * per_page).limit(per_page)


@functools.lru_cache(maxsize=256)
def count_of(wanted: Filter) -> Select[Any]:
    """Return how many fit."""
    return _filtered(select(func.count()).select_from(WorkRow), wanted)


def _filtered(statement: Select[Any], wanted: Filter) -> Select[Any]:
    for name in ("kind", "state", "method", "submitter"):
        value = getattr(wanted, name)
        if value is not None:
            statement = statement.where(getattr(WorkRow, name) == value)
    for word in (wanted.text or "").split():
        columns = (WorkRow.model, WorkRow.device, WorkRow.id, WorkRow.method)
        statement = statement.where(
            or_(*(column.icontains(word, autoescape=True) for column in columns))
        )
    return statement
