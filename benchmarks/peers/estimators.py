"""What others say a point takes. Bytes; None where the estimator does not claim to know.

Each is used as its own documentation has it, for one device. Runs in a child only.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch

from autotune.estimate.protocol import TraceRequest


def accelerate_estimate(request: TraceRequest) -> int | None:
    """`accelerate estimate-memory`: what it prints as "Training using Adam"."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    if request.config.get("use_peft"):
        return None
    total, _ = calculate_maximum_sizes(_meta_model(request, torch.float32))
    half = request.config["dtype"] != "float32" or request.config["bf16"]
    usage = estimate_training_usage(total, "bfloat16" if half else "float32")
    return int(max(usage.values()))


def deepspeed_estimate(request: TraceRequest) -> int | None:
    """DeepSpeed's estimate_zero2_model_states_mem_needs for one GPU without offload."""
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    if request.config.get("use_peft"):
        return None
    parameters = {id(p): p.numel() for p in _meta_model(request, torch.float32).parameters()}
    _, device = estimate_zero2_model_states_mem_needs(
        total_params=sum(parameters.values()), num_gpus_per_node=1, cpu_offload=False
    )
    return int(device)


def mem_tracker(request: TraceRequest) -> int:
    """torch.distributed._tools.MemTracker over two plain training steps on fake tensors.

    As its documentation shows it: the model, its own loss, AdamW; nothing of TRL, nothing put
    right. The peak of all it tracks.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    config, lengths = request.config, request.steps[0].lengths
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _model(request, getattr(torch, config["dtype"]))
        if config.get("use_peft"):
            model = _with_adapters(model, config)
        if config.get("gradient_checkpointing"):
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, fused=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        ids = torch.ones(len(lengths), max(lengths), dtype=torch.int64)
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def fm_training_estimator(request: TraceRequest) -> int | None:
    """IBM's fm-training-estimator: its formulas (its learned part has no data of these models)."""
    if importlib.util.find_spec("fm_training_estimator") is None:
        return None
    unused = ModuleType("fm_training_estimator.regressor")
    unused.__getattr__ = lambda name: object  # type: ignore[method-assign]
    sys.modules["fm_training_estimator.regressor"] = unused
    from fm_training_estimator.config import FMArguments, HFTrainingArguments, PeftLoraConfig
    from fm_training_estimator.memory import FullParameterTuningEstimator, LoraEstimator

    config, lengths = request.config, request.steps[0].lengths
    job = FMArguments(
        base_model_path=request.model_path, block_size=max(lengths), torch_dtype=config["dtype"]
    )
    training = HFTrainingArguments(
        per_device_train_batch_size=len(lengths),
        gradient_checkpointing=bool(config["gradient_checkpointing"]),
        optim="adamw_torch",  # of others it asks for a name that transformers no longer has
        use_cpu=True,
    )
    if not config.get("use_peft"):
        return int(FullParameterTuningEstimator(job, training).get_total_mem_estimate())
    adapters = PeftLoraConfig(
        r=config["lora_r"],
        lora_dropout=config["lora_dropout"],
        target_modules=_targets(config),
    )
    return int(LoraEstimator(job, training, adapters).get_total_mem_estimate())


PEERS = {
    "accelerate estimate-memory": accelerate_estimate,
    "DeepSpeed ZeRO-2 formula": deepspeed_estimate,
    "MemTracker, unrepaired": mem_tracker,
    "fm-training-estimator": fm_training_estimator,
}


def _meta_model(request: TraceRequest, dtype: torch.dtype) -> Any:
    with torch.device("meta"):
        return _model(request, dtype)


def _model(request: TraceRequest, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(request.model_path)
    kernel = request.config["attn_implementation"]
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=kernel)


def _targets(config: dict[str, Any]) -> Any:
    targets = config["lora_target_modules"]
    return "all-linear" if targets == ["all-linear"] else targets


def _with_adapters(model: Any, config: dict[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=config["lora_r"],
        lora_dropout=config["lora_dropout"],
        target_modules=_targets(config),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)
