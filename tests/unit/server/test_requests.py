"""Who may call, by which name, from which page, and how much; what the log says of it."""

import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autotune.server.access.requests import HEADERS, UNKNOWN
from autotune.server.store.events import Line
from autotune.server.store.values import NewWork
from tests.unit.server.conftest import CSRF, JOB, Served

Serve = Callable[..., Served]
PLANS = "/api/v1/plans"
JSON = {"content-type": "application/json"}
WORKER = {
    "name": "w",
    "device_kind": "cpu",
    "devices": 1,
    "device_name": "a processor",
}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "", "[", "[::1", "127.0.0.1:x", "a@127.0.0.1"]
    + ["127.0.0.1:80/x", "evil.example:127.0.0.1", "localhost\u00e9"],
)
def test_other_names_of_the_service_are_refused(served: Served, host: str) -> None:
    headers = {"host": host.encode("latin-1")}
    answer = served.client.get("/api/v1/health", headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 421


def test_names_are_the_operators_and_forwarded_ones_are_not_heard(serve: Serve) -> None:
    served = serve(names=["Tune.example"])
    for host in ("tune.example", "TUNE.example:8642", "localhost", "[::1]:80", "127.0.0.1"):
        assert served.client.get("/api/v1/health", headers={"host": host}).status_code == 200
    away = {"host": "evil.example", "x-forwarded-host": "127.0.0.1", "forwarded": "host=127.0.0.1"}
    assert served.client.get("/api/v1/health", headers=away).status_code == 421


def test_at_all_addresses_it_is_called_by_address_and_not_by_any_name(serve: Serve) -> None:
    served = serve(host="0.0.0.0")
    get = served.client.get
    assert get("/api/v1/health", headers={"host": "10.1.2.3:8642"}).status_code == 200
    assert get("/api/v1/health", headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "text/plain; application/json"},
        {},
        {**JSON, "origin": "http://evil.example"},
        {**JSON, "origin": "null"},
        {**JSON, "origin": "http://["},
        {**JSON, "origin": "http://127.0.0.1.evil.example"},
        {**JSON, "origin": "http://127.0.0.1:1"},
        {**JSON, "sec-fetch-site": "cross-site"},
        {**JSON, "sec-fetch-site": "same-site"},
        {"content-type": "text/plain", "x-csrf-token": "x" * 64},
    ],
)
def test_pages_of_other_sites_change_nothing(served: Served, headers: dict[str, str]) -> None:
    body = json.dumps({"job": JOB})
    for path in (PLANS, f"{PLANS}/{'0' * 16}/cancel"):
        assert served.client.post(path, content=body, headers=headers).status_code == 403
    assert served.client.delete(f"{PLANS}/{'0' * 16}", headers=headers).status_code in (403, 404)
    assert not served.service.works.counts()


def test_pages_of_the_service_and_programs_change_something(served: Served) -> None:
    body = json.dumps({"job": JOB})
    ours = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
    for headers in (JSON, {**JSON, **ours}, {**JSON, "x-csrf-token": CSRF}):
        assert served.client.post(PLANS, content=body, headers=headers).status_code == 202


def test_a_program_that_sends_no_type_is_told_to(served: Served) -> None:
    id = served.submit(JOB).json()["id"]
    for method, path in (("POST", f"{PLANS}/{id}/cancel"), ("DELETE", f"{PLANS}/{id}")):
        refused = served.client.request(method, path)
        assert refused.status_code == 403
        assert "Content-Type: application/json" in refused.json()["errors"][0]["hint"]
        assert served.client.request(method, path, headers=JSON).status_code in (200, 204)


def test_a_refusal_is_called_what_it_is(served: Served) -> None:
    for answer in (
        served.client.get(PLANS, params={"per_page": 0}),
        served.client.get(f"{PLANS}/x"),
    ):
        assert (answer.status_code, answer.json()["title"]) == (422, "The request is not right")
    assert served.submit({"model": 1}).json()["title"] == "The job cannot be taken"


