"""Seconds that processes take to exchange data, and to move what is offloaded. Pure.

Ring algorithms: of `B` bytes among `n` devices each sends (and receives) `(n-1)/n B` for a
reduce-scatter or an all-gather, twice that for an all-reduce (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms", 2009; NCCL's own "bus bandwidth" is reckoned so). What is exchanged
when: Rajbhandari et al., "ZeRO" (arXiv:1910.02054), section 7; torch's `fully_shard`; in stage 2
gradients are divided after each micro-step, else once a step.

ZeRO-3 gathers weights for the forward pass and, but for those that are still there, for the
backward pass. With `zero_hpz_partition_size` (Wang et al., "ZeRO++", arXiv:2306.10209, section 3.2)
only weights that a step has just changed, in its first forward pass, come from all devices; what is
gathered later, and what is not trained at all, comes from the device's own group. So it was counted
in traces of DeepSpeed 0.19.8 on 4 ranks in groups of 2: with all weights trained and 2 micro-steps
a step gathered them once among 4 (19.4 of 19.4 million), the rest among 2; with adapters these
alone among 4 (0.8 million), the base always among 2.

Known error: no message costs time to begin with, links between devices have the full rate of the
data sheet, and nothing is hidden behind computation but gradients on their way to the host
(`hidden_s`). Weights that ZeRO-3 fetches are fetched one bucket ahead, of the size of one matrix,
so that they count as not hidden. Never held against several GPUs (`docs/unverified.md`).
"""

from dataclasses import dataclass

from autotune.space.sharding.sharding import DEEPSPEED, FSDP, Sharding

ADAM_BYTES = 28
"""Bytes that an update of one float32 parameter reads and writes: weight, gradient, two moments."""
HOST_BYTES_PER_S = 5e10
"""Assumed share of the host's memory bandwidth that one process updates with."""
BACKWARD_SHARE = 0.5
"""Of a step's time that of its backward passes: two thirds without an optimizer's part; less is
taken."""
STATE_BYTES = 16
"""Bytes of one parameter on a disk, read and written once a step: weight, two moments, and the
gradient that is put beside them (DeepSpeed's `PartitionedOptimizerSwapper`), all in float32."""
DISK_READS, DISK_WRITES = 6.5e9, 3.5e9
"""Bytes per second of a machine's disk, assumed to be one of PCIe 4.0 with four lanes (Samsung
PM9A3 U.2, by its data sheet: heise.de/-4720224); the machine's processes share it."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The sizes of a training's exchange. Bytes and counts of one device.

    Attributes:
        weights: of all weights, in the type they are gathered in.
        gradients: of all gradients.
        trained: how many parameters have one.
        link_bytes_per_s: between devices, in one direction.
        group_bytes_per_s: the same inside a group that holds all weights once more.
        host_bytes_per_s: between a device and its host.
        machines: that all processes are on, each with a disk of its own.
        still_gathered: of weights that ZeRO-3 leaves gathered between the passes.
    """

    weights: float
    gradients: float
    trained: float
    link_bytes_per_s: float
    group_bytes_per_s: float
    host_bytes_per_s: float
    machines: int = 1
    still_gathered: float = 0.0


