"""Pages and the API do not tell where the service has its folders."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import requests

from autotune.client import Client, Work
from tests.cpu.conftest import LLAMA
from tests.server.conftest import Served, served
from tests.server.restarts import heard, small_job


def texts_of(service: Served, work: Work) -> dict[str, str]:
    """All that can be asked for of a work, by path."""
    id, kind = work["id"], f"{work['kind']}s"
    paths = [f"/api/v1/{kind}", f"/api/v1/{kind}/{id}", f"/api/v1/{kind}/{id}/events"]
    paths += [f"/{kind}/{id}", f"/{kind}/{id}/events"]
    paths += ["/history", "/plan", f"/plan?from={id}", f"/runs/new?from={id}", "/runs"]
    if work["kind"] == "run":
        paths += [f"/api/v1/runs/{id}/report", f"/runs/{id}/report"]
        paths += [f"/runs/{id}/probes/{number}/log" for number in range(4)]
    answers = {path: requests.get(service.url + path, timeout=60) for path in paths}
    assert all(answer.status_code in (200, 404) for answer in answers.values()), answers
    return {path: answer.text for path, answer in answers.items()}


def assert_no_path(service: Served, work: Work) -> dict[str, str]:
    texts = texts_of(service, work)
    if "bundle.zip" in work["files"]:
        archive = zipfile.ZipFile(io.BytesIO(Client(service.url).bundle(work)))
        texts |= {name: archive.read(name).decode() for name in archive.namelist()}
    for path, text in texts.items():
        assert str(service.folder) not in text, path
        # A report is what `autotune report` writes, for the folder `run` of a bundle.
        assert path.endswith("/report") or "autotune run --resume" not in text, path
    return texts


def submit(client: Client, kind: Any, **changes: Any) -> Work:
    """A job whose model is a config alone: the worker lays it down in a folder of its own."""
    options = {"device": "h100"} if kind == "plan" else {}
    config = {**LLAMA, **changes}
    job = small_job(Path("config.json"))
    return client.submit(kind, json.loads(job), model_config_json=config, **options)


@pytest.mark.nightly("service")
def test_no_page_and_no_answer_names_a_folder_of_the_service(
    tmp_path: Path, plan_cache: Path
) -> None:
    with served(tmp_path, plan_cache) as service:
        client = Client(service.url)
        run = submit(client, "run")
        heard(client, run, "probed")
        client.cancel(run)
        run = client.wait(run)
        assert run["state"] == "cancelled"
        texts = assert_no_path(service, run)
        resume = f"POST /api/v1/runs/{run['id']}/resume"
        assert resume in texts[f"/api/v1/runs/{run['id']}/events"]
        assert f"/runs/{run['id']}/resume" in texts[f"/runs/{run['id']}"], "the button"
        client.resume(run)
        done = client.wait(run)
        assert (done["state"], "bundle.zip" in done["files"]) == ("done", True)
        config = assert_no_path(service, done)["bundle/sft_config.yaml"]
        assert "\nmodel_name_or_path: ./run/model\n" in f"\n{config}"
        plan = client.wait(submit(client, "plan"))
        assert (plan["outcome"], "bundle.zip" in plan["files"]) == ("fits", True)
        assert_no_path(service, plan)
        for kind in ("run", "plan"):
            failed = client.wait(submit(client, kind, hidden_act="no"))
            assert failed["state"] == "failed"
            assert_no_path(service, failed)
