"""Models, data, replies of children and answers of a service that are damaged at random: facts or
words, never an error that nobody expects, and no hang. `scripts/nightly` does it for longer.
"""

import contextlib
import http.server
import json
import random
import shutil
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tqdm.std import tqdm

from autotune import client
from autotune.errors import AutotuneError, UserError, machine_error
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.speed.ceilings import ceilings_of_kind
from autotune.facts import facts_from_plain
from autotune.facts.device_kinds import find_kind
from autotune.plain_data import to_plain
from autotune.plan import children
from autotune.plan.cache import PlanCache
from autotune.plan.children import untraced
from autotune.plan.device import measured_ceilings
from autotune.probe import survey_worker
from autotune.probe.measure import probe_task, probed
from autotune.probe.protocol import SurveyRequest
from autotune.probe.survey import read_survey_reply, survey
from autotune.process.limits import Ending
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.run import planned_bundle
from autotune.run.deadline import Deadline
from autotune.run.verify import _prepare_data
from autotune.search.recommend import Ranked
from autotune.space.trl_config import settings
from autotune.training.rehearsal import RehearsalReply
from tests.unit.builders import make_candidate, make_facts, make_job, ok
from tests.unit.calling import call
from tests.unit.past_run import write_planned
from tests.unit.run.damage import damage
from tests.unit.test_fuzz import EXECUTIONS, in_time

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
CHAT = [{"role": "user", "content": "<3> <4>"}, {"role": "assistant", "content": "<5>"}]
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, with a tokenizer and a template."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    survey_worker.make_tokenizer(folder, 64)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def write_rows(folder: Path) -> None:
    """Rows as each reader of data has them."""
    import datasets

    rows = [{"messages": CHAT} for _ in range(6)]
    texts = [{"text": f"<3> <{n}>"} for n in range(6)]
    tokens = [{"input_ids": [3, 4, n], "labels": [-100, 4, n]} for n in range(6)]
    for name, data, write in (
        ("chats.jsonl", rows, "to_json"),
        ("tokens.jsonl", tokens, "to_json"),
        ("texts.csv", texts, "to_csv"),
        ("chats.parquet", rows, "to_parquet"),
        ("tokens.parquet", tokens, "to_parquet"),
    ):
        getattr(datasets.Dataset.from_list(data), write)(folder / name)
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")


def look_at(model: Path, data: Path, place: Path) -> None:
    """Look at a model and its data as a survey's child does, and take its reply as its parent."""
    folder = ChildFolder(path=place)
    folder.path.mkdir()
    request = SurveyRequest(
        method="sft",
        model=str(model),
        weights="random",
        dataset=str(data),
        dataset_config=None,
        train_split="train",
        test_split="test",
        lengths=None,
        training={},
        seed=0,
        run_folder=str(place / "run"),
    )
    write_json(folder.request, request.plain())
    survey_worker.survey(folder.path)
    with contextlib.suppress(UserError):
        read_survey_reply(read_json(folder.reply), None)


