"""`autotune plan` for several machines at once, against a plan for each of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.plan.machines import BEST
from autotune.plan.plan import plan
from autotune.report import machines as report
from autotune.space.job_file.load import load_job
from scripts.plan_schema import MachinesJson
from tests.cpu.conftest import LLAMA, Command, write_model

PINS = {
    "activation_offloading": False,
    "attn_implementation": "sdpa",
    "dataloader_num_workers": 0,
    "expandable_segments": False,
    "loss_type": "nll",
    "optim": "adamw_torch_fused",
    "padding_free": False,
    "train_sampling_strategy": "random",
    "use_liger_kernel": False,
}
"""Micro-batch and checkpointing are left to vary."""
KINDS = ("h100", "a100", "l40s", "rtx-4090", "memory=3GiB", "memory=1200MiB")
"""Two sizes of cuBLAS's workspace and two kinds of kernels; of the last what it holds is less."""
ALONE = ("h100", "l40s", "memory=1200MiB")
SEVERAL = ",".join((*KINDS, "2xl40s"))
SAME = ("knobs", "peak_memory_bytes", "tokens_per_s", "fits", "safe")


@dataclass
class Job:
    """A job in a folder of its own; its plans are kept in a cache of a name."""

    command: Command

    def __call__(self, cache: str, *arguments: str, expect: int = 0) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AUTOTUNE_CACHE", str(self.command.folder / cache))
            return self.command("plan", "job.yaml", *arguments, expect=expect)

    def plan(self, cache: str, *arguments: str, expect: int = 0) -> Any:
        return json.loads(self(cache, *arguments, "--json", expect=expect))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("machines")
    write_model(folder / "model", {**LLAMA, "vocab_size": 50000})
    fields = {
        "model": "model/config.json",
        "dataset": {"lengths": {"max": 100, "rows": 500}},
        "global_batch_size": 8,
        "max_length": 100,
        "fixed": PINS,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield Job(Command(folder))


@pytest.fixture(scope="module")
def several(job: Job) -> Any:
    return job.plan("together", "--device", SEVERAL)


@pytest.mark.parametrize("kind", ALONE)
def test_a_row_is_what_a_plan_for_its_machine_alone_says(kind: str, job: Job, several: Any) -> None:
    """A plan alone makes all its traces; together they are shared, also by kinds whose workspaces
    are not of one size."""
    (row,) = [row for row in several["machines"] if row["machine"] == kind]
    alone = job.plan(f"alone {kind}", "--device", kind)
    for name in SAME:
        assert row[name] == alone["choices"][0][name], name
    assert row["limit_bytes"] == alone["device"]["limit_bytes"]
    assert row["job_s"] == alone["answer"]["job_s"]
    assert not row["by_formula"]


def test_the_machines_differ_in_what_is_best_there(several: Any) -> None:
    rows = several["machines"]
    assert [row["machine"] for row in rows] == [*KINDS, "2xl40s"]
    assert len({row["peak_memory_bytes"] for row in rows}) > 3
    assert len({row["knobs"]["per_device_train_batch_size"] for row in rows}) > 1


def test_of_several_devices_the_engine_of_the_best_is_traced(
    job: Job, several: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    loaded, definition = load_job(job.command.folder / "job.yaml", ["devices.count=2"])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    alone = plan(loaded, definition, scratch, device="l40s", effort=BEST)
    row = several["machines"][-1]
    assert row["count"] == 2 and row["by_formula"] is not alone.choices[0].estimate.traced
    first = alone.choices[0]
    assert row["knobs"] == first.candidate.knobs
    assert row["peak_memory_bytes"] == first.estimate.peak_memory_bytes
    assert row["tokens_per_s"] == first.estimate.tokens_per_s
    assert row["packages"] == (list(alone.answer.packages) if alone.answer else [])


def test_rows_are_remembered(job: Job, several: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_child(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was planned again")

    monkeypatch.setattr(report, "plan_machines", no_child)
    assert job.plan("together", "--device", SEVERAL) == several
    lines = job("together", "--device", SEVERAL, "--prices", "listed").splitlines()
    assert lines[0].startswith("Rent one ") and max(map(len, lines)) <= 80
    for name in (*KINDS, "2xl40s"):
        assert any(name in line for line in lines)
    text = " ".join(lines)
    assert "Prices: an hour of one GPU on demand, as listed up to" in text
    assert "No price for memory=3GiB, memory=1200MiB." in text


def test_programs_get_a_row_a_machine(several: Any) -> None:
    MachinesJson.model_validate_json(json.dumps(several))
    assert several["schema"] == report.SCHEMA and several["other_tuning"] is None
    for row in several["machines"]:
        assert row.keys() == {*report.MachineRow.__dataclass_fields__, "money", "best"}


def test_limits_and_nothing_safe_end_with_exit_code_1(job: Job, several: Any) -> None:
    flags = ("--device", SEVERAL, "--deadline")
    assert "Nothing keeps your limits" in job("together", *flags, "0.1s", expect=1)
    assert "The fastest is" in job("together", *flags, "1000h")
    money = ("--device", SEVERAL, "--prices", "listed", "--at-most")
    assert "the cheapest costs" in job("together", *money, "0.000001$", expect=1)
    small = job("together", "--device", "memory=300MiB,memory=400MiB", expect=1)
    assert small.startswith("It is safe on none of these: the smallest configuration needs ")
    assert "does not fit" in small


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "h100,h2000"], "`h2000` is not a known kind of GPU"),
        (["--device", "h100,l40s", "--deadline", "soon"], "--deadline: "),
        (["--device", "h100,l40s", "--at-most", "50$"], "--at-most: no prices are known"),
        (["--device", "h100,l40s", "--prices", "none.yaml"], "cannot read the file with prices"),
        (["--device", "h100,l40s", "--emit", "b"], "--emit: it is of one device"),
        (["--device", "h100,l40s", "--all"], "--all: it is of one device"),
        (["--prices", "listed"], "--prices: it compares machines, but no device is named"),
    ],
)
def test_what_cannot_be_compared_is_refused(job: Job, flags: list[str], message: str) -> None:
    assert message in job.command.refused("plan", "job.yaml", *flags)
