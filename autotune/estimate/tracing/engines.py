"""DeepSpeed's engines and FSDP2 on fake tensors: what is replaced so that they run as they do.

The world has many processes of which only this one is there. A fake process group answers every
collective at once and leaves the tensors as they are. What a launcher and accelerate would have set
is set here. Each context manager puts things back. Runs in a child only.
"""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param
import torch.distributed.fsdp._fully_shard._fully_shard as fsdp_wrapper
from accelerate.state import AcceleratorState, GradientState
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import training_args

from autotune.estimate.records import events
from autotune.estimate.tracing.tracer import Tracer
from autotune.space.sharding.sharding import DEEPSPEED, FSDP, Sharding
from autotune.training.distributed import STATE_IS_THERE, engine_environment, state_on_cpu
from autotune.training.patching import replaced, require

_SAME_ON_ALL = ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks")
_CHECKED_IN = (
    "deepspeed.runtime.zero.partitioned_param_coordinator",
    "deepspeed.runtime.zero.partition_parameters",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.utils",
)
_CHECKED_FOR_OVERFLOW = (
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
)
_LOOKING_FOR_OVERFLOW = "has_inf_or_nan"
_CHECKING = "_overflow_check_and_loss_scale_update"
_RESIZING = ("alloc_storage", "free_storage")
_SHAPES = "_propagate_tensor_meta_non_cached"
_DEFAULT_MESH = "_init_default_mesh"


@contextlib.contextmanager
def engines_on_fake_tensors(
    tracer: Tracer, sharding: Sharding, *, on_cuda: bool, fp16: bool
) -> Iterator[None]:
    """Patch what a trainer that is sharded over a fake world uses."""
    with contextlib.ExitStack() as stack:
        if sharding.distributed_type == DEEPSPEED:
            stack.enter_context(_deepspeed_on_fake_tensors(on_cuda=on_cuda))
            if fp16 and on_cuda and sharding.zero_stage == 3 and not sharding.offloads:
                stack.enter_context(_looking_for_overflow())
        if sharding.distributed_type == FSDP:
            stack.enter_context(_fsdp_on_fake_tensors(tracer, sharding.num_processes))
        yield


@contextlib.contextmanager
def _deepspeed_on_fake_tensors(*, on_cuda: bool) -> Iterator[None]:
    """Let DeepSpeed run alone and on fake values.

    No other rank is asked whether it has the same lengths; no gradient overflows, so that no
    optimizer step is left out; the CPU's Adam computes nothing, and no stream is waited for
    (`_fake_accelerator` has several).
    """
    from deepspeed.accelerator import real_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.ops.op_builder import CPUAdamBuilder

    with contextlib.ExitStack() as stack:
        accelerator = _fake_accelerator() if on_cuda else CPU_Accelerator()
        stack.enter_context(replaced(real_accelerator, "ds_accelerator", accelerator))
        stack.enter_context(replaced(torch.Tensor, "record_stream", lambda *_: None))
        nothing_on_it = replaced(torch.cpu.Stream, "synchronize", lambda _: None, absent_too=True)
        stack.enter_context(nothing_on_it)
        stack.enter_context(replaced(CPUAdamBuilder, "load", lambda *_, **__: _InPlace()))
        # `Module.to` is replaced already; what it cannot do on fake weights these could not either.
        for name, dtype in (("bfloat16", torch.bfloat16), ("float", torch.float32)):
            stack.enter_context(replaced(torch.nn.Module, name, _cast(dtype)))
        for path in _CHECKED_IN:
            module = importlib.import_module(path)
            for name in _SAME_ON_ALL:
                if hasattr(module, name):
                    stack.enter_context(replaced(module, name, lambda *_, **__: None))
        for path in _CHECKED_FOR_OVERFLOW:
            module = importlib.import_module(path)
            if hasattr(module, _LOOKING_FOR_OVERFLOW):  # else `ShardedStepPhases` raises
                finite = _finite(getattr(module, _LOOKING_FOR_OVERFLOW))
                stack.enter_context(replaced(module, _LOOKING_FOR_OVERFLOW, finite))
        yield


