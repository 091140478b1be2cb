"""Tokens: shown once, kept as a hash, compared in constant time."""

import hashlib
import hmac
import secrets
import time
from typing import Literal

from sqlalchemy import bindparam, delete, func, select

from autotune.server.store.database import Database
from autotune.server.store.tables import TokenRow
from autotune.server.store.values import Value

Role = Literal["user", "worker", "session"]
LOCAL_WORKER = "local worker"
"""The name of the token that the service makes for the worker that it starts."""
SESSION_S = 12 * 3600.0
"""How long a browser stays signed in."""
_USERS = select(func.count()).select_from(TokenRow).where(TokenRow.role == "user")
_BY_DIGEST = select(*TokenRow.__table__.columns).where(TokenRow.digest == bindparam("digest"))


class Holder(Value):
    """The owner of a token."""

    name: str
    role: Role
    csrf: str
    """The secret that forms of its pages send along; derived from the token, and not reversible."""


class Tokens:
    """The tokens of a service. A random one of 256 bits needs no slow hash."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, role: Role, lifetime_s: float | None = None) -> str:
        """Return a new token."""
        token, now = secrets.token_urlsafe(32), time.time()
        expires = None if lifetime_s is None else now + lifetime_s
        row = TokenRow(digest=_digest(token), name=name, role=role, created=now, expires=expires)
        with self._database.writing() as session:
            session.execute(delete(TokenRow).where(TokenRow.expires < now))
            session.add(row)
        return token

    def holder(self, token: str) -> Holder | None:
        """Return the owner of a token; None: it is unknown or has expired."""
        digest = _digest(token)
        with self._database.connection() as connection:
            row = connection.execute(_BY_DIGEST, {"digest": digest}).first()
        if row is None or not hmac.compare_digest(row.digest, digest):
            return None
        if row.expires is not None and row.expires < time.time():
            return None
        return Holder(name=row.name, role=row.role, csrf=csrf_of(token))

    def remove(self, token: str) -> None:
        """Forget a token: a browser signs out."""
        with self._database.writing() as session:
            session.execute(delete(TokenRow).where(TokenRow.digest == _digest(token)))

    def remove_named(self, name: str) -> int:
        """Forget a user's tokens and sessions, and return how many there were."""
        with self._database.writing() as session:
            result = session.execute(delete(TokenRow).where(TokenRow.name == name))
            return result.rowcount  # type: ignore[attr-defined, no-any-return]

    def has_users(self) -> bool:
        """True if there is any user's token."""
        with self._database.connection() as connection:
            return bool(connection.scalar(_USERS))


def csrf_of(token: str) -> str:
    """Return what a form of a browser with this token sends along."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
