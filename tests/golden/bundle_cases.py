"""Recommendations whose bundles are recorded. All values are fixed: no byte moves by itself."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bundle_facts import MIB, make_facts

from autotune.bundle.bundle import bundle_files, found_by
from autotune.facts import Facts
from autotune.facts.stack import training_fields
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.probe.protocol import Measurement
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.knobs import Candidate
from autotune.space.trl_config import settings

NASTY = "/data/a 0/a'; echo foo/ü ñ 日本"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What `bundle_files` is given."""

    recommendation: Recommendation
    job: Job
    facts: Facts
    python: str = "/opt/venv/bin/python"
    output_dir: str = "/runs/mine/output"
    verification: dict[str, Any] | None = None

    def files(self) -> dict[str, str]:
        """The bundle: file name -> text."""
        candidate = self.recommendation.chosen.candidate
        return bundle_files(
            self.recommendation,
            settings(self.job, self.facts, candidate, self.output_dir),
            python=self.python,
            origin=found_by(12, 640, self.facts.device.name),
            verification=self.verification,
        )

    @property
    def config(self) -> str:
        """The file that TRL reads."""
        return self.files()[METHODS[self.job.method].config_file]

    def installed(self) -> "Case":
        """The case on the stack that is installed."""
        fields = training_fields(self.job.method)
        stack = replace(self.facts.stack, training_fields=tuple(sorted(fields)))
        return replace(self, facts=replace(self.facts, stack=stack))


def _candidate(micro_batch: int = 4, accumulation: int = 4, **values: Any) -> Candidate:
    knobs: dict[str, Any] = {
        "per_device_train_batch_size": micro_batch,
        "gradient_checkpointing": False,
        "attn_implementation": "sdpa",
        "loss_type": "chunked_nll",
        "padding_free": False,
        "train_sampling_strategy": "random",
        "optim": "adamw_torch_fused",
        "dataloader_num_workers": 0,
        "expandable_segments": False,
        "max_length": 1024,
        "dtype": "float32",
    }
    return Candidate(values={**knobs, **values}, gradient_accumulation_steps=accumulation)


def _ranked(number: int, tokens_per_s: float, peak_mib: int, candidate: Candidate) -> Ranked:
    measurement = Measurement(
        outcome="ok",
        reason="measured",
        tokens_per_s=tokens_per_s,
        step_time_s=4000 / tokens_per_s,
        tokens_per_step=4000.0,
        tokens_per_epoch=1_000_000.0,
        relative_uncertainty=0.015,
        padding_share=0.25,
        peak_memory_bytes=peak_mib * MIB,
        memory_limit_bytes=65536 * MIB,
        micro_steps_measured=24,
        seconds=4.5,
        stages_s={"build": 0.5, "steps": 3.0},
    )
    return Ranked(number=number, candidate=candidate, measurement=measurement)


def _recommendation(candidate: Candidate, **fields: Any) -> Recommendation:
    best = _ranked(7, 2000.0, 1500, candidate)
    reasons = ("fastest stable candidate: 2000 tokens/s (+-1.5%)",)
    return Recommendation(
        **{"chosen": best, "reasons": reasons, "ties": (), "runners_up": (), **fields}
    )


def _cpu_full() -> Case:
    candidate = _candidate(gradient_checkpointing=True)
    return Case(
        recommendation=_recommendation(
            candidate,
            ties=(_ranked(9, 1990.0, 1700, _candidate(8, 2)),),
            runners_up=(_ranked(2, 1500.0, 1200, _candidate(2, 8, optim="adamw_torch")),),
            rejected={"oom": (0, 3), "crash": (5,)},
            allowed_bytes=58982 * MIB,
            passed_over={5: "the launch ended with exit code 1"},
        ),
        job=Job(
            model="/models/small",
            dataset="/data/texts",
            training={"learning_rate": 3e-4, "lr_scheduler_type": "cosine", "num_train_epochs": 2},
        ),
        facts=make_facts(),
        verification={"verified": True, "reason": "launched through its worst batch"},
    )


def _cpu_lora() -> Case:
    targets = {"lora_target_modules": "attention", "lora_r": 16}
    return Case(
        recommendation=_recommendation(
            _candidate(**targets),
            runners_up=(_ranked(4, 1600.0, 1400, _candidate(**{**targets, "lora_r": 64})),),
        ),
        job=Job(
            model="/models/small",
            dataset="/data/texts",
            tuning="lora",
            recipe={"lora_r": [16, 64], "lora_target_modules": ["attention"]},
            training={"lora_alpha": 8, "max_steps": 50},
        ),
        facts=make_facts(),
        verification={"verified": False, "reason": "the launch ended with exit code 1"},
    )


