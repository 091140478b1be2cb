"""GRPO and RLOO: runs of tiny models on the CPU, from a job to a trained model."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.facts.data import prompts_of_lengths
from autotune.probe.survey_worker import make_tokenizer
from autotune.process.child_server import ChildServer
from autotune.space.vllm.colocated import ASLEEP_BYTES
from tests.cpu.conftest import LLAMA, Bench, Command, open_bench
from tests.cpu.stand_ins import give_tokenizer, stand_in
from tests.cpu.test_run import assert_launched, probes_of, write_job
from tests.guards import some_of

METHODS = ("grpo", "rloo")
LONG = pytest.mark.nightly("launches")
WIDE = {**LLAMA, "intermediate_size": 6000, "vocab_size": 5000}
"""Its activations outweigh what one process takes more than another."""
REWARDS = '''
def by_length(completions, topic, **_):
    """It asks for a column of the data beside the prompt."""
    return [float(len(text) % 7 + len(one)) for text, one in zip(completions, topic, strict=True)]
'''
FEW = {
    "attn_implementation": "sdpa",
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "num_generations": 4,
    "max_completion_length": 12,
    "per_device_train_batch_size": 4,
}


def prompts(count: int = 60) -> list[dict[str, Any]]:
    """Conversations and what a reward may ask for."""
    words = ("write", "a", "short", "poem", "about", "the", "sea", "the", "sky", "and", "a", "boat")
    return [
        {
            "prompt": [{"role": "user", "content": " ".join(words[: 3 + n % 9])}],
            "topic": "sea" if n % 2 else "boat",
        }
        for n in range(count)
    ]


def arguments(method: str, folder: Path) -> list[str]:
    """GRPO is the example's, with adapters; RLOO has a reward of the user's."""
    if method == "grpo":
        sets = (
            f"dataset={folder / 'prompts.jsonl'}",
            "gradient_checkpointing=false",
            "per_device_train_batch_size=2",
            "budget=1",
        )
        return stand_in("grpo-7b-lora", folder, *sets)
    (folder / "my_rewards.py").write_text(REWARDS, encoding="utf-8")
    write_job(
        folder,
        method=method,
        dataset="prompts.jsonl",
        max_length=None,
        budget={"probes": 1, "minutes": 5},
        reward_funcs=["get_soft_overlong_punishment", "my_rewards.by_length"],
        fixed=FEW,
    )
    (folder / "model" / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 8192}))
    give_tokenizer(folder / "model")
    return ["job.yaml"]


@pytest.mark.parametrize("method", some_of(METHODS, {"grpo"}, "launches"))
def test_an_online_job_becomes_a_verified_bundle_that_trains(
    method: str, autotune: Command
) -> None:
    """Conversations with their own template."""
    text = "\n".join(json.dumps(row) for row in prompts()) + "\n"
    (autotune.folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    job = arguments(method, autotune.folder)
    result = json.loads(autotune("run", *job, "--out", "run", "--json", expect=None))
    assert result["outcome"] == "recommended"
    assert_launched(result["verification"])
    probes = probes_of(autotune, "run")
    assert {one["outcome"] for one in probes} <= {"ok", "stopped"} and probes
    best = result["measurement"]
    phases = [best[f"{name}_s"] for name in ("generation", "scoring", "update")]
    assert all(phase > 0 for phase in phases)
    assert sum(phases) < best["step_time_s"]
    assert best["completions_per_s"] == pytest.approx(8 / best["step_time_s"])


@pytest.fixture(scope="module", params=METHODS)
def online(
    request: pytest.FixtureRequest, server: ChildServer, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    sets = [
        "dataset={lengths: {max: 40, p50: 12, p99: 30, rows: 400}}",
        f"method={request.param}",
        "max_length=null",
        "reward_funcs=[get_soft_overlong_punishment]",
        "num_generations=4",
        "max_completion_length=60",
        "beta=0.04",
    ]
    return open_bench(tmp_path_factory.mktemp(request.param), server, WIDE, sets)


@pytest.mark.parametrize("online", ["grpo", pytest.param("rloo", marks=LONG)], indirect=True)
def test_more_memory_than_there_is_is_a_real_oom(online: Bench) -> None:
    knobs = {"gradient_checkpointing": False, "generation_batch_size": 8}
    few, many = (
        online.probe(f"{size} roomy", per_device_train_batch_size=size, **knobs) for size in (1, 8)
    )
    assert few.peak_memory_bytes is not None and many.peak_memory_bytes is not None
    limit = (few.peak_memory_bytes + many.peak_memory_bytes) // 2
    assert many.peak_memory_bytes - limit > 40 * 2**20
    tight = online.probe("tight", limit=limit, per_device_train_batch_size=8, **knobs)
    assert tight.outcome == "oom", tight.reason
    assert many.update_peak_bytes == many.peak_memory_bytes
    assert many.generation_peak_bytes is not None
    assert many.generation_peak_bytes < many.peak_memory_bytes


@pytest.mark.parametrize("online", ["grpo"], indirect=True)
def test_every_way_of_generating_does_the_work_of_one_step(online: Bench) -> None:
    for together in (4, 8):
        one = online.probe(
            f"{together} together", generation_batch_size=together, per_device_train_batch_size=4
        )
        assert one.outcome == "ok", one.reason
        assert one.tokens_per_step is not None and one.step_time_s is not None
        assert 8 * (60 + 1) < one.tokens_per_step < 8 * (60 + 40)
        phases = (one.generation_s, one.scoring_s, one.update_s)
        assert all(phase is not None and phase > 0 for phase in phases)
        assert sum(phase or 0.0 for phase in phases) < one.step_time_s


@pytest.mark.parametrize("online", ["grpo"], indirect=True)
def test_with_vllm_memory_counts_both_and_generation_is_not_the_trainings(online: Bench) -> None:
    """TRL's own path, with transformers' generation in vLLM's place."""
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1}
    own = {"gradient_checkpointing": False, "per_device_train_batch_size": 8, **vllm}
    both = online.probe("with vllm", **own)
    asleep = online.probe("vllm asleep", **own, vllm_enable_sleep_mode=True)
    for one in (both, asleep):
        assert one.outcome == "ok", one.reason
        assert one.generation_s
    assert both.peak_memory_bytes is not None and asleep.peak_memory_bytes is not None
    assert both.vllm_bytes == round(0.1 * online.facts.device.total_bytes)
    steps = online.steps("with vllm")
    assert steps.micro_steps <= (steps.most_micro_steps or 0)
    assert steps.peak_memory_bytes == pytest.approx(both.peak_memory_bytes, rel=0.05)
    training = both.peak_memory_bytes - both.vllm_bytes
    assert training == max(both.scoring_peak_bytes or 0, both.update_peak_bytes or 0)
    # Awake beside what the training keeps; while that computes it has given its memory back.
    assert asleep.resident_bytes is not None and asleep.vllm_bytes is not None
    assert asleep.peak_memory_bytes == max(
        asleep.resident_bytes + both.vllm_bytes,
        asleep.peak_memory_bytes - asleep.vllm_bytes + ASLEEP_BYTES,
    )
    # The training alone would fit in this.
    limit = training + both.vllm_bytes - 60 * 2**20
    tight = online.probe("beside vllm", limit=limit, **own)
    assert tight.outcome == "oom", tight.reason


