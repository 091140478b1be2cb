"""The whole of it: a service, its worker, and real runs; nightly, each part of it dies once.

The nightly tests share a service, which goes from one to the next as it is left.
"""

import contextlib
import io
import json
import os
import re
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from autotune.client import Event, Work
from autotune.errors import UserError
from autotune.server.worker.output import Shown
from tests.cpu.conftest import LLAMA, Command, write_model
from tests.server.conftest import Served
from tests.server.restarts import LONG_S, Keeper, Processes, heard, small_job, until

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path_factory.mktemp("service"), plan_cache)
    yield keeper
    keeper.stop()


@pytest.fixture
def autotune(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(scope="module")
def job(service: Keeper) -> str:
    return small_job(write_model(service.now.models / "model", LLAMA))


def on_disk(folder: Path) -> list[Any]:
    """What the commands of all attempts wrote down."""
    records = sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.partition("-")[2]))
    texts = [(one / "events.jsonl").read_text(encoding="utf-8") for one in records]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def assert_complete(events: list[Event], folder: Path) -> None:
    """Each once, in their order, as the commands wrote them, but for the folder of the work."""
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    told = [event for event in events if event["kind"] != "line"]
    written = Shown(folder.parent, folder.name).text(json.dumps(on_disk(folder)))
    assert [{k: v for k, v in one.items() if k != "number"} for one in told] == json.loads(written)


def documented(
    url: str, job: str, folder: Path, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The names that the documented program ends with, in a folder; `meanwhile` is called then."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), flags=re.DOTALL)
    assert code.count("http://127.0.0.1:8642") == 1
    (folder / "job.yaml").write_text(job, encoding="utf-8")
    names: dict[str, Any] = {}
    with contextlib.chdir(folder), ThreadPoolExecutor(1) as threads:
        program = threads.submit(exec, code.replace("http://127.0.0.1:8642", url), names)
        meanwhile()
        program.result(LONG_S)
    return names


def assert_documented(names: dict[str, Any], works: Path, out: str) -> list[Event]:
    """The program's run has a bundle, and it heard all of it; the events of its run."""
    client, run, plan = names["client"], names["run"], names["plan"]
    assert (run["state"], run["outcome"]) == ("done", "recommended")
    verification = run["result"]["verification"]
    # Beside other tests the speed of a launch may be another than that of its probe.
    speed_alone = verification["only_too_slow"] or verification["only_too_fast"]
    assert run["exit_code"] == 0 or speed_alone, verification
    events = list(client.follow(run))
    assert_complete(events, works / run["id"])
    told = [event["data"]["text"] for event in events if event["kind"] == "line"]
    assert out.startswith("\n".join(told)), "the program heard each line, once"
    assert plan["text"] in out and str(run["result"]["knobs"]) in out and client.report(run) in out
    archive = zipfile.ZipFile(io.BytesIO(client.bundle(run)))
    assert {"bundle/launch.sh", "bundle/sft_config.yaml"} <= set(archive.namelist())
    assert b"\noutput_dir: output\n" in archive.read("bundle/sft_config.yaml"), "not into ours"
    # The plan was made beside the run, for a GPU that is not there.
    assert plan["started"] < run["ended"] and plan["outcome"] == "fits" and "H200" in plan["device"]
    return events


def test_the_documented_program_gets_a_verified_bundle(
    service_url: Served, tmp_path: Path, capsys: Any
) -> None:
    job = small_job(write_model(service_url.models / "documented", LLAMA), probes=1)
    names = documented(service_url.url, job, tmp_path)
    assert names["run"]["attempt"] == 1
    assert_documented(names, service_url.folder / "works", capsys.readouterr().out)


@pytest.mark.nightly("service")
def test_it_does_whatever_dies_meanwhile(
    service: Keeper, job: str, tmp_path: Path, capsys: Any
) -> None:
    def deaths() -> None:
        run = until(lambda: service.client.list("run")["items"], "a run")[0]
        goes_on_without_its_service(service, run)
        goes_on_when_its_worker_was_late(service, run)
        returns_to_the_queue_with_its_service(service, run)
        is_taken_again_when_its_worker_dies(service, run)

    names = documented(service.now.url, job, tmp_path, deaths)
    assert names["run"]["attempt"] == 3
    out = capsys.readouterr().out
    events = assert_documented(names, service.now.folder / "works", out)
    probes = [event["data"]["probe"] for event in events if event["kind"] == "probing"]
    assert probes.count(0) == 1, "what was measured is kept"


def goes_on_without_its_service(service: Keeper, run: Work) -> None:
    heard(service.client, run, "probing", probe=0)
    worker, written = service.worker(), service.folder(run) / "attempt-1" / "events.jsonl"
    service.kill()
    until(lambda: '"kind": "probed"' in written.read_text("utf-8"), "a probe without a service")
    service.start_again()
    assert service.worker() == worker
    heard(service.client, run, "probing", probe=1)
    assert service.client.get("run", run["id"])["attempt"] == 1


def goes_on_when_its_worker_was_late(service: Keeper, run: Work) -> None:
    """It stands still for longer than its lease, which ends here at once."""
    worker = service.worker()
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: service.end_lease(run) == "queued", "the lease has ended")
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: service.stored(run) == "running", "it goes on")
    assert (service.worker(), service.client.get("run", run["id"])["attempt"]) == (worker, 1)


