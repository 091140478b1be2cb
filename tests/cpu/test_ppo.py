"""PPO on the CPU: from a job to a trained policy, and what its probes measure."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.probe.protocol import Measurement
from autotune.process.child_server import ChildServer
from tests.cpu.conftest import LLAMA, Bench, Command, open_bench
from tests.cpu.stand_ins import stand_in
from tests.cpu.test_online import WIDE, prompts
from tests.cpu.test_run import probes_of

MORE = (
    "budget=1",
    "per_device_train_batch_size=2",
    "local_rollout_forward_batch_size=8",
    "tuning=lora",
    "gradient_checkpointing=false",
    "num_ppo_epochs=2",
    "num_mini_batches=2",
    "eval_strategy=steps",
    "stop_token=eos",
    "missing_eos_penalty=1.0",
)
JUDGE = {**LLAMA, "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 8192}
"""A reward model of another shape than the policy's."""
DEEP = {**WIDE, "intermediate_size": 3000, "num_hidden_layers": 4}
"""Three of four layers' activations are what checkpointing saves: more than processes differ by."""


def save_judge(folder: Path) -> None:
    """A reward model with weights."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(**{**JUDGE, "num_labels": 1, "pad_token_id": 0})
    LlamaForSequenceClassification(config).save_pretrained(folder)


@pytest.mark.ppo
def test_a_job_becomes_a_verified_bundle_that_trains(autotune: Command) -> None:
    """Conversations, adapters, a reward model, mini-batches, an evaluation split to sample from."""
    data = autotune.folder / "prompts"
    data.mkdir()
    for split, rows in (("train", prompts(60)), ("test", prompts(8))):
        text = "\n".join(json.dumps({"prompt": row["prompt"]}) for row in rows) + "\n"
        (data / f"{split}.jsonl").write_text(text, encoding="utf-8")
    save_judge(autotune.folder / "judge")
    sets = [f"dataset={data}", f"reward_model_path={autotune.folder / 'judge'}", *MORE]
    job = stand_in("ppo-memory", autotune.folder, *sets)
    result = json.loads(autotune("run", *job, "--out", "run", "--json", expect=None))
    assert result["outcome"] == "recommended"
    verification = result["verification"]
    assert verification["saved"] and not verification["evaluated"]
    assert verification["verified"] or (
        verification["only_too_slow"] or verification["only_too_fast"]
    ), verification
    probes = probes_of(autotune, "run")
    assert {one["outcome"] for one in probes} <= {"ok", "stopped"} and probes
    best = result["measurement"]
    phases = [best[f"{name}_s"] for name in ("generation", "scoring", "update")]
    assert all(phase > 0 for phase in phases)
    assert sum(phases) < best["step_time_s"]
    assert best["completions_per_s"] == pytest.approx(8 / best["step_time_s"])
    log = (autotune.folder / "run" / "verification" / "launch.log").read_text(encoding="utf-8")
    assert "model response" in log  # the samples that the job asks for
    bundle, out = autotune.folder / "run" / "bundle", autotune.folder / "out"
    flags = ["--max_steps", "2", "--output_dir", str(out), "--save_strategy", "no"]
    done = subprocess.run(
        ["bash", str(bundle / "launch.sh"), *flags],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=autotune.folder,
    )
    assert done.stdout.count("'objective/kl'") == 2  # a step is an update
    assert (out / "adapter_model.safetensors").exists()


@pytest.fixture(scope="module")
def ppo(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    sets = [
        "dataset={lengths: {max: 40, p50: 12, p99: 30, rows: 400}}",
        "method=ppo",
        "max_length=null",
        "response_length=40",
        "num_ppo_epochs=1",
    ]
    return open_bench(tmp_path_factory.mktemp("ppo"), server, DEEP, sets)


@pytest.fixture(scope="module")
def roomy(ppo: Bench) -> dict[str, Measurement]:
    """With all the memory there is: the least, the most, the most with checkpointing."""
    wanted: dict[str, dict[str, Any]] = {
        "few": {"per_device_train_batch_size": 1, "gradient_checkpointing": False},
        "many": {"per_device_train_batch_size": 8, "gradient_checkpointing": False},
        "checkpointed": {"per_device_train_batch_size": 8, "gradient_checkpointing": True},
    }
    found = {name: ppo.probe(name, **knobs) for name, knobs in wanted.items()}
    assert {one.outcome for one in found.values()} == {"ok"}
    return found


@pytest.mark.nightly("ppo")
def test_more_memory_than_there_is_is_a_real_oom(ppo: Bench, roomy: dict[str, Measurement]) -> None:
    few, many = (roomy[name].peak_memory_bytes or 0 for name in ("few", "many"))
    assert many - few > 100 * 2**20
    tight = ppo.probe(
        "tight",
        limit=(few + many) // 2,
        per_device_train_batch_size=8,
        gradient_checkpointing=False,
    )
    assert tight.outcome == "oom", tight.reason


@pytest.mark.nightly("ppo")
def test_checkpointing_is_on_where_the_candidate_has_it(roomy: dict[str, Measurement]) -> None:
    """PPOTrainer by itself would pass the setting over."""
    plain, saved = (roomy[name].update_peak_bytes or 0 for name in ("many", "checkpointed"))
    assert plain - saved > 50 * 2**20


@pytest.mark.nightly("ppo")
def test_a_step_is_an_update_of_all_phases(roomy: dict[str, Measurement]) -> None:
    for one in roomy.values():
        phases = [one.generation_s, one.scoring_s, one.update_s, one.optimizer_step_time_s]
        assert all(phase is not None and phase > 0 for phase in phases)
        assert sum(phase or 0.0 for phase in phases) == pytest.approx(one.step_time_s, rel=1e-6)
        assert one.gradient_norm is not None and one.last_loss is not None
        assert 8 * (40 + 1) < (one.tokens_per_step or 0) < 8 * (40 + 40)


@pytest.mark.nightly("ppo")
def test_the_script_steps_once_an_epoch_in_the_last_batch_of_the_data_too(tmp_path: Path) -> None:
    """accelerate by itself would let each micro-step of that batch through."""
    import datasets
    import transformers
    import trl

    from autotune.probe.survey_worker import make_tokenizer
    from autotune.training import train_ppo

    make_tokenizer(tmp_path, 509)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    small = {**LLAMA, "hidden_size": 32, "num_labels": 1, "pad_token_id": 0}
    kinds = {
        "model": transformers.LlamaForCausalLM,
        "ref_model": transformers.LlamaForCausalLM,
        "reward_model": transformers.LlamaForSequenceClassification,
        "value_model": transformers.LlamaForSequenceClassification,
    }
    models = {name: kind(transformers.LlamaConfig(**small)) for name, kind in kinds.items()}
    arguments = train_ppo.PPOConfig(
        output_dir=str(tmp_path),
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_ppo_epochs=2,
        response_length=5,
        report_to=[],
        num_sample_generations=0,
        max_steps=3,
        save_strategy="no",
    )
    rows = datasets.Dataset.from_list([{"input_ids": [3, 4, 5]}] * 16)
    trainer = train_ppo.make_trainer(
        arguments,
        trl.ModelConfig(),
        train_ppo.prepared_tokenizer(tokenizer),
        models,
        rows,
        None,
    )
    steps: list[None] = []
    trainer.optimizer.optimizer.register_step_post_hook(lambda *_: steps.append(None))
    trainer.train()
    assert len(steps) == 3 * 2


@pytest.mark.nightly("ppo")
def test_what_ddp_wraps_is_unwrapped_to_be_saved(tmp_path: Path) -> None:
    """Policy and value model are one module, of which the policy is saved; by itself PPOTrainer
    looks for both in what DDP has wrapped around them."""
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from torch.nn.parallel import DistributedDataParallel

    from autotune.training.train_ppo import SavingTrainer

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        both = torch.nn.ModuleDict({"policy": torch.nn.Linear(1, 1)})
        trainer = SavingTrainer.__new__(SavingTrainer)
        trainer.accelerator = Accelerator(cpu=True)
        trainer.model = wrapped = DistributedDataParallel(both)
        with pytest.raises(ZeroDivisionError), trainer._unwrapped():
            assert trainer.model is both
            raise ZeroDivisionError
        assert trainer.model is wrapped
    finally:
        dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
