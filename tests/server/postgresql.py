"""A PostgreSQL of a test's own, which listens at a socket in its folder only."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.absent import absent

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def as_its_user(*command: str) -> None:
    """PostgreSQL refuses to be root."""
    other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*other, *command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout


class PostgreSQL:
    """A server with its data in a temporary folder."""

    def __init__(self) -> None:
        self._programs = PROGRAMS[-1].parent
        self._folder = Path(tempfile.mkdtemp(prefix="autotune-postgresql-"))
        if os.geteuid() == 0:
            shutil.chown(self._folder, "postgres")
        self._data = str(self._folder / "data")
        initdb = str(self._programs / "initdb")
        as_its_user(initdb, "-A", "trust", "-U", "autotune", "-N", self._data)

    def url(self, database: str = "postgres", password: str = "") -> str:
        user = f"autotune:{password}" if password else "autotune"
        return f"postgresql://{user}@/{database}?host={self._folder}"

    def start(self) -> None:
        options = f"-c listen_addresses='' -c fsync=off -k {self._folder}"
        self._control("-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """At once, as where its machine is started anew."""
        self._control("-m", "immediate", "stop")

    def create(self, database: str) -> None:
        program = str(self._programs / "createdb")
        as_its_user(program, "-h", str(self._folder), "-U", "autotune", database)

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _control(self, *arguments: str) -> None:
        as_its_user(str(self._programs / "pg_ctl"), "-D", self._data, "-w", *arguments)


@contextlib.contextmanager
def running() -> Iterator[PostgreSQL]:
    """A server until the end of this block; the test is skipped where none is installed."""
    if not PROGRAMS:
        absent("PostgreSQL is not installed")
    server = PostgreSQL()
    try:
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        server.remove()