def returns_to_the_queue_with_its_service(service: Keeper, run: Work) -> None:
    first = service.folder(run) / "run" / "probes" / "0000" / "reply.json"
    measured = first.read_bytes()
    running = Processes(service.worker())
    service.stop()
    assert service.stored(run) == "queued"
    assert not running.living()
    service.start_again()
    again = service.client.get("run", run["id"])["events"]
    heard(service.client, run, "surveyed", after=again)  # its probes may be over by now
    assert service.client.get("run", run["id"])["attempt"] == 2
    assert first.read_bytes() == measured


def is_taken_again_when_its_worker_dies(service: Keeper, run: Work) -> None:
    quiet = {"probing", "verifying", "verification_stage"}
    until(lambda: on_disk(service.folder(run))[-1]["kind"] in quiet, "a probe or a launch")
    time.sleep(1.0)  # what was said is sent; what a worker that is killed has not sent is lost
    worker = service.worker()
    running = Processes(worker)
    assert len(running.living()) > 2
    os.kill(worker, signal.SIGKILL)
    until(lambda: not running.living(), "what the worker ran is gone")
    until(lambda: service.client.get("run", run["id"])["attempt"] == 3, "another attempt")
    assert service.worker() != worker


@pytest.mark.nightly("service")
def test_runs_wait_for_each_other_and_can_be_cancelled_at_any_time(
    service: Keeper, job: str
) -> None:
    client = service.client
    first, waiting, last = (client.submit("run", job) for _ in range(3))
    heard(client, first, "surveying")
    assert client.get("run", last["id"])["ahead"] == 1
    assert client.cancel(waiting)["state"] == "cancelled"
    assert client.get("run", last["id"])["ahead"] == 0
    running = Processes(service.worker(), first["id"])
    assert running.living()
    client.cancel(first)
    until(lambda: client.get("run", last["id"])["state"] == "running", "the last one")
    began = client.cancel(last)["started"]
    one, other = client.wait(first), client.wait(last)
    assert (one["state"], other["state"]) == ("cancelled", "cancelled") and one["ended"] <= began
    assert not running.living()
    with pytest.raises(UserError, match="it has ended already"):
        client.cancel(first)


@pytest.mark.nightly("service")
def test_the_command_line_says_what_the_service_does(
    service: Keeper, job: str, autotune: Command
) -> None:
    """The model's config is in a folder that no job over HTTP may name: it goes along."""
    here, server = autotune.folder, ("--server", service.now.url)
    write_model(here / "model", LLAMA)
    (here / "job.yaml").write_text(json.dumps({**json.loads(job), "model": "model/config.json"}))
    flags = ("--set", "loss_type=nll", "--budget", "1", *server)
    process = autotune.start("run", "job.yaml", *flags)
    assert process.stderr is not None
    run = re.findall("run ([0-9a-f]{16}) is ", process.stderr.readline())[0]
    said = next(line for line in process.stderr if line.startswith("model "))
    assert said == "model   LlamaForCausalLM, 0.2 M parameters, random weights\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert f"autotune run --server {service.now.url} --attach {run}" in err
    plan, local = (
        json.loads(autotune("plan", "job.yaml", *where, "--json", "--emit", name))
        for where, name in ((server, "planned"), ((), "planned-here"))
    )
    assert plan.pop("bundle") == str(here / "planned")
    assert local.pop("bundle") == str(here / "planned-here")
    assert plan | {"seconds": 0.0} == local | {"seconds": 0.0}
    assert os.access(here / "planned" / "launch.sh", os.X_OK)
    done = service.client.list("run", state="done")["items"]
    if done:  # else this test is run by itself
        with contextlib.suppress(UserError):  # it has ended meanwhile
            service.client.cancel({"kind": "run", "id": run})
        service.client.wait(service.client.get("run", run))
        run = done[0]["id"]
    out = autotune("run", *server, "--attach", run, "--out", "out", expect=None)
    assert out == service.client.get("run", run)["text"]
    assert "fastest stable candidate" in out
    assert os.access(here / "out" / "bundle" / "launch.sh", os.X_OK)
    said = autotune.refused("run", "job.yaml", *server, "--resume", "x", "--no-verify")
    assert "JOB: " in said and "--no-verify: " in said
    said = autotune.refused("run", "job.yaml", *server, "--set", f"model={here / 'model'}")
    assert "is not under a folder that jobs over HTTP may name" in said


@pytest.mark.nightly("service")
def test_what_is_deleted_is_gone_and_a_plan_that_takes_too_much_memory_says_so(
    service: Keeper, job: str, autotune: Command
) -> None:
    client = service.client
    old = client.list("run")["items"]
    kept = [one for one in old if service.folder(one).exists()]
    for one in old:
        client.delete(one)
    service.stop()
    service.start(plan_memory="200MiB")
    until(lambda: not any(service.folder(one).exists() for one in kept), "folders are forgotten")
    (autotune.folder / "job.yaml").write_text(job, encoding="utf-8")
    process = autotune.start("plan", "job.yaml", "--server", service.now.url)
    out, err = process.communicate(timeout=LONG_S)
    assert (process.returncode, out) == (3, "")
    assert err.count("more than the 0.195 GiB that the operator gives it") == 1
