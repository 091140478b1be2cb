"""Seconds that processes take to exchange data, and to move what is offloaded. Pure.

Ring algorithms: of `B` bytes among `n` devices each sends (and receives) `(n-1)/n B` for a
reduce-scatter or an all-gather, twice that for an all-reduce (Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms", 2009; NCCL's own "bus bandwidth" is reckoned so). What is exchanged
when: Rajbhandari et al., "ZeRO" (arXiv:1910.02054), section 7; torch's `fully_shard`; in stage 2
gradients are divided after each micro-step, else once a step.

ZeRO-3 gathers weights for the forward pass and, but for those that are still there, for the
backward pass.

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


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The sizes of a training's exchange. Bytes and counts of one device.

    Attributes:
        weights: of all weights, in the type they are gathered in.
        gradients: of all gradients.
        trained: how many parameters have one.
        link_bytes_per_s: between devices, in one direction.
        host_bytes_per_s: between a device and its host.
        still_gathered: of weights that ZeRO-3 leaves gathered between the passes.
    """

    weights: float
    gradients: float
    trained: float
    link_bytes_per_s: float
    host_bytes_per_s: float
    still_gathered: float = 0.0


def sent_bytes(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return what each of n devices sends to others in one optimizer step.

    With W and G bytes of weights and gradients, `a` micro-steps, s = 1 - 1/n:

        DDP, ZeRO-1   2 s G
        ZeRO-2        s (a + 1) G
        ZeRO-3        s a (2 W - still gathered + G)
        FSDP2         s (a g W + G), g = 2 where weights are gathered again for the backward pass
    """
    share = 1 - 1 / sharding.num_processes
    if sharding.distributed_type == FSDP:
        gathers = 2 if sharding.fsdp_reshard_after_forward else 1
        return share * (accumulation * gathers * exchange.weights + exchange.gradients)
    if sharding.distributed_type != DEEPSPEED:
        return share * 2 * exchange.gradients
    if sharding.zero_stage == 3:
        gathered = 2 * exchange.weights - exchange.still_gathered  # for both passes
        return share * (accumulation * gathered + accumulation * exchange.gradients)
    often = accumulation if sharding.zero_stage == 2 else 1
    return share * (
        often * exchange.gradients + exchange.gradients
    )  # and the updated weights, as large


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


def exchange_s(sharding: Sharding, exchange: Exchange, accumulation: int) -> float:
    """Return the seconds of one optimizer step that all of it takes."""
    sent_s = sent_bytes(sharding, exchange, accumulation) / exchange.link_bytes_per_s
    return sent_s + moved_s(sharding, exchange, accumulation)


@dataclass(frozen=True, kw_only=True)
class SharedRows:
    """The attention of rows whose tokens processes share.

    Attributes:
        tokens: of one process.
        queries, keys: numbers of a token in one layer: of its queries, and of its keys or values.
        layers: how many have attention.
        width: bytes of a number.
        recomputes: whether the backward pass computes attention again.
    """

    tokens: float
    queries: int
    keys: int
    layers: int
    width: int
    recomputes: bool


def shared_rows_bytes(sharding: Sharding, rows: SharedRows) -> float:
    """Return what each of p processes sends to those that share its rows, for its tokens t.

    cp_size   (3, with recomputing 4) (p - 1) 2 k t: keys and values, again in the backward pass,
              and their gradients (torch 2.13, `_context_parallel/_attention.py`)
    sp_size   (2, with recomputing 3) (1 - 1/p) (2 q + 2 k) t: all of a layer's attention, in and
              out (DeepSpeed 0.19.8, `ulysses_sp.py`); that keys are repeated where there are fewer
              heads of them than processes is left out
    """
    often = rows.recomputes + (3 if sharding.cp_size > 1 else 2)
    sent = (sharding.cp_size - 1) * 2.0 * rows.keys
    sent += (1 - 1 / sharding.sp_size) * 2 * (rows.queries + rows.keys)
    return often * sent * rows.tokens * rows.layers * rows.width


def row_buffers_bytes(sharding: Sharding, rows: SharedRows) -> float:
    """Return what one layer's attention holds besides where rows are shared.

    cp_size   keys and values of all processes, twice, and the result in float32
    sp_size   queries, keys, values and the result once more
    """
    if sharding.cp_size > 1:
        held = 2 * 2 * rows.keys * sharding.cp_size * rows.width + 4 * rows.queries
    else:
        held = 2 * (rows.queries + rows.keys) * rows.width
    return held * rows.tokens
