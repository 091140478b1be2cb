"""`autotune plan`, and what a run makes of the same estimates."""

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.facts.stack import fused_head, installed
from autotune.plan.questions import ways
from autotune.plan.trace_choice import FIRST, SLOWER
from autotune.run.past_run import reopen
from autotune.space.sharding.sharding import SHARDING_KNOBS
from scripts.plan_schema import PlanJson
from tests.cpu.conftest import LLAMA, Command, write_model
from tests.cpu.test_run import write_job

MIB = 2**20
MICRO_BATCH = "per_device_train_batch_size"
PINS = {
    "activation_offloading": False,
    "attn_implementation": "sdpa",
    "dataloader_num_workers": 0,
    "expandable_segments": False,
    "gradient_checkpointing": False,
    "loss_type": "nll",
    "optim": "adamw_torch_fused",
    "padding_free": False,
    "train_sampling_strategy": "random",
    "use_liger_kernel": False,
}
"""Only the micro-batch is left to vary: one path, four candidates."""
LONGEST = 100
SMALL, SMALL_CPU = 960 * MIB, 960 * MIB  # of 1 GiB CUDA keeps a sixteenth
SHORT: list[str] = []
"""What a run on the CPU adds to the job."""
"""Enough for a micro-batch of one row of the logits below, and not for one of eight."""
if fused_head():  # it holds tiles of logits only: it takes longer rows to fill as much, and scores
    LONGEST, SMALL_CPU = 1000, 1300 * MIB
    SHORT = ["--set", "dataset={lengths: {max: 100, rows: 500}}", "--set", "max_length=100"]
    PINS["attn_implementation"] = "eager"
LOGITS_PER_ROW = (LONGEST - 1) * (32768 * 2 if fused_head() else 50000 * 4)
"""Bytes: of a tile in bfloat16, or all of them in float32."""


@dataclass
class Plans:
    """The job of this module in its folder, and the plans of it that were made so far."""

    command: Command
    made: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def __call__(self, *flags: str, expect: int = 0) -> Any:
        if flags not in self.made:
            out = self.command("plan", "job.yaml", *flags, "--json", expect=expect)
            self.made[flags] = json.loads(out)
        return self.made[flags]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory, plan_cache: Path) -> Iterator[Plans]:
    folder = tmp_path_factory.mktemp("plan a 0 ü")
    data = {"lengths": {"max": LONGEST, "rows": 500}}
    write_job(folder, dataset=data, max_length=LONGEST, fixed=PINS)
    wide = {**LLAMA, "vocab_size": 50000}
    (folder / "model" / "config.json").write_text(json.dumps(wide), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:  # before the function's own environment is there
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("AUTOTUNE_CACHE", str(plan_cache))
        patch.setenv("HF_HUB_OFFLINE", "1")
        plans = Plans(Command(folder))
        plans("--device", "h200")
        plans("--device", "memory=1GiB")
        yield plans


def by_micro_batch(plan: Any) -> dict[int, Any]:
    return {one["knobs"]["per_device_train_batch_size"]: one for one in plan["candidates"]}


# -- a plan


def test_a_plan_says_what_is_documented_of_every_candidate(plans: Plans) -> None:
    plan = plans("--device", "h200")
    assert plan["schema"] == 1 and plan["seconds"] > 0
    device = plan["device"]
    assert (device["kind"], device["name"], device["capability"]) == ("cuda", "NVIDIA H200", [9, 0])
    # CUDA has a little less to give than the driver reports.
    assert 0.98 * device["total_bytes"] < device["limit_bytes"] < device["total_bytes"]
    assert sorted(by_micro_batch(plan)) == [1, 2, 4, 8]
    for one in plan["candidates"]:
        assert one["fits"] is True
        assert one["knobs"].keys() >= {*PINS, "gradient_accumulation_steps"}
        estimate = one["estimate"]
        assert estimate["method"] in {"trace", "scaled trace"}
        assert estimate["p_oom"] < 0.01
        assert estimate["peak_operator"].startswith("aten::")
        assert estimate["step_time_s"] > 0
        tokens = estimate["tokens_per_s"] * estimate["step_time_s"]
        assert tokens == pytest.approx(8 * LONGEST, rel=0.01)


def test_candidates_come_the_fastest_first_where_speed_is_known(plans: Plans) -> None:
    speeds = [one["estimate"]["tokens_per_s"] for one in plans("--device", "h200")["candidates"]]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] > speeds[-1]
    small = plans("--device", "memory=1GiB")["candidates"]
    assert all(one["estimate"]["tokens_per_s"] is None for one in small)


