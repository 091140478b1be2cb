"""What each field of Axolotl's YAML is in a job. Pure."""

from autotune.space.foreign.fields import leave, leave_all, to
from autotune.space.foreign.tool import EVALUATION, REMOTE_CODE, SHARDING

_OWN = "a setting of Axolotl's own"
RULES = {
    "sequence_len": to("max_length"),
    "micro_batch_size": to("per_device_train_batch_size"),
    "eval_batch_size": to("per_device_eval_batch_size"),
    "num_epochs": to("num_train_epochs"),
    "optimizer": to("optim"),
    "lr_scheduler": to("lr_scheduler_type"),
    "warmup_ratio": to("warmup_steps"),
    "sample_packing": to("packing"),
    "peft_use_dora": to("use_dora"),
    "peft_use_rslora": to("use_rslora"),
    "lora_modules_to_save": to("lora_modules_to_save"),
    "batch_flattening": to("padding_free"),
    "rl_beta": to("beta"),
    "dpo_loss_type": to("loss_type"),
    "dpo_label_smoothing": to("label_smoothing"),
    "dpo_use_weighting": to("use_weighting"),
    "kto_desirable_weight": to("desirable_weight"),
    "kto_undesirable_weight": to("undesirable_weight"),
    "group_by_length": to(
        "train_sampling_strategy", {True: "group_by_length", False: "random"}
    ),
    "dataset_processes": to("dataset_num_proc"),
    "tf32": to("tf32", {"auto": None}),
    "liger_fused_linear_cross_entropy": to("use_liger_kernel"),
    "chunked_cross_entropy": to("loss_type", {True: "chunked_nll", False: "nll"}),
    "trust_remote_code": leave(REMOTE_CODE),
    "remove_unused_columns": leave("TRL's trainers choose it themselves"),
    **leave_all("fsdp_version ddp dp_shard_size dp_replicate_size deepcompile "
                "fsdp_final_state_dict_type", SHARDING),
    **leave_all("val_set_size test_datasets eval_sample_packing evals_per_epoch eval_steps "
                "eval_strategy do_causal_lm_eval do_bench_eval eval_table_size "
                "eval_max_new_tokens early_stopping_patience eval_sequence_len bench_dataset "
                "eval_causal_lm_metrics generate_samples", EVALUATION),
    **leave_all("sequence_parallel_degree context_parallel_size tensor_parallel_size",
                "a job spreads rows only; the global batch counts what is left"),
    **leave_all("lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel "
                "tiled_mlp unsloth_cross_entropy_loss flash_attn_cross_entropy "
                "flash_attn_rms_norm flash_attn_fuse_mlp layer_offloading flex_attention "
                "sage_attention use_kernels fused_attn_kernel selective_checkpointing "
                "experts_implementation dpo_use_liger_kernel dpo_padding_free",
                "TRL trains without that kernel"),
    **leave_all("plugins strict dataset_prepared_path shuffle_merged_datasets debug "
                "saves_per_epoch is_llama_derived_model is_mistral_derived_model "
                "is_qwen_derived_model is_falcon_derived_model hub_model_id save_safetensors "
                "tokenizer_type model_type tokenizer_use_fast resume_from_checkpoint "
                "auto_resume_from_checkpoints local_rank xformers_attention loraplus_lr_ratio "
                "s2_attention flash_optimum include_tkps use_tensorboard lora_model_dir "
                "dataset_exact_deduplication lora_fan_in_fan_out peft_layers_to_transform "
                "shuffle_before_merging_datasets dataset_keep_in_memory skip_prepare_dataset "
                "push_dataset_to_hub hf_use_auth_token device device_map max_memory "
                "gpu_memory_limit low_cpu_mem_usage gc_steps gc_collect_steps save_first_step "
                "include_tokens_per_second trainer_cls base_model_config processor_type "
                "axolotl_config_path use_wandb use_mlflow use_comet use_trackio use_ray "
                "merge_lora merge_method streaming max_prompt_len dynamic_checkpoint "
                "torch_compile_options is_preprocess qlora_sharded_model_loading",
                _OWN),
    **leave_all("special_tokens tokens chat_template chat_template_jinja default_system_message "
                "eot_tokens train_on_inputs roles_to_train",
                "TRL formats rows by the tokenizer's chat template (`chat_template_path` is "
                "another one)"),
    **leave_all("pad_to_sequence_len pad_to_multiple_of sample_packing_group_size "
                "sample_packing_bin_size multipack_real_batches excess_length_strategy "
                "min_sample_len curriculum_sampling",
                "TRL pads a batch to its longest row, and truncates longer ones"),
    **leave_all("unfrozen_parameters relora relora_prune_ratio relora_prune_method "
                "cosine_min_lr_ratio cosine_constant_lr_ratio lr_groups embedding_lr "
                "embedding_lr_scale lr_quadratic_warmup lr_div_factor adam_epsilon2 adam_beta3 "
                "loftq loftq_config lora_target_parameters lora_rank_pattern lora_alpha_pattern "
                "peft peft_init_lora_weights peft_trainable_token_indices peft_layers_pattern "
                "peft_layer_replication loraplus_lr_embedding resize_token_embeddings_to_32x "
                "mean_resizing_embeddings shrink_embeddings reinit_weights qat quantization "
                "quantize_moe_experts model_quantization_config use_onebitllms gptq use_pose "
                "scaling_softmax freeze_mm_modules fp8 fp8_config use_eaft eaft_alpha eaft_k "
                "orpo_alpha simpo_gamma cpo_alpha dpo_loss_weights jagged_restart_steps "
                "num_labels lisa_n_layers bnb_config_kwargs added_tokens_overrides ebft",
                "TRL's command cannot do it; what is trained differs"),
}  # fmt: skip
HIDDEN = dict.fromkeys(
    (
        "wandb_",
        "loss_watchdog_",
        "mlflow_",
        "comet_",
        "swanlab_",
        "profiler_",
        "tokenizer_",
        "lora_on_",
        "vllm",
        "ray_",
        "gradio_",
        "otel_",
        "trackio_",
        "dataset_shard_",
        "generation_",
        "tiled_mlp_",
        "chunked_cross_entropy_",
        "sample_packing_",
        "pretrain_",
    ),
    _OWN,
) | dict.fromkeys(("qgalore_", "dion_"), "another optimizer's")
HIDDEN["liger_"] = "Liger's kernels come together: `use_liger_kernel`"
