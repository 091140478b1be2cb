"""The names that DeepSpeed's file may have where no class declares them (0.19; newer ones may know
more). Pure data.

Sources: `deepspeed/runtime/config.py` and what it calls, `runtime/swap_tensor/constants.py`.
"""


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
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
AIO = names(
    """
    block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds
    """
)
SECTIONS = {"": TOP, "aio": AIO}
"""Where a mapping stands in the file, and what it may hold; DeepSpeed's classes declare the other
sections (`facts/launch_fields.py`)."""
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
