"""What pages make of values, and pages of works that a worker has ended: without a browser."""

import html
import io
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bundle.readme import how_to_launch
from autotune.errors import UserError
from autotune.job.methods import METHODS
from autotune.server.pages.plan_form import (
    PlanForm,
    count_problems,
    device_of,
    device_text,
    form_of,
    is_config,
    is_name,
    submission_of,
)
from autotune.server.pages.plan_page import WIDTH, PlanProgress, memory_bar, slides_of
from autotune.server.pages.render import fragment, said_text, share_text, speed_text
from autotune.server.pages.run_progress import RunProgress, plot_of, ticks
from autotune.server.pages.sign_in import HOME, _local
from autotune.server.store.events import Line
from autotune.server.store.values import Details, Ending, Event, WorkerInfo
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


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("24 GB", "memory=24GiB"),
        ("24gib", "memory=24GiB"),
        ("79.5 GB", "memory=79.5GiB"),
        ("48", "memory=48GiB"),
        ("4090", "4090"),
        ("4090 GB", "memory=4090GiB"),
        ("RTX 4090", "RTX 4090"),
        ("cpu", "cpu"),
        (" ", ""),
    ],
)
def test_a_device_is_a_name_or_its_memory(text: str, device: str) -> None:
    assert device_of(text) == device
    assert device_of(device_text(device)) == device


@pytest.mark.parametrize(
    ("text", "name", "config"),
    [
        ("qwen2.5-7b", True, False),
        ("Qwen/Qwen2.5-7B", True, False),
        ("/data/models/mine", True, False),
        ("https://huggingface.co/Qwen/Qwen2.5-0.5B", True, False),
        ("https://huggingface.co/Qwen/Qwen2.5-0.5B/tree/main?x=1", True, False),
        ("https://example.org/Qwen/Qwen2.5-0.5B", False, False),
        ("https://huggingface.co/datasets/a/b", False, False),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', False, True),
        ("model: qwen2.5-7b", False, False),
        ('{"model_type": "llama"}', False, True),
        ('{"model_type": "llama", }', False, True),
        ('{"model": "x", "dataset": "y"}', False, False),
        ("model: a\ndataset: b", False, False),
    ],
)
def test_what_was_pasted_is_recognised(text: str, name: bool, config: bool) -> None:
    assert (is_name(text), is_config(text)) == (name, config)


def test_a_name_and_the_fields_are_a_job() -> None:
    form = PlanForm(text=" qwen2.5-7b\n", device="24 GB", count="2", p50="300", max_length="1024")
    asked = submission_of(form)
    assert asked.job == {
        "model": "qwen2.5-7b",
        "method": "sft",
        "dataset": {"lengths": {"max": 1024, "p50": 300}},
        "tuning": "lora",
        "global_batch_size": 16,
        "max_length": 1024,
    }
    assert (asked.device, asked.devices) == ("memory=24GiB", 2)


def test_a_page_of_the_hub_is_its_model() -> None:
    job = submission_of(PlanForm(text="https://huggingface.co/Qwen/Qwen2.5-0.5B\n")).job
    assert isinstance(job, dict) and job["model"] == "Qwen/Qwen2.5-0.5B"


def test_a_job_in_the_box_is_taken_as_it_is() -> None:
    form = PlanForm(text="model: a\ndataset: b\n", method="dpo", config='{"model_type": "llama"}')
    asked = submission_of(form)
    assert asked.job == "model: a\ndataset: b\n"
    assert asked.model_config_json == '{"model_type": "llama"}'


def test_methods_that_generate_have_no_max_length() -> None:
    job = submission_of(PlanForm(text="qwen2.5-7b", method="grpo")).job
    assert isinstance(job, dict)
    assert "max_length" not in job
    assert job["dataset"] == {"lengths": {"max": 2048}}


def test_what_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(UserError):
        submission_of(PlanForm(text="  "))
    (problem,) = count_problems("many")
    assert problem.where == "devices" and "many" in problem.what
    assert count_problems("2") == count_problems("") == []


@given(
    parts=st.dictionaries(st.text(max_size=12), st.integers(0, 2**40), max_size=12),
    limit=st.none() | st.integers(1, 2**40),
)
def test_a_bar_has_all_parts_beside_each_other(parts: dict[str, int], limit: int | None) -> None:
    total = sum(parts.values())
    bar = memory_bar(parts, total, limit)
    assert sum(segment.bytes for segment in bar.segments) == total
    assert all(segment.x + segment.width <= WIDTH + 0.1 for segment in bar.segments)
    assert bar.mark is None or 0 <= bar.mark <= WIDTH
    assert bar.fits == (limit is None or total <= limit)


def test_a_way_out_is_applied_to_the_job_and_its_devices_are_the_forms() -> None:
    ways = [
        {"fields": {"tuning": "lora", "dataset_config": None}},
        {"fields": {"devices": {"count": 4}}},
    ]
    job = "model: a # mine\ndataset_config: small\ndevices: {memory: 20GiB}\n"
    work = Details.model_construct(
        id="0" * 16, job=job, arguments=["--devices=2"], result={"advice": {"ways": ways}}
    )
    assert form_of(work, None).text == job
    assert form_of(work, None, 3).text == job
    form = form_of(work, None, 1)
    assert (form.text, form.count) == (
        "model: a\ndevices:\n  memory: 20GiB\ntuning: lora\n",
        "2",
    )
    form = form_of(work, None, 2)
    assert (form.text, form.count, form.parent) == (
        "model: a\ndataset_config: small\ndevices:\n  memory: 20GiB\n  count: 4\n",
        "1",
        work.id,
    )