def test_a_size_is_planned_as_the_commonest_card_of_it_and_the_answer_says_so(plans: Plans) -> None:
    named, sized = plans("--device", "h200"), plans("--device", "141 GB")
    assert sized["device"] == named["device"]
    assert sized["answer"]["knobs"] == named["answer"]["knobs"]
    said = "Assumed: 141 GiB: taken as an H200, the commonest card of that size."
    assert said in sized["lines"] and said not in named["lines"]


@pytest.mark.parametrize("device", ["h200", "memory=1GiB"])
def test_the_parts_of_every_candidate_add_up_to_its_peak(plans: Plans, device: str) -> None:
    for one in plans("--device", device)["candidates"]:
        estimate = one["estimate"]
        assert sum(estimate["parts"].values()) == estimate["peak_memory_bytes"]
        assert estimate["parts"]["weights"] > 2 * 50000 * 64 * 4
        allocated, reserved = estimate["peak_allocated_bytes"], estimate["peak_reserved_bytes"]
        assert 0 < allocated <= reserved < estimate["peak_memory_bytes"]


def test_a_larger_micro_batch_takes_more_for_its_logits(plans: Plans) -> None:
    found = by_micro_batch(plans("--device", "h200"))
    logits = [found[rows]["estimate"]["parts"]["logits"] for rows in (1, 2, 4)]
    assert all(size >= rows * LOGITS_PER_ROW for size, rows in zip(logits, (1, 2, 4), strict=True))
    assert logits == sorted(set(logits))
    peaks = [found[rows]["estimate"]["peak_memory_bytes"] for rows in (4, 8)]
    assert peaks[1] > 1.1 * peaks[0]  # which is at another moment: a fused head holds one tile


def test_on_a_small_device_the_large_do_not_fit_and_come_last(plans: Plans) -> None:
    plan = plans("--device", "memory=1GiB")
    assert plan["device"]["limit_bytes"] == SMALL
    fits = [one["fits"] for one in plan["candidates"]]
    assert fits == sorted(fits, reverse=True) and set(fits) == {True, False}
    found = by_micro_batch(plan)
    assert found[1]["fits"] and not found[8]["fits"]
    short = found[8]["estimate"]
    assert short["p_oom"] > 0.95
    assert short["missing_bytes"] >= short["peak_memory_bytes"] - SMALL > 0
    assert plan["counts"]["fit"] == sum(fits)


def test_moments_of_a_byte_are_a_quarter_and_the_embedding_keeps_its_own(plans: Plans) -> None:
    """No bitsandbytes is needed for it. The two matrices of 50000 words are most of the model."""
    few = ("--device", "h200", "--set", "per_device_train_batch_size=1")
    usual = plans(*few)["candidates"][0]["estimate"]["parts"]["optimizer"]
    small = plans(*few, "--set", "optim=adamw_8bit")["candidates"][0]["estimate"]["parts"]
    embedding = 2 * 4 * 50000 * 64
    rest = usual - embedding
    assert small["optimizer"] - embedding == pytest.approx((0.25 + 1 / 256) * rest, rel=0.02)


