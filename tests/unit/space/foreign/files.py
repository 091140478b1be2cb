"""Configurations as the tools' own examples write them."""

from collections.abc import Sequence
from typing import Any

from autotune.job.yaml_file import parse_yaml
from autotune.space.foreign.fields import Imported
from autotune.space.foreign.importing import GivenFile, Wishes, import_job

LLAMA_FACTORY = """
### model
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all

### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4

### output
output_dir: saves/llama3-8b/lora/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
"""
AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
dataset_prepared_path: last_run_prepared
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
lora_model_dir:
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules: [gate_proj, down_proj, up_proj, q_proj, v_proj, k_proj, o_proj]
wandb_project:
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
logging_steps: 1
flash_attention: true
loss_watchdog_threshold: 5.0
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
"""
TORCHTUNE = """
output_dir: /tmp/torchtune/llama3_2_1B/lora_single_device
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
  lora_dropout: 0.0
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/Llama-3.2-1B-Instruct/original/tokenizer.model
  max_seq_len: null
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/Llama-3.2-1B-Instruct/
  checkpoint_files: [model.safetensors]
  recipe_checkpoint: null
  output_dir: ${output_dir}
  model_type: LLAMA3_2
resume_from_checkpoint: False
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False
seed: null
shuffle: True
batch_size: 4
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  weight_decay: 0.01
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
epochs: 1
max_steps_per_epoch: null
gradient_accumulation_steps: 8
clip_grad_norm: null
compile: False
device: cuda
dtype: bf16
enable_activation_checkpointing: False
enable_activation_offloading: False
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/Capybara
packing: true
max_length: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 2e-4
use_peft: true
lora_r: 32
lora_alpha: 16
gradient_checkpointing: true
torch_dtype: bfloat16
eval_strategy: steps
output_dir: Qwen2.5-0.5B-SFT
"""
UNSLOTH = """
model_name: unsloth/llama-3-8b
max_seq_length: 8192
load_in_4bit: true
r: 64
lora_alpha: 32
use_gradient_checkpointing: unsloth
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
max_steps: 400
learning_rate: 2e-6
optim: adamw_8bit
seed: 3407
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
"""
DEEPSPEED = """{
\t"train_batch_size": "auto",
\t"train_micro_batch_size_per_gpu": "auto",
\t"gradient_accumulation_steps": "auto",
\t"gradient_clipping": "auto",
\t"zero_allow_untested_optimizer": true,
\t"bf16": {"enabled": "auto"},
\t"zero_optimization": {
\t\t"stage": 2,
\t\t"offload_optimizer": {"device": "cpu", "pin_memory": true},
\t\t"overlap_comm": true,
\t\t"reduce_bucket_size": 5e8
\t}
}"""


def read(text: str) -> dict[str, Any]:
    """What a file of this text holds."""
    return parse_yaml(text.replace("\t", " "), "theirs.yaml")[0]


def imported(*texts: str, **wishes: Any) -> Imported:
    """The job of files."""
    files = [GivenFile(name=f"{n}.yaml", data=read(text)) for n, text in enumerate(texts)]
    return import_job(files, Wishes(**wishes))


def fates(found: Imported, *kinds: str) -> dict[str, str]:
    """Fields that came to these ends, and the details."""
    return {fate.field: fate.detail for fate in found.fates if fate.kind in kinds}


def changed(text: str, lines: Sequence[str] = (), without: Sequence[str] = ()) -> str:
    """A file with other lines, and without some fields."""
    kept = [line for line in text.splitlines() if line.partition(":")[0] not in without]
    return "\n".join([*kept, *lines])
