"""A real worker whose service refuses what it sends, or no longer knows its token, goes on."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from autotune.client import Client, Work
from autotune.server.access.tokens import LOCAL_WORKER, Tokens
from autotune.server.serve import local_worker
from autotune.server.store.database import open_database, sqlite_url
from autotune.server.store.tables import WorkerRow
from tests.cpu.conftest import LLAMA, Command
from tests.server.conftest import Served, served
from tests.server.restarts import LONG_S, name_of, small_job, until

MOST = 2000
"""Bytes of a file that the proxy lets through: less than any bundle has."""
JOB = json.loads(small_job(Path("config.json")))


@contextmanager
def proxy_of(url: str) -> Iterator[str]:
    """A proxy that refuses large files, as one whose operator left its limit as it was does."""

    class Proxy(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.command == "PUT" and len(body) > MOST:
                self._say(413, b"<html>413 Request Entity Too Large</html>")
                return
            headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
            answer = requests.request(
                self.command, url + self.path, data=body, headers=headers, timeout=60
            )
            self._say(answer.status_code, answer.content)

        do_POST = do_PUT

        def _say(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def planned(client: Client) -> Work:
    return client.wait(client.submit("plan", JOB, model_config_json=LLAMA, device="h100"))


def tokens_of(service: Served) -> Tokens:
    return Tokens(open_database(sqlite_url(service.folder / "service.db")))


@pytest.mark.nightly("service")
def test_a_file_that_is_too_large_is_a_problem_of_its_work(
    tmp_path: Path, plan_cache: Path
) -> None:
    with served(tmp_path, plan_cache, {"plans_at_once": 0}) as service:
        with proxy_of(service.url) as url:
            token = tmp_path / "token"
            token.write_text(tokens_of(service).add("there", "worker"), encoding="ascii")
            flags = ["--server", url, "--token-file", str(token)]
            flags += ["--no-runs", "--folder", str(tmp_path / "works")]
            worker = Command(tmp_path).start("worker", *flags)
            try:
                client = Client(service.url)
                first, second = planned(client), planned(client)
                assert worker.poll() is None, "it goes on"
            finally:
                worker.terminate()
                worker.communicate(timeout=LONG_S)
        for work in (first, second):
            assert (work["state"], work["outcome"], work["files"]) == ("done", "fits", [])
            assert "bundle.zip did not arrive" in work["error"] and "413" in work["error"]
        page = requests.get(f"{service.url}/plans/{first['id']}", timeout=60).text
        assert "bundle.zip did not arrive" in page


def test_a_local_worker_whose_token_is_gone_gets_another(service_url: Served) -> None:
    process, name = local_worker(service_url.folder), name_of(service_url.folder / "works")
    database = open_database(sqlite_url(service_url.folder / "service.db"))

    def seen() -> float:
        with database.reading() as session:
            return session.get_one(WorkerRow, name).seen

    assert tokens_of(service_url).remove_named(LOCAL_WORKER) == 1
    until(lambda: local_worker(service_url.folder) not in (None, process), "another worker")
    before = seen()
    until(lambda: seen() > before, "it is known to the service, by the same name")
    database.close()
    log = (service_url.folder.parent / "service.log").read_text(encoding="utf-8")
    assert "the local worker has a new token" in log
