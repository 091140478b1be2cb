"""Fork servers that are kept between uses: several commands in one process import the stack once.

    with kept_servers():
        main(["plan", ...])
        main(["run", ...])

A server is kept when it is left without a child, and ends with the block. Whoever takes it next
gives it their environment and folder. A command by itself, as a user calls it, keeps none.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.process.child_server import ChildServer, child_environment

AT_IMPORT = ("PYTHON", "LD_", "CUDA", "AUTOTUNE_PROCESSES")
"""Prefixes of the variables that count while the stack is imported: a kept server has to share
them."""
BEGIN, END = ChildServer.begin, ChildServer.__exit__


@dataclass(frozen=True)
class Kept:
    """A server without children, what it has imported, and what its next child would see."""

    server: ChildServer
    preload: tuple[str, ...]
    environment: Mapping[str, str]


_lock = threading.Lock()
_blocks = 0
_idle: list[Kept] = []
_begun: weakref.WeakKeyDictionary[ChildServer, Mapping[str, str]] = weakref.WeakKeyDictionary()
"""The environment that a server was begun with."""


@contextlib.contextmanager
def kept_servers() -> Iterator[None]:
    """Keep servers within this block; they end with it."""
    global _blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChildServer, "begin", _begin)
        patch.setattr(ChildServer, "__exit__", _leave)
        _blocks += 1
        try:
            yield
        finally:
            _blocks -= 1
            while _blocks == 0 and _idle:
                _idle.pop().server.close()


def _begin(server: ChildServer) -> None:
    environment = {**os.environ, **child_environment(), **server._environment}
    kept = _take(server._preload, environment)
    if kept is None:
        BEGIN(server)
    else:
        server._process, server._buffer = kept.server._process, b""
        server.fresh, server.import_s = kept.server.fresh, kept.server.import_s
        server._endings.clear()
    _begun[server] = environment


def _leave(server: ChildServer, *_: object) -> None:
    """Keep the server for the next one, unless it has ended or imports yet."""
    if not server.is_alive or server._importing_since is not None:
        END(server)
        return
    left = ChildServer(server._log, server._preload)
    left._process, server._process = server._process, None
    left.fresh, left.import_s = server.fresh, server.import_s
    with _lock:
        _idle.append(Kept(left, server._preload, _begun[server]))


def _take(preload: tuple[str, ...], environment: Mapping[str, str]) -> Kept | None:
    """Return a kept server that has imported this, its next child with this environment and our
    folder."""
    with _lock:
        fitting = [
            kept
            for kept in _idle
            if kept.preload == preload and _at_import(kept.environment) == _at_import(environment)
        ]
        if not fitting:
            return None
        kept = fitting[0]
        _idle.remove(kept)
    names = {*kept.environment, *environment}
    changes = {
        name: environment.get(name)
        for name in names
        if environment.get(name) != kept.environment.get(name)
    }
    kept.server._send({"environment": changes, "folder": str(Path.cwd())})
    if not kept.server.is_alive:
        kept.server.close()
        return _take(preload, environment)
    return kept


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_IMPORT)}
