"""What only the real process shows: where it listens, who may call, what it leaves behind, and that
it waits for nobody."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from autotune.errors import MachineError, UserError
from autotune.server.access.requests import HEADERS, SPARE
from autotune.server.access.tokens import Tokens
from autotune.server.serve import _serve, local_worker
from autotune.server.service import DATABASE
from autotune.server.settings import load_settings
from autotune.server.store.database import open_database, sqlite_url
from tests.server.conftest import ROOT, Served
from tests.server.restarts import until

SERVE = [sys.executable, "-m", "autotune", "serve"]


def autotune_serve(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    command = [*SERVE, "--runs", str(folder), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder.parent
    )


@pytest.fixture(scope="module")
def service(service_url: Served) -> Iterator[tuple[Served, dict[str, str]]]:
    """A service with tokens, and these: nothing that it writes meanwhile has one of them."""
    database = open_database(sqlite_url(service_url.folder / DATABASE))
    known = Tokens(database)
    tokens = {"user": known.add("ada", "user"), "worker": known.add("w", "worker")}
    yield service_url, tokens
    for file in service_url.folder.parent.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [name for name in tokens.values() if name.encode() in content], file
    for name in ("ada", "w"):
        known.remove_named(name)
    database.close()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_it_does_not_listen_to_others_without_a_token(tmp_path: Path) -> None:
    folder = tmp_path / "service"
    done = autotune_serve(folder, "--add-token", "w", "--worker")
    assert done.returncode == 0, done.stderr
    done = autotune_serve(folder, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "without a token" in done.stderr and "--add-token" in done.stderr
    assert not (folder / "address").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.2", ""])
def test_every_other_address_needs_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match="without a token"):
        _serve(load_settings(None, {"host": host, "port": 0}), tmp_path, print)


def test_it_listens_at_this_machine_alone(service: tuple[Served, dict[str, str]]) -> None:
    running, _ = service
    port = urlsplit(running.url).port
    sockets = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    local = [line.split()[1] for line in sockets if line.split()[3] == "0A"]
    assert [one for one in local if one.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_tokens_are_for_users_or_for_workers(service: tuple[Served, dict[str, str]]) -> None:
    running, tokens = service
    api = f"{running.url}/api/v1"
    beat = {"name": "w", "works": []}

    def answers(token: str) -> tuple[int, int]:
        headers = bearer(token)
        plans = requests.get(f"{api}/plans", headers=headers, timeout=30)
        worker = requests.post(f"{api}/worker/beat", json=beat, headers=headers, timeout=30)
        return plans.status_code, worker.status_code

    assert answers(tokens["user"]) == (200, 401)
    assert answers(tokens["worker"]) == (401, 200)
    assert answers("x") == (401, 401)
    assert requests.get(f"{api}/health", timeout=30).status_code == 200


def test_files_of_the_service_are_its_owners(service: tuple[Served, dict[str, str]]) -> None:
    running, _ = service
    names = {path.name for path in running.folder.iterdir()}
    assert names >= {"worker.token", "csrf", "worker.pid", "address", "service.db", "works"}
    for path in (running.folder, *running.folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_tokens_are_kept_as_hashes(service: tuple[Served, dict[str, str]]) -> None:
    running, tokens = service
    with contextlib.closing(sqlite3.connect(running.folder / "service.db")) as database:
        rows = database.execute("SELECT digest, name, role FROM service_tokens").fetchall()
    assert {(name, role) for _, name, role in rows} >= {("ada", "user"), ("w", "worker")}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest, _, _ in rows)
    assert not set(tokens.values()) & {digest for digest, _, _ in rows}


def test_pages_say_what_a_browser_may_do(service: tuple[Served, dict[str, str]]) -> None:
    running, _ = service
    for path in ("/", "/login", "/nothing", "/api/v1/health"):
        answer = requests.get(f"{running.url}{path}", timeout=30)
        assert {name.lower(): value for name, value in answer.headers.items()}.items() >= (
            HEADERS.items()
        )
        assert "server" not in answer.headers
        inline = r"<script(?![^>]*\bsrc=)|\son\w+=|javascript:|<style|\sstyle="
        assert not re.search(inline, answer.text), path


def speak(running: Served, text: bytes) -> bytes:
    """What comes back for some bytes, until the connection is closed."""
    place = urlsplit(running.url)
    assert place.hostname is not None and place.port is not None
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        got = b""
        with contextlib.suppress(ConnectionError):  # it was closed before all was sent
            connection.sendall(text)
            while part := connection.recv(65536):
                got += part
        return got


HEAD = b"Host: 127.0.0.1\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", b"421"),
        (b"GET /api/v1/health HTTP/1.0\r\n\r\n", b"421"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + HEAD + b"X: \r\n y\r\n" * 99_000 + b"\r\n", b"400"),
        (b"GET /" + b"x" * 990_000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + HEAD + b"\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
        (b"GET http://evil.example/api/v1/health HTTP/1.1\r\n" + HEAD + b"\r\n", b"404"),
        (b"TRACE / HTTP/1.1\r\n" + HEAD + b"\r\n", b"40"),
        (b"GET /static/..%2f..%2fapp.py HTTP/1.1\r\n" + HEAD + b"\r\n", b"404"),
        (b"GET /static/../../app.py HTTP/1.1\r\n" + HEAD + b"\r\n", b"404"),
    ],
)
def test_odd_requests_are_refused(
    service: tuple[Served, dict[str, str]], text: bytes, status: bytes
) -> None:
    got = speak(service[0], text)
    assert got.startswith(b"HTTP/1.1 " + status) or (not got and len(text) > 500_000), got[:200]


def test_an_upload_of_nobody_is_refused_before_it_comes(
    service: tuple[Served, dict[str, str]],
) -> None:
    path = b"/api/v1/worker/works/0000000000000000/files/bundle.zip?worker=w"
    head = b"PUT " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000000\r\n\r\n"
    got = speak(service[0], head)  # and it is not waited for: the connection is closed
    assert got.startswith(b"HTTP/1.1 413")


def test_connections_are_limited_in_number(service: tuple[Served, dict[str, str]]) -> None:
    place = urlsplit(service[0].url)
    with contextlib.ExitStack() as held:
        for _ in range(load_settings(None).limits.live + SPARE):
            held.enter_context(socket.create_connection((place.hostname, place.port), timeout=30))
        assert speak(service[0], b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n").startswith(b"HTTP/1.1 503")


def test_a_second_service_does_not_take_the_port(
    service: tuple[Served, dict[str, str]], tmp_path: Path
) -> None:
    port = urlsplit(service[0].url).port
    with pytest.raises(MachineError, match="cannot listen"):
        _serve(load_settings(None, {"port": port}), tmp_path, print)


def test_the_log_is_a_json_object_a_line_with_an_id_each(
    service: tuple[Served, dict[str, str]],
) -> None:
    running, tokens = service
    answer = requests.get(
        f"{running.url}/api/v1/plans?text=hunter2", headers=bearer(tokens["user"]), timeout=30
    )
    log, number = running.folder.parent / "service.log", answer.headers["x-request-id"]
    # Written after the answer was sent, whole lines at a time.
    text: str = until(lambda: number in (now := log.read_text(encoding="utf-8")) and now, "log")
    lines: list[dict[str, Any]] = [json.loads(one) for one in text.splitlines()]
    (line,) = [one for one in lines if one.get("request") == number]
    assert line["path"] == line["route"] == "/api/v1/plans" and line["level"] == "info"
    assert "hunter2" not in text
    often = [one for one in lines if str(one.get("path")).endswith(("/lease", "/beat"))]
    assert not [one for one in often if one["status"] < 400]


def test_the_service_and_its_worker_stand_back_for_nobody(
    service: tuple[Served, dict[str, str]],
) -> None:
    running, _ = service
    for pid in (running.process.pid, local_worker(running.folder) or 0):
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0)


def test_it_greets_and_ends_in_plain_text(tmp_path: Path) -> None:
    (tmp_path / "server.yaml").write_text("local_worker: false\nport: 0\n", encoding="utf-8")
    folder = tmp_path / "service"
    for needs_token in (False, True):
        process = subprocess.Popen(
            [*SERVE, "--runs", str(folder), "--config", "server.yaml"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
        )
        assert process.stderr is not None
        greeting = list(itertools.takewhile(lambda line: "Ctrl-C" not in line, process.stderr))
        address = (folder / "address").read_text(encoding="ascii")
        assert address in greeting[0] and str(folder) in greeting[1]
        assert ["--add-token" in line for line in greeting[2:]] == [True] * needs_token
        assert requests.get(f"{address}/api/v1/health", timeout=30).ok
        if needs_token:
            process.stderr.close()  # it ends also where nothing reads that
        process.send_signal(signal.SIGINT)
        if not needs_token:
            rest = [line.split(",")[0].strip() for line in process.stderr]
            assert rest == ["it ends: what runs returns to the queue", "it has ended"]
        assert process.wait(60) == 0
        process.stderr.close()
        autotune_serve(folder, "--add-token", "ada")


@pytest.mark.nightly("service")
def test_the_steps_of_the_image_install_a_service_that_runs() -> None:
    """And the unit is verified, where systemd-analyze is here."""
    check = ROOT / "scripts" / "service" / "check"
    done = subprocess.run([str(check), sys.executable], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "check: all passed" in done.stdout
