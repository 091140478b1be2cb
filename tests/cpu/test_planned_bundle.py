"""A plan's bundle: written without a device, then verified where it trains; here that is a CPU."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from autotune.bundle.planned import MARK
from autotune.plan.questions import ways
from tests.cpu.conftest import LLAMA, Command
from tests.cpu.stand_ins import give_tokenizer, stand_in
from tests.cpu.test_online import prompts
from tests.cpu.test_ppo import MORE, save_judge
from tests.cpu.test_preference import arguments, rows
from tests.cpu.test_run import FEW, TEXTS, assert_launched, write_job
from tests.guards import some_of

ONE = {**FEW, "gradient_checkpointing": "every_2", "per_device_train_batch_size": 4}
"""One candidate is left: the search is tested elsewhere."""


@pytest.fixture(autouse=True)
def _cache(plan_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(plan_cache))


def texts(bundle: Path) -> dict[str, str]:
    """The files that autotune wrote, by their names."""
    names = [*json.loads((bundle / "recommendation.json").read_text())["files"]]
    names += ["recommendation.json", "run/job.yaml"]
    return {name: (bundle / name).read_text(encoding="utf-8") for name in names}


def unmarked(bundle: Path) -> list[str]:
    return [name for name, text in texts(bundle).items() if MARK not in text]


def marked(bundle: Path) -> list[str]:
    return [name for name, text in texts(bundle).items() if MARK in text or "_autotune" in text]


def train(bundle: Path, out: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """One real step by the bundle's own script."""
    flags = ("--max_steps", "1", "--output_dir", str(out), "--save_strategy", "no", *flags)
    return subprocess.run(
        ["bash", str(bundle / "launch.sh"), *flags],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )


def sft_job(folder: Path, **fields: object) -> Path:
    """Real text in one file, a model with weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {"vocab_size": 8192, "pad_token_id": 0}
    job = {"dataset": str(TEXTS), "max_length": 64, "model": "weights", "fixed": ONE}
    file = write_job(folder, **{**job, **fields})
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**LLAMA, **config})).save_pretrained(folder / "weights")
    give_tokenizer(folder / "weights")
    return file


@pytest.mark.nightly("launches")
def test_a_plans_bundle_trains_and_loses_its_mark_where_it_is_verified(autotune: Command) -> None:
    folder = autotune.folder
    sft_job(folder)
    out = autotune("plan", "job.yaml", "--emit", "it's b", "--json")
    bundle = folder / "it's b"
    assert json.loads(out)["bundle"] == str(bundle)
    assert unmarked(bundle) == []
    assert "agree" in autotune("check", "it's b")
    before = train(bundle, folder / "before")
    assert f"launch.sh: {MARK}" in before.stderr
    assert (folder / "before" / "model.safetensors").exists()
    # A device with less memory than was planned for: the mark stays, and says why.
    job = bundle / "run" / "job.yaml"
    whole = job.read_text(encoding="utf-8")
    small = yaml.safe_load(whole)
    small["devices"]["memory"] = "300MiB"
    job.write_text(yaml.safe_dump(small), encoding="utf-8")
    failed = json.loads(autotune("verify", "it's b", "--json", expect=1))
    assert failed["reason"].startswith("its probe ended as `")
    assert Path(failed["log"]).exists()
    assert unmarked(bundle) == []
    assert "its probe ended as `" in (bundle / "launch.sh").read_text(encoding="utf-8")
    job.write_text(whole, encoding="utf-8")
    held = json.loads(autotune("verify", "it's b", "--json"))
    assert held["verified"], held
    assert_launched(held)
    # It was launched, and without the mark.
    assert "'loss': " in (said := Path(held["log"]).read_text("utf-8")) and MARK not in said
    assert marked(bundle) == []
    assert "agree" in autotune("check", "it's b")
    stored = json.loads(texts(bundle)["recommendation.json"])
    assert stored["verified"] and stored["verification"]["peak_memory_bytes"] > 0
    assert stored["chosen"]["measurement"]["outcome"] == "ok"
    # What somebody changed is not written over.
    config = bundle / "sft_config.yaml"
    config.write_text(config.read_text(encoding="utf-8") + "# mine\n", encoding="utf-8")
    assert "sft_config.yaml changed since it was written" in autotune.refused("verify", "it's b")
    assert config.read_text(encoding="utf-8").endswith("# mine\n")


@pytest.mark.parametrize("method", some_of(["reward", "ppo"], (), "launches"))
def test_other_methods_bundles_are_verified_too(method: str, autotune: Command) -> None:
    folder = autotune.folder
    if method == "reward":
        text = "\n".join(json.dumps(row) for row in rows()) + "\n"
        (folder / "pairs.jsonl").write_text(text, encoding="utf-8")
        job = arguments(method, folder)
    else:
        data = folder / "prompts"
        data.mkdir()
        text = "\n".join(json.dumps({"prompt": row["prompt"]}) for row in prompts(60)) + "\n"
        for split in ("train", "test"):
            (data / f"{split}.jsonl").write_text(text, encoding="utf-8")
        save_judge(folder / "judge")
        more = [f"dataset={data}", f"reward_model_path={folder / 'judge'}", *MORE]
        job = stand_in("ppo-memory", folder, *more)
    autotune("plan", *job, "--emit", "b")
    bundle = folder / "b"
    assert unmarked(bundle) == []
    assert "agree" in autotune("check", "b")
    held = json.loads(autotune("verify", "b", "--json", expect=None))
    if method == "reward":
        assert_launched(held)
    assert held["verified"] or held["only_too_slow"] or held["only_too_fast"], held
    assert marked(bundle) == ([] if held["verified"] else [*texts(bundle)])
    assert train(bundle, folder / "out").returncode == 0


def test_a_bundle_for_a_gpu_that_is_elsewhere_is_made_for_it(autotune: Command) -> None:
    sft_job(autotune.folder)
    autotune("plan", "job.yaml", "--device", "RTX 4090", "--devices", "2", "--emit", "b")
    bundle = autotune.folder / "b"
    assert unmarked(bundle) == []
    config = yaml.safe_load(texts(bundle)["sft_config.yaml"])
    assert (config["bf16"], config["use_cpu"], config["optim"]) == (True, False, FEW["optim"])
    assert yaml.safe_load(texts(bundle)["accelerate.yaml"])["num_processes"] == 2
    script, page = texts(bundle)["launch.sh"], texts(bundle)["README.md"]
    assert "python=python3\n" in script and "CUDA_VISIBLE_DEVICES-0,1" in script
    assert "- 2 x NVIDIA GeForce RTX 4090\n" in page and "`trl==" in page
    assert yaml.safe_load(texts(bundle)["run/job.yaml"])["devices"]["kind"] == "cuda"
    files = texts(bundle)
    assert autotune("verify", "b", expect=3) == ""
    assert texts(bundle) == files


def test_nothing_is_written_where_nothing_is_safe_or_the_folder_is_used(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "MOST_LISTS", 2)  # to look for all ways out takes minutes
    sft_job(autotune.folder)
    flags = ("--device", "memory=1GiB", "--set", "devices.memory=300MiB", "--emit", "b")
    out = autotune("plan", "job.yaml", *flags, "--json", expect=1)
    assert json.loads(out)["bundle"] is None
    assert not (autotune.folder / "b").exists()
    assert "the folder is not empty" in autotune.refused("plan", "job.yaml", "--emit", "weights")
