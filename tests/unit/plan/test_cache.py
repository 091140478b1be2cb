"""What plans have found, kept for the next one."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.estimate.protocol import EstimateReply, PointReply, ShapeWork
from autotune.facts import stack
from autotune.plan import cache as plan_cache
from autotune.plan.cache import NO_ANSWER, PlanCache
from tests.unit.builders import make_facts, make_job, shipped
from tests.unit.estimate.speed.test_step_time import CEILINGS

REPLY = EstimateReply(
    points=[
        PointReply(
            peak_allocated_bytes=5,
            peak_reserved_bytes=8,
            parts={"weights": 5},
            operator="aten::mm",
            phase="micro-step",
            oom=False,
            missing_bytes=None,
            retries=1,
            phases={"step": 3},
            sample=[(7, 8, 2)],
            masked=True,
            method="scaled trace",
        )
    ],
    shapes=[ShapeWork(rows=1, length=8, masked=False, flat=True, work=[["aten::mm", 1]])],
    optimizer_work={"": [["aten::add", 2]]},
    process_bytes=9,
)


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(path=tmp_path / "cache ü")


@pytest.fixture
def job(tmp_path: Path):
    """A job on a local model and local data."""
    (tmp_path / "model").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"layers": 2}')
    (tmp_path / "data" / "train.jsonl").write_text('{"text": "a"}\n')
    return make_job(model=str(tmp_path / "model"), dataset=str(tmp_path / "data"))


def key(cache, job, definition=None, device="h200"):
    return cache.key(job, definition or shipped(), device)


# -- the key


def test_the_same_question_has_the_same_key(cache, job):
    assert key(cache, job) == key(PlanCache(path=Path("/elsewhere")), job.model_copy())
    assert key(cache, job) is not None


def test_a_built_in_model_of_a_hub_has_a_key_where_no_tokenizer_is_needed(cache, job):
    names = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B", "somebody/else")
    keys = [key(cache, make_job(model=name)) for name in names]
    assert None not in keys[:2]
    assert keys[0] != keys[1]
    assert keys[2] is None
    assert key(cache, job.model_copy(update={"model": names[0]})) is None


def test_another_job_device_or_space_is_another_key(cache, job):
    space = shipped()
    other = replace(space, knobs=space.knobs[1:])
    keys = {
        key(cache, job),
        key(cache, job, device="a100"),
        key(cache, job, other),
        key(cache, job.model_copy(update={"global_batch_size": 8})),
        key(cache, job.model_copy(update={"training": {"learning_rate": 1e-4}})),
    }
    assert len(keys) == 5


def test_another_version_of_anything_is_another_key(cache, job, monkeypatch):
    keys = {key(cache, job)}
    monkeypatch.setattr(plan_cache, "code_version", lambda: "99.0")
    keys.add(key(cache, job))
    installed = stack.installed()
    newer = replace(installed, versions={**installed.versions, "torch": "99.0"})
    monkeypatch.setattr(stack, "installed", lambda: newer)
    keys.add(key(cache, job))
    monkeypatch.setattr(plan_cache, "SCHEMA", -1)
    keys.add(key(cache, job))
    assert len(keys) == 4


def test_another_config_of_the_model_is_another_key_and_other_weights_are_not(cache, job):
    before = key(cache, job)
    (Path(job.model) / "model.safetensors").write_bytes(b"weights")
    assert key(cache, job) == before
    (Path(job.model) / "config.json").write_text('{"layers": 3}')
    assert key(cache, job) != before


def test_a_model_may_be_a_bare_config(cache, job):
    file = Path(job.model) / "config.json"
    bare = job.model_copy(update={"model": str(file)})
    before = key(cache, bare)
    file.write_text('{"layers": 4}')
    assert None not in (before, key(cache, bare))
    assert key(cache, bare) != before


def test_data_that_changed_is_another_key(cache, job):
    file = Path(job.dataset) / "train.jsonl"
    os.utime(file, ns=(10**18, 10**18))
    keys = [key(cache, job)]
    os.utime(file, ns=(10**18, 10**18 + 1000))
    keys.append(key(cache, job))
    file.write_text('{"text": "ab"}\n')
    os.utime(file, ns=(10**18, 10**18))
    keys.append(key(cache, job))
    other = file.with_suffix(".new")
    other.write_text('{"text": "cd"}\n')  # of the same size and time, as `cp -p` makes it
    os.utime(other, ns=(10**18, 10**18))
    other.replace(file)
    keys.append(key(cache, job))
    (Path(job.dataset) / "deeper").mkdir()
    (Path(job.dataset) / "deeper" / "test.jsonl").write_text("")
    keys.append(key(cache, job))
    assert len(set(keys)) == 5
    alone = job.model_copy(update={"dataset": str(file)})
    assert key(cache, alone) not in (None, *keys)


@pytest.mark.parametrize("changes", [{"model": "org/name"}, {}])
def test_what_may_change_unseen_is_not_remembered(cache, job, changes):
    """A model of the hub, and a device that is here (its free memory is looked at each time)."""
    asked = job.model_copy(update=changes)
    assert key(cache, asked, device="h200" if changes else None) is None


def test_data_of_the_hub_are_not_remembered(cache, job):
    assert key(cache, job.model_copy(update={"dataset": "org/data"})) is None


# -- what is kept


def test_a_plan_is_read_back_as_it_was_written(cache):
    assert cache.read("k") is None
    cache.write("k", make_facts("cuda"), [REPLY, replace(REPLY, problem="no")])
    facts, replies = cache.read("k")
    assert facts == make_facts("cuda")
    assert replies[0].plain() == json.loads(json.dumps(REPLY.plain()))
    assert [reply.problem for reply in replies] == [None, "no"]
    assert isinstance(replies[0].points[0], PointReply)
    assert isinstance(replies[0].shapes[0], ShapeWork)


@pytest.mark.parametrize("problem", ["problem", "engine_problem"])
def test_a_plan_is_not_kept_where_a_trace_was_ended(cache, problem):
    for said in (f"{NO_ANSWER}: exit code None, signal 9", "OSError: No space left on device"):
        cache.write("k", make_facts("cuda"), [REPLY, replace(REPLY, **{problem: said})])
        assert cache.read("k") is None
    failed = replace(REPLY, **{problem: "RuntimeError: got mixed torch.Tensor and DTensor"})
    cache.write("k", make_facts("cuda"), [REPLY, failed])
    assert cache.read("k") is not None


def test_ceilings_are_kept_by_device_and_torch(cache, monkeypatch):
    assert cache.ceilings("a device") is None
    cache.keep_ceilings("a device", CEILINGS)
    assert cache.ceilings("a device") == CEILINGS
    assert cache.ceilings("another device") is None
    installed = stack.installed()
    newer = replace(installed, versions={**installed.versions, "torch": "99.0"})
    monkeypatch.setattr(stack, "installed", lambda: newer)
    assert cache.ceilings("a device") is None


def test_a_folder_that_cannot_be_written_costs_only_speed(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = PlanCache(path=tmp_path / "file")
    cache.write("k", make_facts(), [REPLY])
    cache.keep_ceilings("a device", CEILINGS)
    assert cache.read("k") is None
    assert cache.ceilings("a device") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"facts": {}, "replies": []}'])
def test_a_kept_plan_that_cannot_be_read_is_made_again(cache, text):
    file = cache.path / "plans" / "k.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert cache.read("k") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_kept_ceilings_that_cannot_be_read_are_measured_again(cache, text):
    cache.keep_ceilings("a device", CEILINGS)
    (file,) = (cache.path / "ceilings").iterdir()
    file.write_text(text)
    assert cache.ceilings("a device") is None


def test_the_folder_is_the_users(tmp_path, monkeypatch):
    assert PlanCache.of_user().path == Path(os.environ["AUTOTUNE_CACHE"])
    monkeypatch.delenv("AUTOTUNE_CACHE")
    assert PlanCache.of_user().path == tmp_path / "home" / "cache" / "autotune"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert PlanCache.of_user().path == tmp_path / "home" / ".cache" / "autotune"