def test_a_page_can_be_asked_for_without_its_body(served: Served) -> None:
    head, whole = served.client.head("/works"), served.client.get("/works")
    assert (head.status_code, head.content) == (200, b"") and whole.content
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_options_do_not_hide_what_is_wrong_with_the_job(served: Served) -> None:
    wrong = {**JOB, "method": "sftt", "global_batch_size": "eight"}
    said = str(served.refusals(wrong, device="rtx-0000", devices=0))
    for name in ("`method`", "`global_batch_size`", "'device'", "'devices'"):
        assert name in said
    assert "devices" in served.refusals(JOB, devices=0)


def test_a_variation_is_one_of_a_work_that_is_there(served: Served) -> None:
    assert "parent" in served.refusals(JOB, parent="0" * 16)
    id = served.submit(JOB).json()["id"]
    assert served.submit(JOB, parent=id).json()["parent"] == id


def test_no_other_site_reads_an_answer(served: Served) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = served.client.options(PLANS, headers=asked)
    assert answer.status_code == 405
    answers = [answer, served.client.get(PLANS, headers=asked), served.client.get("/nothing")]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers.items() >= HEADERS.items()
        assert answer.headers["cache-control"] == "no-store"
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "HEAD", "PATCH"])
def test_other_methods_do_nothing(served: Served, method: str) -> None:
    assert served.client.request(method, PLANS).status_code in (403, 405)


def test_tokens_open_what_they_are_for(serve: Serve) -> None:
    served = serve(host="0.0.0.0")
    user, worker = served.token(), served.token("worker", "w")
    session = served.service.tokens.add("ada", "session", 60)
    lease = {"worker": WORKER, "kinds": []}
    client = served.client

    def plans(headers: dict[str, str]) -> int:
        return client.get(PLANS, headers=headers).status_code

    def leases(headers: dict[str, str]) -> int:
        return client.post("/api/v1/worker/lease", json=lease, headers=headers).status_code

    assert (plans(user), leases(user)) == (200, 401)
    assert (plans(worker), leases(worker)) == (401, 200)
    none: list[dict[str, str]] = [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer x"},
        {"authorization": f"Basic {user['authorization'].split()[1]}"},
        {"authorization": f"Bearer {session}"},
        {"authorization": user["authorization"][:-1]},
        {"authorization": f"{user['authorization']}x"},
        {"cookie": f"autotune_session={user['authorization'].split()[1]}"},
        {"cookie": f"autotune_session={worker['authorization'].split()[1]}"},
    ]
    assert [plans(headers) for headers in none] == [401] * len(none)
    assert [leases(headers) for headers in none] == [401] * len(none)
    assert plans({"cookie": f"autotune_session={session}"}) == 200
    served.service.tokens.remove_named("ada")
    assert plans(user) == plans({"cookie": f"autotune_session={session}"}) == 401


def test_every_route_but_health_needs_a_token(serve: Serve) -> None:
    served = serve(host="0.0.0.0")
    served.token()
    schema = served.client.get("/api/v1/openapi.json").json()
    for path, methods in schema["paths"].items():
        place = path.replace("{id}", "0" * 16).replace("{name}", "report.txt")
        for method in methods:
            answer = served.client.request(method, place, json={})
            assert answer.status_code == (200 if path == "/api/v1/health" else 401), path
    assert served.client.get("/metrics").status_code == 401


