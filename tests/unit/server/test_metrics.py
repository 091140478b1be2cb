"""What Prometheus is told."""

import re
from collections.abc import Callable

from tests.unit.server.conftest import JOB, Served
from tests.unit.server.test_requests import leased


def figures(served: Served, headers: dict[str, str] | None = None) -> dict[str, float]:
    """The series by name and labels."""
    answer = served.client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = re.findall(r"^([a-z]\S*) (\S+)$", answer.text, flags=re.MULTILINE)
    return {name: float(value) for name, value in lines}


def test_the_queue_the_works_and_the_workers_are_told(served: Served) -> None:
    work, headers = leased(served)
    served.submit(JOB)
    told = figures(served)
    assert told['autotune_queue_length{kind="plan"}'] == 1
    assert told['autotune_queue_length{kind="run"}'] == 0
    assert told['autotune_works{kind="plan",outcome="",state="running"}'] == 1
    assert told["autotune_workers"] == 1
    assert told["autotune_live_readers"] == 0
    ending = {"worker": "w", "ending": {"attempt": 1, "exit_code": 0, "result": {"answer": {}}}}
    for _ in range(2):  # said twice, counted once
        served.client.post(f"/api/v1/worker/works/{work}/ending", json=ending, headers=headers)
    told = figures(served)
    assert told['autotune_work_queue_seconds_count{kind="plan"}'] == 1
    assert told['autotune_work_run_seconds_count{kind="plan",state="done"}'] == 1
    assert told['autotune_works{kind="plan",outcome="fits",state="done"}'] == 1


def test_probes_are_counted_once_by_their_outcome(served: Served) -> None:
    work, headers = leased(served)
    lines = [
        {"utc": 1, "kind": "probed", "data": {"measurement": {"outcome": outcome}}}
        for outcome in ("ok", "oom", "ok", "<script>")
    ]
    body = {"worker": "w", "attempt": 1, "source": "events", "first": 0, "lines": lines}
    for _ in range(2):  # sent again after a loss
        served.client.post(f"/api/v1/worker/works/{work}/events", json=body, headers=headers)
    told = figures(served)
    assert told['autotune_probes_total{outcome="ok"}'] == 2
    assert told['autotune_probes_total{outcome="oom"}'] == 1
    assert told['autotune_probes_total{outcome="other"}'] == 1
    assert told['autotune_probes_total{outcome="timeout"}'] == 0


def test_requests_are_counted_by_route_and_not_by_what_is_asked_for(served: Served) -> None:
    for number in range(5):
        served.client.get(f"/api/v1/plans/{number:016x}")
        served.client.get(f"/x{number}")
        served.client.get(f"/static/{number}.js")
        served.client.request(f"M{number}", "/api/v1/plans")
    told = figures(served)
    route = 'method="GET",route="/api/v1/plans/{id}",status="404"'
    assert told[f"autotune_http_requests_total{{{route}}}"] == 5
    assert told['autotune_http_requests_total{method="GET",route="other",status="404"}'] == 5
    assert told['autotune_http_request_seconds_count{route="/api/v1/plans/{id}"}'] == 5
    assert told['autotune_http_requests_total{method="GET",route="/static",status="404"}'] == 5
    assert len([name for name in told if name.startswith("autotune_http_requests_total")]) == 4


def test_metrics_need_a_token_where_others_reach_the_service(
    serve: Callable[..., Served],
) -> None:
    served = serve(host="0.0.0.0")
    headers = served.token()
    assert served.client.get("/metrics").status_code == 401
    assert figures(served, headers)["autotune_workers"] == 0