def _cuda_bf16() -> Case:
    candidate = _candidate(
        expandable_segments=True, padding_free=True, attn_implementation="flash_attention_2"
    )
    return Case(
        recommendation=_recommendation(candidate),
        job=Job(model="/models/small", dataset="/data/texts", dataset_config="all"),
        facts=make_facts("cuda"),
    )


def _no_data() -> Case:
    return Case(
        recommendation=_recommendation(_candidate()),
        job=Job.model_validate({"model": "/models/small", "dataset": {"lengths": {"max": 1000}}}),
        facts=make_facts(source=""),
    )


def _nasty_paths() -> Case:
    model, data = f"{NASTY}/model", f"{NASTY}/texts"
    return Case(
        recommendation=_recommendation(_candidate()),
        job=Job(model=model, dataset=data),
        facts=make_facts(model=model, source=data),
        python=f"{NASTY}/bin/python",
        output_dir=f"{NASTY}/output",
    )


def _preference(method: str, tuning: str, **values: Any) -> Case:
    """Of the knobs those that the method's trainer has."""
    full = _candidate(**values)
    knobs = {k: v for k, v in full.values.items() if k not in _SFT_ALONE}
    candidate = Candidate(values={**knobs, **values}, gradient_accumulation_steps=4)
    job = {"model": "/models/small", "dataset": "/data/pairs", "method": method, "tuning": tuning}
    return Case(
        recommendation=_recommendation(candidate),
        job=Job.model_validate(job),
        facts=make_facts(source="/data/pairs"),
    )


_SFT_ALONE = ("loss_type", "padding_free", "train_sampling_strategy")


def _reward() -> Case:
    return _preference("reward", "lora", lora_r=8, lora_target_modules="attention")


def _dpo() -> Case:
    return _preference("dpo", "full", precompute_ref_log_probs=True)


def _dpo_qlora() -> Case:
    adapters = {"lora_r": 8, "lora_target_modules": "attention", "load_in_8bit": False}
    return _preference("dpo", "qlora", **adapters, precompute_ref_log_probs=False)


def _kto() -> Case:
    return _preference("kto", "full", precompute_ref_log_probs=False, loss_type="kto")


def _online(method: str, tuning: str, **values: Any) -> Case:
    """A case of a trainer that generates; its knobs are those of its own search space."""
    common = ("gradient_checkpointing", "attn_implementation", "optim", "expandable_segments")
    full = _candidate()
    knobs = {k: v for k, v in full.values.items() if k in (*common, "per_device_train_batch_size")}
    group_knobs = {"generation_batch_size": 8, "num_generations": 4, "max_completion_length": 64}
    candidate = Candidate(values={**knobs, **group_knobs, **values}, gradient_accumulation_steps=4)
    job = {"model": "/models/small", "dataset": "/data/prompts", "method": method}
    job |= {"reward_funcs": ["accuracy_reward", "mine.by_length"], "tuning": tuning}
    return Case(
        recommendation=_recommendation(candidate),
        job=Job.model_validate(job),
        facts=make_facts(source="/data/prompts"),
    )


def _grpo() -> Case:
    return _online("grpo", "lora", lora_r=8, lora_target_modules="attention", beta=0.04)


def _rloo() -> Case:
    case = _online("rloo", "full", beta=0.0, num_iterations=2)
    job = case.job.model_copy(update={"reward_model_path": "/models/judge"})
    return replace(case, job=job)


def _grpo_vllm() -> Case:
    """vLLM beside the training, which gives its memory back in between."""
    shares = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.31}
    return _online("grpo", "full", use_vllm=True, vllm_enable_sleep_mode=True, **shares)


def _grpo_server() -> Case:
    case = _online("grpo", "full", use_vllm=True, vllm_mode="server")
    return replace(case, facts=make_facts("cuda", source="/data/prompts"))


def _grpo_split() -> Case:
    """Four of eight GPUs train, two generate, two are idle."""
    split_values = {"num_processes": 4, "vllm_tensor_parallel_size": 2, "generation_batch_size": 16}
    split_values |= {"distributed_type": "DEEPSPEED", "zero_stage": 3}
    server = {"vllm_mode": "server", "vllm_gpu_memory_utilization": 0.9}
    case = _online("grpo", "full", use_vllm=True, **server, **split_values)
    facts = make_facts("cuda", source="/data/prompts")
    devices = case.job.devices.model_copy(update={"kind": "cuda", "count": 8})
    return replace(
        case,
        job=case.job.model_copy(update={"devices": devices}),
        facts=replace(facts, device=replace(facts.device, index=0, peers=tuple(range(1, 8)))),
    )