def test_a_token_is_kept_as_a_hash_and_told_nowhere(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(host="0.0.0.0")
    headers = served.token()
    token = headers["authorization"].split()[1]
    with caplog.at_level(logging.DEBUG):
        served.client.get(f"{PLANS}?token={token}", headers=headers)
        served.client.post(PLANS, json={"job": {"model": 1}}, headers=headers)
        served.client.get("/metrics", headers=headers)
    said = [record for record in caplog.records if record.name.startswith("autotune")]
    assert len(said) == 3 and not [one for one in said if token in one.getMessage()]
    rows = served.service.database.engine.raw_connection().cursor()
    tokens = rows.execute("SELECT * FROM service_tokens").fetchall()
    rows.connection.close()
    assert len(tokens) == 1 and token not in str(tokens)


def test_bodies_are_of_limited_size_and_larger_ones_of_those_that_are_known(serve: Serve) -> None:
    served = serve(host="0.0.0.0", limits={"body": "100KB"})
    user, worker = served.token(), served.token("worker", "w")
    put = f"/api/v1/worker/works/{'0' * 16}/files/report.txt?worker=w"

    def status(path: str, length: int, headers: dict[str, str], chunked: bool) -> int:
        method = "PUT" if path == put else "POST"
        content: Any = iter([b"x" * 1000] * (length // 1000)) if chunked else b"x" * length
        sent = {**JSON, **headers}
        return served.client.request(method, path, content=content, headers=sent).status_code

    for chunked in (False, True):
        assert status(PLANS, UNKNOWN * 2, {}, chunked) == 413
        assert status(put, UNKNOWN * 2, {}, chunked) in (401, 413)
        assert status(PLANS, 90_000, user, chunked) in (400, 422)
        assert status(PLANS, 110_000, user, chunked) == 413
        assert status(put, 110_000, user, chunked) in (401, 413)
        assert status(put, 110_000, worker, chunked) == 410


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 40, "\u00b2", "x"])
def test_lengths_that_are_none_are_refused(served: Served, length: str) -> None:
    headers = {"content-length": length.encode("latin-1"), "content-type": b"application/json"}
    assert served.client.post(PLANS, content=b"{}", headers=headers).status_code == 413  # type: ignore[arg-type]


def test_works_that_wait_are_limited_in_number(serve: Serve) -> None:
    served = serve(limits={"queued": 3, "queued_each": 2})
    ada, bob = served.token(name="ada"), served.token(name="bob")

    def submit(headers: dict[str, str]) -> int:
        return served.client.post(PLANS, json={"job": JOB}, headers=headers).status_code

    assert [submit(ada), submit(ada), submit(ada)] == [202, 202, 429]
    assert [submit(bob), submit(bob)] == [202, 429]


def test_works_that_are_taken_up_again_count_as_others_do(serve: Serve) -> None:
    served = serve(limits={"queued_each": 2})

    def two() -> list[str]:
        return [served.submit(JOB).json()["id"] for _ in range(2)]

    def post(id: str, what: str) -> int:
        return served.client.post(f"{PLANS}/{id}/{what}", headers=JSON).status_code

    first = two()
    assert [post(id, "cancel") for id in first] == [200, 200]
    second = two()
    page = {"x-csrf-token": CSRF}
    again = [served.client.post(f"/plans/{id}/resume", headers=page).status_code for id in first]
    assert again == [429, 429]
    assert post(second[0], "cancel") == 200
    again = [served.client.post(f"/plans/{id}/resume", headers=page).status_code for id in first]
    assert again == [204, 429]


def test_works_that_are_asked_for_at_once_are_counted_one_by_one(serve: Serve) -> None:
    served = serve(limits={"queued_each": 2})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: served.submit(JOB).status_code, range(8)))
    assert sorted(answers) == [202] * 2 + [429] * 6


def test_readers_of_events_are_limited_in_number(serve: Serve) -> None:
    served = serve()
    work = served.submit(JOB).json()["id"]
    served.service.live.readers = served.service.settings.limits.live
    assert served.client.get(f"{PLANS}/{work}/events").status_code == 503
    served.service.live.readers = 0
    assert served.client.get(f"{PLANS}/{'0' * 16}/events").status_code == 404
    for after in ("-1", "1" * 30, "x"):
        answer = served.client.get(f"{PLANS}/{work}/events", headers={"last-event-id": after})
        assert answer.status_code == 422
        assert served.client.get(f"{PLANS}/{work}/events?after={after}").status_code == 422


@pytest.mark.parametrize("text", ["%", "_", "' OR 1=1 --", "\\", "%' --", "x'; DROP TABLE a;--"])
def test_a_search_finds_text_and_runs_nothing(served: Served, text: str) -> None:
    served.submit(JOB)
    for name in ("text", "method"):
        answer = served.client.get(PLANS, params={name: text[:16]})
        assert answer.status_code == 200 and answer.json()["total"] == 0
    assert served.client.get(PLANS, params={"text": "QWEN"}).json()["total"] == 1
    assert served.client.get(PLANS, params={"text": "\0"}).status_code == 422


