"""The client, against services that are away, cut connections off, or are none."""

import contextlib
import http.server
import io
import json
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune import client
from autotune.cli.remote import unpack
from autotune.client import TOKEN, Client
from autotune.errors import MachineError, UserError
from scripts.plan_schema import MachinesJson
from tests.cpu.conftest import LLAMA, Command, write_model
from tests.cpu.test_machines import PINS
from tests.server.conftest import Served
from tests.unit.calling import call

WORK = {"kind": "run", "id": "0" * 16}
DONE = {**WORK, "kind": "plan", "state": "done", "ahead": None, "exit_code": 0, "events": 1}
DONE |= {"text": "the answer\n", "result": {"outcome": "fits"}, "error": None, "files": []}
DEEP = b"[" * 200_000
Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@dataclass
class Fake:
    """A service that answers requests one after the other as it was told to; the last answer
    stands for all that come later."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    heard: list[tuple[str, dict[str, str]]] = field(default_factory=list)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setattr(client, "_PAUSE_S", 0.01)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            served.heard.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            (served.answers.pop(0) if len(served.answers) > 1 else served.answers[0])(self)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Fake(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def says(status: int, body: Any, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


def streams(*numbers: int, end: bool = False) -> Answer:
    """Events by their numbers, in chunks that end within a line; the connection is then cut off."""
    text = ": ping\n\n"
    for number in numbers:
        event = {
            "number": number,
            "utc": 0.0,
            "kind": "line",
            "data": {"text": f"{number} ü\u2028"},
        }
        data = json.dumps(event, ensure_ascii=False)
        text += f"event: line\ndata: {data}\nid: {number}\n\n"
    text += "event: end\ndata: {}\n\n" if end else "event: li"
    raw = text.encode()

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream; charset=utf-8")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for place in range(0, len(raw), 7):
            chunk = raw[place : place + 7]
            request.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            request.wfile.flush()
        request.close_connection = True

    return answer


def breaks_off(status: int, content_type: str) -> Answer:
    """An answer whose connection ends in the middle of its body."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", content_type)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"40\r\n{")
        request.close_connection = True

    return answer


def test_a_plan_is_followed_waited_for_and_fetched(service_url: Served) -> None:
    small = write_model(service_url.models / "followed", LLAMA)
    job = {"model": str(small), "dataset": {"lengths": {"max": 64}}, "max_length": 64}
    asking = Client(service_url.url)
    plan = asking.submit("plan", {**job, "global_batch_size": 8}, device="h200", only_default=True)
    events = list(asking.follow(plan))
    done = asking.wait(plan, events[-1]["number"])
    assert (done["state"], done["outcome"], done["events"]) == ("done", "fits", len(events))
    assert [event["number"] for event in events] == [*range(1, len(events) + 1)]
    assert "h200" in done["text"].lower() and done["result"]["table"]["rows"] == []
    names = zipfile.ZipFile(io.BytesIO(asking.bundle(done))).namelist()
    assert "bundle/launch.sh" in names


@pytest.mark.nightly("service")
def test_a_service_prints_of_several_machines_what_the_command_does(
    service_url: Served, tmp_path: Path
) -> None:
    small = write_model(service_url.models / "compared", LLAMA)
    pins = {"per_device_train_batch_size": 1, "optim": "adamw_torch_fused", "loss_type": "nll"}
    job = {"model": str(small), "dataset": {"lengths": {"max": 64}}, "max_length": 64}
    text = json.dumps({**job, "global_batch_size": 2, "fixed": {**PINS, **pins}})
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    autotune, server = Command(tmp_path), ("--server", service_url.url)
    asked = ("plan", "job.yaml", "--device", "h100,l40s", "--prices", "listed")
    there = autotune(*asked, "--deadline", "20h", *server)
    assert there == autotune(*asked, "--deadline", "20h") and "money" in there
    work = Client(service_url.url).list("plan")["items"][0]
    assert (work["device"], work["outcome"]) == ("h100,l40s", "fits")
    found = json.loads(autotune(*asked, "--at-most", "0.000001$", *server, "--json", expect=1))
    assert found["lines"][0].startswith("Nothing keeps your limits")
    assert json.loads(MachinesJson(**found).model_dump_json(by_alias=True)) == found
    refused = autotune.refused(*asked[:-1], "mine.yaml", *server)
    assert "--prices: a service does not take your file of prices" in refused


