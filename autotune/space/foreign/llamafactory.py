"""LLaMA-Factory's YAML (`hparams/*.py` of 0.9). Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.space.foreign.fields import leave, leave_all, to
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.registry import read_registered
from autotune.space.foreign.tool import (
    EVALUATION,
    TRAINER_RULES,
    Tool,
    names_of,
    read_model,
    read_precision,
    refuse,
)

_METHODS = {"pt": "sft", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
_ATTENTION = {
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
    "disabled": "eager",
    "auto": "sdpa",
}
_OTHER_LOSSES = ("orpo", "simpo")
_RULES = {
    **TRAINER_RULES,
    "cutoff_len": to("max_length"),
    "lora_rank": to("lora_r"),
    "lora_target": to("lora_target_modules", names_of),
    "additional_target": to("lora_modules_to_save", names_of),
    "flash_attn": to("attn_implementation", _ATTENTION),
    "enable_liger_kernel": to("use_liger_kernel"),
    "disable_gradient_checkpointing": to("gradient_checkpointing", {True: False, False: True}),
    "pref_beta": to("beta"),
    "pref_loss": to("loss_type"),
    "dpo_label_smoothing": to("label_smoothing"),
    "kto_chosen_weight": to("desirable_weight"),
    "kto_rejected_weight": to("undesirable_weight"),
    "ppo_epochs": to("num_ppo_epochs"),
    "ppo_whiten_rewards": to("whiten_rewards"),
    "reward_model": to("reward_model_path"),
    "quantization_type": to("bnb_4bit_quant_type"),
    "double_quantization": to("use_bnb_nested_quant"),
    "preprocessing_num_workers": to("dataset_num_proc"),
    **leave_all(
        "template default_system tool_format enable_thinking preserve_thinking train_on_prompt "
        "mask_history",
        "TRL formats rows by the tokenizer's chat template (`chat_template_path` is another one)",
    ),
    **leave_all(
        "dataset_dir media_dir max_samples mix_strategy interleave_probs streaming buffer_size "
        "tokenized_path data_shared_file_system preprocessing_batch_size overwrite_cache",
        "a setting of its data loader",
    ),
    **leave_all("val_size eval_dataset eval_on_each_dataset compute_accuracy", EVALUATION),
    **leave_all("eval_strategy eval_steps evaluation_strategy predict_with_generate", EVALUATION),
    **leave_all(
        "plot_loss print_param_status include_effective_tokens_per_second early_stopping_steps",
        "a setting of LLaMA-Factory's own",
    ),
    **leave_all("use_unsloth use_unsloth_gc", "TRL trains without Unsloth"),
    **leave_all(
        "upcast_layernorm upcast_lmhead_output shift_attn mixture_of_depths rope_scaling "
        "moe_aux_loss_coef use_muon use_adam_mini use_llama_pro train_from_scratch "
        "adapter_name_or_path resize_vocab add_tokens loraplus_lr_ratio loraplus_lr_embedding "
        "pissa_init pissa_iter pref_ftx pref_bco_weight simpo_gamma ppo_buffer_size "
        "ppo_score_norm ppo_target ref_model ref_model_adapters reward_model_adapters fp8 "
        "use_asft_loss use_eaft_loss asft_alpha eaft_alpha disable_shuffling create_new_adapter "
        "pissa_convert use_dft_loss use_mca use_kt use_hyper_parallel hyper_parallel_args "
        "add_special_tokens new_special_tokens_config init_special_tokens "
        "ref_model_quantization_bit reward_model_quantization_bit ignore_pad_token_for_loss",
        "TRL's command cannot do it; what is trained differs",
    ),
    **leave_all(
        "use_fast_tokenizer low_cpu_mem_usage cache_dir use_reentrant_gc split_special_tokens "
        "infer_backend infer_dtype offload_folder use_kv_cache hf_hub_token ms_hub_token "
        "om_hub_token ray_run_name neat_packing adapter_folder use_v1_kernels device_map "
        "quantization_device_map compute_dtype master_addr master_port enable_torch_profiler "
        "eval_num_beams do_sample num_beams max_new_tokens length_penalty skip_special_tokens",
        "it changes neither speed nor memory of the training, or is LLaMA-Factory's own",
    ),
    "reward_model_type": leave("a job's reward model is a whole model"),
}
_HIDDEN = {
    **dict.fromkeys(("galore_", "apollo_", "badam_", "use_galore", "use_apollo", "use_badam"),
                    "another optimizer; TRL takes one by name: `fixed: {optim: ...}`"),
    **dict.fromkeys(("freeze_", "oft_"), "not trained so by a job"),
    **dict.fromkeys(("swanlab_", "use_swanlab", "ray_", "export_", "profiler_"),
                    "a setting of LLaMA-Factory's own"),
    **dict.fromkeys(("kt_", "fp8_"), "TRL's command cannot do it; what is trained differs"),
    **dict.fromkeys(("vllm_", "sglang_", "infer_"), "for its inference"),
    **dict.fromkeys(("image_", "video_", "audio_", "crop_", "use_audio"), "a job trains on text"),
}  # fmt: skip


def _method(data: Mapping[str, Any]) -> str | None:
    return _METHODS.get(str(data.get("stage", "sft")))


def _read(reading: Reading) -> None:
    stage = str(reading.data.get("stage", "sft"))
    reading.end("stage", "carried", f"method: {reading.method.name}")
    read_model(reading, "model_name_or_path")
    _read_tuning(reading)
    _read_precision(reading)
    for name in ("packing", "neat_packing"):
        if reading.is_on(name) and reading.method.name == "sft":
            reading.carry(name, "fixed.packing", True)
    if stage == "pt" and reading.given("packing") is None:
        reading.assume("fixed.packing", True, "stage pt packs")
    if reading.is_on("use_dft_loss"):
        reading.carry("use_dft_loss", "fixed.loss_type", "dft")
    if str(reading.given("pref_loss")) in _OTHER_LOSSES:
        what = f"autotune cannot train this: `pref_loss: {reading.given('pref_loss')}`"
        refuse(reading, "pref_loss", what, "autotune tunes `pref_loss: sigmoid`, hinge and ipo")
    if "cutoff_len" in reading.data:
        reading.apply("cutoff_len", _RULES["cutoff_len"])
    elif not reading.method.online:
        reading.assume("max_length", 2048, "LLaMA-Factory's default")
    read_registered(reading)


def _read_tuning(reading: Reading) -> None:
    """Read what is trained, and on which base."""
    kind = str(reading.given("finetuning_type") or "lora")
    bits = reading.given("quantization_bit")
    if kind not in ("lora", "full"):
        what = f"autotune cannot tune this: `finetuning_type: {kind}`"
        refuse(reading, "finetuning_type", what, "`lora` and `full` can be tuned")
    tuning = "qlora" if kind == "lora" and bits is not None else kind
    if reading.given("finetuning_type") is None:
        reading.assume("tuning", tuning, "LLaMA-Factory trains LoRA by default")
    else:
        reading.carry("finetuning_type", "tuning", tuning)
    if bits is not None and tuning == "qlora":
        reading.carry("quantization_bit", "tuning", tuning)
        if str(bits) == "8":
            reading.write("fixed.load_in_8bit", True)
        elif str(bits) != "4":
            refuse(reading, "quantization_bit", f"`{bits}` bits: a base has 4 or 8")
    parts = ("quantization_method", "quantization_type", "double_quantization")
    reading.say_half("quantization_bit: 4", bits is not None, parts)
    method = reading.given("quantization_method")
    if str(method or "bnb") in ("bnb", "bitsandbytes"):
        reading.end("quantization_method", "carried", "tuning: qlora is bitsandbytes's")
    else:
        reading.leave("quantization_method", "a job quantises by bitsandbytes")
    if tuning in ("lora", "qlora"):
        rank = reading.counted("lora_rank", 8)
        if reading.given("lora_alpha") is None:
            reading.assume("training.lora_alpha", 2 * rank, "LLaMA-Factory's default: 2 x the rank")


def _read_precision(reading: Reading) -> None:
    """Mixed precision, and in what the weights are kept: what is trained in float32."""
    if reading.is_on("pure_bf16"):
        reading.carry("pure_bf16", "fixed.dtype", "bfloat16")
        reading.write("precision", "bf16")
        reading.end("bf16", "carried", "precision")
        return
    read_precision(reading, default="fp32")
    if reading.job.get("tuning") in ("lora", "qlora"):
        dtype = "float16" if reading.job.get("precision") == "fp16" else "bfloat16"
        reading.assume("fixed.dtype", dtype, "LLaMA-Factory keeps a frozen base in 16 bits")


TOOL = Tool(
    name="LLaMA-Factory",
    marks=frozenset({"stage", "finetuning_type", "template", "cutoff_len", "dataset_dir"}),
    rules=_RULES,
    method=_method,
    reads_by_omegaconf=True,
    read=_read,
    defaults={
        "learning_rate": 5e-5,
        "lora_r": 8,
        "lora_target_modules": "all-linear",
        "lora_dropout": 0.0,
    },
    as_is={"loss_type": "nll"},
    hidden=_HIDDEN,
    says_method="stage",
)
