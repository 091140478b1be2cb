"""`autotune advise`, on a device that is not here."""

import json

import pytest

from scripts.plan_schema import PlanJson
from tests.cpu.conftest import LLAMA, Command, write_model

pytestmark = pytest.mark.nightly("documents")

# About 200 M parameters in few layers: with gradients and moments they take more than 3 GiB.
MEDIUM = {
    **LLAMA,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}
PINNED = {
    "attn_implementation": "sdpa",
    "loss_type": "chunked_nll",
    "padding_free": False,
    "use_liger_kernel": False,
    "activation_offloading": False,
    "train_sampling_strategy": "random",
}
DEVICE = ("--device", "memory=3GiB")


def test_what_is_advised_fits(autotune: Command) -> None:
    write_model(autotune.folder / "model", MEDIUM)
    job = {
        "model": "model/config.json",
        "dataset": {"lengths": {"max": 64}},
        "global_batch_size": 2,
        "max_length": 64,
        "fixed": {**PINNED, "gradient_checkpointing": True},
    }
    (autotune.folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    far = json.loads(autotune("advise", "job.yaml", *DEVICE, "--json"))
    found = json.loads(autotune("plan", "job.yaml", *DEVICE, "--json", expect=1))
    texts = []
    for plan in (far, found):
        checked = PlanJson.model_validate_json(json.dumps(plan))
        assert checked.answer is None and checked.advice is not None
        ways = plan["advice"]["ways"]
        assert all(way["estimate"]["p_oom"] <= 0.05 for way in ways)
        assert {len(way["changes"]) for way in ways} == {1}
        texts.append([way["changes"][0]["text"] for way in ways])
    further, named = texts
    assert "`tuning: lora`" in further and len(further) > len(named)
    assert 1 <= len(named) <= 3 and set(named) <= set(further)
