"""GRPO and RLOO: runs of tiny models on the CPU, from a job to a trained model."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.probe.runner import ProbeServer
from tests.cpu.conftest import LLAMA, Bench, Command, open_bench
from tests.cpu.test_run import EXAMPLE, assert_launched, probes_of, write_job

METHODS = ("grpo", "rloo")
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


@pytest.mark.parametrize("method", METHODS)
def test_an_online_job_becomes_a_verified_bundle_that_trains(
    method: str, autotune: Command
) -> None:
    """Conversations with their own template; one of TRL's rewards, and one of the user's."""
    text = "\n".join(json.dumps(row) for row in prompts()) + "\n"
    (autotune.folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    (autotune.folder / "my_rewards.py").write_text(REWARDS, encoding="utf-8")
    write_job(
        autotune.folder,
        method=method,
        dataset="prompts.jsonl",
        max_length=None,
        budget={"probes": 4, "minutes": 5},
        tuning="lora" if method == "rloo" else "full",
        reward_funcs=["get_soft_overlong_punishment", "my_rewards.by_length"],
        fixed=FEW,
    )
    model = autotune.folder / "model"
    (model / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 8192}))
    for file in (EXAMPLE / "model").glob("*token*.json*"):
        (model / file.name).write_bytes(file.read_bytes())
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    # One search by estimates, and one without them.
    flags = ["--sampler", "random"] if method == "rloo" else []
    result = json.loads(autotune("run", "job.yaml", "--out", "run", "--json", *flags))
    assert result["outcome"] == "recommended"
    assert_launched(result["verification"])
    probes = probes_of(autotune, "run")
    # By estimates it may be over after three.
    assert len(probes) >= (4 if flags else 3)
    assert {one["outcome"] for one in probes} <= {"ok", "stopped"}
    best = result["measurement"]
    phases = [best[f"{name}_s"] for name in ("generation", "scoring", "update")]
    assert all(phase > 0 for phase in phases)
    assert sum(phases) < best["step_time_s"]
    assert best["completions_per_s"] == pytest.approx(8 / best["step_time_s"])
    bundle, out = autotune.folder / "run" / "bundle", autotune.folder / "out"
    flags = ["--max_steps", "2", "--output_dir", str(out), "--save_strategy", "no"]
    subprocess.run(
        ["bash", str(bundle / "launch.sh"), *flags],
        check=True,
        capture_output=True,
        timeout=300,
        cwd=autotune.folder,
    )
    assert list(out.glob("*.safetensors"))


@pytest.fixture(scope="module", params=METHODS)
def online(
    request: pytest.FixtureRequest, server: ProbeServer, tmp_path_factory: pytest.TempPathFactory
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


def test_lengths_in_place_of_prompts_are_the_lengths_of_the_prompts(
    online: Bench, tmp_path: Path
) -> None:
    data = online.facts.data
    assert data.form == "lengths"
    assert abs(data.longest - 40) <= 1
    assert abs(data.quantiles["p50"] - 12) <= 2
