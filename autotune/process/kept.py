"""Fork servers that are kept between uses: several commands in one process import the stack once.

    with kept_servers():
        main(["plan", ...])
        main(["run", ...])

A server is kept when it is left without a child, and ends with the block. Whoever takes it next
gives it their environment and folder. A command by itself, as a user calls it, keeps none.
"""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

AT_IMPORT = ("PYTHON", "LD_", "CUDA", "AUTOTUNE_PROCESSES")
"""Prefixes of the variables that count while the stack is imported: a kept server has to share
them."""
_CLOSE_S = 10.0


@dataclass(frozen=True)
class Kept:
    """A fork server without children, and what has to fit its next user.

    Attributes:
        preload: what it has imported.
        environment: what its next child would see.
        fresh: why its children are fresh processes; None: they are forked.
        import_s: seconds that it took to start.
    """

    process: "subprocess.Popen[bytes]"
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    fresh: str | None
    import_s: float


_lock = threading.Lock()
_blocks = 0
_idle: list[Kept] = []


@contextlib.contextmanager
def kept_servers() -> Iterator[None]:
    """Keep servers within this block; they end with it."""
    global _blocks
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1
        while _blocks == 0 and _idle:
            end_server(_idle.pop().process, _CLOSE_S)


def keep(server: Kept) -> bool:
    """Keep a server for the next user; False: there is no such block, or the server has ended."""
    if _blocks == 0 or server.process.poll() is not None:
        return False
    with _lock:
        _idle.append(server)
    return True


def take(preload: tuple[str, ...], environment: Mapping[str, str]) -> Kept | None:
    """Return a kept server that has imported this, its next child with this environment and our
    folder."""
    with _lock:
        fitting = [
            server
            for server in _idle
            if server.preload == preload
            and _at_import(server.environment) == _at_import(environment)
        ]
        if not fitting:
            return None
        server = fitting[0]
        _idle.remove(server)
    names = {*server.environment, *environment}
    changes = {
        name: environment.get(name)
        for name in names
        if environment.get(name) != server.environment.get(name)
    }
    assert server.process.stdin is not None
    try:
        message = {"environment": changes, "folder": str(Path.cwd())}
        server.process.stdin.write(json.dumps(message).encode() + b"\n")
        server.process.stdin.flush()
    except BrokenPipeError:
        end_server(server.process, 0.0)
        return take(preload, environment)
    return server


def end_server(process: "subprocess.Popen[bytes]", wait_s: float) -> None:
    """End a server; it kills its children when its input closes."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(timeout=wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_IMPORT)}
