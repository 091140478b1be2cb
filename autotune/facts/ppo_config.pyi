"""Fields of TRL's `PPOConfig` as 1.12, its last, has them, so that they are known with any TRL.

`facts/stack.py` reads this file; nothing imports it.
"""

from typing import Literal

class PPOConfig:
    """Fields, their types and their defaults."""

    learning_rate: float = 3e-06
    dataset_num_proc: int | None = None
    num_mini_batches: int = 1
    total_episodes: int | None = None
    local_rollout_forward_batch_size: int = 64
    num_sample_generations: int = 10
    response_length: int = 53
    stop_token: Literal["eos"] | None = None
    stop_token_id: int | None = None
    temperature: float = 0.7
    missing_eos_penalty: float | None = None
    sft_model_path: str = "EleutherAI/pythia-160m"
    world_size: int | None = None
    num_total_batches: int | None = None
    micro_batch_size: int | None = None
    local_batch_size: int | None = None
    batch_size: int | None = None
    local_mini_batch_size: int | None = None
    mini_batch_size: int | None = None
    push_to_hub: bool = False
    reward_model_path: str = "EleutherAI/pythia-160m"
    model_adapter_name: str | None = None
    ref_adapter_name: str | None = None
    num_ppo_epochs: int = 4
    whiten_rewards: bool = False
    kl_coef: float = 0.05
    kl_estimator: Literal["k1", "k3"] = "k1"
    cliprange: float = 0.2
    vf_coef: float = 0.1
    cliprange_value: float = 0.2
    gamma: float = 1.0
    lam: float = 0.95
    ds3_gather_for_generation: bool = True