def _fake_accelerator() -> Any:
    """Return the accelerator of a GPU whose tensors are fake: the CPU's, with streams and events.

    DeepSpeed then takes the ways through its program that it takes on a GPU. The tracer sees the
    streams (`torch.cpu.current_stream`): an allocator keeps the memory of each of them apart.
    """
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    class FakeAccelerator(CPU_Accelerator):
        Stream = property(lambda _: torch.cpu.Stream)
        Event = property(lambda _: torch.cpu.Event)

        def is_synchronized_device(self) -> bool:
            return False  # work on other streams has to be waited for

        def use_host_timers(self) -> bool:
            return True  # nothing is timed in a trace

        def stream(self, stream: Any) -> Any:
            return contextlib.nullcontext() if stream is None else torch.cpu.stream(stream)

        def current_stream(self, device_index: int | None = None) -> Any:
            return torch.cpu.current_stream()

        def default_stream(self, device_index: int | None = None) -> Any:
            return torch.cpu._default_cpu_stream

    return FakeAccelerator()


def _cast(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda module: module.to(dtype)


@contextlib.contextmanager
def _looking_for_overflow() -> Iterator[None]:
    """Run the check of stage 3 for overflows of fp16, which a trace in bf16 leaves out.

    It looks at all gradients together, on a stream whose memory nothing else gets; `isinf` and
    `isnan` are these operators.
    """
    stage3 = importlib.import_module("deepspeed.runtime.zero.stage3").DeepSpeedZeroOptimizer_Stage3
    require(stage3, _CHECKING)
    check = getattr(stage3, _CHECKING)

    def checked(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.cpu.stream(optimizer.reduce_and_partition_stream):
            gradients = optimizer.grad_partitions_flat_buffer
            (gradients.abs() == float("inf")).any()
            (gradients != gradients).any()
        return check(optimizer, *args, **kwargs)

    with replaced(stage3, _CHECKING, checked):
        yield


def _finite(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a check that takes the same memory and finds no overflow; fake tensors hold none."""

    def finite(tensor: torch.Tensor) -> torch.Tensor:
        look(tensor)
        return torch.zeros((), dtype=torch.bool, device=tensor.device)

    return finite


class _InPlace:
    """DeepSpeed's Adam for the CPU: it changes what is there and allocates nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


@contextlib.contextmanager
def _fsdp_on_fake_tensors(tracer: Tracer, processes: int) -> Iterator[None]:
    """Let the tracer see storages that are emptied and filled again, and not DTensor's fake
    tensors."""
    require(fsdp_param, *_RESIZING)
    require(ShardingPropagator, _SHAPES)
    with contextlib.ExitStack() as stack:
        for name in _RESIZING:
            resize = _noting_resize(tracer, getattr(fsdp_param, name))
            stack.enter_context(replaced(fsdp_param, name, resize))
        untraced = _without_tracing(tracer, getattr(ShardingPropagator, _SHAPES))
        stack.enter_context(replaced(ShardingPropagator, _SHAPES, untraced))
        stack.enter_context(replaced(FakeTensor, "data_ptr", _address, absent_too=True))
        if hasattr(fsdp_wrapper, _DEFAULT_MESH):  # it would be of GPUs where there are some
            mesh = cache(lambda: init_device_mesh("cpu", (processes,)))
            stack.enter_context(replaced(fsdp_wrapper, _DEFAULT_MESH, lambda *_, **__: mesh()))
        yield


def _address(tensor: torch.Tensor) -> int:
    """Return an address of its own for each weight: accelerate tells weights apart by it."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _noting_resize(tracer: Tracer, resize: Callable[..., None]) -> Callable[[torch.Tensor], None]:
    """Return `resize`, noted: the storages of gathered weights come and go without an operator."""

    def resize_and_note(tensor: torch.Tensor) -> None:
        tracer.count_as(tensor, events.COMMUNICATION)
        old_bytes = tensor.untyped_storage().nbytes()
        resize(tensor)
        if tensor.untyped_storage().nbytes() != old_bytes:
            tracer.note_resize(tensor)

    return resize_and_note


def _without_tracing(tracer: Tracer, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, untraced: DTensor finds shapes on fake tensors of its own."""

    def untraced(*args: Any) -> Any:
        tracer.paused = True
        try:
            return function(*args)
        finally:
            tracer.paused = False

    return untraced


def rank_environment(sharding: Sharding, rank: int) -> dict[str, str]:
    """Return the environment that `accelerate launch` gives a rank; on the CPU, where traces are
    made."""
    count = str(sharding.num_processes)
    environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count}
    environment |= {"LOCAL_WORLD_SIZE": count, "ACCELERATE_TORCH_DEVICE": "cpu"}
    if sharding.distributed_type == DEEPSPEED:
        environment["DS_ACCELERATOR"] = "cpu"
    # The models are made without storage: nothing is loaded, nothing is saved.
    unlike = {
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    return environment | engine_environment(sharding, **unlike)


def sharded_config(
    config: Mapping[str, Any], deepspeed: Mapping[str, Any] | None, scratch: Path
) -> dict[str, Any]:
    """Return a flat configuration for a rank whose state is there already.

    The sizes of batches in DeepSpeed's JSON are those of the configuration; a trace of fp16 is one
    of bf16.
    """
    sharded = {**config, **STATE_IS_THERE}
    if deepspeed is not None:
        settings = {name: value for name, value in deepspeed.items() if name != "train_batch_size"}
        settings["train_micro_batch_size_per_gpu"] = config["per_device_train_batch_size"]
        settings["gradient_accumulation_steps"] = config["gradient_accumulation_steps"]
        if settings.pop("fp16", {}).get("enabled") or settings.get("bf16", {}).get("enabled"):
            settings["bf16"] = {"enabled": True}
        file = scratch / "deepspeed.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        sharded["deepspeed"] = str(file)
    return sharded


@contextlib.contextmanager
def fake_world(sharding: Sharding, rank: int) -> Iterator[None]:
    """Make this process a rank of a world in which it is the only one."""
    environment = dict(os.environ)
    os.environ.update(rank_environment(sharding, rank))
    torch.distributed.init_process_group(
        "fake", rank=rank, world_size=sharding.num_processes, store=FakeStore()
    )
    try:
        with contextlib.ExitStack() as stack:
            # transformers lets no CPU compute in 16 bits unless it is told `use_cpu`.
            stack.enter_context(
                replaced(training_args, "is_torch_bf16_gpu_available", lambda: True)
            )
            if sharding.distributed_type == DEEPSPEED:
                # accelerate's state joins DeepSpeed's group, which would compile, for minutes, what
                # ranks on CPUs exchange through shared memory: nobody is there.
                backend = importlib.import_module("deepspeed.comm.torch")
                stack.enter_context(replaced(backend, "build_shm_op", lambda: None))
            state_on_cpu(sharding, "fake")
            yield
    finally:
        _forget_state()
        _leave()
        os.environ.clear()
        os.environ.update(environment)


def _leave() -> None:
    """Destroy the process group, and what DeepSpeed keeps of it: the next trace has its own."""
    deepspeed: Any = sys.modules.get("deepspeed.comm.comm")
    if deepspeed is not None and deepspeed.cdb is not None:
        deepspeed.destroy_process_group()
        deepspeed.cdb = None
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if groups is not None:  # else the next trace, too, would hold weights once more among some
        groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _forget_state() -> None:
    """Reset the states that accelerate keeps for a whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
