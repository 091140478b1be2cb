"""`autotune plan` for several machines at once, against a plan for each of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.plan import shared_traces
from tests.cpu.conftest import LLAMA, Command, write_model

PINS = {
    "activation_offloading": False,
    "attn_implementation": "sdpa",
    "dataloader_num_workers": 0,
    "expandable_segments": False,
    "optim": "adamw_torch_fused",
    "padding_free": False,
    "train_sampling_strategy": "random",
    "use_liger_kernel": False,
}
"""Micro-batch, checkpointing and the loss are left to vary."""
KINDS = ("h100", "a100", "l40s", "rtx-4090", "memory=3GiB", "memory=1GiB")
"""Three sizes of cuBLAS's workspace and two of kernels; the last holds no micro-batch of eight."""


@dataclass
class Job:
    """A job in a folder of its own; its plans are kept in a cache of that name."""

    command: Command

    def plan(self, cache: str, *flags: str, expect: int = 0) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AUTOTUNE_CACHE", str(self.command.folder / cache))
            return json.loads(self.command("plan", *flags, "--json", expect=expect))


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
    return job.plan("together", "job.yaml", "--device", ",".join((*KINDS, "2xl40s")))


def test_a_row_is_what_a_plan_for_its_machine_alone_says(job: Job, several: Any) -> None:
    rows = several["machines"]
    assert len(rows) == len(KINDS) + 1
    assert len({row["peak_memory_bytes"] for row in rows[:-1]}) > 2
    for kind, row in zip(KINDS, rows, strict=False):
        alone = job.plan("apart", "job.yaml", "--device", kind)
        first, answer = alone["choices"][0], alone["answer"]
        for name in ("knobs", "peak_memory_bytes", "tokens_per_s", "fits", "safe"):
            assert row[name] == first[name], (kind, name)
        assert row["limit_bytes"] == alone["device"]["limit_bytes"]
        assert (row["job_s"], row["packages"]) == (answer["job_s"], answer["packages"])
        assert not row["by_formula"]
