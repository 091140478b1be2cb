"""The API keeps to its own schema, whatever it is asked: generated cases against the app in this
process. No answer is a mistake of the service, and each is declared."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.python.asgi import get_client

from autotune.server.app import create_app
from autotune.server.service import Service, open_service
from autotune.server.settings import load_settings
from autotune.server.store import queue
from autotune.server.store.values import Ending, WorkerInfo
from autotune.server.submission import Submission, accepted
from tests.guards import some_of

EACH = {3: 100, 55: 2000}
"""Cases of an operation, as many right ones as wrong ones, and how many all have at least."""
ANSWERS = {200, 204, 404, 422}
CSRF = "c" * 64
JOB = "model: qwen2.5-0.5b\ndataset: {lengths: {max: 128}}\n"
DEVICES = {"device_kind": "cpu", "devices": 1, "device_name": "a processor"}
WORKER = WorkerInfo.model_validate({"name": "w", **DEVICES})
load_all_checks()
CHECKED = [
    CHECKS.get_one(name)
    for name in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    file = folder / "server.yaml"
    file.write_text(
        "names: [testserver]\nlimits: {queued: 100000, queued_each: 100000}\n",
        encoding="utf-8",
    )
    opened = open_service(load_settings(file), folder, CSRF)
    yield opened
    opened.database.close()


@pytest.mark.parametrize("each", some_of(EACH, [3], "service"))
def test_generated_requests_are_answered_as_the_schema_says(
    service: Service, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "LEASE_S", 3600.0)
    app = create_app(service)
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    worker = service.tokens.add("w", "worker")
    statuses: Counter[int] = Counter()
    began = time.monotonic()
    with get_client(app) as client:  # one for all cases: the app is started once
        here = _works(service)

        def call(case: Case) -> None:
            if statuses.total() % 2:
                if case.method == "DELETE":
                    here.update(_works(service))
                _speak_of(here, case)
            role = worker if case.path.startswith("/api/v1/worker/") else None
            headers = {"x-csrf-token": CSRF}
            if role is not None:
                headers["authorization"] = f"Bearer {role}"
            response = case.call(session=client, headers=headers)
            statuses[response.status_code] += 1
            case.validate_response(response, checks=CHECKED)

        for result in schema.get_all_operations():
            for mode in GenerationMode:
                _try(result.ok().as_strategy(mode), each, call)
    seconds = time.monotonic() - began
    print(f"{statuses.total()} cases in {seconds:.0f} s, {dict(sorted(statuses.items()))}")
    assert statuses.total() >= EACH[each]
    assert set(statuses) >= (ANSWERS if each < 55 else ANSWERS | {202})


def _works(service: Service) -> dict[str, str]:
    """Ids of a plan that has ended, and of one that a worker has."""
    for _ in range(2):
        work = accepted("plan", Submission(job=JOB), service.settings.allowed, "ada")
        service.works.add(work)
    lease, ended = (service.queue.lease(WORKER, ["plan"]) for _ in range(2))
    assert lease is not None and ended is not None
    service.queue.keep_file("w", ended.id, "bundle.zip", b"x")
    service.queue.finish("w", ended.id, Ending(attempt=1, exit_code=0, result={}))
    return {"ended": ended.id, "leased": lease.id}


def _speak_of(works: dict[str, str], case: Case) -> None:
    """Let a case be about what is there: no other would be guessed."""
    if isinstance(case.body, dict) and "job" in case.body:
        case.body["job"] = JOB
    of_worker = case.path.startswith("/api/v1/worker/")
    if "id" in (case.path_parameters or {}):
        case.path_parameters["id"] = works["leased" if of_worker else "ended"]
    if of_worker and case.query:
        case.query["worker"] = "w"
    if of_worker and isinstance(case.body, dict):
        for name, value in (("worker", "w"), ("attempt", 1), ("first", 0)):
            if name in case.body and not isinstance(case.body[name], dict):
                case.body[name] = value
        if isinstance(case.body.get("ending"), dict):
            case.body["ending"]["attempt"] = 1


def _try(cases: SearchStrategy[Case], each: int, call: Callable[[Case], None]) -> None:
    @settings(
        max_examples=each,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def tried(case: Case) -> None:
        call(case)

    with contextlib.suppress(Unsatisfiable):  # nothing can be wrong about what takes nothing
        tried()
