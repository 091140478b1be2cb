"""The names that DeepSpeed's file may have (0.19; newer ones may know more). Pure data.

Sources: `deepspeed/runtime/config.py`, `runtime/zero/config.py`, `runtime/zero/offload_config.py`,
`runtime/precision_config.py`, `runtime/swap_tensor/constants.py`.
"""


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


TOP = names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
    managed_gradient_accumulation gradient_clipping steps_per_print dump_state disable_python_gc
    disable_allgather communication_data_type seq_parallel_communication_data_type
    prescale_gradients gradient_predivide_factor gradient_allreduce_op zero_optimization
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer fp16 bf16 bfloat16 torch_autocast
    optimizer scheduler activation_checkpointing comms_logger tensorboard wandb comet csv_monitor
    flops_profiler wall_clock_breakdown memory_breakdown autotuning data_types checkpoint
    use_data_before_expert_parallelism hybrid_engine pipeline data_efficiency aio
    dataloader_drop_last log_level datastates_checkpointing datastates_ckpt weight_quantization
    compile timers tensor_parallel sequence_parallel_size expert_parallel vocabulary_size inference
    """
)
ZERO = names(
    """
    stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce
    allgather_partitions allgather_bucket_size overlap_comm compute_grad_norm
    load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer zenflow
    sub_group_size cpu_offload cpu_offload_param cpu_offload_use_pin_memory
    stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    stage3_gather_16bit_weights_on_model_save stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential
    stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1
    round_robin_gradients parameter_alignment zero_hpz_partition_size zero_quantized_weights
    zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear
    pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings
    enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module prefetch_bucket_size
    param_persistence_threshold model_persistence_threshold max_live_parameters
    max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold
    use_all_reduce_for_fetch_params allgather_sequential
    """
)
OFFLOAD_PARAM = names("device nvme_path buffer_count buffer_size max_in_cpu pin_memory")
OFFLOAD_OPTIMIZER = names(
    """
    device nvme_path buffer_count pin_memory pipeline_read pipeline_write fast_init ratio
    super_offload cpuadam_cores_perc
    """
)
FP16 = names(
    """
    enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis
    consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads
    """
)
BF16 = names(
    """
    enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads
    bf16_optimizer_states
    """
)
AIO = names(
    """
    block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds
    """
)
SECTIONS = {
    "": TOP,
    "zero_optimization": ZERO,
    "zero_optimization.offload_param": OFFLOAD_PARAM,
    "zero_optimization.offload_optimizer": OFFLOAD_OPTIMIZER,
    "fp16": FP16,
    "bf16": BF16,
    "aio": AIO,
}
"""Where a mapping stands in the file, and what it may hold."""
FILLED = names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
    fp16.enabled bf16.enabled
    zero_optimization.stage zero_optimization.reduce_bucket_size
    zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold
    zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.offload_optimizer.device zero_optimization.offload_optimizer.nvme_path
    zero_optimization.offload_param.device zero_optimization.offload_param.nvme_path
    optimizer.params.lr optimizer.params.betas optimizer.params.eps optimizer.params.weight_decay
    scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr
    scheduler.params.warmup_num_steps scheduler.params.total_num_steps
    """
)
"""Where `auto` is filled in, by transformers (`integrations/deepspeed.py`) or by accelerate
(`utils/dataclasses.py`, `DeepSpeedPlugin`)."""
DEEPSPEEDS_OWN_AUTO = frozenset(
    ("pipeline.stages", "data_types.keep_in_fp32_modules", "optimizer.params.torch_adam")
)
"""Where the word is DeepSpeed's own."""
