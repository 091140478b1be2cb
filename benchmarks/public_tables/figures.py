"""What has been published of the memory of a device, where its setting is fully stated. Bytes.

Sources:
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
    (arXiv:1910.02054), figure 1 and table 1: model states in mixed precision with Adam. A weight
    takes 2 bytes, its gradient 2, its states K = 12; each stage divides one more of them.
    DeepSpeed's estimators, as they are installed: `estimate_zero2_model_states_mem_needs`
    (`runtime/zero/stage_1_and_2.py`), `estimate_zero3_model_states_mem_needs` (`stage3.py`).
    The page "DeepSpeed" of transformers' documentation: what the second prints of
    `bigscience/T0_3B` on one GPU.
"""

from typing import Any

from autotune.space.sharding.sharding import Sharding

PAPER, ESTIMATORS, DOCUMENTED = "ZeRO", "DeepSpeed", "T0_3B"
TABLES = (PAPER, ESTIMATORS, DOCUMENTED)
STATES = 12
"""K: a float32 copy and two float32 moments of each weight."""
FIGURE_1 = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}
"""GB (10^9 bytes) of 7.5B weights on 64 devices, by stage; 0: nothing is divided."""
T0_3B = {"total_params": 2783_000_000, "largest_layer_params": 65_000_000}
"""As printed: cut to whole millions, so that its bytes can be told to 0.04% and 1.5% only."""
T0_3B_LINES = {
    # (weights, optimizer off the GPU, zero_init): GiB per CPU, per GPU
    (True, True, True): (70.00, 0.25),
    (False, True, True): (62.23, 5.43),
    (False, False, True): (0.37, 46.91),
}


def by_paper(parameters: float, stage: int, devices: int) -> dict[str, float]:
    """Bytes of model states on each of the devices, by part: 2, 2 and K for each weight."""
    states = (("weights", 2, 3), ("gradients", 2, 2), ("optimizer", STATES, 1))
    return {
        part: size * parameters / (devices if stage >= divided_from else 1)
        for part, size, divided_from in states
    }


def by_estimator(
    sharding: Sharding, parameters: int, largest: int, *, nodes: int, zero_init: bool = True
) -> dict[str, int] | None:
    """What DeepSpeed's estimator of the stage says; None: it has none for this.

    Returns:
        `device` and `host`: bytes of each device, and of each machine.
    """
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    machines: dict[str, Any] = {
        "total_params": parameters,
        "num_gpus_per_node": sharding.num_processes // nodes,
        "num_nodes": nodes,
        "cpu_offload": sharding.offload_optimizer_device != "none",
    }
    if sharding.zero_stage == 2:
        host, device = estimate_zero2_model_states_mem_needs(**machines)
    elif sharding.zero_stage == 3:
        host, device, _ = estimate_zero3_model_states_mem_needs(
            **machines,
            largest_layer_params=largest,
            cpu_offload_params=sharding.offload_param_device != "none",
            zero_init=zero_init,
        )
    else:
        return None
    return {"device": device, "host": host}