def sent_bytes(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return what each of n devices sends to others in one optimizer step, but inside its group.

    With W and G bytes of weights and gradients, `a` micro-steps, s = 1 - 1/n:

        DDP, ZeRO-1   2 s G
        ZeRO-2        s (a + 1) G
        ZeRO-3        s a (2 W - still gathered + G)
        ZeRO-3 hpZ    s (a + 1) G, and `group_bytes` inside the group
        FSDP2         s (a g W + G), g = 2 where weights are gathered again for the backward pass
    """
    share = 1 - 1 / sharding.num_processes
    if sharding.distributed_type == FSDP:
        gathers = 2 if sharding.fsdp_reshard_after_forward else 1
        return share * (accumulation * gathers * exchange.weights + exchange.gradients)
    if sharding.distributed_type != DEEPSPEED:
        return share * 2 * exchange.gradients
    if sharding.zero_stage == 3:
        reduced = accumulation * exchange.gradients
        if sharding.zero_hpz_partition_size > 1:
            return share * (
                exchange.gradients + reduced
            )  # changed weights are as large as gradients
        return share * (accumulation * _gathered(exchange) + reduced)
    often = accumulation if sharding.zero_stage == 2 else 1
    return share * (
        often * exchange.gradients + exchange.gradients
    )  # and the updated weights, as large


def group_bytes(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return what each device sends inside the group of m that holds all weights once more.

    In one optimizer step (1 - 1/m) (a (2 W - still gathered) - G), at least 0.
    """
    if sharding.zero_hpz_partition_size == 1:
        return 0.0
    share = 1 - 1 / sharding.zero_hpz_partition_size
    return share * max(accumulation * _gathered(exchange) - exchange.gradients, 0.0)


def _gathered(exchange: Exchange) -> float:
    """Return the bytes of weights that a micro-step of ZeRO-3 gathers, for both passes."""
    return 2 * exchange.weights - exchange.still_gathered


def gradients_out_s(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return the seconds of one optimizer step for gradients that are kept on the host.

    (4 T + c G) / n / host rate: at the last micro-step they are copied in float32. Before, they
    are added up on the device, and kept in the type that is computed in:

        stage 1   c = 2 with accumulation, else 0
        stage 2   c = 2 a - 1 with accumulation, else 0
        stage 3   c = 2 a

    Source: DeepSpeed 0.19.8, `stage_1_and_2.py` (`async_accumulate_grad_in_cpu_via_gpu`,
    `async_inplace_copy_grad_to_fp32_buffer_from_gpu`) and `stage3.py` (`partition_grads`).
    """
    if sharding.offload_optimizer_device == "none":
        return 0.0
    often = {1: 2, 2: 2 * accumulation - 1}.get(sharding.zero_stage, 2 * accumulation)
    if sharding.zero_stage < 3 and accumulation == 1:
        often = 0
    moved_bytes = 4 * exchange.trained + often * exchange.gradients
    return moved_bytes / sharding.num_processes / exchange.host_bytes_per_s


def moved_s(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return the seconds of one optimizer step for what is kept on the host: copies, and the update
    there.

    optimizer   `gradients_out_s` + G / n / host rate + 28 T / n / 5e10
    weights     2 a W / n / host rate
    """
    share = 1 / sharding.num_processes
    seconds = gradients_out_s(sharding, exchange, accumulation)
    if sharding.offload_optimizer_device != "none":
        seconds += share * exchange.gradients / exchange.host_bytes_per_s
        seconds += share * ADAM_BYTES * exchange.trained / HOST_BYTES_PER_S
    if sharding.offload_param_device != "none":
        seconds += share * accumulation * 2 * exchange.weights / exchange.host_bytes_per_s
    return seconds


def hidden_s(
    sharding: Sharding, exchange: Exchange, accumulation: int, step_time_s: float
) -> float:
    """Return the seconds of `gradients_out_s` that the backward passes of a step hide: with
    `overlap_comm` DeepSpeed copies on a stream of its own.

    Args:
        step_time_s: of an optimizer step without any exchange.
    """
    if not sharding.overlap_comm:
        return 0.0
    return min(gradients_out_s(sharding, exchange, accumulation), BACKWARD_SHARE * step_time_s)


def disk_s(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return the seconds of one optimizer step for what is kept on the disks of the machines.

    states      16 T (1 / read rate + 1 / write rate) / machines
    weights     (2 a W / read rate + W / write rate) / machines
    """
    reads = writes = 0.0
    if sharding.offload_optimizer_device == "nvme":
        reads = writes = STATE_BYTES * exchange.trained
    if sharding.offload_param_device == "nvme":
        reads += accumulation * 2 * exchange.weights
        writes += exchange.weights
    return (reads / DISK_READS + writes / DISK_WRITES) / exchange.machines


def exchange_s(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return the seconds of one optimizer step that all of it takes."""
    between_all_bytes = sent_bytes(sharding, exchange, accumulation)
    inside = group_bytes(sharding, exchange, accumulation) / exchange.group_bytes_per_s
    offload_s = moved_s(sharding, exchange, accumulation) + disk_s(sharding, exchange, accumulation)
    return between_all_bytes / exchange.link_bytes_per_s + inside + offload_s
