"""Estimates of online trainers from few layers and six tokens, held against whole traces.

A child does both, as a plan's does; the model has nine layers, so that most of them are copies, and
every token is decoded in the whole trace.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.facts.stack import missing
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from tests.cpu.conftest import LLAMA, write_model
from tests.cpu.test_estimate_scaling import CUDA, LAYERS
from tests.guards import some_of

WORKER = "tests.cpu.test_rollout_scaling:compare"
TEACHER_LAYERS = 8
PROMPTS = (24, 9, 17, 30)
SHARED = {
    "model_name_or_path": "some model",
    "report_to": "none",
    "dtype": "float32",
    "bf16": False,
    "attn_implementation": "sdpa",
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
}
PPO = {
    "response_length": 16,
    "num_ppo_epochs": 3,
    "num_mini_batches": 1,
    "local_rollout_forward_batch_size": 4,
}
GRPO = {
    "max_completion_length": 16,
    "num_generations": 4,
    "generation_batch_size": 4,
    "beta": 0.04,
    "reward_funcs": ["get_soft_overlong_punishment"],
}
TAUGHT = {
    "max_completion_length": 16,
    "beta": 0.5,
    "temperature": 1.0,
    "teacher_model_init_kwargs": {"dtype": "bfloat16"},
    "bf16": True,
}
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4}
CHECKPOINTED = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}


@dataclass(frozen=True)
class Case:
    """A candidate: its method, its configuration, its micro-batch of four completions."""

    method: str
    config: dict[str, Any]
    micro_batch: int = 2
    cuda: dict[str, Any] | None = field(default_factory=lambda: CUDA)


CASES = {
    "ppo": Case("ppo", PPO),
    "ppo, lora, checkpointed, in parts": Case(
        "ppo",
        {**PPO, **LORA, **CHECKPOINTED, "bf16": True, "local_rollout_forward_batch_size": 2},
        micro_batch=1,
    ),
    "ppo on the CPU": Case("ppo", {**PPO, "num_mini_batches": 2}, cuda=None),
    "grpo": Case("grpo", GRPO),
    **({} if missing("distillation") else {"distillation": Case("distillation", TAUGHT)}),
}


def compare(path: Path) -> None:
    """The child: the estimate of a case, and a trace of it with all layers and tokens."""
    from datasets import Dataset

    from autotune.estimate.allocator.replay import on_cpu, replayed
    from autotune.estimate.protocol import EstimateRequest, Point
    from autotune.estimate.records.events import work_from_plain
    from autotune.estimate.tracing.rollout import trace_rollout
    from autotune.estimate.variants.rollouts import RolloutEstimates
    from autotune.facts.tokenizing import described
    from autotune.training.rollout_plan import rollout_of

    folder = ChildFolder(path=path)
    asked: dict[str, Any] = read_json(folder.request) or {}
    case = Case(**asked["case"])
    rows = Dataset.from_list([{"prompt_ids": [3] * n} for n in PROMPTS])
    described(case.method, rows).save_to_disk(path / "rows")
    micro = case.micro_batch
    own = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 4 // micro}
    config = {**SHARED, **case.config}
    rollout = rollout_of({**config, **own}, devices=1, seed=0)
    estimates = RolloutEstimates(
        EstimateRequest(
            method=case.method,
            config=config,
            model_path=asked["model"],
            model="",
            versions={},
            layers=LAYERS,
            cuda=case.cuda,
            rows=str(path / "rows"),
            rows_total=len(PROMPTS),
            rows_sampled=False,
            points=[],
            limit_bytes=None,
            cache=None,
            seed=0,
            teacher_layers=TEACHER_LAYERS,
        )
    )
    point = Point(batching=dataclasses.asdict(rollout), accumulates=True)
    found = estimates.point(point)
    longest = sorted(PROMPTS, reverse=True)[: rollout.prompts]
    few = estimates._trace_request(rollout, longest)
    truth = trace_rollout(dataclasses.replace(few, layers=None, tokens=rollout.length))
    events = [tuple(event) for event in truth.events]
    whole = (
        on_cpu(events, None)
        if case.cuda is None
        else replayed(events, None, expandable_segments=False)
    )
    figures = (found.peak_allocated_bytes, found.peak_reserved_bytes)
    real = (whole.use.peak_bytes, whole.reserved_bytes)
    phases = {name: found.phases[name] / whole.use.phases[name] - 1 for name in found.phases}
    write_json(
        folder.reply,
        {
            "pair": [figures, real],
            "phases": phases,
            "method": found.method,
            "of": truth.layers,
            "flops": [
                sum(work_from_plain(row[:-1]).flops * row[-1] for row in found.rollout["update"]),
                sum(work_from_plain(row).flops for row in truth.work["update"]),
            ],
        },
    )


@pytest.mark.parametrize("name", some_of(CASES, (), "exactness"))
def test_few_layers_and_tokens_stand_for_all(
    name: str, server: ChildServer, tmp_path: Path
) -> None:
    from autotune.probe.survey_worker import make_tokenizer

    config = {**LLAMA, "num_hidden_layers": LAYERS, "num_key_value_heads": 4}
    model = write_model(tmp_path / "model", config).parent
    make_tokenizer(model, int(config["vocab_size"]))
    folder = ChildFolder(path=tmp_path / "probe")
    folder.path.mkdir()
    case = dataclasses.asdict(CASES[name])
    if name == "distillation":  # on CUDA, beside a teacher that has another depth
        teacher = write_model(
            tmp_path / "teacher", {**LLAMA, "num_hidden_layers": TEACHER_LAYERS}
        ).parent
        case["config"]["teacher_model_name_or_path"] = str(teacher)
    write_json(folder.request, {"case": case, "model": str(model)})
    server.run(folder, WORKER, Limits(wall_s=600))
    found = read_json(folder.reply)
    assert found is not None, folder.stderr.read_text(encoding="utf-8")[-2000:]
    assert (found["method"], found["of"]) == ("scaled trace", LAYERS)
    (allocated, reserved), (real_allocated, real_reserved) = found["pair"]
    assert allocated == pytest.approx(real_allocated, rel=0.001), found
    assert reserved == pytest.approx(real_reserved, rel=0.03), found
    assert found["phases"] == pytest.approx(dict.fromkeys(found["phases"], 0.0), abs=0.01), found
    if name == "distillation":
        few, whole = found["flops"]
        assert few == pytest.approx(whole, rel=1e-6)
