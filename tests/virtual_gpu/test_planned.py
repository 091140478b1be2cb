"""Files of a plan, made without a device, on the GPU that they were planned for."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from autotune.bundle.planned import MARK
from tests.cpu.conftest import LLAMA
from tests.cpu.stand_ins import give_tokenizer
from tests.virtual_gpu.test_runs import AMPERE, OFFLINE, write_job

pytestmark = pytest.mark.nightly("virtual_gpu")


def test_the_gpu_that_was_planned_for_takes_the_mark_away(virtual_gpu: Any, tmp_path: Path) -> None:
    fixed = {**OFFLINE["fixed"], "use_liger_kernel": False}  # what is planned is to be here
    job = {**OFFLINE, "fixed": fixed, "model": "weights", "tuning": "lora"}
    write_job(tmp_path, "sft", "data", job)
    torch.manual_seed(0)
    config = LlamaConfig(**{**LLAMA, "vocab_size": 8192})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "weights")
    give_tokenizer(tmp_path / "weights")
    gpu = virtual_gpu(AMPERE)
    plan = gpu.autotune("plan", "job.yaml", "--device", AMPERE, "--emit", "b")
    script = tmp_path / "b" / "launch.sh"
    assert MARK in script.read_text(encoding="utf-8")
    # Its clock counts work, and the estimate is of a real GPU: a launch may be found too slow.
    process = gpu.start("-m", "autotune", "verify", "b", "--json")
    out, err = process.communicate(timeout=900)
    assert out, err
    held = json.loads(out)
    assert held["verified"] or held["only_too_slow"] or held["only_too_fast"], err
    assert (MARK in script.read_text(encoding="utf-8")) != held["verified"]
    promised, found = plan["answer"]["peak_memory_bytes"], held["peak_memory_bytes"]
    assert abs(found / promised - 1) < 0.05, (promised, found)