def test_fits_and_top_choose_among_the_candidates(plans: Plans) -> None:
    every = plans("--device", "memory=1GiB")["candidates"]
    fitting = [one for one in every if one["fits"]]
    assert plans("--device", "memory=1GiB", "--fits")["candidates"] == fitting
    top = plans("--device", "memory=1GiB", "--top", "1")
    assert top["candidates"] == every[:1]
    assert top["counts"]["candidates"] == len(every)


@pytest.fixture
def few_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would make it fit is sought among few changes: to look at all takes minutes."""
    monkeypatch.setattr(ways, "MOST_LISTS", 2)


@pytest.mark.usefixtures("few_ways_out")
def test_where_nothing_fits_the_exit_code_is_1(plans: Plans) -> None:
    limited = plans("--device", "memory=700MiB", "--fits", expect=1)
    assert limited["candidates"] == []
    assert (limited["counts"]["fit"], limited["counts"]["candidates"]) == (0, 4)


@pytest.mark.usefixtures("few_ways_out")
def test_what_a_plan_prints_for_programs_is_of_the_published_schema(plans: Plans) -> None:
    for plan in (plans("--device", "h200"), plans("--device", "memory=700MiB", expect=1)):
        checked = PlanJson.model_validate_json(json.dumps(plan))
        assert json.loads(checked.model_dump_json(by_alias=True)) == plan


def test_the_second_plan_is_remembered(plans: Plans) -> None:
    first = plans("--device", "h200")
    again = json.loads(plans.command("plan", "job.yaml", "--device", "h200", "--json"))
    assert (first["cached"], again["cached"]) == (False, True)
    differing = {name for name in first if first[name] != again[name]}
    assert differing == {"cached", "seconds"}


def test_ctrl_c_ends_a_plan_with_what_is_known(plans: Plans, tmp_path: Path) -> None:
    folder = plans.command.folder
    job = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    pins = {k: v for k, v in PINS.items() if k not in ("gradient_checkpointing", "loss_type")}
    (folder / "open.yaml").write_text(yaml.safe_dump({**job, "fixed": pins}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_CACHE", str(tmp_path / "nothing is remembered"))
        process = plans.command.start("plan", "open.yaml", "--device", "h200")
    for line in process.stderr:
        if line.startswith("so far: "):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert out.startswith("Stopped early; so far use ") and re.search(
        r"stopped: \d+ more candidates", out
    )


def test_people_get_the_answer_first_and_a_table(plans: Plans) -> None:
    text = plans.command("plan", "job.yaml", "--device", "memory=1GiB")
    lines = text.splitlines()
    assert lines[0].startswith("Use 1 x 8")
    assert max(map(len, lines)) <= 80
    rows = [line.split("  ")[0] for line in lines if re.match(r"\d+ x \d+ ", line)]
    assert sorted(rows) == ["1 x 8", "2 x 4", "4 x 2", "8 x 1"] and rows[0] == "1 x 8"
    assert "of 4 candidates fit in 960 MiB" in text
    every = plans.command("plan", "job.yaml", "--device", "memory=1GiB", "--all").splitlines()
    assert {line.partition(" ")[0] for line in every} >= {"1x8", "2x4", "4x2", "8x1"}


def test_the_answer_is_an_object_and_its_alternative_is_estimated(plans: Plans) -> None:
    answer = plans("--device", "h200")["answer"]
    best = plans("--device", "h200")["candidates"][0]
    assert answer["knobs"] == best["knobs"] and answer["safe"]
    assert answer["epoch_s"] > 0 and answer["job_s"] == pytest.approx(3 * answer["epoch_s"])
    other, whole = answer["other_dtype"], best["estimate"]
    half = other["estimate"]
    assert other["dtype"] == "bfloat16"
    assert half["method"] in {"trace", "scaled trace"}
    assert half["parts"]["weights"] == pytest.approx(whole["parts"]["weights"] / 2, rel=0.01)
    assert plans("--device", "memory=700MiB", "--fits", expect=1)["answer"] is None


@pytest.mark.skipif("liger-kernel" not in installed().absent, reason="Liger is installed")
def test_elsewhere_a_package_that_is_not_here_is_planned_with_and_said(plans: Plans) -> None:
    job = (plans.command.folder / "job.yaml").read_text(encoding="utf-8")
    unpinned = re.sub(r"[\n,]? *\"?use_liger_kernel\"?: false", "", job)
    assert unpinned != job
    (plans.command.folder / "either.yaml").write_text(unpinned, encoding="utf-8")
    either = ("plan", "either.yaml", "--device", "h200", "--json")
    plan = json.loads(plans.command(*either))
    names = {one["knobs"]["use_liger_kernel"] for one in plan["candidates"]}
    assert names == {fused_head()}  # where its kernels are in the estimate, all have them
    needed = ["liger-kernel"] if plan["answer"]["knobs"]["use_liger_kernel"] else []
    assert plan["packages"] == plan["answer"]["packages"] == needed
    here = json.loads(plans.command(*either, "--stack", "installed"))
    assert {one["knobs"]["use_liger_kernel"] for one in here["candidates"]} == {False}
    pinned = ("--set", "use_liger_kernel=true")
    said = plans.command.refused(
        "plan", "job.yaml", "--device", "h200", "--stack", "installed", *pinned
    )
    assert "Liger (package liger-kernel) is not installed" in said


def test_a_gpu_of_another_maker_is_planned_and_said_to_be_untested(plans: Plans) -> None:
    plan = plans("--device", "mi300x")
    assert plan["device"]["maker"] == "AMD"
    assert plan["answer"]["speed_error"] is None and plan["answer"]["tokens_per_s"] > 0
    assert any("nothing was tested on a GPU of AMD" in note for note in plan["notes"])
    one, other = (by_micro_batch(made)[8]["estimate"] for made in (plan, plans("--device", "h200")))
    assert one["sigma_bytes"] > other["sigma_bytes"]


def test_what_cannot_be_traced_says_so(plans: Plans) -> None:
    traced = by_micro_batch(plans("--device", "h200"))[8]["estimate"]
    plan = plans("--device", "h200", "--set", "torch_compile=true")
    assert plan["counts"]["by adjusted trace"] == 4
    adjusted = by_micro_batch(plan)[8]["estimate"]
    assert adjusted["method"] == "adjusted trace"
    (note,) = adjusted["notes"]
    assert note.startswith("torch_compile: traced uncompiled; compiled code keeps fewer")
    assert adjusted["peak_memory_bytes"] == traced["peak_memory_bytes"]
    assert adjusted["sigma_bytes"] > traced["sigma_bytes"]


def test_flags_alone_are_a_job_that_is_planned_by_both_tunings(autotune: Command) -> None:
    write_model(autotune.folder / "model", LLAMA)
    sets = {**PINS, "per_device_train_batch_size": 4}
    flags = ["model/config.json", "--max-length", "64", "--device", "a100"]
    flags += [f"--set={name}={json.dumps(value)}" for name, value in sets.items()]
    plan = json.loads(autotune("plan", *flags, "--json"))
    assert plan["device"]["name"] == "NVIDIA A100-SXM4-80GB"
    (one,) = plan["candidates"]
    knobs = one["knobs"]
    assert (knobs["per_device_train_batch_size"], knobs["max_length"]) == (4, 64)
    assert knobs["gradient_accumulation_steps"] == 8
    parts = one["estimate"]["parts"]
    # The peak is beside the loss where there are only tiles of logits.
    logits = set() if fused_head() else {"logits"}
    assert {"weights", "gradients", "optimizer", "context", *logits} <= parts.keys()
    assert sum(parts.values()) == one["estimate"]["peak_memory_bytes"]
    assert any("10,000 rows of 64 tokens" in line for line in plan["answer"]["assumed"])
    other = plan["other_tuning"]
    assert other["tuning"] == "lora" and other["text"].startswith("LoRA: 4 x 8")
    given = json.loads(autotune("plan", *flags, "--tuning", "lora", "--json"))
    assert given["other_tuning"] is None
    for name in ("knobs", "peak_memory_bytes", "tokens_per_s"):
        assert given["answer"][name] == other["answer"][name]
    text = " ".join(autotune("plan", *flags).split())
    assert "LoRA: 4 x 8" in text
    assert "1 of 1 candidates fit" in text
    default = json.loads(autotune("plan", *flags, "--only-default", "--json"))
    assert default["other_tuning"]["text"].startswith("Full tuning fits. It needs ")


def test_one_candidate_and_the_space_that_it_is_of_are_remembered_apart(plans: Plans) -> None:
    """Both are plans of the same job, device and stack."""
    one = ("--device", "h200", "--only-default")
    first = plans(*one)
    assert len(first["candidates"]) == 1 < len(plans("--device", "h200")["candidates"])
    second = json.loads(plans.command("plan", "job.yaml", *one, "--json"))
    assert second["cached"] and second["candidates"] == first["candidates"]


def test_nothing_is_left_in_the_temporary_folder(
    plans: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    plans.command.refused("plan", "job.yaml", "--device", "nonsense")
    assert not list(tmp_path.glob("autotune-*"))


def test_an_unknown_device_is_answered_with_the_nearest(plans: Plans) -> None:
    err = plans.command.refused("plan", "job.yaml", "--device", "h2000")
    assert "`h2000` is not a known kind of GPU" in err
    assert "did you mean `h200`?" in err
    assert "is not a size" in plans.command.refused("plan", "job.yaml", "--device", "memory=lots")


def test_of_several_devices_each_holds_the_model_and_buckets_of_its_gradients(plans: Plans) -> None:
    ddp = ("--set", "distributed_type=MULTI_GPU")
    told = [
        plans("--device", "h200", "--devices", "1"),  # where nothing is to be spread
        plans("--device", "h200", "--devices", "2", *ddp),
    ]
    assert [plan["device"]["count"] for plan in told] == [1, 2]
    one, two = map(by_micro_batch, told)
    assert sorted(two) == [1, 2, 4]  # eight rows a step, divided between two
    for rows, candidate in two.items():
        estimate, alone = candidate["estimate"], one[rows]["estimate"]
        assert candidate["knobs"]["gradient_accumulation_steps"] == 4 // rows
        buckets = estimate["parts"]["communication"]
        weights = told[0]["model"]["parameters"]
        assert buckets == pytest.approx(4 * weights, rel=1e-4)  # the allocator rounds up
        assert estimate["peak_memory_bytes"] > alone["peak_memory_bytes"] + buckets
        assert sum(estimate["parts"].values()) == estimate["peak_memory_bytes"]
        assert "of a step are exchange, at 450 GB/s" in estimate["notes"][-1]
    four = ("--set", "devices.count=4")
    assert plans("--device", "h200", *four, "--devices", "1")["device"]["count"] == 1


def test_of_many_engines_those_of_the_fastest_candidates_are_traced(plans: Plans) -> None:
    two = ("--device", "h200", "--devices", "2")
    told = plans(*two)["candidates"]
    methods = [one["estimate"]["method"] for one in told]
    traced = {one for one in methods if one != "adjusted trace"}
    assert traced <= {"trace", "scaled trace"} and len(traced) < len(set(methods))
    assert set(methods[:FIRST]) <= traced  # the fastest, and of each strategy that is no slower one
    speeds: dict[str, float] = {}
    for one in told:
        strategy = json.dumps(strategy_of(one))
        speeds[strategy] = max(speeds.get(strategy, 0.0), one["estimate"]["tokens_per_s"])
    known = {json.dumps(strategy_of(one)) for one in told if method_of(one) in traced}
    assert len(known) > 2
    for strategy in speeds.keys() - known:
        assert '"cpu"' in strategy or speeds[strategy] < SLOWER * max(speeds.values()), strategy
    for one in told:
        assert ("formula" in "".join(one["estimate"]["notes"])) is (method_of(one) not in traced)
    # A plan of one strategy traces all of it, and finds the same.
    pinned = ("distributed_type=FSDP", "fsdp_reshard_after_forward=true")
    flags = [word for pin in pinned for word in ("--set", pin)]
    alone = {json.dumps(one["knobs"]): one["estimate"] for one in plans(*two, *flags)["candidates"]}
    both = [one for one in told if method_of(one) in traced and json.dumps(one["knobs"]) in alone]
    assert both and all(one["method"] in traced for one in alone.values())
    for one in both:
        other = alone[json.dumps(one["knobs"])]
        for name in ("peak_reserved_bytes", "tokens_per_s", "parts"):
            assert one["estimate"][name] == pytest.approx(other[name], rel=1e-9), name


def strategy_of(candidate: Any) -> Any:
    return [candidate["knobs"].get(name) for name in SHARDING_KNOBS]


def method_of(candidate: Any) -> Any:
    return candidate["estimate"]["method"]


def test_the_largest_micro_batch_is_that_of_a_plan_of_the_leanest(plans: Plans) -> None:
    asked = ("--device", "memory=1200MiB")
    planned = by_micro_batch(plans(*asked))
    limits = ("limits", "job.yaml", *asked, "--of", MICRO_BATCH, "--json")
    answer = json.loads(plans.command(*limits))
    value = answer["value"]
    assert answer["too_large"] == value + 1
    assert answer["knobs"][MICRO_BATCH] == value and answer["estimate"]["p_oom"] <= 0.05
    for name in PINS:
        assert answer["knobs"][name] == planned[1]["knobs"][name]
    for rows, one in planned.items():
        assert (rows <= value) is (one["estimate"]["p_oom"] <= 0.05)


def test_what_cannot_be_divided_and_too_little_said_are_refused(plans: Plans) -> None:
    refused = plans.command.refused("plan", "job.yaml", "--device", "h200", "--devices", "3")
    assert "8 rows cannot be divided among 3 devices" in refused
    assert "the nearest batches that can are 6 or 9" in refused
    several = ("limits", "job.yaml", "--device", "h100,l40s", "--of", "max_length")
    assert "`h100,l40s` names several devices" in plans.command.refused(*several)
    assert "a job is needed" in plans.command.refused("plan", "--max-length", "64")


# -- a run


def test_a_run_never_probes_what_is_hopeless_and_reports_what_it_expected(plans: Plans) -> None:
    limit = SMALL_CPU
    fields = ["--set", f"devices.memory={limit}", "--set", "headroom=0", "--out", "run"]
    plans.command("run", "job.yaml", *fields, *SHORT, "--no-verify")
    folder = plans.command.folder / "run"
    stored = json.loads((folder / "estimates.json").read_text(encoding="utf-8"))
    assert (len(stored["estimates"]), stored["limit_bytes"]) == (4, limit)
    past = reopen(folder)
    expectations, records = past.expectations, list(past.records)
    assert expectations is not None
    candidates = past.space.candidates
    before = expectations.hopeless(candidates, ())
    (largest,) = [one for one in candidates if one.micro_batch == 8]
    assert largest.key in before and len(before) < 4
    for number, record in enumerate(records):
        assert record.candidate.key not in expectations.hopeless(candidates, records[:number])
    # The fastest is measured twice.
    assert 0 < len({record.candidate.key for record in records}) <= 4 - len(before)
    report = json.loads(plans.command("report", "run", "--json"))
    assert len(report["probes"]) == len(records)
    measured = 0
    for probe, record in zip(report["probes"], records, strict=True):
        expected = stored["estimates"][record.candidate.key]
        assert probe["estimate"] == {n: v for n, v in expected.items() if n != "fits"}
        measured += probe["measurement"]["outcome"] == "ok"
    assert measured > 0
    assert report["estimates"]["residual"]["measurements"] == measured
    assert 0 <= report["estimates"]["memory_error_max"] < 0.3
    assert "estimated peak" in plans.command("report", "run")