def test_no_event_is_lost_or_doubled_however_often_the_connection_is(fake: Fake) -> None:
    fake.answers = [
        streams(1, 2),
        says(503, {"detail": "starting"}),
        breaks_off(502, "text/html"),
        breaks_off(200, "text/html"),
        streams(2, 3, 5),  # one that came before; one is missing
        streams(4, 5, end=True),
    ]
    events = list(Client(fake.url).follow(WORK))
    assert [event["number"] for event in events] == [1, 2, 3, 4, 5]
    assert events[0]["data"]["text"] == "1 ü\u2028"
    assert [headers["last-event-id"] for _, headers in fake.heard] == ["0", "2", "2", "2", "2", "3"]


def test_a_service_that_stays_away_is_given_up(fake: Fake) -> None:
    fake.answers = [streams(1), says(503, {"detail": "no"})]
    following = Client(fake.url, patience_s=0.5).follow(WORK)
    assert next(following)["number"] == 1
    with pytest.raises(MachineError, match=fake.url):
        next(following)
    with pytest.raises(MachineError, match="does not answer"):
        Client("http://127.0.0.1:1").get("run", WORK["id"])


def test_all_problems_of_a_job_arrive_with_their_places_and_hints(fake: Fake) -> None:
    errors = [
        {"where": "job:3", "what": "no knob `optimm`", "hint": "did you mean `optim`?"},
        {"where": "model", "what": "is missing", "hint": None},
    ]
    fake.answers = [says(422, {"detail": "2 problems", "errors": errors})]
    with pytest.raises(UserError) as caught:
        Client(fake.url).submit("run", {"model": "m"})
    found = [{"where": p.where, "what": p.what, "hint": p.hint} for p in caught.value.problems]
    assert found == errors


@pytest.mark.parametrize(
    ("status", "body", "error", "says_"),
    [
        (401, {"detail": "a token is needed", "errors": []}, MachineError, TOKEN),
        (404, {"detail": "there is no run", "errors": []}, UserError, "there is no run"),
        (409, {"detail": "it has ended", "errors": []}, UserError, "it has ended"),
        (500, {"detail": "a mistake", "errors": []}, MachineError, "a mistake"),
        (502, b"<html>bad gateway</html>", MachineError, "502"),
        (404, b"<html>nothing</html>", MachineError, "not as the service does"),
        (200, b"<html>log in</html>", MachineError, "not as the service does"),
    ],
)
def test_what_a_service_answers_is_named(
    fake: Fake, status: int, body: Any, error: type[Exception], says_: str
) -> None:
    fake.answers = [says(status, body)]
    with pytest.raises(error, match=says_):
        Client(fake.url).cancel(WORK)


@pytest.mark.parametrize("to", ["http://[x", "https://other.example/"])
def test_a_redirect_is_named_and_its_body_not_read(fake: Fake, to: str) -> None:
    fake.answers = [says(302, b"x" * 2**20, Location=to)]
    with pytest.raises(MachineError, match="it sends on to"):
        Client(fake.url).cancel(WORK)


def test_a_page_in_place_of_events_is_no_service(fake: Fake) -> None:
    fake.answers = [says(200, b"<html>log in</html>", **{"Content-Type": "text/html"})]
    with pytest.raises(MachineError, match="not as the service does"):
        list(Client(fake.url).follow(WORK))


def test_a_token_goes_to_its_service_only(
    fake: Fake, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_home / ".netrc").write_text("default login somebody password secret\n", encoding="utf-8")
    (own_home / ".netrc").chmod(0o600)
    monkeypatch.setenv("AUTOTUNE_TOKEN", "of-the-environment")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    fake.answers = [says(200, {**DONE, "items": []})]
    Client(fake.url).list("run", state="done")
    Client(fake.url, "given").get("run", WORK["id"])
    monkeypatch.delenv("AUTOTUNE_TOKEN")
    Client(fake.url).get("run", WORK["id"])
    sent = [headers.get("authorization") for _, headers in fake.heard]
    assert sent == ["Bearer of-the-environment", "Bearer given", None]
    assert fake.heard[0][0] == "/api/v1/runs?state=done"
    fake.answers = [says(307, {}, Location="http://127.0.0.1:1/elsewhere")]
    with pytest.raises(MachineError, match="sends on to http://127.0.0.1:1/elsewhere"):
        Client(fake.url, "given").get("run", WORK["id"])