@pytest.mark.parametrize(
    "id",
    ["..%2f..%2fetc%2fpasswd", "../x", "0" * 15, "0" * 17, "G" * 16, "%00" * 16, "0" * 16 + "%0a"],
)
def test_ids_are_ids(served: Served, id: str) -> None:
    for path in (f"{PLANS}/{id}", f"{PLANS}/{id}/bundle.zip", f"/api/v1/runs/{id}/report"):
        assert served.client.get(path).status_code in (404, 422)


def test_static_files_are_those_of_the_pages(served: Served) -> None:
    for name in (
        "../templates/page.html",
        "..%2f..%2fapp.py",
        "%2e%2e/__init__.py",
        "//etc/passwd",
    ):
        assert served.client.get(f"/static/{name}").status_code in (404, 405)


def test_a_log_line_is_one_json_object_whatever_is_asked_for(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "autotune.server"):
        answer = served.client.get('/api/v1/x%0a{"event":"forged"}%1b[31m?secret=hunter2')
        served.client.get("/api/v1/health")
    (record,) = caplog.records
    line = json.loads(record.getMessage())
    assert line["request"] == answer.headers["x-request-id"] == answer.json()["request"]
    assert (line["event"], line["status"], line["route"]) == ("request", 404, "other")
    assert "\n" not in record.getMessage() and "\x1b" not in record.getMessage()
    assert "hunter2" not in record.getMessage()


