"""Pages of works that a worker has ended, without a browser."""

import html
import io
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from autotune.bundle.readme import how_to_launch
from autotune.job.methods import METHODS
from autotune.server.pages.render import speed_text
from autotune.server.store.events import Line
from autotune.server.store.values import Ending, WorkerInfo
from tests.unit.server.conftest import CSRF, JOB, Served

WORKER = WorkerInfo(
    name="w", machine="m", device_kind="cpu", devices=[0], device_name="a processor"
)
UNFIT: dict[str, Any] = {
    "answer": None,
    "lines": ["Nothing fits."],
    "choices": [],
    "notes": [],
    "stopped": False,
    "cached": False,
    "seconds": 1.0,
    "counts": {"fit": 0, "candidates": 4},
    "device": {"name": "a GPU", "count": 1, "limit_bytes": 2**30},
}
WAY: dict[str, Any] = {
    "changes": [{"text": "`tuning: lora`", "kind": "recipe"}],
    "fields": {"tuning": "lora"},
    "knobs": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
    "estimate": {"peak_memory_bytes": 2**29, "tokens_per_s": 900.0},
    "speed": None,
    "packages": [],
}


def ended(served: Served, kind: str, result: dict[str, Any] | None) -> str:
    """The id of a work that has ended with this."""
    id: str = served.submit(JOB, kind).json()["id"]
    service = served.service
    service.queue.register(WORKER)
    lease = service.queue.lease(WORKER, ["plan", "run"])
    assert lease is not None and lease.id == id
    service.queue.finish(WORKER.name, id, Ending(attempt=1, exit_code=1, result=result))
    return id


def test_a_way_out_is_planned_with_one_click(served: Served) -> None:
    id = ended(served, "plan", {**UNFIT, "advice": {"ways": [WAY]}})
    page = served.client.get(f"/plans/{id}").text
    link = f"/plan?from={id}&way=1"
    assert f'href="{html.escape(link)}"' in page
    assert "tuning: lora" in served.client.get(link).text
    assert "tuning: lora" not in served.client.get(f"/plan?from={id}").text


@pytest.mark.parametrize(
    ("missing", "data"), [((), ""), (("dataset_name",), " --dataset_name DATA")]
)
def test_the_command_to_copy_is_the_bundles_own(
    served: Served, missing: tuple[str, ...], data: str
) -> None:
    said = how_to_launch(
        missing=missing, uses_vllm=False, first=None, processes=1, machines=1, split=None
    )
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("bundle/README.md", "\n".join(said))
    id = ended(served, "plan", {**UNFIT, "advice": None})
    served.service.queue.keep_file(WORKER.name, id, "bundle.zip", archive.getvalue())
    command = f"unzip {id}-bundle.zip && bash bundle/launch.sh{data}<"
    assert html.escape(command[:-1]) + "<" in served.client.get(f"/plans/{id}").text


def test_every_method_that_the_form_offers_can_be_asked_for(served: Served) -> None:
    page = {"x-csrf-token": CSRF}
    offered = re.findall(r"<option[^>]*>(\w+)</option>", served.client.get("/plan").text)
    assert set(METHODS) <= set(offered)
    for method in METHODS:
        form = {"text": "qwen2.5-0.5b", "method": method, "max_length": "128"}
        answer = served.client.post("/plan", data=form, headers=page)
        assert answer.status_code == 204, (method, answer.text)


CHOICE: dict[str, Any] = {
    "tokens_per_s": None,
    "speed_error": 0.2,
    "peak_memory_bytes": 2**29,
    "limit_bytes": 2**30,
    "p_oom": 0.01,
    "epoch_s": None,
    "safe": True,
    "knobs": {},
    "parts": {"weights": 2**29},
    "at_least": False,
}


def test_what_is_not_known_has_no_error(served: Served) -> None:
    result = {**UNFIT, "answer": CHOICE, "advice": None}
    id = ended(served, "plan", result)
    page = served.client.get(f"/plans/{id}").text
    assert "not known" in page and "±" not in page
    result["answer"] = {**CHOICE, "tokens_per_s": 900.0}
    id = ended(served, "plan", result)
    assert "±20%" in served.client.get(f"/plans/{id}").text


def test_memory_in_place_of_a_device_is_words_everywhere(served: Served) -> None:
    id = served.submit(JOB, device="memory=24GiB").json()["id"]
    other = served.submit(JOB).json()["id"]
    for path in ("/plan", "/history", f"/plans/{id}", f"/compare?a={id}&b={other}"):
        page = served.client.get(path).text
        assert "24 GiB" in page and "memory=" not in page, path


def test_a_run_that_nobody_can_take_or_that_never_began_says_so(served: Served) -> None:
    job = {**JOB, "model": str(served.models / "m" / "config.json")}
    service = served.service
    service.queue.register(WORKER)
    run = served.submit({**job, "devices": {"kind": "cuda", "count": 2}}, "run").json()["id"]
    assert served.client.get(f"/api/v1/runs/{run}").json()["takers"] == 0
    assert "No worker that is here can take it" in served.client.get(f"/runs/{run}").text
    plan = served.submit(JOB).json()["id"]
    assert "It is the next in the queue" in served.client.get(f"/plans/{plan}").text
    service.works.cancel(run)
    page = served.client.get(f"/runs/{run}").text
    assert "Nothing was measured yet" in page and "ruled out yet" not in page


def test_the_list_of_runs_has_the_best_speed_so_far(served: Served) -> None:
    job = {**JOB, "model": str(served.models / "m" / "config.json")}
    run, service = served.submit(job, "run").json()["id"], served.service
    service.queue.register(WORKER)
    assert service.queue.lease(WORKER, ["run"]) is not None
    assert "so far" not in served.client.get("/runs").text
    probes = [(1, 3000.0), (2, 5200.0), (3, 4000.0)]
    lines = [
        Line(utc=0.0, kind="probed", data={"probe": n, "knobs": {}, "measurement": measured(speed)})
        for n, speed in probes
    ]
    service.events.take(WORKER.name, run, 1, "events", 0, lines)
    assert f"{speed_text(5200.0)} <small>so far</small>" in served.client.get("/runs/queue").text


def measured(tokens_per_s: float) -> dict[str, Any]:
    """What a probe says that ended well."""
    figures = {"tokens_per_s": tokens_per_s, "peak_memory_bytes": 2**29, "seconds": 3.0}
    return {"outcome": "ok", "reason": "measured", **figures}


def test_a_form_outlives_the_work_that_it_came_from(served: Served) -> None:
    page = {"x-csrf-token": CSRF}
    form = {"text": "qwen2.5-0.5b", "max_length": "128", "parent": "0" * 16}
    answer = served.client.post("/plan", data=form, headers=page)
    assert answer.status_code == 204, answer.text
    id = answer.headers["hx-redirect"].rpartition("/")[2]
    assert served.client.get(f"/api/v1/plans/{id}").json()["parent"] is None


def test_pages_of_runs_link_to_the_dashboard_of_the_operator(serve: Callable[..., Served]) -> None:
    served = serve(dashboard="http://127.0.0.1:8080/?a=1&b=2")
    job = {**JOB, "model": str(served.models / "m" / "config.json")}
    run = served.submit(job, "run").json()["id"]
    assert 'href="http://127.0.0.1:8080/?a=1&amp;b=2"' in served.client.get(f"/runs/{run}").text