def choice(size: int, peak: int, **changed: Any) -> dict[str, Any]:
    knobs = {"per_device_train_batch_size": size, "max_length": 512}
    plain = {"knobs": knobs, "peak_memory_bytes": peak, "p_oom": 0.0, "tokens_per_s": 1.0}
    return {**plain, "parts": {"weights": peak}, "at_least": False, **changed}


def test_sliders_have_the_best_choice_of_each_micro_batch_until_there_are_lengths() -> None:
    choices = [choice(4, 40), choice(2, 30), choice(4, 50), choice(8, 60, at_least=True)]
    result = {"choices": choices, "answer": choices[0], "device": {"limit_bytes": 100}}
    slides = slides_of(result, None)
    assert slides is not None
    assert (slides.micro_batches, slides.micro_batch, slides.whole) == ((2, 4), 4, False)
    assert slides.bar.total_bytes == 40
    point = {"max_length": 256, "micro_batch": 1, "peak_memory_bytes": 7, "parts": {"weights": 7}}
    lengths = {"schema": 1, "points": [point], "limit_bytes": 9}
    slides = slides_of(result, lengths)
    assert slides is not None
    assert (slides.lengths, slides.limit_bytes, slides.whole) == ((256,), 9, True)
    assert slides_of({**result, "choices": [], "answer": None}, None) is None


def test_a_line_is_escaped_and_its_code_is_shown_as_code() -> None:
    text = str(said_text("use `a: <b>` & more, +-20%"))
    assert text == "use <code>a: &lt;b&gt;</code> &amp; more, \N{PLUS-MINUS SIGN}20%"


def test_a_share_is_not_rounded_to_certainty() -> None:
    assert [share_text(share) for share in (0.0, 0.004, 0.5, 0.998, 1.0, None)] == [
        *("0%", "< 1%", "50%", "> 99%", "100%", "")
    ]


@given(low=st.floats(0, 1e6), span=st.floats(1e-3, 1e6))
def test_ticks_are_within_their_span(low: float, span: float) -> None:
    found = ticks(low, low + span, 5)
    slack = 1e-6 * (low + span)
    assert all(low - slack <= value <= low + span + slack for value in found)
    assert len(found) <= 7


def probed(number: int, outcome: str, speed: float | None, peak: int | None) -> Event:
    measured = {
        "outcome": outcome,
        "tokens_per_s": speed,
        "peak_memory_bytes": peak,
        "seconds": 2.0,
    }
    data = {"probe": number, "knobs": {}, "measurement": measured}
    return Event(number=number + 2, utc=0.0, kind="probed", data=data)


def test_a_probe_of_a_verification_is_not_of_the_budget() -> None:
    state = RunProgress()
    state.take(probed(0, "ok", 50.0, 2**30))
    state.take(Event(number=3, utc=0.0, kind="verifying", data={"probe": 0}))
    state.take(probed(1, "ok", 51.0, 2**30))
    state.take(Event(number=5, utc=0.0, kind="verified", data={"verified": False}))
    state.take(probed(2, "ok", 52.0, 2**30))
    assert (len(state.finished), state.searched) == (3, 2)


def test_the_best_probe_leaves_the_headroom_free() -> None:
    state = RunProgress(headroom=0.1)
    surveyed = {"limit_bytes": 100 * 2**30, "free_knobs": [], "model": {}, "candidates": 3}
    state.take(Event(number=1, utc=0.0, kind="surveyed", data=surveyed))
    assert plot_of(state) is None
    state.take(probed(0, "ok", 50.0, 95 * 2**30))
    state.take(probed(1, "ok", 40.0, 80 * 2**30))
    state.take(probed(2, "stopped", 60.0, None))
    state.take(probed(3, "oom", None, 100 * 2**30))
    assert state.best is not None
    assert (state.best.number, state.probing_s, state.last) == (1, 8.0, 5)
    plot = plot_of(state)
    assert plot is not None
    assert {dot.number: dot.kind for dot in plot.dots} == {0: "ok", 1: "best", 3: "failed"}
    assert plot.allowed is not None and plot.limit is not None
    assert plot.allowed < plot.limit


@pytest.mark.parametrize(
    "next", ["//elsewhere.example", "https://elsewhere.example", "/\\elsewhere", "/a\nb", "", "a"]
)
def test_signing_in_never_leads_elsewhere(next: str) -> None:
    assert _local(next) == HOME
    assert _local("/runs?x=1") == "/runs?x=1"


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


def test_the_best_by_formula_is_shown_until_an_estimate_is_there() -> None:
    state = PlanProgress()
    text = "(by formula, memory +-20%, speed +-30%): 8 x 2: 6.53k tokens/s, 46.7 GiB"
    state.take(Event(number=1, utc=0.0, kind="by_formula", data={"text": text}))
    work = {"state": "running"}
    shown = fragment("plan_now.html", work=work, state=state, bar=None, ended=False)
    assert html.escape(text) in shown
    assert "Nothing yet" in fragment("plan_now.html", work=work, state=PlanProgress(), bar=None)