@pytest.mark.parametrize(
    ("batch", "fields"),
    [
        (32, {"fixed": {"per_device_train_batch_size": 2}}),
        (24, {"training": {"num_generations": 6}}),
        (12, {"fixed": {"num_generations": 3, "per_device_train_batch_size": 1}}),
    ],
)
def test_groups_of_any_size_go_with_any_micro_batch(
    batch: int, fields: dict[str, Any], autotune: Command
) -> None:
    """How many micro-batches make a step is searched, so TRL must not judge one alone."""
    job = {
        "model": "qwen2.5-0.5b",
        "method": "grpo",
        "tuning": "lora",
        "dataset": {"lengths": {"max": 64, "rows": 100}},
        "global_batch_size": batch,
        "reward_funcs": ["get_soft_overlong_punishment"],
        "devices": {"kind": "cpu"},
    }
    (autotune.folder / "job.yaml").write_text(yaml.safe_dump({**job, **fields}), encoding="utf-8")
    space = json.loads(autotune("validate", "--space", "job.yaml", "--json"))
    assert space["candidates"]


def test_lengths_in_place_of_prompts_are_the_lengths_of_the_prompts(
    online: Bench, tmp_path: Path
) -> None:
    data = online.facts.data
    assert data.form == "lengths"
    assert abs(data.longest - 40) <= 1
    assert abs(data.quantiles["p50"] - 12) <= 2


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma2"])
def test_prompts_of_a_length_have_it_whatever_tokenizer_a_bare_config_gets(
    model_type: str, tmp_path: Path
) -> None:
    config = {"model_type": model_type, "hidden_size": 64, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = make_tokenizer(tmp_path, 300)
    rows = prompts_of_lengths([1, 5, 40], tokenizer)
    ids = [tokenizer(row["prompt"])["input_ids"] for row in rows]
    assert [len(one) for one in ids] == [1, 5, 40]
    assert max(ids[-1]) < len(tokenizer) <= 300