def _distillation() -> Case:
    """A teacher in its checkpoint's type beside a student that is trained whole, in float32."""
    case = _online("distillation", "full", beta=0.5)
    ranked = case.recommendation.chosen
    values = {k: v for k, v in ranked.candidate.values.items() if k not in _GROUPED}
    facts = make_facts("cuda", source="/data/prompts")
    teacher = make_facts(model="/models/large").model
    model = replace(facts.model, teacher=replace(teacher, dtype="bfloat16"))
    update = {"reward_funcs": [], "teacher_model_name_or_path": "/models/large"}
    return replace(
        case,
        recommendation=_recommendation(replace(ranked.candidate, values=values)),
        job=case.job.model_copy(update=update),
        facts=replace(facts, model=model),
    )


_GROUPED = ("generation_batch_size", "num_generations")


def _ppo(tuning: str = "lora", **values: Any) -> Case:
    adapters = {"lora_r": 8, "lora_target_modules": "attention", "copy_reference": False}
    case = _online("ppo", tuning, **adapters, **values)
    ranked = case.recommendation.chosen
    group_knobs = {"generation_batch_size", "num_generations", "max_completion_length"}
    knobs = {k: v for k, v in ranked.candidate.values.items() if k not in group_knobs}
    knobs |= {"local_rollout_forward_batch_size": 4, "response_length": 53}
    knobs |= {"num_ppo_epochs": 4, "num_mini_batches": 2}
    candidate = replace(ranked.candidate, values=knobs)
    job = case.job.model_copy(update={"reward_funcs": []})
    return replace(case, recommendation=_recommendation(candidate), job=job)


def _ppo_qlora() -> Case:
    return _ppo("qlora", load_in_8bit=False)


def _several(processes: int, **values: Any) -> Case:
    """A case of several GPUs, the first of the machine."""
    case = _cuda_bf16()
    candidate = _candidate(gradient_checkpointing=True, **values)
    devices = case.job.devices.model_copy(update={"kind": "cuda", "count": processes})
    first = replace(case.facts.device, index=0, peers=tuple(range(1, processes)))
    return replace(
        case,
        recommendation=_recommendation(candidate),
        job=case.job.model_copy(update={"devices": devices}),
        facts=replace(case.facts, device=first),
    )


def _zero3() -> Case:
    offload = {"offload_optimizer_device": "cpu", "offload_param_device": "none"}
    return _several(8, distributed_type="DEEPSPEED", zero_stage=3, **offload)


def _machines() -> Case:
    """ZeRO-3 on two machines of eight GPUs."""
    case = _zero3()
    devices = case.job.devices.model_copy(update={"nodes": 2})
    candidate = _candidate(1, 1, distributed_type="DEEPSPEED", zero_stage=3)
    job = case.job.model_copy(update={"devices": devices})
    return replace(case, recommendation=_recommendation(candidate), job=job)


def _zero2_alone() -> Case:
    """One GPU, its optimizer on the host."""
    return _several(1, distributed_type="DEEPSPEED", zero_stage=2, offload_optimizer_device="cpu")


def _sequence() -> Case:
    return _several(8, distributed_type="DEEPSPEED", zero_stage=3, sp_size=4)


def _context() -> Case:
    return _several(8, distributed_type="FSDP", cp_size=2, torch_compile=True)


def _fsdp2() -> Case:
    return _several(2, distributed_type="FSDP", fsdp_reshard_after_forward=False)


CASES: dict[str, Callable[[], Case]] = {
    "cpu_full": _cpu_full,
    "cpu_lora": _cpu_lora,
    "cuda_bf16": _cuda_bf16,
    "no_data": _no_data,
    "nasty_paths": _nasty_paths,
    "reward": _reward,
    "dpo": _dpo,
    "dpo_qlora": _dpo_qlora,
    "kto": _kto,
    "grpo": _grpo,
    "grpo_vllm": _grpo_vllm,
    "grpo_server": _grpo_server,
    "grpo_split": _grpo_split,
    "rloo": _rloo,
    "distillation": _distillation,
    "ppo": _ppo,
    "ppo_qlora": _ppo_qlora,
    "zero3": _zero3,
    "zero2_alone": _zero2_alone,
    "fsdp2": _fsdp2,
    "machines": _machines,
    "sequence": _sequence,
    "context": _context,
}