@pytest.mark.parametrize("url", ["localhost:8642", "ftp://host", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="is not the URL of a service"):
        Client(url)


def archive(*entries: tuple[str, int]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        for name, mode in entries:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            file.writestr(entry, b"content")
    return memory.getvalue()


def test_a_bundle_is_unpacked_where_it_is_wanted(nasty_dir: Path) -> None:
    files = [("bundle/launch.sh", 0o100755), ("bundle/run/job.yaml", 0o100644)]
    unpack(archive(*files), nasty_dir / "out")
    assert (nasty_dir / "out" / "launch.sh").stat().st_mode & 0o111
    assert (nasty_dir / "out" / "run" / "job.yaml").read_bytes() == b"content"
    assert len([*(nasty_dir / "out").rglob("*")]) == 3


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("bundle/../../out.txt", 0o100644),
        ("/bundle/x", 0o100644),
        ("x", 0o100644),
        ("bundle\\..\\x", 0o100644),
        ("C:/bundle/x", 0o100644),
        ("bundle/link", 0o120777),
        ("bundle/device", 0o020644),
    ],
)
def test_an_archive_writes_nothing_beside_its_folder(tmp_path: Path, name: str, mode: int) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(MachineError, match="has an unexpected file"):
        unpack(archive(("bundle/launch.sh", 0o100755), (name, mode)), tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_archive_is_said(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="the bundle from the service cannot be read"):
        unpack(b"<html>", tmp_path / "out")


def test_a_damaged_archive_writes_nothing(tmp_path: Path) -> None:
    """In each of the ways to compress: `unit/test_fuzz_readers.py` damages more."""
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w", method) as file:
            file.writestr("bundle/first", "whole " * 99)
            file.writestr("bundle/last", "damaged " * 99)
        data = memory.getvalue()
        for at in range(data.rindex(b"bundle/last", 0, data.index(b"PK\1\2")) + 11, len(data)):
            with contextlib.suppress(MachineError):
                unpack(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :], tmp_path / "out")
                assert (tmp_path / "out" / "first").read_text() == "whole " * 99
                shutil.rmtree(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "strange",
    [
        *({**DONE, "id": None}, {**DONE, "ahead": "x"}, {**DONE, "files": None}, [], 5, None),
        *({**DONE, "result": [1]}, {**DONE, "error": 5}, {**DONE, "text": {}}, {}, DEEP, b"{"),
        {**DONE, "exit_code": 10**40},
    ],
    ids=lambda each: str(each)[-24:],
)
def test_a_work_of_another_shape_ends_a_command_in_words(
    fake: Fake, tmp_path: Path, strange: Any
) -> None:
    fake.answers = [says(200, DONE), says(200, strange)]
    refused_by_machine("plan", *FLAGS, "--server", fake.url, "--emit", tmp_path / "out")


@pytest.mark.parametrize(
    "strange",
    [
        *(5, [1], {"x": 1}, None, "\ud800"),
        *({"number": 1, "kind": "line", "data": data} for data in (None, {}, {"text": 5}, [])),
        {"number": "1", "kind": "line", "data": {"text": ""}},
        {"number": 1, "kind": None, "data": {"text": ""}},
    ],
    ids=str,
)
def test_an_event_of_another_shape_ends_a_command_in_words(fake: Fake, strange: Any) -> None:
    event = b"data: " + json.dumps(strange).encode() + b"\n\n"
    stream = {"Content-Type": "text/event-stream"}
    fake.answers = [says(200, DONE), says(200, DONE), says(200, event, **stream)]
    refused_by_machine("plan", *FLAGS, "--server", fake.url)
    fake.answers = [says(200, DONE), says(200, DONE), says(200, b"data: " + DEEP + b"\n", **stream)]
    refused_by_machine("plan", *FLAGS, "--server", fake.url)


def test_problems_of_another_shape_are_no_services(fake: Fake) -> None:
    for errors in (5, [5], [{"where": 1, "what": "x"}], [{"what": []}]):
        fake.answers = [says(422, {"detail": "no", "errors": errors})]
        refused_by_machine("plan", *FLAGS, "--server", fake.url)
    fake.answers = [says(422, {"detail": "no", "errors": [{"where": "", "what": "no", "x": 1}]})]
    with pytest.raises(UserError, match="no"):
        Client(fake.url).cancel(WORK)


FLAGS = ("--model", "qwen2.5-7b", "--max-length", "64")


def refused_by_machine(*arguments: object) -> None:
    result = call(*arguments)
    assert result.exit_code == 3 and result.stdout == "", result.output
    assert "error: http://127.0.0.1" in result.stderr and "Traceback" not in result.stderr
