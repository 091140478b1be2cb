"""What pages make of values, and pages of works that a worker has ended: without a browser."""

import html
import io
import re
import zipfile
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bundle.readme import how_to_launch
from autotune.errors import UserError
from autotune.job.methods import METHODS
from autotune.server.pages.form import JobForm, form_of, is_config, is_name, submission_of
from autotune.server.pages.render import said_text
from autotune.server.pages.sign_in import HOME, _local
from autotune.server.pages.work import WIDTH, WorkState, _memory_bar
from autotune.server.store.events import Line, Lines
from autotune.server.store.values import Details, Ending, Event, WorkerInfo
from autotune.space.trl_config import settings
from tests.unit.builders import make_facts, make_job, make_space
from tests.unit.server.conftest import CSRF, JOB, Served

WORKER = WorkerInfo(name="w", device_kind="cpu", devices=1, device_name="a processor")
UNFIT: dict[str, Any] = {
    "answer": None,
    "lines": ["Nothing fits.", "Next: `autotune advise` looks for more."],
    "choices": [],
    "table": {"heads": [], "rows": [], "shared": "", "notes": []},
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
    form = JobForm(text=" qwen2.5-7b\n", device="24 GB", count="2", p50="300", max_length="1024")
    asked = submission_of(form)
    assert asked.job == {
        "model": "qwen2.5-7b",
        "method": "sft",
        "dataset": {"lengths": {"max": 1024, "p50": 300}},
        "tuning": "lora",
        "global_batch_size": 16,
        "max_length": 1024,
    }
    assert (asked.device, asked.devices) == ("24 GB", 2)
    run = submission_of(form.model_copy(update={"kind": "run"}))
    assert (run.job, run.device, run.devices) == (asked.job, None, None)


def test_a_page_of_the_hub_is_its_model() -> None:
    job = submission_of(JobForm(text="https://huggingface.co/Qwen/Qwen2.5-0.5B\n")).job
    assert isinstance(job, dict) and job["model"] == "Qwen/Qwen2.5-0.5B"


def test_a_job_in_the_box_is_taken_as_it_is() -> None:
    asked = submission_of(JobForm(text="model: a\ndataset: b\n", method="dpo"))
    assert asked.job == "model: a\ndataset: b\n"


def test_methods_that_generate_have_no_max_length() -> None:
    job = submission_of(JobForm(text="qwen2.5-7b", method="grpo")).job
    assert isinstance(job, dict)
    assert "max_length" not in job
    assert job["dataset"] == {"lengths": {"max": 2048}}


def test_hours_and_money_are_asked_for_several_machines() -> None:
    form = JobForm(text="a", device="all", prices="listed", deadline=" 20h", at_most="50$")
    asked = submission_of(form)
    assert (asked.prices, asked.deadline, asked.at_most) == ("listed", "20h", "50$")


def test_what_cannot_be_asked_for_is_refused(served: Served) -> None:
    with pytest.raises(UserError):
        submission_of(JobForm(text="  "))
    answer = asked(served, text="qwen2.5-0.5b", count="many", max_length="128")
    assert answer.status_code == 422 and "many" in answer.text and "devices" in answer.text


@given(parts=st.dictionaries(st.text(max_size=12), st.integers(0, 2**40), max_size=12),
       limit=st.integers(1, 2**40))  # fmt: skip
def test_a_bar_has_all_parts_beside_each_other(parts: dict[str, int], limit: int) -> None:
    total = sum(parts.values())
    choice = {"parts": parts, "peak_memory_bytes": total}
    bar = _memory_bar({"choices": [choice], "device": {"limit_bytes": limit}})
    assert bar is not None
    assert sum(size for _, size, *_ in bar["parts"]) == total
    assert all(x + width <= WIDTH + 0.1 for _, _, x, width, _ in bar["parts"])
    assert 0 <= bar["mark"] <= WIDTH
    assert _memory_bar({"choices": []}) is None


def test_a_way_out_is_applied_to_the_job_and_its_devices_are_the_forms() -> None:
    ways = [
        {"fields": {"tuning": "lora", "dataset_config": None}},
        {"fields": {"devices": {"count": 4}}},
    ]
    job = "model: a # mine\ndataset_config: small\ndevices: {memory: 20GiB}\n"
    arguments = ["--devices=2", "--only-default", "--at-most=50$"]
    work = Details.model_construct(
        id="0" * 16, job=job, arguments=arguments, result={"advice": {"ways": ways}}
    )
    assert form_of(work).text == form_of(work, 3).text == job
    form = form_of(work, 1)
    text = "model: a\ndevices:\n  memory: 20GiB\ntuning: lora\n"
    assert (form.text, form.count, form.at_most) == (text, "2", "50$")
    form = form_of(work, 2)
    text = "model: a\ndataset_config: small\ndevices:\n  memory: 20GiB\n  count: 4\n"
    assert (form.text, form.count, form.parent) == (text, "", work.id)


def test_a_line_is_escaped_and_its_code_is_shown_as_code() -> None:
    text = str(said_text("use `a: <b>` & more, +-20%"))
    assert text == "use <code>a: &lt;b&gt;</code> &amp; more, \N{PLUS-MINUS SIGN}20%"


@pytest.mark.parametrize(
    "next", ["//elsewhere.example", "https://elsewhere.example", "/\\elsewhere", "/a\nb", "", "a"]
)
def test_signing_in_never_leads_elsewhere(next: str) -> None:
    assert _local(next) == HOME
    assert _local("/works?x=1") == "/works?x=1"


def asked(served: Served, **form: Any) -> Any:
    """The answer to the form."""
    return served.client.post("/", data=form, headers={"x-csrf-token": CSRF, "hx-request": "true"})


def ended(served: Served, kind: str, result: dict[str, Any] | None, code: int = 1) -> str:
    """The id of a work that has ended with this."""
    id: str = served.submit(JOB, kind).json()["id"]
    service = served.service
    service.queue.register(WORKER, [])
    lease = service.queue.lease(WORKER, ["plan", "run"])
    assert lease is not None and lease.id == id
    service.queue.finish(WORKER.name, id, Ending(attempt=1, exit_code=code, result=result))
    return id


def test_a_way_out_is_planned_with_one_click_and_no_flag_is_shown(served: Served) -> None:
    id = ended(served, "plan", {**UNFIT, "advice": {"ways": [WAY]}})
    page = served.client.get(f"/plans/{id}").text
    link = f"/?from={id}&way=1"
    assert f'href="{html.escape(link)}"' in page
    assert "changes what is learned" in page and "autotune advise" not in page
    assert "tuning: lora" in served.client.get(link).text
    assert "tuning: lora" not in served.client.get(f"/?from={id}").text


@pytest.mark.parametrize(("name", "data"), [("my-data", ""), ("", " --dataset_name DATA")])
def test_the_command_to_copy_is_the_bundles_own(served: Served, name: str, data: str) -> None:
    chosen = settings(make_job(), make_facts(), make_space(make_job()).default())
    said = how_to_launch(replace(chosen, config={**chosen.config, "dataset_name": name}))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("bundle/README.md", "\n".join(said))
    id = ended(served, "plan", {**UNFIT, "advice": None})
    served.service.queue.keep_file(WORKER.name, id, "bundle.zip", archive.getvalue())
    command = f"unzip {id}-bundle.zip && bash bundle/launch.sh{data}<"
    assert html.escape(command[:-1]) + "<" in served.client.get(f"/plans/{id}").text


def test_every_method_that_the_form_offers_can_be_asked_for(served: Served) -> None:
    offered = re.findall(r"<option[^>]*>(\w+)</option>", served.client.get("/").text)
    methods = {name for name, method in METHODS.items() if not method.teacher}
    assert methods <= set(offered)
    for method in methods:
        answer = asked(served, text="qwen2.5-0.5b", method=method, max_length="128")
        assert answer.status_code == 204, (method, answer.text)


def test_several_machines_are_a_table_with_hours_and_money(served: Served) -> None:
    machines = [{"machine": "h100", "safe": True}, {"machine": "t4", "safe": False}]
    table = {
        "heads": ["", "machine", "hours"],
        "rows": [["*", "h100", "3.1"]],
        "notes": ["*: best"],
    }
    lines = ["Rent one H100: 3.1 h, 6.20 $."]
    id = ended(served, "plan", {"machines": machines, "table": table, "lines": lines})
    page = served.client.get(f"/plans/{id}").text
    assert "1 of 2 hold it" in page and "Rent one H100" in page
    assert '<td data-label="hours">3.1</td>' in page and "*: best" in page


def test_a_link_that_was_cut_short_leads_back_to_all_works(served: Served) -> None:
    answer = served.client.get("/plans/0123abc")
    assert answer.status_code == 404
    assert answer.text.count("Not found</h") == 1
    assert "may be cut short" in answer.text and 'href="/works"' in answer.text
    assert "[0-9a-f]" not in answer.text


def test_a_work_that_waits_says_for_what_and_shows_its_first_figures(served: Served) -> None:
    job = {**JOB, "model": str(served.models / "m" / "config.json")}
    service = served.service
    service.queue.register(WORKER, [])
    run = served.submit({**job, "devices": {"kind": "cuda", "count": 2}}, "run").json()["id"]
    assert "no worker that is here can take it" in served.client.get(f"/runs/{run}").text
    large = {**JOB, "model": "qwen2.5-7b", "tuning": "lora", "max_length": 512}
    plan = served.submit(large, device="h100").json()["id"]
    page = served.client.get(f"/plans/{plan}").text
    assert "it is the next in the queue" in page
    assert re.search(r"by formula, memory .*: [\d.]+k tokens/s", page) is not None
    assert served.client.get(f"/plans/{plan}/again").headers["hx-refresh"] == "true"
    service.works.cancel(run)
    assert served.client.get(f"/runs/{run}/again").status_code == 204
    assert "Resume" in served.client.get(f"/runs/{run}").text


def test_a_form_outlives_the_work_that_it_came_from(served: Served) -> None:
    answer = asked(served, text="qwen2.5-0.5b", max_length="128", parent="0" * 16)
    assert answer.status_code == 204, answer.text
    id = answer.headers["hx-redirect"].rpartition("/")[2]
    assert served.client.get(f"/api/v1/plans/{id}").json()["parent"] is None


def test_a_plan_that_is_changed_keeps_its_machines(served: Served) -> None:
    id = served.submit(JOB, device="h100", devices=8, nodes=2).json()["id"]
    form = {"text": "qwen2.5-0.5b", "max_length": "128", "device": "h100", "count": "8"}
    answer = asked(served, **form, parent=id)
    assert answer.status_code == 204, answer.text
    other = served.client.get(f"/api/v1{answer.headers['hx-redirect']}").json()
    assert "--nodes=2" in other["arguments"]


def test_what_an_event_makes_up_is_passed_over() -> None:
    work = Details.model_construct(state="running", started=1.0, created=0.0, method="sft")
    now = WorkState(work)
    for number, (kind, data) in enumerate(
        [("estimated", {}), ("line", {}), ("improved", {"text": 3}), ("line", {"text": "x"})], 1
    ):
        now.take(Event(number=number, utc=2.0, kind=kind, data=data))
    assert (list(now.lines), now.last) == ([(4, "x")], 4)
    assert now.rows(work)[0][0] == "now"


def test_only_what_can_be_run_here_has_a_button_for_it(served: Served) -> None:
    named = {**JOB, "model": "qwen2.5-0.5b"}
    here = {**JOB, "model": str(served.models / "m" / "config.json")}
    for job, there in ((named, False), (here, True)):
        id: str = served.submit(job).json()["id"]
        served.service.works.cancel(id)
        assert ("Run it here" in served.client.get(f"/plans/{id}").text) == there


def test_a_limit_that_was_asked_for_is_shown(served: Served) -> None:
    id = served.submit(JOB, device="h100,l40s", deadline="20h").json()["id"]
    served.service.works.cancel(id)
    page = served.client.get(f"/plans/{id}").text
    assert "deadline 20h" in page


def test_a_list_is_searched(served: Served) -> None:
    id = served.submit(JOB, device="h100").json()["id"]
    for query, there in (("text=h100", True), ("text=none", False), ("kind=run", False)):
        assert (id in served.client.get(f"/works?{query}").text) == there, query


def test_a_page_of_a_run_shows_its_lines_once(served: Served) -> None:
    job = {**JOB, "model": str(served.models / "m" / "config.json")}
    run, service = served.submit(job, "run").json()["id"], served.service
    service.queue.register(WORKER, [])
    assert service.queue.lease(WORKER, ["run"]) is not None
    lines = [Line(utc=0.0, kind="line", data={"text": f"probe {n}: <b>"}) for n in range(3)]
    sent = Lines(worker=WORKER.name, attempt=1, source="errors", first=0, lines=lines)
    service.events.take(run, sent)
    page = served.client.get(f"/runs/{run}").text
    assert page.count("probe 1: &lt;b&gt;") == 1 and f"/runs/{run}/events?after=3" in page
