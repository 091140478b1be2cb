"""Training fields that a job over HTTP may set, by what their values are.

They are numbers, switches and words of TRL's and transformers' arguments that name no file, host,
code or account. A field that is not here is refused, so that a new one of a newer version is, too,
until somebody has looked at it. Plain data.
"""

_NUMBERS = """
    activation_checkpointing activation_offloading adam_beta1 adam_beta2 adam_epsilon
    assistant_only_loss average_tokens_across_devices batch_eval_metrics bf16_full_eval beta
    cast_lm_head_to_fp32 center_rewards_coefficient cliprange cliprange_value completion_only_loss
    copy_reference data_seed dataloader_drop_last dataloader_num_workers dataloader_pin_memory
    dataloader_prefetch_factor ddp_bucket_cap_mb delta desirable_weight disable_dropout discopop_tau
    do_eval entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target epsilon
    epsilon_high eval_accumulation_steps eval_delay eval_on_start eval_packing eval_steps
    f_alpha_divergence_coef fp16_full_eval full_determinism gamma generation_batch_size
    gradient_accumulation_steps gradient_checkpointing group_by_length kl_coef label_smoothing
    label_smoothing_factor lam ld_alpha learning_rate load_in_8bit local_rollout_forward_batch_size
    logging_first_step logging_nan_inf_filter logging_steps lora_alpha lora_dropout lora_r
    mask_truncated_completions max_completion_length max_grad_norm max_steps min_p
    missing_eos_penalty neftune_noise_alpha normalize_advantages num_generations
    num_generations_eval num_iterations num_mini_batches num_ppo_epochs num_sample_generations
    num_train_epochs off_policy_mask_threshold packing pad_to_multiple_of padding_free
    per_device_eval_batch_size per_device_train_batch_size precompute_ref_batch_size
    precompute_ref_log_probs prediction_loss_only ref_model_mixup_alpha ref_model_sync_steps
    remove_unused_columns repetition_penalty response_length router_aux_loss_coef
    sapo_temperature_neg sapo_temperature_pos save_only_model save_steps save_total_limit seed
    shuffle_dataset sync_ref_model temperature tf32 top_entropy_quantile top_k top_p torch_compile
    torch_empty_cache_steps undesirable_weight use_adaptive_entropy use_bias_correction_kl
    use_bnb_nested_quant use_cache use_dora use_liger_kernel use_rslora use_vllm use_weighting
    vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos vf_coef vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_max_model_length
    vllm_tensor_parallel_size warmup_ratio warmup_steps weight_decay whiten_rewards
"""
NUMBERS = frozenset(_NUMBERS.split())
"""A number, true, false or null."""
_WORDS = """
    attn_implementation bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation
    dataset_text_field dtype eval_strategy f_divergence_type importance_sampling_level kl_estimator
    logging_strategy lora_modules_to_save lora_target_modules lora_target_parameters lora_task_type
    loss_type lr_scheduler_type multi_objective_aggregation optim packing_strategy save_strategy
    scale_rewards train_sampling_strategy truncation_mode vllm_importance_sampling_mode
    vllm_mode
"""
WORDS = frozenset(_WORDS.split())
"""A word or several: a name of a choice, of a module, or of a column."""
TOKENS = frozenset({"eos_token", "pad_token", "stop_token"})
"""What a tokenizer has for a token."""
LISTS = frozenset({"loss_weights", "reward_weights"})
"""Numbers."""
SETTINGS = frozenset({"lr_scheduler_kwargs"})
"""Words with a number each."""
MOST = {"dataloader_num_workers": 16, "dataloader_prefetch_factor": 64}
"""What starts processes, or fills memory ahead."""