def assert_survived(
    whole: Path, folder: Path, names: Sequence[str], look: Callable[[str], None]
) -> None:
    """Damage one of the files, again and again, and look at it."""
    rng, faults = random.Random(7), []
    for number in range(EXECUTIONS):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        name = rng.choice(names)
        said = f"{number}: {name} {damage(folder / name, rng)}"
        try:
            with pytest.MonkeyPatch.context() as patched, in_time(said):
                patched.setattr(tqdm, "update", tqdm.update)  # a survey hears of it
                look(name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            faults.append(f"{said}: {type(error).__name__}: {str(error)[:200]}")
    assert not faults, f"{len(faults)} of {EXECUTIONS}:\n" + "\n".join(faults)


TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.mark.parametrize("names", [("config.json",), TOKENIZER], ids=["config", "tokenizer"])
def test_a_model_that_is_damaged(model: Path, tmp_path: Path, names: Sequence[str]) -> None:
    folder, data = tmp_path / "damaged", tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n", encoding="utf-8")
    assert_survived(model, folder, names, lambda _: look_at(folder, data, folder / "survey"))


def test_data_that_are_damaged(model: Path, tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "damaged"
    whole.mkdir()
    write_rows(whole)

    def look(name: str) -> None:
        if (folder / name).read_bytes().startswith((b"null", b"[null")):
            return  # pyarrow crashes: tests/cpu/test_hostile_jobs.py
        data = folder / "data"
        data.mkdir()
        shutil.copy(folder / name, data / f"train{Path(name).suffix}")
        look_at(model, data, folder / "survey")

    assert_survived(whole, folder, sorted(path.name for path in whole.iterdir()), look)


class Forger:
    """Stands for the server of children: each leaves a file as its reply and ends well."""

    def __init__(self, reply: Path) -> None:
        self._reply = reply

    def run(self, folder: ChildFolder, *_: object, **__: object) -> Ending:
        folder.path.mkdir(parents=True, exist_ok=True)
        shutil.copy(self._reply, folder.reply)
        return Ending(
            why="exited", exit_code=0, signal=None, max_rss_bytes=1, strays=0, seconds=1.0
        )


def replies(folder: Path) -> None:
    """Of each kind of child a good one."""
    facts, rates = make_facts(), ceilings_of_kind(find_kind("h100"))
    assert rates is not None
    good: dict[str, Any] = {
        "probe": {**ok(100.0, 2**30).plain(), "stages_s": {"train": 1.0}, "ranks": [{"rank": 0}]},
        "survey": {"problems": [], "model": asdict(facts.model), "data": asdict(facts.data)},
        "problems": {"problems": [["dataset", "has no rows", None]]},
        "trace": untraced("why").plain(),
        "rehearsal": RehearsalReply(untimed=2, timed=4, sizes=[10, 20, 30, 40]).plain(),
        "ceilings": {"ceilings": to_plain(rates), "processor_wait_share": 0.0},
    }
    for name, reply in good.items():
        write_json(folder / f"{name}.json", reply)


def take(kind: str, server: Any, folder: Path) -> None:
    """What a parent makes of a reply."""
    job, facts, candidate = make_job(), make_facts(), make_candidate()
    run = RunFolder(path=folder / "run")
    run.verification.mkdir(parents=True)
    place = ChildFolder(path=folder / "child")
    if kind == "probe":
        chosen = settings(job, facts, candidate)
        task = probe_task(chosen, rows=folder, limit=2**40)
        found: Any = probed(server, place, task.plain())
        assert read_json(place.measurement) == found.plain()
    elif kind in ("survey", "problems"):
        found = survey(job, run, server)
        assert facts_from_plain(read_json(run.facts)) == found
    elif kind == "trace":
        traced: Any = SimpleNamespace(request=SimpleNamespace(plain=dict))
        count: Any = SimpleNamespace(watch=None, ended=lambda: None)
        found = children._in_child(traced, server, place.path, count, threading.Event())
        assert isinstance(found, EstimateReply)
    elif kind == "rehearsal":
        launched = settings(job, facts, candidate)
        ranked = Ranked(number=0, candidate=candidate, measurement=ok(100.0, 2**30))
        found = _prepare_data(run, launched, ranked, server, Deadline())
        assert found is None or found.steps >= found.timed
    else:
        measured_ceilings(facts, PlanCache(path=folder / "cache"), server, place)


def test_replies_that_are_damaged(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "damaged"
    whole.mkdir()
    replies(whole)

    def look(name: str) -> None:
        with contextlib.suppress(AutotuneError):
            take(Path(name).stem, Forger(folder / name), folder)

    assert_survived(whole, folder, sorted(path.name for path in whole.iterdir()), look)


def test_a_plans_bundle_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to where it would be trained."""
    whole, folder = tmp_path / "whole", tmp_path / "damaged"
    write_planned(tmp_path, whole)

    def no_server(_: Path) -> None:
        raise machine_error("here it would begin to train")

    monkeypatch.setattr(planned_bundle, "ChildServer", no_server)

    def look(_: str) -> None:
        result = call("verify", folder)
        assert result.exit_code in (2, 3) and "Traceback" not in result.stderr, result.stderr

    look_at_whole = call("verify", whole)
    assert "here it would begin" in look_at_whole.stderr
    files = [str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file()]
    assert_survived(whole, folder, sorted(files), look)


ANSWERS = ("work.json", "details.json", "refusal.json", "events.jsonl", "bundle.zip")


def answers(folder: Path) -> None:
    """Of each kind of answer of a service a good one."""
    work = {"kind": "plan", "id": "0" * 16, "state": "done", "ahead": None, "exit_code": 0}
    work |= {"error": None, "events": 2, "result": {"model": {"name": "m"}}, "text": "answer\n"}
    errors = [{"where": "job:3", "what": "no knob `optimm`", "hint": None}]
    documents = {
        "work": {"kind": "plan", "id": "0" * 16},
        "details": {**work, "files": ["bundle.zip"]},
        "refusal": {"detail": "1 problem", "errors": errors},
    }
    for name, document in documents.items():
        write_json(folder / f"{name}.json", document)
    events = [
        {"number": 1, "utc": 0.0, "kind": "line", "data": {"text": "so far"}},
        {"number": 2, "utc": 0.0, "kind": "estimated", "data": {"done": 1, "of": 2}},
    ]
    text = "".join(f"{json.dumps(event)}\n" for event in events)
    (folder / "events.jsonl").write_text(text, encoding="utf-8")
    with zipfile.ZipFile(folder / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("launch.sh", "run/job.yaml", "README.md"):
            archive.writestr(f"bundle/{name}", f"{name} " * 99)


class Damaged(http.server.BaseHTTPRequestHandler):
    """A service whose answers lie in a folder."""

    folder: ClassVar[Path]
    refuses: ClassVar[bool] = False

    def answer(self) -> None:
        """What there is to say, whole; the connection ends with it."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, body = "application/json", self.folder / "details.json"
        if self.command == "POST":
            body = self.folder / ("refusal.json" if self.refuses else "work.json")
        elif self.path.endswith("bundle.zip"):
            body = self.folder / "bundle.zip"
        elif self.path.endswith("events"):
            kind, body = "text/event-stream", self.folder / "events.jsonl"
        data = body.read_bytes()
        if body.suffix == ".jsonl":
            data = b"".join(b"data: %s\n\n" % line for line in data.splitlines())
            data += b"event: end\ndata: {}\n\n"
        self.send_response(422 if self.refuses else 200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_answers_of_a_service_that_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "damaged"
    whole.mkdir()
    answers(whole)
    monkeypatch.setattr(client, "_PAUSE_S", 0.0)
    monkeypatch.setattr(client.Client.__init__, "__kwdefaults__", {"patience_s": 0.0})
    monkeypatch.setattr(Damaged, "folder", whole, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Damaged)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    plan = ("plan", "--model", "qwen2.5-7b", "--max-length", "64", "--server", url, "--emit")

    def look(name: str) -> None:
        monkeypatch.setattr(Damaged, "refuses", name == "refusal.json")
        result = call(*plan, folder / "out")
        assert "Traceback" not in result.stderr, result.stderr
        assert result.exit_code in (0, 1, 2, 3, 4, 130), result.exit_code
        assert result.exit_code == 0 or not name.endswith("zip") or not (folder / "out").exists()

    try:
        folder.mkdir()
        look("")
        assert (folder / "out" / "run" / "job.yaml").is_file()
        monkeypatch.setattr(Damaged, "folder", folder)
        assert_survived(whole, folder, ANSWERS, look)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