def test_a_mistake_of_the_service_tells_its_log_and_nobody_else(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(type(served.service.works), "count", fail)
    answer = served.client.get(PLANS)
    assert answer.status_code == 500 and "secret" not in answer.text
    mistake = next(r for r in caplog.records if r.levelno >= logging.ERROR)
    assert json.loads(mistake.getMessage())["request"] == answer.json()["request"]
    assert mistake.exc_info is not None


def leased(served: Served) -> tuple[str, dict[str, str]]:
    """A work that a worker has, and the worker's headers."""
    work = served.submit(JOB).json()["id"]
    headers = served.token("worker", "w")
    lease = {"worker": WORKER, "kinds": ["plan"]}
    answer = served.client.post("/api/v1/worker/lease", json=lease, headers=headers)
    assert answer.json()["id"] == work
    return work, headers


def test_what_workers_say_breaks_nothing(served: Served) -> None:
    work, headers = leased(served)
    path = f"/api/v1/worker/works/{work}"
    lines = {"worker": "w", "attempt": 1, "source": "events", "first": 0}
    data = '{"text": "<script>\\ud800\\u0000\\u001b[31m", "loss": NaN, "deep": [1e999]}'
    body = json.dumps({**lines, "lines": ["@"]}).replace(
        '"@"', f'{{"utc": 1, "kind": "probed", "data": {data}}}'
    )
    answer = served.client.post(f"{path}/events", content=body, headers={**headers, **JSON})
    assert answer.json() == {"lines": 1}
    for utc, kind in (("NaN", "x"), ("1", "x" * 40), ("1", "a\\nb"), ("1", "")):
        line = f'{{"utc": {utc}, "kind": "{kind}", "data": {{}}}}'
        body = json.dumps({**lines, "lines": ["@"]}).replace('"@"', line)
        answer = served.client.post(f"{path}/events", content=body, headers={**headers, **JSON})
        assert answer.status_code == 422
    result = '{"outcome": {}, "answer": {"tokens_per_s": "x", "peak_memory_bytes": 1.5}, "d": NaN}'
    ending = '{"attempt": 1, "exit_code": 0, "text": "a\\u0000b", "result": ' + result + "}"
    body = f'{{"worker": "w", "ending": {ending}}}'
    answer = served.client.post(f"{path}/ending", content=body, headers={**headers, **JSON})
    assert answer.status_code == 204, answer.text
    shown = served.client.get(f"{PLANS}/{work}").json()
    assert (shown["state"], shown["text"], shown["result"]["d"]) == ("done", "ab", None)
    assert served.client.get(PLANS).status_code == 200
    events = served.client.get(f"{PLANS}/{work}/events")
    assert events.status_code == 200 and '"loss":null' in events.text.replace(" ", "")


def test_files_of_works_have_fixed_names_and_are_downloaded(served: Served) -> None:
    work, headers = leased(served)
    path = f"/api/v1/worker/works/{work}/files"
    for name in ("..%2fx", "x.zip", "bundle.zip%00", "../bundle.zip"):
        answer = served.client.put(f"{path}/{name}?worker=w", content=b"x", headers=headers)
        assert answer.status_code in (404, 422)
    zipped = served.client.put(f"{path}/bundle.zip?worker=w", content=b"x", headers=headers)
    assert zipped.status_code == 204
    other = served.client.put(f"{path}/bundle.zip?worker=v", content=b"y", headers=headers)
    assert other.status_code == 410
    answer = served.client.get(f"{PLANS}/{work}/bundle.zip", headers={"range": "bytes=0-0"})
    assert answer.content == b"x"
    assert answer.headers["content-disposition"] == f'attachment; filename="{work}-bundle.zip"'


def test_a_deep_line_is_no_trouble(served: Served) -> None:
    work, headers = leased(served)
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    line = Line(utc=time.time(), kind="line", data=deep).model_dump()
    body = {"worker": "w", "attempt": 1, "source": "events", "first": 0, "lines": [line]}
    path = f"/api/v1/worker/works/{work}/events"
    assert served.client.post(path, json=body, headers=headers).status_code == 200


MADE_UP: list[Any] = [None, -1, 10**400, "\ud800", [5], {"a": 5}]
SAID = (
    "surveyed looking_at estimating estimated improved ruled_out probing probed stopped verified"
    " verification_stage nothing_fits"
)


@pytest.mark.parametrize("kind", ["plan", "run"])
def test_what_a_worker_makes_up_is_its_works_alone(served: Served, kind: Any) -> None:
    """Events and results of any shape, for works of its own and of others."""
    of_others = served.service.works.add(NewWork(kind=kind, job="{}", method="sft", model="m")).id
    headers = served.token("worker", "w")
    other = {"worker": {**WORKER, "name": "v"}, "kinds": [kind]}
    assert served.client.post("/api/v1/worker/lease", json=other, headers=headers).json()
    before = served.service.works.get(of_others)
    for value in MADE_UP:
        work = served.service.works.add(NewWork(kind=kind, job="{}", method="sft", model="m")).id
        lease = {"worker": WORKER, "kinds": [kind]}
        served.client.post("/api/v1/worker/lease", json=lease, headers=headers)
        names = ("candidates", "measurement", "outcome", "limit_bytes", "parts", "best", "done")
        data = {**dict.fromkeys((*names, "knobs", "reason", "answer"), value), "probe": 1}
        data["measurement"] = {**data, "seconds": value} if value == -1 else value
        lines = [{"utc": 1, "kind": said, "data": data} for said in SAID.split()]
        ending = {"attempt": 1, "exit_code": 0, "result": data, "text": "\ud800"}
        sent = {"worker": "w", "attempt": 1, "source": "e", "first": 0, "lines": lines}
        for path, body in (("events", sent), ("ending", {"worker": "w", "ending": ending})):
            for id in (of_others, "0" * 16, work):
                url = f"/api/v1/worker/works/{id}/{path}"
                content = json.dumps(body)
                answer = served.client.post(url, content=content, headers={**headers, **JSON})
                assert answer.status_code in ((200, 204) if id == work else (410,)), answer.text
            for page in ("/runs", "/plans", "/history", "/metrics", f"/api/v1/{kind}s/{work}"):
                assert served.client.get(page).status_code < 500, page
            shown = served.client.get(f"/{kind}s/{work}")
            assert shown.status_code == 200 or "a worker that sent what is shown" in shown.text
        beat = json.dumps({"name": "w", "works": [of_others, value], "kept": [value]})
        answer = served.client.post(
            "/api/v1/worker/beat", content=beat, headers={**headers, **JSON}
        )
        assert answer.status_code == 422
    assert served.service.works.get(of_others) == before
    assert not served.service.events.after(of_others, 0)
