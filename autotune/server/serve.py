"""The web server, the worker of this machine beside it, and the housekeeping."""

import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from autotune.errors import machine_error, user_error
from autotune.process.companion import Command
from autotune.process.niceness import share_one_arena
from autotune.process.proc import start_ticks
from autotune.server.access.requests import SPARE
from autotune.server.access.tokens import LOCAL_WORKER
from autotune.server.app import create_app
from autotune.server.private_folder import private_folder
from autotune.server.service import Service, open_service
from autotune.server.settings import Settings

WORKER_TOKEN, ADDRESS, CSRF, PID = "worker.token", "address", "csrf", "worker.pid"
HOUSEKEEPING_S, DELETING_S = 5.0, 60.0
_STOP_S = 2.0
"""Time for the local worker to give back what it runs: then it is killed."""
log = logging.getLogger("autotune.server")


Say = Callable[[str], None]


def serve(settings: Settings, folder: Path, say: Say = lambda _: None) -> None:
    """Serve until SIGTERM or Ctrl-C. Runs are then ended, and return to the queue.

    Args:
        say: takes the greeting, and that it ends.

    Raises:
        UserError: others would reach it without a token.
        MachineError: it cannot listen there, or its database cannot be used.
    """
    share_one_arena()
    with private_folder(folder):
        _serve(settings, folder, say)


def _serve(settings: Settings, folder: Path, say: Say) -> None:
    service = open_service(settings, folder, _secret(folder / CSRF))
    if not settings.is_local and not service.tokens.has_users():
        raise user_error(
            f"at {settings.host} others would reach the service without a token",
            where="host",
            hint="make one first: `autotune serve --add-token NAME`, or listen at 127.0.0.1",
        )
    for allowed in settings.allowed.folders:
        ours, theirs = folder.resolve(), Path(allowed).resolve()
        if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
            raise user_error(
                f"jobs could read the service's own folder: {allowed}",
                where="allowed.folders",
                hint="list other folders there, or move this one: `--runs`",
            )
    service.queue.renew()
    with _listening(settings) as listener:
        address = f"http://{_local_name(settings)}:{listener.getsockname()[1]}"
        _write_private(folder / ADDRESS, address)
        _Server(service, greeting(service, address), say).run(sockets=[listener])
    service.database.close()
    say("it has ended")


def greeting(service: Service, address: str) -> str:
    """Return how to use a service, and how it ends."""
    lines = [f"autotune serves at {address}", f"  it keeps all it has in {service.folder}"]
    if service.needs_token:
        lines.append("  sign in with a token: `autotune serve --add-token NAME` prints a new one")
    return "\n".join([*lines, "  Ctrl-C ends it; what runs then goes on at the next start"])


class _Server(uvicorn.Server):
    """uvicorn with a worker beside it, which ends before the service does."""

    def __init__(self, service: Service, greeting: str, say: Say) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http="h11",
                ws="none",
                limit_concurrency=service.settings.limits.live + SPARE,
                proxy_headers=service.settings.https,
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=1,
                timeout_keep_alive=15,
            )
        )
        self._service, self._folder = service, service.folder
        self._greeting, self._say = greeting, say
        self._stopping = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, then start the worker and the housekeeping."""
        await super().startup(sockets=sockets)
        self._say(self._greeting)
        threading.Thread(target=self._keep_house, name="housekeeping", daemon=True).start()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End the worker first, so that it gives back its works. A second signal ends at once."""
        if self._stopping.is_set():
            super().handle_exit(sig, frame)
        self._stopping.set()

    def _keep_house(self) -> None:
        """Put works of ended leases back, delete old works, keep the local worker alive; in the end
        end it, and the service."""
        deleted = -DELETING_S
        while not self._stopping.is_set():
            try:
                if self._service.settings.local_worker:
                    start_local_worker(self._service, self._folder)
                for id in self._service.queue.expire():
                    self._service.live.changed(id)
                if time.monotonic() - deleted > DELETING_S:
                    deleted = time.monotonic()
                    delete_old(self._service)
            except Exception:  # a full disk, a database that restarts: it is tried again
                log.exception("housekeeping failed")
            self._stopping.wait(HOUSEKEEPING_S)
        self._say("it ends: what runs returns to the queue, and goes on at the next start")
        try:
            end_local_worker(self._folder)
            self._service.live.close()
        finally:
            self.should_exit = True


def delete_old(service: Service) -> None:
    """Delete works that ended too long ago, and the oldest ones beyond the limits."""
    keep, works = service.settings.keep, service.works
    works.forget_deleted(time.time() - keep.age)
    for why, ids in (
        ("age", works.ended_before(time.time() - keep.age)),
        ("size", works.oldest_ended(keep.works, keep.database)),
    ):
        if ids:
            log.info(json.dumps({"event": "deleted", "works": works.delete(ids), "why": why}))


def start_local_worker(service: Service, folder: Path) -> None:
    """Start the worker of this machine, unless it lives: it outlives a service that is killed."""
    if local_worker(folder) is not None:
        return
    token, settings = worker_token(service, folder), service.settings
    command = Command(
        [
            "worker",
            f"--server-file={folder / ADDRESS}",
            f"--token-file={token}",
            f"--folder={folder / 'works'}",
            f"--plans={settings.plans_at_once}",
            f"--plan-memory={settings.plan_memory}",
            f"--keep={settings.keep.size}",
        ],
        folder=folder,
        output=folder / "worker.out",
        errors=folder / "worker.log",
        environment={},
        guarded=False,
    )
    _write_private(folder / PID, f"{command.pid} {start_ticks(command.pid)}")


def worker_token(service: Service, folder: Path) -> Path:
    """Return the file with the local worker's token; a token that the service does not know is
    replaced."""
    file, known = folder / WORKER_TOKEN, None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = service.tokens.holder(file.read_text(encoding="ascii").strip())
    if known is None or known.role != "worker":
        _write_private(file, service.tokens.add(LOCAL_WORKER, "worker"))
        log.info(json.dumps({"event": "the local worker has a new token", "file": str(file)}))
    return file


def local_worker(folder: Path) -> int | None:
    """Return the process of the local worker, if it lives."""
    with contextlib.suppress(OSError, ValueError):
        pid, began = map(int, (folder / PID).read_text(encoding="ascii").split())
        if start_ticks(pid) == began:
            return pid
    return None


def end_local_worker(folder: Path) -> None:
    """Ask the local worker to end, and kill it if it does not: what it runs ends with it."""
    pid = local_worker(folder)
    until = time.monotonic() + _STOP_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            if pid is not None and local_worker(folder) == pid:
                os.kill(pid, number)
        while pid is not None and local_worker(folder) == pid and time.monotonic() < until:
            time.sleep(0.05)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listener.bind((settings.host, settings.port))
        except (OSError, socket.gaierror) as error:
            raise machine_error(
                f"cannot listen there: {error.strerror or error}",
                where=f"{settings.host}:{settings.port}",
                hint="end what listens there, or give another `port` in server.yaml",
            ) from None
        yield listener
    finally:
        listener.close()


def _local_name(settings: Settings) -> str:
    if settings.host in ("0.0.0.0", "::"):
        return "127.0.0.1" if settings.host == "0.0.0.0" else "[::1]"
    return f"[{settings.host}]" if ":" in settings.host else settings.host


def _secret(path: Path) -> str:
    """Return a secret of the service, made once."""
    if not path.is_file():
        _write_private(path, secrets.token_hex(32))
    return path.read_text(encoding="ascii")


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
