"""`autotune plan --advise`: what is advised fits, by the plan of the changed job."""

import json

from tests.cpu.conftest import LLAMA, Command, write_model

# About 130 M parameters: with gradients and moments they take more than 2 GiB.
MEDIUM = {
    **LLAMA,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}
DEVICE = ("--device", "memory=2GiB")


def test_what_is_advised_fits_and_nothing_shorter_does(autotune: Command) -> None:
    write_model(autotune.folder / "model", MEDIUM)
    job = {
        "model": "model/config.json",
        "dataset": {"lengths": {"max": 128}},
        "global_batch_size": 4,
        "max_length": 128,
        "fixed": {"attn_implementation": "sdpa", "optim": "adamw_torch_fused"},
    }
    (autotune.folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    nothing = json.loads(autotune("plan", "job.yaml", *DEVICE, "--json", expect=1))
    assert nothing["counts"]["fit"] == 0
    advice = json.loads(autotune("plan", "job.yaml", *DEVICE, "--advise", "--json"))
    assert not advice["fits"]
    assert advice["ways"]
    for way in advice["ways"]:
        assert way["estimate"]["fits"], way["changes"]
        assert 0 < way["speed"] < 5
    alone = [way["changes"][0]["text"] for way in advice["ways"] if len(way["changes"]) == 1]
    assert "`tuning: lora`" in alone
    fits = json.loads(autotune("plan", "job.yaml", *DEVICE, "--set", "tuning=lora", "--json"))
    assert fits["counts"]["fit"] > 0
    said = autotune("plan", "job.yaml", *DEVICE, "--advise")
    assert "It does not fit" in said and "`tuning: lora`" in said
    assert "changes what is learned" in said


def test_a_job_that_fits_is_left_alone(autotune: Command) -> None:
    write_model(autotune.folder / "model", LLAMA)
    flags = ["--model", "model/config.json", "--max-length", "64", "--device", "memory=8GiB"]
    advice = json.loads(autotune("plan", *flags, "--advise", "--json"))
    assert advice["fits"] and not advice["ways"]
